// hybridge-cli bench: measures a device with an artifact, as hybridge bench --device does.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

#include "arguments.h"
#include "commands.h"
#include "failure.h"
#include "output.h"
#include "text_model.h"

namespace hybridge::cli {

namespace {

constexpr double SECONDS = 2;  // for each operation, if the context has room for it
constexpr size_t PROMPT = 512, MOST_CONTEXT = size_t(1) << 40;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// The seconds of a call, which must answer with HYBRIDGE_OK.
template <typename Call>
double seconds_of(Call&& call) {
  const double began = now();
  check(call(), "the measurement failed");
  return now() - began;
}

double median(std::vector<double> numbers) {
  std::ranges::sort(numbers);
  const size_t middle = numbers.size() / 2;
  return numbers.size() % 2 == 1 ? numbers[middle] : (numbers[middle - 1] + numbers[middle]) / 2;
}

struct VerifyTimes {
  size_t length;
  double verify_seconds, commit_seconds;
};

class Bench {
 public:
  Bench(const ArtifactFolder& folder, size_t context) : model_(open_model(folder)), context_(context) {
    check(hybridge_model_info(model_, &info_), folder.path());
    room_ = info_.max_seq_len - static_cast<int64_t>(context) - info_.verify_len;
    if (room_ < 1) {
      throw Misuse(
          "a context of " + std::to_string(context) + " tokens leaves no room in " + std::to_string(info_.max_seq_len) +
          "; give a smaller --context."
      );
    }
    check(hybridge_session_open(model_, session_.out()), folder.path() + " has no room for a session");
  }

  double decode_seconds() {
    fill();
    const auto decode = [&](size_t i) {
      return seconds_of([&] { return hybridge_decode(session_, token(i), nullptr); });
    };
    return median(for_a_while(room_, decode));
  }

  // Of each length that blocks are verified in, and of commits of half of it.
  std::vector<VerifyTimes> verify_times() {
    size_t count = 0;
    check(hybridge_model_verify_lens(model_, nullptr, 0, &count), "the measurement failed");
    std::vector<int64_t> lengths(count);
    check(hybridge_model_verify_lens(model_, lengths.data(), count, &count), "the measurement failed");
    std::vector<VerifyTimes> all;
    for (const int64_t length : lengths) {
      const std::vector<int64_t> block = tokens(static_cast<size_t>(length));
      const int64_t accepted = std::max<int64_t>(1, length / 2);
      fill();
      std::vector<double> commits;
      const auto verifies = for_a_while(std::max<int64_t>(1, room_ / accepted), [&](size_t) {
        const double seconds = seconds_of([&] {
          return hybridge_verify(session_, block.data(), block.size(), nullptr);
        });
        commits.push_back(seconds_of([&] { return hybridge_commit(session_, accepted); }));
        return seconds;
      });
      all.push_back({block.size(), median(verifies), median(commits)});
    }
    return all;
  }

  double prefill_tokens_per_second() {
    const std::vector<int64_t> prompt = tokens(std::min<size_t>(PROMPT, static_cast<size_t>(info_.max_seq_len)));
    const auto seconds = for_a_while(PROMPT, [&](size_t) {
      check(hybridge_reset(session_), "the measurement failed");
      return seconds_of([&] { return hybridge_prefill(session_, prompt.data(), prompt.size(), nullptr); });
    });
    return static_cast<double>(prompt.size()) / median(seconds);
  }

 private:
  int64_t token(size_t i) const { return (7 * static_cast<int64_t>(i) + 11) % info_.vocab_size; }

  std::vector<int64_t> tokens(size_t count) const {
    std::vector<int64_t> all(count);
    for (size_t i = 0; i < count; i++) all[i] = token(i);
    return all;
  }

  void fill() {
    check(hybridge_reset(session_), "the measurement failed");
    const std::vector<int64_t> before = tokens(context_);
    check(hybridge_prefill(session_, before.data(), before.size(), nullptr), "the measurement failed");
  }

  // What `measure` returns of at most `most` times, as long as they last.
  template <typename Measure>
  static std::vector<double> for_a_while(int64_t most, Measure&& measure) {
    std::vector<double> all;
    for (const double began = now();
         static_cast<int64_t>(all.size()) < most && (all.empty() || now() - began < SECONDS);) {
      all.push_back(measure(all.size()));
    }
    return all;
  }

  ModelHandle model_;
  SessionHandle session_;
  hybridge_info info_ = {};
  size_t context_;
  int64_t room_ = 0;
};

}  // namespace

void bench(Words words) {
  std::string artifact;
  size_t context = 128, threads = 0;
  bool json = false;
  Arguments arguments(
      "bench", "Measure how fast this device is: a decode, verifies and commits, and reading a prompt."
  );
  arguments.word("ARTIFACT", "An exported artifact: the folder that 'hybridge export' wrote.", artifact);
  arguments.whole("--context", "Number of tokens in the text before what is measured.", context, 1, MOST_CONTEXT);
  declare_threads(arguments, threads);
  arguments.flag("--json", "Print the result as JSON on stdout.", json);
  if (!arguments.read(words)) return;

  check(hybridge_set_threads(threads), "the threads do not start");
  Bench bench(ArtifactFolder(artifact), context);
  const double decode = bench.decode_seconds();
  const std::vector<VerifyTimes> verifies = bench.verify_times();
  const double prefill = bench.prefill_tokens_per_second();
  if (json) {
    JsonObject shown;
    shown.add("threads", hybridge_threads());
    shown.add("context", context);
    shown.add("decode_milliseconds", 1e3 * decode);
    shown.add("decode_tokens_per_second", 1 / decode);
    for (const auto& [length, verify, commit] : verifies) {
      shown.add("verify_" + std::to_string(length) + "_milliseconds", 1e3 * verify);
      shown.add("commit_" + std::to_string(std::max<size_t>(1, length / 2)) + "_milliseconds", 1e3 * commit);
    }
    shown.add("prefill_tokens_per_second", prefill);
    write_out(shown.text());
    return;
  }
  std::printf("%zu threads, after %zu tokens\n\n", hybridge_threads(), context);
  std::printf("%-16s %10s %10s %10s\n", "", "ms", "tokens/s", "decodes");
  const auto row = [&](const std::string& name, double seconds, size_t tokens) {
    const std::string speed = tokens > 0 ? formatted("%.1f", static_cast<double>(tokens) / seconds) : "";
    std::printf("%-16s %10.3f %10s %10.2f\n", name.c_str(), 1e3 * seconds, speed.c_str(), seconds / decode);
  };
  row("decode", decode, 1);
  for (const auto& [length, verify, commit] : verifies) {
    row("verify of " + std::to_string(length), verify, length);
    row("commit of " + std::to_string(std::max<size_t>(1, length / 2)), commit, 0);
  }
  std::printf("%-16s %10s %10.1f\n", "prefill", "", prefill);
}

}  // namespace hybridge::cli
