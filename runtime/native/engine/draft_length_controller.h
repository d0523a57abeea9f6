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
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/round_costs.h"

namespace hybridge {

// Returns the tokens that a block of `length` yields on average (Leviathan, Kalman, Matias, arXiv:2211.17192, equation
// 1).
inline double expected(size_t length, double acceptance) {
  const double a = std::min(acceptance, 0.999);
  return (1 - std::pow(a, static_cast<double>(length))) / (1 - a);
}

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
  void begin(const RoundCosts& costs, bool is_cheap) {
    if (is_cheap) drafting_[0] = 0;
    for (auto& [length, seconds] : drafting_) seconds *= DOUBT;
    if (reading_) *reading_ *= DOUBT;
    budget_ = std::clamp(budget_, -MOST_OWED * costs.of(1), MOST_KEPT * costs.of(1));
    is_new_ = true;
    shadow_.clear();
  }

  // Says how many tokens the next proposal would read first: a drafter that was not asked for long has to catch up.
  void set_unread(size_t tokens) { unread_ = tokens < FEW ? 0 : static_cast<double>(tokens); }

  // Returns the best block length up to `longest`. confidence: the drafter's own probability that a draft token is
  // right, whose proposal is there already; what was measured without one.
  BlockPlan plan(const RoundCosts& costs, size_t longest, std::optional<double> confidence = std::nullopt) const {
    BlockPlan best{1, 1 / costs.of(1)};
    if (costs.wants_decode() || budget(costs) < -OVERDRAFT * costs.of(1) || (drafting_.empty() && !confidence))
      return best;
    const double a = confidence.value_or(acceptance());
    for (const size_t each : costs.lengths()) {
      const size_t length = std::min(each, longest);
      const double proposal = confidence ? 0.0 : proposing(length) + catching_up() / ROUNDS;
      const double speed = expected(length, a) / (costs.of(length) + proposal);
      if (length > 1 && speed > best.speed) best = {length, speed};
    }
    return best;
  }

  // Seconds of a proposal for a block of `length` tokens, once some were measured, and of what it reads first.
  double drafting(size_t length) const { return proposing(length) + catching_up(); }

  // Accounts for a round of `seconds`, in which this drafter proposed for a block of `planned` tokens, which took it
  // `drafting` of these seconds; of `proposed` draft tokens that were verified, `accepted` were right.
  void round_done(
      const RoundCosts& costs, size_t planned, size_t proposed, size_t accepted, double seconds, double drafting = 0
  ) {
    learn_drafting(planned, drafting);
    // What is beyond the estimate is no fault of the block: the first one of a length is slow, and a process is
    // interrupted.
    seconds = std::min(seconds, costs.of(1 + proposed) + this->drafting(planned));
    spend(costs, seconds - static_cast<double>(accepted + 1) * costs.of(1));
    judge(proposed, accepted);
  }

  // Accounts for a round without a proposal of this drafter.
  void round_passed(double seconds) { budget_ += SHARE * seconds; }

  // Accounts for seconds that were lost, or won if they are below 0.
  void spend(const RoundCosts& costs, double seconds) {
    budget_ = std::min(budget(costs) - seconds, MOST_KEPT * costs.of(1));
    is_new_ = false;
  }

  // The number of draft tokens that are only compared, proposed at once.
  static size_t shadow_length(const RoundCosts& costs) { return std::min(SHADOW_LENGTH, costs.longest() - 1); }

  // False if blocks of up to `longest` tokens would not pay even if all were right.
  bool could_pay(const RoundCosts& costs, size_t longest) const {
    if (drafting_.empty() || !costs.are_known()) return true;
    return std::ranges::any_of(costs.lengths(), [&](size_t each) {
      const size_t length = std::min(each, longest);
      return costs.of(length) + drafting(length) < static_cast<double>(length) * costs.of(1);
    });
  }

  // True if there is time to propose some for blocks that could pay. The first time tells what a proposal takes, before
  // a block is risked.
  bool wants_shadow(const RoundCosts& costs, size_t longest) const {
    if (!shadow_.empty() || !costs.are_known() || !could_pay(costs, longest)) return false;
    return drafting_.empty() || budget(costs) >= drafting(shadow_length(costs) + 1);
  }

  // Keeps draft tokens that are only compared with what comes. seconds: what proposing them took, unless it was time
  // for something else; the first time it is no text's loss.
  void shadow(const RoundCosts& costs, std::vector<int64_t> tokens, std::optional<double> seconds = std::nullopt) {
    if (seconds) {
      if (!drafting_.empty()) spend(costs, *seconds);
      learn_drafting(shadow_length(costs) + 1, *seconds);
    }
    shadow_ = std::move(tokens);
  }

  // Compares `token`, which came, with the next of them.
  void compare(int64_t token) {
    if (shadow_.empty()) return;
    const bool right = shadow_.front() == token;
    shadow_.erase(shadow_.begin());
    judge(1, right);
    if (!right) shadow_.clear();
  }

 private:
  // Share of the time that may be lost, and the decodes besides that a text begins with.
  static constexpr double SHARE = 0.01, FIRST = 0.1;
  // Decodes that may be lost beyond that by blocks that look faster: right tokens come in runs, and one bad run is not
  // to end this.
  static constexpr double OVERDRAFT = 2.0;
  // Most decodes that are won by earlier blocks and may be lost again, and that were lost in one text and are saved in
  // the next.
  static constexpr double MOST_KEPT = 8.0, MOST_OWED = 2.0;
  // What is left with each text of the time that a proposal took when it was last measured.
  static constexpr double DOUBT = 0.95;
  // Draft tokens in a row that are compared; later ones would only be judged if these are right.
  static constexpr size_t SHADOW_LENGTH = 3;
  // Weight of a judged draft token once one more was judged: the last twenty-five or so decide. Of twenty, a few
  // unlucky ones ended speculation that paid.
  static constexpr double FORGET = 0.96;

  // Tokens that are read in no time, as each round has some; rounds that what is read once is expected to serve.
  static constexpr size_t FEW = 9;
  static constexpr double ROUNDS = 4.0;

  // Seconds of a proposal alone: of this length, the next shorter one, or the shortest.
  double proposing(size_t length) const {
    const auto longer = drafting_.upper_bound(length);
    return longer == drafting_.begin() ? longer->second : std::prev(longer)->second;
  }

  double catching_up() const { return reading_.value_or(0) * unread_; }

  double budget(const RoundCosts& costs) const { return budget_ + (is_new_ ? FIRST * costs.of(1) : 0.0); }

  void learn_drafting(size_t length, double seconds) {
    if (unread_ > 0 && !drafting_.empty()) {
      const double each = std::max(0.0, seconds - proposing(length)) / unread_;
      if (reading_) learn(*reading_, each);
      else reading_ = each;
      return;
    }
    const auto [known, is_first] = drafting_.try_emplace(length, seconds);
    if (!is_first) learn(known->second, seconds);
  }

  static void learn(double& known, double seconds) {
    known += (seconds < known ? 0.5 : 0.1) * (std::min(seconds, 2 * known) - known);
  }

  // Judges draft tokens up to the first wrong one; those that follow it were not verified.
  void judge(size_t proposed, size_t accepted) {
    for (size_t i = 0; i < accepted + (accepted < proposed); ++i) {
      right_ = FORGET * right_ + (i < accepted);
      judged_ = FORGET * judged_ + 1;
    }
  }

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
