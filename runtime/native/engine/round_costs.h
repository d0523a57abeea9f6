// Measures the cost of the target's rounds: seconds of a decode, and of a verify with its commit, by the number of
// tokens.
#ifndef HYBRIDGE_ENGINE_ROUND_COSTS_H
#define HYBRIDGE_ENGINE_ROUND_COSTS_H

#include <cstddef>
#include <cstdint>
#include <map>
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
  double round_seconds(size_t length) const;

  // Adds a round of `length` tokens. is_alone: nothing but the target ran in it. The first decodes in a generation's
  // life count always; later ones only if the caches still hold what a decode reads: after a block or a proposal it
  // takes up to 1.7 times as long.
  void add(size_t length, double seconds, bool is_alone);

  // Returns the number of draft tokens to verify, by the confidence in each that it is right if those before it are; 0
  // means to decode. spent: seconds that proposing them took.
  size_t tokens_worth_verifying(std::span<const double> confidences, double spent = 0) const;

  // Returns the number to verify of `count` draft tokens that are certainly right: as many as are faster than decoding.
  // Now and then all of them, where blocks looked slow: one slow measurement is not to end this for ever.
  size_t certain_tokens_worth_verifying(size_t count);

 private:
  // Decodes at the start: the first ones are slower than what follows, and everything is compared with them.
  static constexpr size_t FIRST_DECODES = 4;
  // Blocks after which decodes are measured again: each time twice as many, from the first to the second.
  static constexpr size_t SOON = 8, EVERY = 50;
  // Updates the cost of a length. The first round of one is often slower, so it raises the estimate little; the machine
  // now and then makes a round slower, but never faster.
  void measure(size_t length, double seconds);

  // Returns the length of the method that runs this number of tokens.
  size_t rounded(size_t length) const;

  std::vector<size_t> lengths_;
  std::map<size_t, double> cost_;      // seconds by length
  std::map<size_t, size_t> measured_;  // rounds by length
  size_t every_ = SOON, decodes_ = 0, since_decode_ = 0, passed_ = 0;
  bool is_cold_ = false;  // the last round was a block
};

}  // namespace hybridge

#endif
