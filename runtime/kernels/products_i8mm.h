// Products by ARM's smmla: of eight columns of two rows with eight columns of two tokens, four sums at a time. One
// token is left to sdot.
#pragma once

#include <type_traits>

#include "products_dotprod.h"

namespace hybridge::inline INSTRUCTION_SET {

constexpr int64_t tile_size(int64_t left) { return left < 2 ? left : left < 8 ? left / 2 * 2 : 8; }
constexpr int64_t FEW = 8;
constexpr int64_t together(int64_t T) { return T == 1 ? DOTPROD_TOGETHER : 8; }

// Four numbers of two rows and two tokens: row 0 with either token, then row 1.
INLINE float32x4_t by_token(const float* two) { return vcombine_f32(vld1_f32(two), vld1_f32(two)); }
INLINE int32x4_t by_token(const int32_t* two) { return vcombine_s32(vld1_s32(two), vld1_s32(two)); }

template <int Code, int T>
struct PairTile {
  static constexpr int ROWS = T > 4 ? 8 : 16, PAIRS = ROWS / 2, TOKENS = T / 2;
  float32x4_t total[PAIRS][TOKENS] = {};
  int32x4_t sum[PAIRS][TOKENS];

  INLINE void start(const int32_t* offsets) {
    UNROLLED for (int t = 0; t < TOKENS; ++t) UNROLLED for (int pair = 0; pair < PAIRS; ++pair)
        sum[pair][t] = by_token(offsets + 2 * t);
  }

  INLINE void multiply(int32x4_t rows, const int8x16_t (&x)[TOKENS], int pair) {
    UNROLLED for (int t = 0; t < TOKENS; ++t) sum[pair][t] = vmmlaq_s32(sum[pair][t], vreinterpretq_s8_s32(rows), x[t]);
  }

  // Eight columns from the quad `first` of a unit on.
  INLINE void add_eight(const uint8_t* unit, const int8_t* x, int first, const u8xr (&more)[PAIRS / 2]) {
    int8x16_t tokens[TOKENS];
    UNROLLED for (int t = 0; t < TOKENS; ++t) tokens[t] = vld1q_s8(x + 16 * t);
    UNROLLED for (int pair = 0; pair < PAIRS; pair += 2) {  // four rows
      const auto columns = [&](int q) {
        return vreinterpretq_s32_s8(four_rows<Code>(unit + 8 * pair, more[pair / 2], q));
      };
      const int32x4_t left = columns(first), right = columns(first + 1);  // columns 0..3 and 4..7 of each
      multiply(vzip1q_s32(left, right), tokens, pair);
      multiply(vzip2q_s32(left, right), tokens, pair + 1);
    }
  }

  static constexpr int UNIT = unit_of(Code) < 8 ? 8 : unit_of(Code), BYTES = UNIT * bits_of(Code) * LANES / 8;

  INLINE void add_unit(const uint8_t* w, const int8_t* x, const int8_t* table) {
    u8xr more[PAIRS / 2];
    fetch_ahead<BYTES / 64, Code, T>(w);
    UNROLLED for (int four = 0; four < PAIRS / 2; ++four) more[four] = beside<Code, u8xr>(w + 16 * four, table);
    UNROLLED for (int k = 0; k < UNIT; k += 8) add_eight(w, x + k * T, k / 4, more);
  }

  INLINE void add(const uint8_t* w, const int8_t* x, int64_t columns, const int8_t* table) {
    if constexpr (T > 4 && bits_of(Code) == 4)  // where a loop's own instructions count
      for (; columns >= 32; columns -= 32, w += 4 * BYTES, x += 32 * T)
        UNROLLED for (int i = 0; i < 4; ++i) add_unit(w + i * BYTES, x + 8 * i * T, table);
    for (; columns > 0; columns -= UNIT, w += BYTES, x += UNIT * T) add_unit(w, x, table);
  }

  template <typename F>
  INLINE void finish(const F& scale, const float* steps) {
    UNROLLED for (int pair = 0; pair < PAIRS; pair += 2) {
      const float32x4_t each = (float32x4_t)scale(2 * pair);
      finish_pair(vzip1q_f32(each, each), steps, pair);
      finish_pair(vzip2q_f32(each, each), steps, pair + 1);
    }
  }

  INLINE void finish_pair(float32x4_t scale, const float* steps, int pair) {
    UNROLLED for (int t = 0; t < TOKENS; ++t) total[pair][t] = vfmaq_f32(
        total[pair][t], vcvtq_f32_s32(sum[pair][t]), vmulq_f32(scale, by_token(steps + 2 * t))
    );
  }

  template <typename F>
  INLINE void raise(const F& minimum, const float* sums) {
    UNROLLED for (int pair = 0; pair < PAIRS; pair += 2) {
      const float32x4_t each = (float32x4_t)minimum(2 * pair);
      UNROLLED for (int t = 0; t < TOKENS; ++t) {
        total[pair][t] = vfmaq_f32(total[pair][t], vzip1q_f32(each, each), by_token(sums + 2 * t));
        total[pair + 1][t] = vfmaq_f32(total[pair + 1][t], vzip2q_f32(each, each), by_token(sums + 2 * t));
      }
    }
  }

  INLINE void store(float* to) const {
    UNROLLED for (int t = 0; t < TOKENS; ++t) UNROLLED for (int pair = 0; pair < PAIRS; pair += 2) {
      vst1q_f32(to + 2 * t * LANES + 2 * pair, vuzp1q_f32(total[pair][t], total[pair + 1][t]));
      vst1q_f32(to + (2 * t + 1) * LANES + 2 * pair, vuzp2q_f32(total[pair][t], total[pair + 1][t]));
    }
  }
};

template <int Code, int T>
using IntegerTile = std::conditional_t<T == 1, DotprodTile<Code, T>, PairTile<Code, T>>;

}  // namespace hybridge::inline INSTRUCTION_SET
