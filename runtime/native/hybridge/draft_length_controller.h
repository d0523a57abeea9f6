// Choose how many draft tokens to verify: as many as measured acceptance and costs make worthwhile, or none.
//
// A block of S tokens, of which S - 1 are drafted and each is right with probability a, yields (1 - a^S) / (1 - a) tokens on
// average (Leviathan, Kalman, Matias, arXiv:2211.17192, equation 1). The controller takes the S with the most tokens a second;
// S = 1 is plain decoding. While it decodes plainly, some draft tokens are made and compared with what comes, without verifying them.
#ifndef HYBRIDGE_NATIVE_DRAFT_LENGTH_CONTROLLER_H
#define HYBRIDGE_NATIVE_DRAFT_LENGTH_CONTROLLER_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace hybridge {

// Returns the tokens that a block of `length` yields on average (Leviathan, Kalman, Matias, arXiv:2211.17192, equation 1).
inline double expected(size_t length, double acceptance) {
  const double a = std::min(acceptance, 0.999);
  return (1 - std::pow(a, static_cast<double>(length))) / (1 - a);
}

// Tokens and seconds of the last rounds with a proposal: average acceptance may promise more than a block keeps.
class RoundThroughput {
 public:
  void add(size_t tokens, double seconds) {
    tokens_ = FORGET * tokens_ + static_cast<double>(tokens);
    seconds_ = FORGET * seconds_ + seconds;
    rounds_ = FORGET * rounds_ + 1;
  }

  // Counts the rounds less: a draft token that was only compared was right.
  void discount() { rounds_ *= FORGET; }

  // True if enough rounds were slower than plain decoding, in which a token takes `decode` seconds.
  bool is_slower_than(double decode) const { return rounds_ >= ROUNDS && tokens_ * decode < seconds_; }

 private:
  // Weight of a round with a proposal once one more was done, and how many must have been slower than plain decoding to stop.
  static constexpr double FORGET = 0.85, ROUNDS = 3.0;

  double tokens_ = 0, seconds_ = 0, rounds_ = 0;
};

// Chooses block lengths; fed with what each round did. Seconds are wall time.
class DraftLengthController {
 public:
  // lengths: of the verify methods, ascending; fixed: take this block length whatever was measured.
  explicit DraftLengthController(std::vector<int64_t> lengths, std::optional<size_t> fixed = std::nullopt)
      : lengths_(lengths.begin(), lengths.end()), fixed_(fixed) {}

  // The probability that a draft token is accepted, by the last ones.
  double acceptance() const { return right_ / judged_; }

  // The block length for the next round, at most `room`; 1 for plain decoding. confidence: the drafter's own
  // probability that a draft token is right; what was measured without one.
  size_t choose(size_t room, std::optional<double> confidence = std::nullopt) {
    if (fixed_) return std::min(*fixed_, room);
    if (plain_rounds_ < MEASURED) return 1;
    if (since_plain_ >= every_) return 1;
    if (!confidence && patience_ > 0) {
      --patience_;
      return 1;  // weighing takes time too, and little changes from one plain round to the next
    }
    if (!confidence && drafted_.is_slower_than(cost_.at(1))) return 1;
    const size_t best = fastest(room, confidence.value_or(acceptance()), confidence ? 1.0 : MARGIN);
    patience_ = best == 1 ? PATIENCE : 0;
    return best;
  }

  // Returns the number of draft tokens to verify, by the confidence in each that it is right if those before it are. The cost of
  // proposing them is spent, whatever is verified; 0 means to decode.
  size_t trim_draft(std::span<const double> confidences) const {
    if (fixed_ || !cost_.contains(1)) return confidences.size();
    std::vector<double> yields = {1.0};  // tokens of a round, by how many draft tokens are verified
    double reached = 1.0;
    for (const double confidence : confidences) yields.push_back(yields.back() + (reached *= confidence));
    std::set<size_t> counts = {0};
    for (const size_t length : lengths_) counts.insert(std::min(length - 1, confidences.size()));
    const auto speed = [&](size_t count) { return yields[count] / drafted_cost(count + 1); };
    return *std::max_element(counts.begin(), counts.end(), [&](size_t one, size_t other) { return speed(one) < speed(other); });
  }

  // Returns the number to verify of `count` draft tokens that are certainly right: as many as are faster than decoding.
  size_t tokens_worth_verifying(size_t count) {
    const size_t best = trim_draft(std::vector<double>(count, 1.0));
    passed_ += best < count;
    if (passed_ <= TRIED) return best;
    passed_ = 0;
    return count;
  }

  // Accounts for a round: `length` tokens ran, `accepted` of the `proposed` ones in it were right. drafting: how many of the
  // seconds a proposal took that could have been left out.
  void round_done(size_t length, size_t proposed, size_t accepted, double seconds, double drafting = 0) {
    length = rounded(length);
    if (drafting != 0) {
      drafting_ = drafting_ == 0 ? drafting : drafting_ + 0.1 * (drafting - drafting_);
      if (measured_.contains(length)) drafted_.add(accepted + 1, seconds);  // the first one says little
      if (length == 1) seconds -= drafting;  // what is left is a decode
    }
    if (length > 1) shadow_.clear();
    plain_rounds_ += length == 1;
    since_plain_ += length > 1;
    if (length > 1 || plain_rounds_ <= MEASURED || !(is_cold_ || drafting != 0)) measure(length, seconds);
    is_cold_ = length > 1;
    elapsed_ += seconds;
    judge(proposed, accepted);
  }

