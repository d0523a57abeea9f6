// Shared by the recurrences.
//
// Where a state is a matrix for each head, each token is a step over a tile of it that stays in the first cache, so an
// output is one sum in one order, whatever is read beside it, and a commit leaves the bits that decodes would. Sums of
// blocks as a whole need fewer multiplications, but round otherwise for each length of a block.
#pragma once

#include "kernel.h"
#include "vector.h"
#include "vector_math.h"

#include <algorithm>
#include <cstring>

namespace hybridge::inline INSTRUCTION_SET {

enum class Form { EXTEND, VERIFY, COMMIT };

// f(batch, first channel, last channel) for BLOCK of C channels at a time, in threads; `each` is what a channel costs.
template <int64_t BLOCK, typename F>
void for_channels(int64_t batch, int64_t C, int64_t each, const F& f) {
  const int64_t blocks = (C + BLOCK - 1) / BLOCK;
  parallel(batch * blocks, BLOCK * each, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item)
      f(item / blocks, item % blocks * BLOCK, std::min((item % blocks + 1) * BLOCK, C));
  });
}

// Keeps x [B, T, ...] as the first T tokens of a verify's buffer [B, S, ...], for a commit.
inline void stage(Tensor& staged, const Tensor& x) {
  const int64_t batches = x.size(0), count = x.numel() / batches, stride = staged.numel() / batches;
  for (int64_t batch = 0; batch < batches; ++batch)
    std::memmove(data<float>(staged) + batch * stride, data<float>(x) + batch * count, count * sizeof(float));
}

inline int64_t padded(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

inline void copy_row(float* to, const float* from, int64_t count, int64_t stride) {
  std::memcpy(to, from, count * sizeof(float));
  std::fill(to + count, to + stride, 0.0f);
}

inline float dot(const float* a, const float* b, int64_t stride) {
  f32x16 total{};
  for (int64_t k = 0; k < stride; k += LANES) total = fused(load<f32x16>(a + k), load<f32x16>(b + k), total);
  return sum(total);
}

// Writes the sum of each of R registers: four at a time where instructions add neighbours, else each by itself.
template <int R>
INLINE void store_sums(float* to, const f32xr* v) {
  int r = 0;
#if defined(__AVX2__) && !defined(__AVX512F__)
  UNROLLED for (; r + 4 <= R; r += 4) {
    const __m256 a = _mm256_hadd_ps((__m256)v[r], (__m256)v[r + 1]),
                 b = _mm256_hadd_ps((__m256)v[r + 2], (__m256)v[r + 3]), c = _mm256_hadd_ps(a, b);
    _mm_storeu_ps(to + r, _mm_add_ps(_mm256_castps256_ps128(c), _mm256_extractf128_ps(c, 1)));
  }
#elif defined(__aarch64__)
  UNROLLED for (; r + 4 <= R; r += 4) {
    const float32x4_t a = vpaddq_f32((float32x4_t)v[r], (float32x4_t)v[r + 1]);
    vst1q_f32(to + r, vpaddq_f32(a, vpaddq_f32((float32x4_t)v[r + 2], (float32x4_t)v[r + 3])));
  }
#endif
  UNROLLED for (; r < R; ++r) to[r] = sum(v[r]);
}

// A register of a row of which `width` numbers are left, where it may not be whole.
template <bool Whole>
INLINE f32xr get(const float* from, int64_t width) {
  if constexpr (Whole) return load<f32xr>(from);
  return load_first<f32xr>(from, width);
}

template <bool Whole>
INLINE void put(float* to, f32xr v, int64_t width) {
  if constexpr (Whole) return store(to, v);
  store_first(to, v, width);
}

}  // namespace hybridge::inline INSTRUCTION_SET
