// Replays operations on sessions over one program, as an app would call them, and says what came of each.
//
//   hybridge_replay MODEL.pte SESSIONS [LIBRARY ...] < operations
//
// Libraries bring operators that are not linked in. Each line of the input is one operation on one of the sessions 0, 1, …:
//
//   0 prefill TOKEN ...      0 decode TOKEN       0 verify TOKEN ...      0 commit COUNT
//   0 snapshot SLOT          0 restore SLOT       0 reset                 0 save PATH      0 load PATH
//   0 generate MOST BLOCK plain|lookup|own|model|ask TOKEN ...
//   0 draft_model PATH       another model.pte, which drafts where a generation says "model"
//   0 mask MODULUS           a token may come where it and the text's length add up to a multiple; 0: any token
//   0 keep 0|1               0 draft TOKEN LIMIT      of the drafter in the program
//   0 keep_as NUMBER         0 resume NUMBER      0 drop NUMBER     checkpoints by numbers, of all sessions
//   0 cache BYTES            0 bring TOKEN ...    to a text, by a prefix cache of so many bytes, of all sessions
//   0 clock SECONDS ...      of the generations behind it: each look at the clock is so much later; none: the real one
//   0 sampling TEMPERATURE TOP_K TOP_P MIN_P PENALTY seed|noise NUMBER   of the generations behind it, in all sessions
//                            noise: without a seed, and yet the same each time
//
// and is answered by one line, behind which so many logits follow, float32 in this processor's byte order:
//
//   ok LENGTH LOGITS         the session's length afterwards
//   refused Error::NAME LENGTH   executorch::runtime::Error; a line that is no operation is refused as InvalidArgument
//   drafted LENGTH TOKEN ...
//   kept LENGTH BYTES SHARED     of a checkpoint: its own bytes, and whether it shares rows with others
//   brought LENGTH KNOWN COUNT BYTES     tokens that were not read; how many checkpoints there are now, and their bytes
//   generated LENGTH PROPOSED ACCEPTED VERIFIES ROLLBACKS TOKEN ...
//
// A generation that asks for a proposal prints "propose LIMIT TOKEN ...", with the tokens of the text since it asked last, and
// reads a line of tokens. The first line of all is "ready", once everything is loaded.

#include <dlfcn.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <hybridge/block_drafter.h>
#include <hybridge/draft_model.h>
#include <hybridge/prefix_cache.h>
#include <hybridge/speculative.h>

namespace {

using hybridge::Error;
using hybridge::Result;
using Numbers = std::vector<int64_t>;

Numbers numbers(std::istream& in) {
  Numbers values;
  for (int64_t value; in >> value;) values.push_back(value);
  return values;
}

// Answers go where standard output went; what libraries print goes to standard error.
FILE* claim_stdout() {
  FILE* answers = ::fdopen(::dup(STDOUT_FILENO), "wb");
  ::dup2(STDERR_FILENO, STDOUT_FILENO);
  return answers;
}

// A clock that passes as it is told to.
struct Clock {
  static inline std::vector<double> steps;
  static inline size_t looks = 0;
  static inline double now = 0;

  static double look() { return now += steps[looks++ % steps.size()]; }
};

// Noise that is told, for generations without a seed.
struct Noise {
  static inline uint64_t number = 0;

  static uint64_t draw() { return number; }
};

class Replay {
 public:
  Replay(std::vector<std::unique_ptr<hybridge::Session>> sessions, FILE* answers)
      : sessions_(std::move(sessions)), answers_(answers) {}

  void run() {
    say("ready\n");
    for (std::string line; std::getline(std::cin, line);) {
      std::istringstream in(line);
      size_t index = 0;
      const bool is_known = in >> index && index < sessions_.size();
      const Error error = is_known ? play(*sessions_[index], in) : Error::InvalidArgument;
      const int64_t length = is_known ? sessions_[index]->length() : 0;
      if (error != Error::Ok) say(std::string("refused ") + to_string(error) + " " + std::to_string(length) + "\n");
    }
  }

  // For draft tokens from outside: hybridge::Drafter.
  Numbers propose(hybridge::Tokens text, size_t limit) {
    std::string line = "propose " + std::to_string(limit);
    for (int64_t token : text.subspan(told_)) line += " " + std::to_string(token);
    told_ = text.size();
    say(line + "\n");
    std::getline(std::cin, line);
    std::istringstream in(line);
    return numbers(in);
  }

