// What a session answers with.
#ifndef HYBRIDGE_NATIVE_LOGITS_H
#define HYBRIDGE_NATIVE_LOGITS_H

#include <algorithm>
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

// The likeliest token, the first of them in a tie.
inline int64_t best(std::span<const float> logits) {
  return std::max_element(logits.begin(), logits.end()) - logits.begin();
}

}  // namespace hybridge

#endif
