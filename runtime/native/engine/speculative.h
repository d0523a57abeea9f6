// Generation, plain and speculative, over one loop: propose, verify, accept, commit.
//
//   hybridge::PromptLookup lookup;
//   hybridge::Generator generator(session, {.max_new_tokens = 64}, {&lookup});
//   auto done = generator.run(prompt, [](int64_t token) { return show(token); });
//
// A draft token is accepted if it is what the model itself would have gone on with, by its best logit or by the draw of
// that place, so the text is the same with every drafter. Without a seed a drafter may draw its tokens, which are then
// accepted so that the distribution is the same (engine/sampling.h).
#ifndef HYBRIDGE_ENGINE_SPECULATIVE_H
#define HYBRIDGE_ENGINE_SPECULATIVE_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "engine/draft_length_controller.h"
#include "engine/drafter.h"
#include "engine/model_info.h"
#include "engine/logits.h"
#include "engine/round_costs.h"
#include "engine/sampling.h"
#include "engine/session.h"
#include "engine/status.h"

namespace hybridge {

double seconds_now();

// The tokens, at most `limit`, that come next whatever the model says; none where it has a choice.
using Forced = std::function<std::vector<int64_t>(Tokens text, size_t limit)>;

// Returns the number of proposed tokens, from the first on, that may follow the text.
using Fitting = std::function<size_t(Tokens text, Tokens proposed)>;

// Called with each new token and the logits [V] that it was drawn from.
using Watch = std::function<void(int64_t token, std::span<const float> logits)>;

// Called with each new token; false ends the generation.
using OnToken = std::function<bool(int64_t)>;

// Lets other sessions of a model run between two rounds of a generation: taken before the program runs, released after
// it.
class Turns {
 public:
  virtual ~Turns() = default;
  virtual void take() = 0;
  virtual void release() = 0;
};

// block_length: tokens that are verified at once, the known one included; 0 for what is fastest by what is measured,
// plain decoding included (engine/draft_length_controller.h). cancelled: another thread may set it while the
// generation runs. mask: what each token may be, if not any; forced and fitting save time where it leaves no choice,
// and on draft tokens that it refuses; why: says in words why it leaves no token, or nothing. watch: sees each new
// token. on_read: called between two chunks of the prompt. wait_for: called by a conversation before the answer's first
// token with the text that ends the answer's reasoning, empty without one, from where on the mask counts.
// stop_after_reasoning: a conversation's stop strings do not count in its reasoning. turns: of this generation, which
// are taken while the program runs and not between two rounds; null if nothing else runs. For tests that repeat
// themselves: clock, in seconds, and noise, the seed of a sampling without one.
struct GenerationOptions {
  size_t max_new_tokens = 64, block_length = 0;
  const std::atomic<bool>* cancelled = nullptr;
  Sampling sampling = {};
  Mask mask = nullptr;
  Forced forced = nullptr;
  Fitting fitting = nullptr;
  std::function<std::string()> why = nullptr;
  std::function<void(std::string)> wait_for = nullptr;
  bool stop_after_reasoning = false;
  Watch watch = nullptr;
  OnRead on_read = nullptr;
  Turns* turns = nullptr;
  std::function<double()> clock = seconds_now;
  std::optional<uint64_t> noise = std::nullopt;
};

// proposed and accepted count draft tokens, forced ones included, of which `forced` counts the accepted ones; rollbacks
// the blocks that were not accepted whole. Seconds are those of the system, by phase; new_seconds is the time of all
// new tokens after the first, without what on_token takes.
struct Generated {
  std::vector<int64_t> tokens;
  size_t proposed = 0, accepted = 0, verifies = 0, decodes = 0, rollbacks = 0, forced = 0;
  double prefill_seconds = 0, draft_seconds = 0, verify_seconds = 0, commit_seconds = 0, decode_seconds = 0,
         new_seconds = 0;
};

// One generation, a round at a time: `begin`, `next` as long as all tokens are wanted and there are any, `end`. In
// between, the session is to be left alone. The last token given is not committed yet: it waits for the next round.
class Generator {
 public:
  // drafters: none for plain decoding; of several, each round asks the one that promises the most tokens a second.
  Generator(Session& session, GenerationOptions options, std::vector<Drafter*> drafters);

  Generator(const Generator&) = delete;
  Generator& operator=(const Generator&) = delete;

  // Reads the prompt; the first token. Refuses what `run` does.
  Result<Tokens> begin(Tokens prompt);

  // All tokens that were given last are wanted; what follows them. None where the context is full, where there are
  // max_new_tokens, and where it is cancelled. INVALID_STATE after a call that failed: the session's text may lack
  // tokens.
  Result<Tokens> next();

