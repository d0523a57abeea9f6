// The logits that a session returns.
#ifndef HYBRIDGE_NATIVE_LOGITS_H
#define HYBRIDGE_NATIVE_LOGITS_H

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace hybridge {

// float32 [tokens, vocabulary], a view of the session's memory that lasts until its next call.
class Logits {
 public:
  Logits(const float* data, size_t tokens, size_t vocabulary) : data_(data), tokens_(tokens), vocabulary_(vocabulary) {}

  size_t tokens() const { return tokens_; }
  std::span<const float> all() const { return {data_, tokens_ * vocabulary_}; }
  std::span<const float> operator[](size_t token) const { return all().subspan(token * vocabulary_, vocabulary_); }
  std::span<const float> last() const { return (*this)[tokens_ - 1]; }

 private:
  const float* data_;
  size_t tokens_, vocabulary_;
};

// Returns whether all are finite. It looks at their bits, which no flag for fast arithmetic optimizes away: NaN and infinity have
// the largest exponent, so the largest value decides.
inline bool are_finite(std::span<const float> logits) {
  constexpr uint32_t MAGNITUDE = 0x7fffffff, INFINITE = 0x7f800000;
  uint32_t largest = 0;
  for (const float value : logits) largest = std::max(largest, std::bit_cast<uint32_t>(value) & MAGNITUDE);
  return largest < INFINITE;
}

// The likeliest token, the first of them in a tie.
inline int64_t best(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

}  // namespace hybridge

#endif
