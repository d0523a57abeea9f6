// Products by ARM's smmla: of eight columns of two rows with eight columns of two tokens, four sums at a time. One token is left
// to sdot.
#pragma once

#include <type_traits>

#include "products_dotprod.h"

namespace hybridge::inline INSTRUCTION_SET {

constexpr int64_t tile_size(int64_t left) { return left < 2 ? left : left < 8 ? left / 2 * 2 : 8; }
constexpr int64_t together(int64_t T) { return T == 1 ? DOTPROD_TOGETHER : 8; }

// Four numbers of two rows and two tokens: row 0 with either token, then row 1.
INLINE float32x4_t by_token(const float* two) { return vcombine_f32(vld1_f32(two), vld1_f32(two)); }
INLINE int32x4_t by_token(const int32_t* two) { return vcombine_s32(vld1_s32(two), vld1_s32(two)); }

template <int Bits, int T>
struct PairTile {
  static constexpr int ROWS = T > 4 ? 8 : 16, PAIRS = ROWS / 2, TOKENS = T / 2;
  float32x4_t total[PAIRS][TOKENS] = {};
  int32x4_t sum[PAIRS][TOKENS];

  INLINE void start(const int32_t* offsets) {
    UNROLLED for (int t = 0; t < TOKENS; ++t)
      UNROLLED for (int pair = 0; pair < PAIRS; ++pair) sum[pair][t] = by_token(offsets + 2 * t);
  }

  INLINE void multiply(int32x4_t rows, const int8x16_t (&x)[TOKENS], int pair) {
    UNROLLED for (int t = 0; t < TOKENS; ++t) sum[pair][t] = vmmlaq_s32(sum[pair][t], vreinterpretq_s8_s32(rows), x[t]);
  }

  INLINE void add_eight(const uint8_t* w, const int8_t* x) {
    int8x16_t tokens[TOKENS];
    UNROLLED for (int t = 0; t < TOKENS; ++t) tokens[t] = vld1q_s8(x + 16 * t);
    fetch_ahead<Bits / 4>(w);
    UNROLLED for (int pair = 0; pair < PAIRS; pair += 2) {  // four rows
      const uint8x16_t first = vld1q_u8(w + 8 * pair);
      int32x4_t left, right;  // columns 0..3 and 4..7 of each
      if constexpr (Bits == 4) {
        left = vreinterpretq_s32_s8(low(first)), right = vreinterpretq_s32_s8(high(first));
      } else {
        left = vreinterpretq_s32_u8(first), right = vreinterpretq_s32_u8(vld1q_u8(w + 64 + 8 * pair));
      }
      multiply(vzip1q_s32(left, right), tokens, pair);
      multiply(vzip2q_s32(left, right), tokens, pair + 1);
    }
  }

  INLINE void add(const uint8_t* w, const int8_t* x, int64_t columns) {
    for (; columns > 0; columns -= 8, w += 16 * Bits, x += 8 * T) add_eight(w, x);
  }

  INLINE void finish(const half* scales, const float* steps) {
    UNROLLED for (int pair = 0; pair < PAIRS; pair += 2) {
      const float32x4_t scale = vcvt_f32_f16(vld1_f16(scales + 2 * pair));
      finish_pair(vzip1q_f32(scale, scale), steps, pair);
      finish_pair(vzip2q_f32(scale, scale), steps, pair + 1);
    }
  }

  INLINE void finish_pair(float32x4_t scale, const float* steps, int pair) {
    UNROLLED for (int t = 0; t < TOKENS; ++t)
      total[pair][t] = vfmaq_f32(total[pair][t], vcvtq_f32_s32(sum[pair][t]), vmulq_f32(scale, by_token(steps + 2 * t)));
  }

  INLINE void store(float* to) const {
    UNROLLED for (int t = 0; t < TOKENS; ++t)
      UNROLLED for (int pair = 0; pair < PAIRS; pair += 2) {
        vst1q_f32(to + 2 * t * LANES + 2 * pair, vuzp1q_f32(total[pair][t], total[pair + 1][t]));
        vst1q_f32(to + (2 * t + 1) * LANES + 2 * pair, vuzp2q_f32(total[pair][t], total[pair + 1][t]));
      }
  }
};

template <int Bits, int T>
using IntegerTile = std::conditional_t<T == 1, DotprodTile<Bits, T>, PairTile<Bits, T>>;

}  // namespace hybridge::inline INSTRUCTION_SET