 private:
  Error play(hybridge::Session& session, std::istream& in) {
    std::string name;
    if (!(in >> name)) return Error::InvalidArgument;
    if (name == "save" || name == "load") return files(session, name, in);
    if (name == "generate") return generate(session, in);
    if (name == "sampling") return sample(session, in);
    if (name == "clock") return set_clock(session, in);
    if (name == "draft_model") return use_draft_model(session, in);
    const Numbers values = numbers(in);
    if (!in.eof()) return Error::InvalidArgument;  // something that is no whole number
    if (name == "prefill") return answer(session, session.prefill(values));
    if (name == "verify") return answer(session, session.verify(values));
    if (name == "reset") return answer(session, session.reset());
    if (name == "draft") return draft(session, values);
    if (name == "bring") return bring(session, values);
    if (values.size() != 1) return Error::InvalidArgument;
    if (name == "keep") return session.keep_hidden(values[0] != 0), answer(session, Result<int64_t>(session.length()));
    if (name == "keep_as" || name == "resume" || name == "drop") return checkpoints(session, name, values[0]);
    if (name == "cache") return cache(session, values[0]);
    if (name == "mask") return modulus_ = static_cast<size_t>(values[0]), answer(session, Result<int64_t>(session.length()));
    if (name == "decode") return answer(session, session.decode(values[0]));
    if (name == "commit") return answer(session, session.commit(values[0]));
    if (name == "snapshot") return answer(session, session.snapshot(values[0]));
    if (name == "restore") return answer(session, session.restore(values[0]));
    return Error::InvalidArgument;
  }

  Error files(hybridge::Session& session, const std::string& name, std::istream& in) {
    std::string path;
    std::getline(in >> std::ws, path);
    if (name == "load") return answer(session, session.load(path));
    const Error error = session.save(path);
    return error == Error::Ok ? answer(session, Result<int64_t>(session.length())) : error;
  }

  Error generate(hybridge::Session& session, std::istream& in) {
    hybridge::Generation options{.sampling = sampling_, .mask = mask(), .entropy = Noise::draw};
    if (!Clock::steps.empty()) options.clock = Clock::look;
    std::string drafter;
    in >> options.max_new_tokens >> options.block_length >> drafter;
    const Numbers prompt = numbers(in);
    hybridge::NoDrafter none;
    hybridge::PromptLookup lookup;
    told_ = 0;
    if (drafter == "plain") return generate(session, prompt, options, none);
    if (drafter == "lookup") return generate(session, prompt, options, lookup);
    if (drafter == "own" && session.facts().has_drafter()) {
      hybridge::BlockDrafter own(session);
      return generate(session, prompt, options, own);
    }
    if (drafter == "model" && draft_model_) return generate(session, prompt, options, *draft_model_);
    if (drafter == "ask") return generate(session, prompt, options, *this);
    return Error::InvalidArgument;
  }

  template <hybridge::Drafter D>
  Error generate(hybridge::Session& session, const Numbers& prompt, hybridge::Generation options, D& drafter) {
    const auto done = hybridge::generate(session, prompt, options, drafter, [](int64_t) { return true; });
    if (!done.ok()) return done.error();
    std::ostringstream line;
    line << "generated " << session.length() << ' ' << done->proposed << ' ' << done->accepted << ' ' << done->verifies << ' '
         << done->rollbacks;
    for (int64_t token : done->tokens) line << ' ' << token;
    say(line.str() + "\n");
    return Error::Ok;
  }

  Error sample(const hybridge::Session& session, std::istream& in) {
    hybridge::Sampling read;
    std::string use;
    in >> read.temperature >> read.top_k >> read.top_p >> read.min_p >> read.repetition_penalty >> use >> Noise::number;
    if (!in || (use != "seed" && use != "noise")) return Error::InvalidArgument;
    if (use == "seed") read.seed = Noise::number;
    sampling_ = read;
    return answer(session, Result<int64_t>(session.length()));
  }

  Error set_clock(const hybridge::Session& session, std::istream& in) {
    Clock::steps.clear();
    Clock::looks = 0;
    for (double step; in >> step;) Clock::steps.push_back(step);
    return answer(session, Result<int64_t>(session.length()));
  }

  Error use_draft_model(const hybridge::Session& session, std::istream& in) {
    std::string path;
    std::getline(in >> std::ws, path);
    const auto model = ET_UNWRAP(hybridge::Model::load(path.c_str()));
    auto drafter = hybridge::DraftModel::create(model, session.facts());
    if (!drafter.ok()) return drafter.error();
    draft_model_.emplace(std::move(*drafter));
    return answer(session, Result<int64_t>(session.length()));
  }

