// Loops over the logits of a vocabulary, four at a time. They are inlined into logits.cpp and sampling.cpp: a decode
// runs through 100,000 logits and more.
#ifndef HYBRIDGE_ENGINE_VOCABULARY_LOOPS_H
#define HYBRIDGE_ENGINE_VOCABULARY_LOOPS_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace hybridge {

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

// Calls f(begin, count) for each block, and for what is left after the last one, unless all of it is below `least()`,
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

}  // namespace hybridge

#endif
