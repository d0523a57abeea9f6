// Products by ARM's sdot: of four columns of four rows with four columns of a token, which it takes from any quarter of
// a register. So 16 columns of a token, loaded once, serve 16 columns of all rows.
#pragma once

#include "panels.h"
#include "quads.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

// Eight tokens times eight rows are 16 of 32 registers, the tokens' columns another 8.
constexpr int64_t dotprod_tile_size(int64_t left) { return left < 8 ? left : 8; }
constexpr int64_t DOTPROD_TOGETHER = 16;
constexpr int64_t usual_group(int) { return 0; }
constexpr int SIGNED = 0;
constexpr bool masked(int, int64_t) { return false; }
constexpr bool begins_with_pairs(const Panels&) { return false; }

// Four columns of four rows.
template <int Code>
INLINE int8x16_t four_rows(const uint8_t* unit, u8xr beside, int q) {
  return (int8x16_t)quad<Code>(unit, beside, q);
}

template <int Code, int T>
struct DotprodTile {
  static constexpr int ROWS = T > 1 ? 8 : 16, PARTS = ROWS / 4;
  float32x4_t total[T][PARTS] = {};
  int32x4_t sum[T][PARTS];

  INLINE void start(const int32_t* offsets) {
    UNROLLED for (int t = 0; t < T; ++t) UNROLLED for (int part = 0; part < PARTS; ++part)
        sum[t][part] = vdupq_n_s32(offsets[t]);
  }

  template <int Quad>
  INLINE void multiply(int8x16_t rows, const int8x16_t (&x)[T], int part) {
    UNROLLED for (int t = 0; t < T; ++t) sum[t][part] = vdotq_laneq_s32(sum[t][part], rows, x[t], Quad);
  }

  // Eight columns, which are half of x, from the quad `First` of a unit on.
  template <int Half, int First>
  INLINE void add_half(const uint8_t* unit, const int8x16_t (&x)[T], const u8xr (&more)[PARTS]) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      multiply<2 * Half>(four_rows<Code>(unit + 16 * part, more[part], First), x, part);
      multiply<2 * Half + 1>(four_rows<Code>(unit + 16 * part, more[part], First + 1), x, part);
    }
  }

  static constexpr bool IS_HIGH = Code == 5 || Code == 6;

  // Sixteen columns from the quad `First` of a unit on; of units with fewer columns some together.
  template <int First>
  INLINE void add_sixteen(const uint8_t* unit, const int8_t* x, const u8xr (&more)[PARTS]) {
    int8x16_t tokens[T];
    UNROLLED for (int t = 0; t < T; ++t) tokens[t] = vld1q_s8(x + 16 * t);
    fetch_ahead<bits_of(Code) / 2, Code, T>(unit);
    add_half<0, First>(unit, tokens, more);
    if constexpr (IS_HIGH) add_half<1, First + 2>(unit, tokens, more);
    else add_half<1, 0>(unit + 16 * bits_of(Code), tokens, more);
  }

  INLINE void add(const uint8_t* w, const int8_t* x, int64_t columns, const int8_t* table) {
    constexpr int unit = IS_HIGH ? unit_of(Code) : 16, bytes = unit * bits_of(Code) * LANES / 8;
    u8xr more[PARTS];
    const auto prepare = [&] {
      UNROLLED for (int part = 0; part < PARTS; ++part) more[part] = beside<Code, u8xr>(w + 16 * part, table);
    };
    if constexpr (!IS_HIGH) prepare();
    if constexpr (T == 1 && !IS_HIGH)  // where a loop's own instructions count
      for (; columns >= 32; columns -= 32, w += 2 * bytes, x += 32)
        add_sixteen<0>(w, x, more), add_sixteen<0>(w + bytes, x + 16, more);
    for (; columns >= unit; columns -= unit, w += bytes, x += unit * T) {
      if constexpr (IS_HIGH) prepare();
      add_sixteen<0>(w, x, more);
      if constexpr (unit == 32) add_sixteen<4>(w, x + 16 * T, more);
      if constexpr (T > 4 && !IS_HIGH) asm("" : "+r"(w), "+r"(x));  // or clang adds an offset to both in each turn
    }
    if constexpr (!IS_HIGH) {
      if (columns == 0) return;
      int8x16_t tokens[T];
      UNROLLED for (int t = 0; t < T; ++t) tokens[t] = vcombine_s8(vld1_s8(x + 8 * t), vdup_n_s8(0));
      add_half<0, 0>(w, tokens, more);
    }
  }

  template <typename F>
  INLINE void finish(const F& scale, const float* steps) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      const float32x4_t each = (float32x4_t)scale(4 * part);
      UNROLLED for (int t = 0; t < T; ++t)
          total[t][part] = vfmaq_f32(total[t][part], vcvtq_f32_s32(sum[t][part]), vmulq_n_f32(each, steps[t]));
    }
  }

  template <typename F>
  INLINE void raise(const F& minimum, const float* sums) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      const float32x4_t each = (float32x4_t)minimum(4 * part);
      UNROLLED for (int t = 0; t < T; ++t) total[t][part] = vfmaq_n_f32(total[t][part], each, sums[t]);
    }
  }

  INLINE void store(float* to) const {
    UNROLLED for (int t = 0; t < T; ++t) UNROLLED for (int part = 0; part < PARTS; ++part)
        vst1q_f32(to + t * LANES + 4 * part, total[t][part]);
  }
};

#if !defined(__ARM_FEATURE_MATMUL_INT8)
constexpr int64_t tile_size(int64_t left) { return dotprod_tile_size(left); }
constexpr int64_t FEW = 8;
constexpr int64_t together(int64_t) { return DOTPROD_TOGETHER; }
template <int Code, int T>
using IntegerTile = DotprodTile<Code, T>;
#endif

}  // namespace hybridge::inline INSTRUCTION_SET
