#include "engine/draft_length_controller.h"

#include <cmath>
#include <iterator>
#include <utility>

namespace hybridge {

namespace {

// Decodes that may be lost beyond that by blocks that look faster: right tokens come in runs, and one bad run is not
// to end this.
constexpr double OVERDRAFT = 2.0;
// Most decodes that are won by earlier blocks and may be lost again, and that were lost in one text and are saved in
// the next.
constexpr double MOST_KEPT = 8.0, MOST_OWED = 2.0;
// What is left with each text of the time that a proposal took when it was last measured.
constexpr double DOUBT = 0.95;
// Weight of a judged draft token once one more was judged: the last twenty-five or so decide. Of twenty, a few
// unlucky ones ended speculation that paid.
constexpr double FORGET = 0.96;
constexpr double ROUNDS = 4.0;

// Returns the tokens that a block of `length` yields on average (Leviathan, Kalman, Matias, arXiv:2211.17192, equation
// 1).
double expected(size_t length, double acceptance) {
  const double a = std::min(acceptance, 0.999);
  return (1 - std::pow(a, static_cast<double>(length))) / (1 - a);
}

void learn(double& known, double seconds) {
  known += (seconds < known ? 0.5 : 0.1) * (std::min(seconds, 2 * known) - known);
}

// What a proposal for a block of `length` takes, if each draft token takes what those of a known one do.
double for_length(const std::pair<const size_t, double>& known, size_t length) {
  return known.second * static_cast<double>(length - 1) / static_cast<double>(known.first - 1);
}

}  // namespace

void DraftLengthController::begin(const RoundCosts& costs, bool is_cheap) {
  if (is_cheap) drafting_[0] = 0;
  for (auto& [length, seconds] : drafting_) seconds *= DOUBT;
  if (reading_) *reading_ *= DOUBT;
  budget_ = std::clamp(budget_, -MOST_OWED * costs.round_seconds(1), MOST_KEPT * costs.round_seconds(1));
  is_new_ = true;
  shadow_.clear();
}

BlockPlan DraftLengthController::plan(const RoundCosts& costs, size_t longest, std::optional<double> confidence) const {
  BlockPlan best{1, 1 / costs.round_seconds(1)};
  if (costs.wants_decode() || budget(costs) < -OVERDRAFT * costs.round_seconds(1) || (drafting_.empty() && !confidence))
    return best;
  const double a = confidence.value_or(acceptance());
  for (const size_t each : costs.lengths()) {
    const size_t length = std::min(each, longest);
    const double proposal = confidence ? 0.0 : proposing(length) + catching_up() / ROUNDS;
    const double speed = expected(length, a) / (costs.round_seconds(length) + proposal);
    if (length > 1 && speed > best.speed) best = {length, speed};
  }
  return best;
}

void DraftLengthController::round_done(
    const RoundCosts& costs, size_t planned, size_t proposed, size_t accepted, double seconds, double drafting
) {
  learn_drafting(planned, drafting);
  // What is beyond the estimate is no fault of the block: the first one of a length is slow, and a process is
  // interrupted.
  seconds = std::min(seconds, costs.round_seconds(1 + proposed) + this->drafting(planned));
  spend(costs, seconds - static_cast<double>(accepted + 1) * costs.round_seconds(1));
  judge(proposed, accepted);
}

void DraftLengthController::spend(const RoundCosts& costs, double seconds) {
  budget_ = std::min(budget(costs) - seconds, MOST_KEPT * costs.round_seconds(1));
  is_new_ = false;
}

bool DraftLengthController::could_pay(const RoundCosts& costs, size_t longest) const {
  if (drafting_.empty() || !costs.are_known()) return true;
  return std::ranges::any_of(costs.lengths(), [&](size_t each) {
    const size_t length = std::min(each, longest);
    return costs.round_seconds(length) + drafting(length) < static_cast<double>(length) * costs.round_seconds(1);
  });
}

bool DraftLengthController::wants_shadow(const RoundCosts& costs, size_t longest) const {
  if (!shadow_.empty() || !costs.are_known() || !could_pay(costs, longest)) return false;
  return drafting_.empty() || budget(costs) >= drafting(shadow_length(costs) + 1);
}

void DraftLengthController::shadow(
    const RoundCosts& costs, std::vector<int64_t> tokens, std::optional<double> seconds
) {
  if (seconds) {
    if (!drafting_.empty()) spend(costs, *seconds);
    learn_drafting(shadow_length(costs) + 1, *seconds);
  }
  shadow_ = std::move(tokens);
}

void DraftLengthController::compare(int64_t token) {
  if (shadow_.empty()) return;
  const bool right = shadow_.front() == token;
  shadow_.erase(shadow_.begin());
  judge(1, right);
  if (!right) shadow_.clear();
}

double DraftLengthController::proposing(size_t length) const {
  const auto longer = drafting_.upper_bound(length);
  if (longer != drafting_.begin()) return std::prev(longer)->second;
  // A drafter that feeds its tokens back takes as much for each; how much less another takes is seen at the first one.
  return for_length(*longer, length);
}

void DraftLengthController::learn_drafting(size_t length, double seconds) {
  if (unread_ > 0 && !drafting_.empty()) {
    const double each = std::max(0.0, seconds - proposing(length)) / unread_;
    if (reading_) learn(*reading_, each);
    else reading_ = each;
    return;
  }
  const auto longer = drafting_.upper_bound(length);
  // The first proposal of a length is slow. It takes no more for each token than a shorter one.
  if (!drafting_.contains(length) && longer != drafting_.begin() && std::prev(longer)->first > 1)
    seconds = std::min(seconds, for_length(*std::prev(longer), length));
  const auto [known, is_first] = drafting_.try_emplace(length, seconds);
  if (!is_first) learn(known->second, seconds);
}

void DraftLengthController::judge(size_t proposed, size_t accepted) {
  for (size_t i = 0; i < accepted + (accepted < proposed); ++i) {
    right_ = FORGET * right_ + (i < accepted);
    judged_ = FORGET * judged_ + 1;
  }
}

}  // namespace hybridge