  hybridge::Mask mask() const {
    if (modulus_ == 0) return nullptr;
    return [modulus = modulus_](hybridge::Tokens text, std::span<float> logits) {
      for (size_t token = 0; token < logits.size(); ++token) {
        if ((token + text.size()) % modulus != 0) logits[token] = -INFINITY;
      }
    };
  }

  Error draft(hybridge::Session& session, const Numbers& values) {
    if (values.size() != 2 || values[1] < 1) return Error::InvalidArgument;
    const auto drafted = session.draft(values[0], static_cast<size_t>(values[1]));
    if (!drafted.ok()) return drafted.error();
    std::string line = "drafted " + std::to_string(session.length());
    for (int64_t token : drafted->tokens) line += " " + std::to_string(token);
    say(line + "\n");
    return Error::Ok;
  }

  Error checkpoints(hybridge::Session& session, const std::string& name, int64_t number) {
    if (name == "keep_as") {
      const auto kept = kept_[number] = session.checkpoint();
      return say_all("kept", {session.length(), of(kept->bytes()), kept->segment->parent != nullptr});
    }
    const auto found = kept_.find(number);
    if (found == kept_.end()) return Error::InvalidArgument;
    if (name == "resume") return answer(session, session.resume(*found->second));
    kept_.erase(found);
    return answer(session, Result<int64_t>(session.length()));
  }

  Error cache(const hybridge::Session& session, int64_t bytes) {
    cache_ = std::make_unique<hybridge::PrefixCache>(static_cast<size_t>(bytes));
    return answer(session, Result<int64_t>(session.length()));
  }

  Error bring(hybridge::Session& session, const Numbers& text) {
    if (cache_ == nullptr) return Error::InvalidArgument;
    const auto known = hybridge::bring_to(session, text, *cache_);
    if (!known.ok()) return known.error();
    return say_all("brought", {session.length(), *known, of(cache_->size()), of(cache_->bytes())});
  }

  static int64_t of(size_t number) { return static_cast<int64_t>(number); }

  Error say_all(std::string line, const Numbers& numbers) {
    for (int64_t number : numbers) line += " " + std::to_string(number);
    say(line + "\n");
    return Error::Ok;
  }

  Error answer(const hybridge::Session& session, const Result<hybridge::Logits>& logits) {
    if (!logits.ok()) return logits.error();
    const auto all = logits->all();
    say("ok " + std::to_string(session.length()) + " " + std::to_string(all.size()) + "\n", all);
    return Error::Ok;
  }

  Error answer(const hybridge::Session& session, const Result<int64_t>& length) {
    if (!length.ok()) return length.error();
    say("ok " + std::to_string(session.length()) + " 0\n");
    return Error::Ok;
  }

  void say(const std::string& line, std::span<const float> logits = {}) {
    std::fwrite(line.data(), 1, line.size(), answers_);
    std::fwrite(logits.data(), sizeof(float), logits.size(), answers_);
    std::fflush(answers_);
  }

  std::vector<std::unique_ptr<hybridge::Session>> sessions_;
  FILE* answers_;
  hybridge::Sampling sampling_;
  std::optional<hybridge::DraftModel> draft_model_;
  size_t modulus_ = 0;
  std::map<int64_t, std::shared_ptr<const hybridge::Checkpoint>> kept_;
  std::unique_ptr<hybridge::PrefixCache> cache_;
  size_t told_ = 0;
};

int fail(const std::string& what, int code) {
  std::cerr << "hybridge_replay: " << what << std::endl;
  return code;
}

}  // namespace

int main(int argc, char** argv) {
  const size_t count = argc < 3 ? 0 : std::strtoul(argv[2], nullptr, 10);
  if (count == 0) return fail("give the path of a model.pte, the number of sessions, and libraries of operators", 2);
  FILE* answers = claim_stdout();
  for (int i = 3; i < argc; ++i) {
    if (::dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL) == nullptr) return fail(::dlerror(), 1);
  }
  const auto model = hybridge::Model::load(argv[1]);
  if (!model.ok()) return fail(std::string(argv[1]) + " does not load: " + to_string(model.error()), 1);
  std::vector<std::unique_ptr<hybridge::Session>> sessions;
  while (sessions.size() < count) {
    auto session = hybridge::Session::create(*model);
    if (!session.ok()) return fail(std::string("no session over it: ") + to_string(session.error()), 1);
    sessions.push_back(std::move(*session));
  }
  Replay(std::move(sessions), answers).run();
}
