// The logits that a session returns.
#ifndef HYBRIDGE_ENGINE_LOGITS_H
#define HYBRIDGE_ENGINE_LOGITS_H

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
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

// Four numbers at a time. Compilers leave a loop over a vocabulary scalar at -O2: finding the best of 248,320 logits
// took 0.9 ms, four times in a verify of four tokens; it takes 0.06.
using FourFloats = float __attribute__((vector_size(16)));
using FourInts = int32_t __attribute__((vector_size(16)));

// Numbers that are looked at before the next decision.
constexpr size_t LOGITS_IN_A_BLOCK = 64;

template <typename Four>
Four four(const float* from) {
  Four numbers;
  std::memcpy(&numbers, from, sizeof numbers);
  return numbers;
}

// Returns the largest of a block, of which NaN is none.
inline float largest_of_block(const float* logits) {
  FourFloats top[4];
  for (size_t i = 0; i < 4; ++i) top[i] = four<FourFloats>(logits + 4 * i);
  for (size_t at = 16; at < LOGITS_IN_A_BLOCK; at += 16) {
    for (size_t i = 0; i < 4; ++i) {
      const auto other = four<FourFloats>(logits + at + 4 * i);
      top[i] = other > top[i] ? other : top[i];
    }
  }
  const FourFloats left = top[0] > top[1] ? top[0] : top[1], right = top[2] > top[3] ? top[2] : top[3];
  const FourFloats all = left > right ? left : right;
  return std::max(std::max(all[0], all[1]), std::max(all[2], all[3]));
}

// exp((logit - top) / temperature) of a block, in float32, where logits are at most `top`; 0 below 1e-30. After Cephes'
// expf.
inline void exponentials(const float* logits, float top, float temperature, float* to) {
  constexpr float LEAST = -69.0f, LOG2_E = 1.44269504f, LN2_HIGH = 0.693359375f, LN2_LOW = -2.12194440e-4f;
  for (size_t at = 0; at < LOGITS_IN_A_BLOCK; at += 4) {
    const FourFloats x = (four<FourFloats>(logits + at) - top) / temperature;
    const FourFloats safe = x > LEAST ? x : FourFloats{} + LEAST;
    const FourInts power = __builtin_convertvector(safe * LOG2_E - 0.5f, FourInts);  // rounds, since it is not positive
    const FourFloats whole = __builtin_convertvector(power, FourFloats), r = safe - whole * LN2_HIGH - whole * LN2_LOW;
    FourFloats y = 1.9875691500e-4f * r + 1.3981999507e-3f;
    for (const float next : {8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 0.5f}) y = y * r + next;
    y = y * r * r + r + 1.0f;
    const FourInts scaled = (power + 127) << 23;
    FourFloats result;
    std::memcpy(&result, &scaled, sizeof result);
    result = x > LEAST ? y * result : FourFloats{};
    std::memcpy(to + at, &result, sizeof result);
  }
}

// Calls f(begin, count) for each block, and for what is left behind the last one, unless all of it is below `least()`,
// which f may raise.
template <typename Least, typename F>
void for_blocks_from(std::span<const float> logits, const Least& least, const F& f) {
  for (size_t begin = 0; begin < logits.size(); begin += LOGITS_IN_A_BLOCK) {
    const size_t count = std::min(LOGITS_IN_A_BLOCK, logits.size() - begin);
    if (count < LOGITS_IN_A_BLOCK || largest_of_block(&logits[begin]) >= least()) f(begin, count);
  }
}

// Calls f(token, logit) for those of at least `least()`, which f may raise, in the order of the vocabulary.
template <typename Least, typename F>
void for_logits_from(std::span<const float> logits, const Least& least, const F& f) {
  for_blocks_from(logits, least, [&](size_t begin, size_t count) {
    for (size_t token = begin; token < begin + count; ++token) {
      if (logits[token] >= least()) f(token, logits[token]);
    }
  });
}

// The likeliest token, the first of them in a tie; of at least one logit, and none of them NaN.
inline int64_t best(std::span<const float> logits) {
  size_t found = 0;
  float above = -std::numeric_limits<float>::infinity();
  const auto take = [&](size_t token, float logit) {
    if (logit > above) above = logit, found = token;
  };
  for_logits_from(logits, [&] { return above; }, take);
  return static_cast<int64_t>(found);
}

// The largest of at least one logit, and none of them NaN.
inline float largest(std::span<const float> logits) { return logits[static_cast<size_t>(best(logits))]; }

// Returns whether all are numbers, and below infinity. It looks at their bits, which no flag for fast arithmetic
// optimizes away. is_least_one: whether minus infinity counts as one.
inline bool are_numbers(std::span<const float> logits, bool is_least_one) {
  constexpr int32_t MAGNITUDE = 0x7fffffff, INFINITE = 0x7f800000;
  const int32_t most = is_least_one ? INFINITE : INFINITE - 1;
  const auto is_none = [&](auto bits) { return ((bits & MAGNITUDE) > most) | (bits == INFINITE); };
  FourInts none = {};
  size_t at = 0;
  for (; at + 4 <= logits.size(); at += 4) none |= is_none(four<FourInts>(&logits[at]));
  bool found = (none[0] | none[1] | none[2] | none[3]) != 0;
  for (; at < logits.size(); ++at) found = found || is_none(std::bit_cast<int32_t>(logits[at]));
  return !found;
}

// Returns whether all are finite.
inline bool are_finite(std::span<const float> logits) { return are_numbers(logits, false); }

}  // namespace hybridge

#endif
