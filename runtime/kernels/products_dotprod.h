// Products by ARM's sdot: of four columns of four rows with four columns of a token, which it takes from any quarter of a register.
// So 16 columns of a token, loaded once, serve 16 columns of all rows.
#pragma once

#include "panels.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

// Eight tokens times eight rows are 16 of 32 registers, the tokens' columns another 8.
constexpr int64_t dotprod_tile_size(int64_t left) { return left < 8 ? left : 8; }
constexpr int64_t DOTPROD_TOGETHER = 16;
constexpr int offset(int bits) { return bits == 4 ? 8 : 0; }

INLINE int8x16_t low(uint8x16_t both) { return vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15))); }
INLINE int8x16_t high(uint8x16_t both) { return vreinterpretq_s8_u8(vshrq_n_u8(both, 4)); }

// Lines that will be read soon. Clang must not see how their addresses hang together with those of now: it would compute the
// latter from the former, one by one.
template <int Lines>
INLINE void fetch_ahead(const uint8_t* w) {
  w += AHEAD;
  asm("" : "+r"(w));
  UNROLLED for (int line = 0; line < Lines; ++line) __builtin_prefetch(w + 64 * line);
}

template <int Bits, int T>
struct DotprodTile {
  static constexpr int ROWS = T > 1 ? 8 : 16, PARTS = ROWS / 4;
  float32x4_t total[T][PARTS] = {};
  int32x4_t sum[T][PARTS];

  INLINE void start(const int32_t* offsets) {
    UNROLLED for (int t = 0; t < T; ++t)
      UNROLLED for (int part = 0; part < PARTS; ++part) sum[t][part] = vdupq_n_s32(offsets[t]);
  }

  template <int Quad>
  INLINE void multiply(int8x16_t rows, const int8x16_t (&x)[T], int part) {
    UNROLLED for (int t = 0; t < T; ++t) sum[t][part] = vdotq_laneq_s32(sum[t][part], rows, x[t], Quad);
  }

  // The eight columns that are half of x.
  template <int Half>
  INLINE void add_half(const uint8_t* w, const int8x16_t (&x)[T]) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      const uint8x16_t first = vld1q_u8(w + 16 * part);
      if constexpr (Bits == 4) {
        multiply<2 * Half>(low(first), x, part);
        multiply<2 * Half + 1>(high(first), x, part);
      } else {
        multiply<2 * Half>(vreinterpretq_s8_u8(first), x, part);
        multiply<2 * Half + 1>(vreinterpretq_s8_u8(vld1q_u8(w + 64 + 16 * part)), x, part);
      }
    }
  }

  INLINE void add_sixteen(const uint8_t* w, const int8_t* x) {
    int8x16_t tokens[T];
    UNROLLED for (int t = 0; t < T; ++t) tokens[t] = vld1q_s8(x + 16 * t);
    fetch_ahead<Bits / 2>(w);
    add_half<0>(w, tokens);
    add_half<1>(w + 16 * Bits, tokens);
  }

  INLINE void add(const uint8_t* w, const int8_t* x, int64_t columns) {
    if constexpr (T == 1)  // where a loop's own instructions count
      for (; columns >= 32; columns -= 32, w += 64 * Bits, x += 32) add_sixteen(w, x), add_sixteen(w + 32 * Bits, x + 16);
    for (; columns >= 16; columns -= 16, w += 32 * Bits, x += 16 * T) add_sixteen(w, x);
    if (columns == 0) return;
    int8x16_t tokens[T];
    UNROLLED for (int t = 0; t < T; ++t) tokens[t] = vcombine_s8(vld1_s8(x + 8 * t), vdup_n_s8(0));
    add_half<0>(w, tokens);
  }

  INLINE void finish(const half* scales, const float* steps) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      const float32x4_t scale = vcvt_f32_f16(vld1_f16(scales + 4 * part));
      UNROLLED for (int t = 0; t < T; ++t)
        total[t][part] = vfmaq_f32(total[t][part], vcvtq_f32_s32(sum[t][part]), vmulq_n_f32(scale, steps[t]));
    }
  }

  INLINE void store(float* to) const {
    UNROLLED for (int t = 0; t < T; ++t)
      UNROLLED for (int part = 0; part < PARTS; ++part) vst1q_f32(to + t * LANES + 4 * part, total[t][part]);
  }
};

#if !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int64_t tile_size(int64_t left) { return dotprod_tile_size(left); }
constexpr int64_t together(int64_t) { return DOTPROD_TOGETHER; }
template <int Bits, int T>
using IntegerTile = DotprodTile<Bits, T>;
#endif

}  // namespace hybridge::inline INSTRUCTION_SET
