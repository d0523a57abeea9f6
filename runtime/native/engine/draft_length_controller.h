// Choose how many draft tokens to verify: as many as measured acceptance and costs make worthwhile, or none.
//
// A block of S tokens, of which S - 1 are drafted and each is right with probability a, yields (1 - a^S) / (1 - a)
// tokens on average (Leviathan, Kalman, Matias, arXiv:2211.17192, equation 1). The controller takes the S with the most
// tokens a second; S = 1 is plain decoding. It may lose a small share of the time to find out, and no more: each text
// has a budget, which blocks that were slower than decoding use up, and faster ones fill again. Draft tokens that are
// made and only compared with what comes show when blocks would pay again.
#ifndef HYBRIDGE_ENGINE_DRAFT_LENGTH_CONTROLLER_H
#define HYBRIDGE_ENGINE_DRAFT_LENGTH_CONTROLLER_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "engine/round_costs.h"

namespace hybridge {

// A block length, 1 for plain decoding, and the tokens a second that it promises.
struct BlockPlan {
  size_t length = 1;
  double speed = 0;
};

// Chooses the block lengths of one drafter with one model; fed with what each round did. Seconds are wall time.
class DraftLengthController {
 public:
  // The probability that a draft token is accepted, by the last ones.
  double acceptance() const { return right_ / judged_; }

  // Begins a text: of earlier losses a part is forgiven, and of gains some remain to be risked. Proposals that seem to
  // take too long are measured again some texts later, for one of them may have been interrupted. is_cheap: proposals
  // take no time.
  void begin(const RoundCosts& costs, bool is_cheap);

  // Says how many tokens the next proposal would read first: a drafter that was not asked for long has to catch up.
  void set_unread(size_t tokens) { unread_ = tokens < FEW ? 0 : static_cast<double>(tokens); }

  // Returns the best block length up to `longest`. confidence: the drafter's own probability that a draft token is
  // right, whose proposal is there already; what was measured without one.
  BlockPlan plan(const RoundCosts& costs, size_t longest, std::optional<double> confidence = std::nullopt) const;

  // Seconds of a proposal for a block of `length` tokens, once some were measured, and of what it reads first.
  double drafting(size_t length) const { return proposing(length) + catching_up(); }

  // Accounts for a round of `seconds`, in which this drafter proposed for a block of `planned` tokens, which took it
  // `drafting` of these seconds; of `proposed` draft tokens that were verified, `accepted` were right.
  void round_done(
      const RoundCosts& costs, size_t planned, size_t proposed, size_t accepted, double seconds, double drafting = 0
  );

  // Accounts for a round without a proposal of this drafter.
  void round_passed(double seconds) { budget_ += SHARE * seconds; }

  // Accounts for seconds that were lost, or won if they are below 0.
  void spend(const RoundCosts& costs, double seconds);

  // The number of draft tokens that are only compared, proposed at once.
  static size_t shadow_length(const RoundCosts& costs) { return std::min(SHADOW_LENGTH, costs.longest() - 1); }

  // False if blocks of up to `longest` tokens would not pay even if all were right.
  bool could_pay(const RoundCosts& costs, size_t longest) const;

  // True if there is time to propose some for blocks that could pay. The first time tells what a proposal takes, before
  // a block is risked.
  bool wants_shadow(const RoundCosts& costs, size_t longest) const;

  // Keeps draft tokens that are only compared with what comes. seconds: what proposing them took, unless it was time
  // for something else; the first time it is no text's loss.
  void shadow(const RoundCosts& costs, std::vector<int64_t> tokens, std::optional<double> seconds = std::nullopt);

  // Compares `token`, which came, with the next of them.
  void compare(int64_t token);

 private:
  // Share of the time that may be lost, and the decodes besides that a text begins with.
  static constexpr double SHARE = 0.01, FIRST = 0.1;
  // Draft tokens in a row that are compared; later ones would only be judged if these are right.
  static constexpr size_t SHADOW_LENGTH = 3;
  // Tokens that are read in no time, as each round has some; rounds that what is read once is expected to serve.
  static constexpr size_t FEW = 9;
  // Seconds of a proposal alone: of this length, the next shorter one, or the shortest.
  double proposing(size_t length) const;

  double catching_up() const { return reading_.value_or(0) * unread_; }

  double budget(const RoundCosts& costs) const { return budget_ + (is_new_ ? FIRST * costs.round_seconds(1) : 0.0); }

  void learn_drafting(size_t length, double seconds);

  // Judges draft tokens up to the first wrong one; those that follow it were not verified.
  void judge(size_t proposed, size_t accepted);

  double right_ = 1.4, judged_ = 2.0;  // a first estimate: 70 %, worth two tries
  double budget_ = 0;                  // seconds that may be lost
  bool is_new_ = true;                 // nothing was risked in this text
  std::map<size_t, double> drafting_;  // seconds of a proposal by block length
  std::optional<double> reading_;      // seconds of a token that it reads first
  double unread_ = 0;                  // such tokens
  std::vector<int64_t> shadow_;
};

}  // namespace hybridge

#endif
