#include "engine/golden.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "engine/fnv1a.h"
#include "text/error.h"
#include "text/json.h"

namespace hybridge {

namespace {

constexpr uint64_t VERSION = 1;
constexpr size_t MOST_TOKENS = 1024, MOST_IDS = 64;

std::string shown(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2g", share);
  return text;
}

Numbers numbers(const text::Json& list, uint64_t most_each, size_t most) {
  Numbers found;
  list.each([&](const text::Json& each) {
    found.push_back(static_cast<int64_t>(each.integer(most_each)));
    if (found.size() > most) list.fail(("a list of at most " + std::to_string(most)).c_str());
  });
  return found;
}

class Player {
 public:
  Player(Session& session, const text::Json& file) : session_(session), largest_(file["largest"].number()) {
    ids_ = numbers(file["ids"], static_cast<uint64_t>(session.info().vocab_size) - 1, MOST_IDS);
    if (!(largest_ > 0)) file["largest"].fail("a number above 0");
    if (session.info().has_drafter()) session.keep_hidden(true);
  }

  // Runs a step, and adds its error and its bits.
  Status play(const text::Json& step, Replay& replay) {
    const std::string_view call = step["call"].string();
    if (call == "commit") return add(session_.commit(number(step["count"])), replay);
    if (call == "snapshot") return add(session_.snapshot(number(step["slot"])), replay);
    if (call == "restore") return add(session_.restore(number(step["slot"])), replay);
    const Numbers tokens = numbers(step["tokens"], INT64_MAX, MOST_TOKENS);
    if (tokens.empty()) step["tokens"].fail("a list of tokens");
    if (call == "draft") {
      return add(HYBRIDGE_TRY(session_.draft(tokens[0], step["limit"].integer(MOST_TOKENS))).tokens, replay);
    }
    if (call == "prefill") return compare(HYBRIDGE_TRY(session_.prefill(tokens)), step["rows"], replay);
    if (call == "decode") return compare(HYBRIDGE_TRY(session_.decode(tokens[0])), step["rows"], replay);
    if (call == "verify") return compare(HYBRIDGE_TRY(session_.verify(tokens)), step["rows"], replay);
    step["call"].fail("a call that is known");
  }

 private:
  static int64_t number(const text::Json& value) { return static_cast<int64_t>(value.integer(MOST_TOKENS)); }

  static Status add(const Result<int64_t>& length, Replay& replay) {
    if (length.ok()) replay.bits.push_back(static_cast<uint64_t>(*length));
    return length.status();
  }

  static Status add(const Numbers& tokens, Replay& replay) {
    replay.bits.push_back(fnv1a(tokens.data(), tokens.size() * sizeof(int64_t)));
    return Status();
  }

  Status compare(const Logits& logits, const text::Json& rows, Replay& replay) {
    const size_t count = logits.tokens();
    if (!rows.is_array() || rows.size() != count) rows.fail("a list of a row for each token");
    for (size_t row = 0; row < count; ++row) {
      const text::Json wanted = rows.item(row);
      if (!wanted.is_array() || wanted.size() != ids_.size()) wanted.fail("a list of a logit for each id");
      for (size_t i = 0; i < ids_.size(); ++i) {
        const double error = std::abs(logits[row][static_cast<size_t>(ids_[i])] - wanted.item(i).number()) / largest_;
        replay.worst = error <= replay.worst ? replay.worst : error;
      }
    }
    replay.bits.push_back(fnv1a(logits.all().data(), logits.all().size_bytes()));
    return Status();
  }

  Session& session_;
  double largest_;
  Numbers ids_;
};

// The words of what is wrong with the step at `place`.
std::string about(size_t place, const text::Json& step, const std::string& words) {
  return "step " + std::to_string(place + 1) + " of the golden steps (" + std::string(step["call"].string()) + ") " +
         words;
}

Result<Replay> play(Session& session, const text::Json& file) {
  if (file["version"].integer(UINT32_MAX) != VERSION)
    return Status(HYBRIDGE_INVALID_ARTIFACT, "the golden steps are of another version; export the model again");
  Replay replay{.tolerance = file["tolerance"].number()};
  if (!(0 < replay.tolerance && replay.tolerance <= 1)) file["tolerance"].fail("a number above 0, at most 1");
  replay.instruction_set = file["instruction_set"].string_or("");
  replay.version = file["made_by"].string_or("");
  Player player(session, file);
  const text::Json steps = file["steps"];
  if (!steps.is_array() || steps.size() == 0 || steps.size() > MOST_GOLDEN_STEPS) steps.fail("a list of a few steps");
  replay.has_bits = replay.are_same = !steps.item(0)["bits"].is_missing();
  for (size_t i = 0; i < steps.size(); ++i) {
    const text::Json step = steps.item(i);
    if (const Status done = player.play(step, replay); !done.ok())
      return Status(done.code(), about(i, step, "failed: " + done.words()));
    if (!(replay.worst <= replay.tolerance)) {
      const std::string error = shown(replay.worst), most = shown(replay.tolerance);
      return Status(
          HYBRIDGE_INVALID_ARTIFACT,
          about(i, step, "is off by " + error + " of the largest logit, where " + most) +
              " is allowed: the weights or the program were changed, or this device computes wrongly; copy the artifact again"
      );
    }
    if (!replay.has_bits) continue;
    char bits[17];
    std::snprintf(bits, sizeof bits, "%016llx", static_cast<unsigned long long>(replay.bits.back()));
    replay.are_same = replay.are_same && step["bits"].string() == bits;
  }
  return replay;
}

}  // namespace

Result<Replay> replay_golden(Session& session, std::string_view text) {
  try {
    const text::JsonDocument document(text);
    return play(session, document.root("golden.json"));
  } catch (const text::TextError& error) {
    return Status(
        HYBRIDGE_INVALID_ARTIFACT,
        "the golden steps are damaged (" + std::string(error.what()) + "); copy the artifact again"
    );
  }
}

}  // namespace hybridge
