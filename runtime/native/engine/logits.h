// The logits that a session returns.
#ifndef HYBRIDGE_ENGINE_LOGITS_H
#define HYBRIDGE_ENGINE_LOGITS_H

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

// The likeliest token, the first of them in a tie; of at least one logit, and none of them NaN.
int64_t best(std::span<const float> logits);

// The largest of at least one logit, and none of them NaN.
float largest(std::span<const float> logits);

// Returns whether all are numbers, and below infinity. is_least_one: whether minus infinity counts as one.
bool are_numbers(std::span<const float> logits, bool is_least_one);

// Returns whether all are finite.
bool are_finite(std::span<const float> logits);

}  // namespace hybridge

#endif