  // Draft tokens that are only compared: how many to propose at once, and whether time may be spent on some.
  size_t shadow_length() const { return std::min(SHADOW_LENGTH, lengths_.back() - 1); }

  bool wants_shadow() const {
    const double decode = cost_.contains(1) ? cost_.at(1) : 0.0;
    const double next = shadow_cost_ != 0 ? shadow_cost_ : decode;
    return shadow_.empty() && shadowing_ + next <= SHADOW_SHARE * elapsed_ + FIRST_SHADOWS * decode;
  }

  // Keeps draft tokens that are only compared with what comes, and which took `seconds` to propose.
  void shadow(std::vector<int64_t> tokens, double seconds) {
    shadow_ = std::move(tokens);
    shadow_cost_ = seconds;
    shadowing_ += seconds;
  }

  // Compares `token`, which came, with the next of them.
  void compare(int64_t token) {
    if (shadow_.empty()) return;
    const bool right = shadow_.front() == token;
    shadow_.erase(shadow_.begin());
    judge(1, right);
    if (right) {
      patience_ = 0;
      drafted_.discount();
    } else {
      shadow_.clear();
    }
  }

 private:
  // Share of the time that draft tokens may take which are only compared, and decodes' time besides at the start.
  static constexpr double SHADOW_SHARE = 0.01, FIRST_SHADOWS = 1.0;
  // Draft tokens in a row that are compared; later ones would only be judged if these are right.
  static constexpr size_t SHADOW_LENGTH = 3;
  // Weight of a judged draft token once one more was judged: the last twenty or so decide.
  static constexpr double FORGET = 0.95;
  // Factor by which a block must look faster than decoding by average acceptance: right tokens come in runs, so it yields less.
  static constexpr double MARGIN = 1.1;
  // Cost of one more token to verify, in decodes, while no block was measured.
  static constexpr double FIRST_STEP = 0.15;
  // Plain rounds at the start: the first ones are slower than what follows, and everything is compared with them.
  static constexpr size_t MEASURED = 4;
  // Blocks after which plain rounds measure again what decoding costs: each time twice as many, from the first to the second.
  static constexpr size_t SOON = 8, EVERY = 50;
  // Plain rounds from one weighing to the next.
  static constexpr size_t PATIENCE = 4;
  // Times that certainly right tokens are decoded because blocks looked slow, until a block is measured again.
  static constexpr size_t TRIED = 16;

  // The length with the most tokens a second, if each draft token is right with probability `acceptance`.
  size_t fastest(size_t room, double acceptance, double margin) const {
    size_t best = 1;
    double speed = expected(1, acceptance) / cost(1);
    for (const size_t each : lengths_) {
      const size_t length = std::min(each, room);
      const double reached = expected(length, acceptance) / cost(length) / margin;
      if (length > 1 && reached > speed) best = length, speed = reached;
    }
    return best;
  }

  // Updates the cost of a round. The first one with a length is often slower, so most of the estimate stays; the machine now and
  // then makes a round slower, but never faster.
  void measure(size_t length, double seconds) {
    if (length == 1 && since_plain_ > 0) {
      if (since_plain_ >= every_) every_ = std::min(2 * every_, EVERY);
      since_plain_ = 0;
    }
    const double known = cost_.contains(1) ? cost(length) : seconds;
    const size_t count = ++measured_[length];
    const double weight = count == 1 ? 0.25 : count == 2 ? 1.0 : seconds < known ? 0.5 : 0.1;
    cost_[length] = known + weight * (std::min(seconds, 2 * known) - known);
  }

  // Judges draft tokens up to the first wrong one; those that follow it were not verified.
  void judge(size_t proposed, size_t accepted) {
    for (size_t i = 0; i < accepted + (accepted < proposed); ++i) {
      right_ = FORGET * right_ + (i < accepted);
      judged_ = FORGET * judged_ + 1;
    }
  }

  // Seconds of a round that verifies `length` tokens of a proposal, or decodes in spite of it.
  double drafted_cost(size_t length) const { return cost(length) + (length == 1 ? drafting_ : 0.0); }

  // Seconds of a round, measured or by the nearest that was.
  double cost(size_t length) const {
    const size_t wanted = rounded(length);
    const auto next = cost_.lower_bound(wanted);
    if (next != cost_.end() && next->first == wanted) return next->second;
    const double decode = cost_.at(1);
    const auto& [nearest, seconds] = *std::prev(next);
    if (nearest == 1) return decode + FIRST_STEP * decode * static_cast<double>(wanted - 1) + shadow_cost_;
    return seconds + (seconds - decode) / static_cast<double>(nearest - 1) * static_cast<double>(wanted - nearest);
  }

  // Returns the length of the method that runs this number of tokens.
  size_t rounded(size_t length) const {
    if (length <= 1) return 1;
    const auto found = std::lower_bound(lengths_.begin(), lengths_.end(), length);
    return found == lengths_.end() ? length : *found;
  }

  std::vector<size_t> lengths_;
  std::optional<size_t> fixed_;
  std::map<size_t, double> cost_;      // seconds by length
  std::map<size_t, size_t> measured_;  // rounds by length
  size_t every_ = SOON, plain_rounds_ = 0, since_plain_ = 0, patience_ = 0, passed_ = 0;
  bool is_cold_ = false;  // the last round was a block: a plain one behind it takes longer than in a row
  double right_ = 1.4, judged_ = 2.0;  // a first estimate: 70 %, worth two tries
  double elapsed_ = 0, shadowing_ = 0, shadow_cost_ = 0, drafting_ = 0;
  RoundThroughput drafted_;
  std::vector<int64_t> shadow_;
};

}  // namespace hybridge

#endif