  // The first `taken` tokens that were given last are wanted, and no more come. The session's text then ends just
  // before the last one.
  Status end(size_t taken);

  // Runs the generation to its end. It ends early after an end-of-sequence token, where the context is full, where
  // on_token answers false, or where it is cancelled; the session's text then ends just before the last token.
  // Cancelled before its first token it is CANCELLED, and the session's text is what it was. Refuses what `prefill`
  // does, a max_new_tokens of 0 and a sampling that makes no distribution. With draft tokens outside the vocabulary
  // (INVALID_TOKEN), a mask that leaves no token (INVALID_GRAMMAR) and logits that are NaN, tokens that were given may
  // be committed.
  Result<Generated> run(Tokens prompt, const OnToken& on_token);

  const GenerationOptions& options() const { return options_; }
  const Generated& done() const { return done_; }

  // The draft tokens that were verified for the last tokens; whether a grammar forced them.
  Tokens proposed() const { return now_.proposed; }
  bool was_forced() const { return now_.is_forced; }

 private:
  Status nothing_allowed() const;

  // Runs a step of the generation in its turn.
  template <typename Step>
  std::invoke_result_t<Step> in_turn(Step&& step);

  Result<Tokens> read(Tokens prompt);

  Result<Tokens> follow();

  // drafter: proposed, for a block of `planned` tokens. seconds: until its tokens were there; drafting: of these, those
  // of the drafter's proposal; comparing: those of proposals that are only compared, the last one by `compared`.
  struct Round {
    std::vector<int64_t> tokens = {}, proposed = {};
    bool is_forced = false, is_counted = false;
    Drafter *drafter = nullptr, *compared = nullptr;
    size_t planned = 0;
    double seconds = 0, drafting = 0, comparing = 0;
  };

  bool is_cancelled() const { return options_.cancelled != nullptr && *options_.cancelled; }
  DraftLengthController& controller_of(Drafter& drafter) const { return drafter.controller(&session_.info()); }

  void see(int64_t token, std::span<const float> logits);

  // Proposes and verifies a block, or decodes one token.
  Status round();

  // Commits what was wanted of a round, and accounts for it.
  Status settle(size_t taken);

  // Accounts for a round in what rounds cost, and in what each drafter is worth.
  void account(const Round& round, double seconds, size_t accepted, Tokens came);

  // Tokens that a grammar leaves no choice for, as many as are verified sooner than decoded.
  Proposal forced();

  // Tokens that still may come.
  size_t most() const;

  // A drafter with the block that it promises the most for, and its proposal once it was asked; none for plain
  // decoding.
  struct Choice {
    Drafter* drafter = nullptr;
    BlockPlan plan = {};
    Proposal proposal = {};
  };

  // Draft tokens of the drafter that promises the most tokens a second, as many as pay; none where decoding does.
  Proposal paying_proposal();

  BlockPlan plan(Drafter& drafter, size_t limit, std::optional<double> confidence) const;

  // Takes a proposal if it promises more than what is chosen.
  void choose(Choice& best, Drafter& drafter, Proposal proposal);

  // Asks a drafter that takes time, and leaves out draft tokens that are not worth verifying. Returns false if all are:
  // then they are only compared.
  bool ask(Choice& choice);

  Proposal propose(Drafter& drafter, size_t limit);

  // Lets drafters that take time and could pay read the prompt, which is a prefill too; their first proposals are
  // compared.
  void read_prompt();

  // Proposes only to compare with what comes: it tells whether speculation would pay again.
  void propose_in_shadow(Drafter& drafter);

  void compare_later(Drafter& drafter, std::vector<int64_t> tokens, double seconds);

  Status decode();

  // The tokens that follow the text, of which all but the last were proposed; they wait for a commit.
  Status verify(const Proposal& proposal);

  // The draft tokens that are accepted, and the model's own token after them; row i of its logits comes after draft
  // token i - 1.
  std::vector<int64_t> accept(const Logits& logits, const Proposal& proposal);

  Session& session_;
  const GenerationOptions options_;
  std::vector<Drafter*> drafters_;
  const Drafter* before_ = nullptr;  // whose block the last round was
  Sampler sampler_;
  const size_t longest_;
  RoundCosts& costs_;
  std::optional<size_t> fixed_length_;
  bool has_read_ = false, is_stuck_ = false;  // the drafter has the prompt; no token may come any more
  bool is_running_ = false;                   // it has begun, and neither failed nor ended
  std::vector<int64_t> text_;
  Round now_;
  Generated done_;
};

}  // namespace hybridge

#endif
