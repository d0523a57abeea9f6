// Measures the cost of the target's rounds: seconds of a decode, and of a verify with its commit, by the number of
// tokens.
#ifndef HYBRIDGE_ENGINE_ROUND_COSTS_H
#define HYBRIDGE_ENGINE_ROUND_COSTS_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <span>
#include <vector>

namespace hybridge {

// Costs of one session, which outlast its generations and serve all of its drafters. Seconds are wall time, without
// those of a proposal.
class RoundCosts {
 public:
  // lengths: of the verify methods, ascending.
  explicit RoundCosts(std::span<const int64_t> lengths) : lengths_(lengths.begin(), lengths.end()) {}

  const std::vector<size_t>& lengths() const { return lengths_; }
  size_t longest() const { return lengths_.back(); }

  // True once enough decodes were measured to compare anything with them.
  bool are_known() const { return decodes_ >= FIRST_DECODES; }

  // True if so many blocks ran since a decode was measured that the next round should be one.
  bool wants_decode() const { return !are_known() || since_decode_ >= every_; }

  // Seconds of a round of `length` tokens: measured, or extrapolated from the next shorter length that was. 0 before
  // anything was.
  double of(size_t length) const {
    if (cost_.empty()) return 0;
    const size_t wanted = rounded(length);
    const auto next = cost_.upper_bound(wanted);
    if (next == cost_.begin()) return next->second;
    const auto& [nearest, seconds] = *std::prev(next);
    if (nearest == wanted) return seconds;
    const double step = nearest == 1 ? FIRST_STEP * seconds : (seconds - of(1)) / static_cast<double>(nearest - 1);
    return seconds + step * static_cast<double>(wanted - nearest);
  }

  // Adds a round of `length` tokens. is_alone: nothing but the target ran in it. The first decodes in a generation's
  // life count always; later ones only if the caches still hold what a decode reads: behind a block or a proposal it
  // takes up to 1.7 times as long.
  void add(size_t length, double seconds, bool is_alone) {
    length = rounded(length);
    decodes_ += length == 1;
    since_decode_ += length > 1;
    if (length > 1 || decodes_ <= FIRST_DECODES || !(is_cold_ || !is_alone)) measure(length, seconds);
    is_cold_ = length > 1;
  }

  // Returns the number of draft tokens to verify, by the confidence in each that it is right if those before it are; 0
  // means to decode. spent: seconds that proposing them took.
  size_t tokens_worth_verifying(std::span<const double> confidences, double spent = 0) const {
    if (cost_.empty()) return confidences.size();
    std::vector<double> yields = {1.0};  // tokens of a round, by how many draft tokens are verified
    double reached = 1.0;
    for (const double confidence : confidences) yields.push_back(yields.back() + (reached *= confidence));
    std::set<size_t> counts = {0};
    for (const size_t length : lengths_) counts.insert(std::min(length - 1, confidences.size()));
    const auto speed = [&](size_t count) { return yields[count] / (of(count + 1) + spent); };
    return *std::max_element(counts.begin(), counts.end(), [&](size_t one, size_t other) {
      return speed(one) < speed(other);
    });
  }

  // Returns the number to verify of `count` draft tokens that are certainly right: as many as are faster than decoding.
  // Now and then all of them, where blocks looked slow: one slow measurement is not to end this for ever.
  size_t certain_tokens_worth_verifying(size_t count) {
    const size_t best = tokens_worth_verifying(std::vector<double>(count, 1.0));
    passed_ += best < count;
    if (passed_ <= TRIED) return best;
    passed_ = 0;
    return count;
  }

 private:
  // Decodes at the start: the first ones are slower than what follows, and everything is compared with them.
  static constexpr size_t FIRST_DECODES = 4;
  // Cost of one more token to verify, in decodes, while no block was measured.
  static constexpr double FIRST_STEP = 0.15;
  // Blocks after which decodes are measured again: each time twice as many, from the first to the second.
  static constexpr size_t SOON = 8, EVERY = 50;
  // Times that certainly right tokens are decoded because blocks looked slow, until a block is measured again.
  static constexpr size_t TRIED = 16;

  // Updates the cost of a length. The first round of one is often slower, so most of the estimate stays; the machine
  // now and then makes a round slower, but never faster.
  void measure(size_t length, double seconds) {
    if (length == 1 && since_decode_ > 0) {
      if (since_decode_ >= every_) every_ = std::min(2 * every_, EVERY);
      since_decode_ = 0;
    }
    const double known = cost_.empty() ? seconds : of(length);
    const size_t count = ++measured_[length];
    const double weight = count == 1 ? 0.25 : count == 2 ? 1.0 : seconds < known ? 0.5 : 0.1;
    cost_[length] = known + weight * (std::min(seconds, 2 * known) - known);
  }

  // Returns the length of the method that runs this number of tokens.
  size_t rounded(size_t length) const {
    if (length <= 1) return 1;
    const auto found = std::lower_bound(lengths_.begin(), lengths_.end(), length);
    return found == lengths_.end() ? length : *found;
  }

  std::vector<size_t> lengths_;
  std::map<size_t, double> cost_;      // seconds by length
  std::map<size_t, size_t> measured_;  // rounds by length
  size_t every_ = SOON, decodes_ = 0, since_decode_ = 0, passed_ = 0;
  bool is_cold_ = false;  // the last round was a block
};

}  // namespace hybridge

#endif
