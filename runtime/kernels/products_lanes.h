// Products with one row a lane: AVX-512 VNNI, and any processor without an instruction for products of bytes.
#pragma once

#include "panels.h"
#include "quads.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

// Sums and totals of 12 tokens are 24 of AVX-512's 32 registers.
#if defined(__AVX512F__)
constexpr int64_t tile_size(int64_t left) { return left >= 12 ? 12 : left >= 8 ? 8 : left; }
#else
constexpr int64_t tile_size(int64_t left) { return left < 4 ? left : 4; }
#endif
constexpr int64_t FEW = tile_size(1 << 20);
constexpr int64_t usual_group(int) { return 0; }
constexpr int64_t together(int64_t) { return 4; }
constexpr int SIGNED = SIGNED_OFFSET;
constexpr bool masked(int, int64_t) { return false; }
constexpr bool begins_with_pairs(const Panels&) { return false; }

template <int Code, int T>
struct IntegerTile {
  static constexpr int ROWS = REGISTER_LANES;
  f32xr total[T] = {};
  i32xr sum[T];

  INLINE void start(const int32_t* offsets) { UNROLLED for (int t = 0; t < T; ++t) sum[t] = i32xr{} + offsets[t]; }

  INLINE void add(const uint8_t* w, const int8_t* x, int64_t columns, const int8_t* table) {
    constexpr int unit = unit_of(Code);
    for (; columns > 0; columns -= unit, w += unit_bytes(Code), x += unit * T) {
      fetch_ahead<unit_bytes(Code) / 64, Code, T>(w);
      u8xr more = beside<Code, u8xr>(w, table);
      if constexpr (Code == TABLE && SIGNED_OFFSET) more = more ^ uint8_t(SIGNED_OFFSET);
      UNROLLED for (int q = 0; q < unit / 4; ++q) {
        const u8xr numbers = quad<Code>(w, more, q);
        UNROLLED for (int t = 0; t < T; ++t) {
          const int8_t* token = x + 4 * (q * T + t);
          sum[t] = Code == 8 || (Code == TABLE && !SIGNED_OFFSET) ? dot4_signed(sum[t], numbers, token)
                                                                  : dot4(sum[t], numbers, token);
        }
      }
    }
  }

  template <typename F>
  INLINE void finish(const F& scale, const float* steps) {
    const f32xr each = scale(0);
    UNROLLED for (int t = 0; t < T; ++t) total[t] += to_float(sum[t]) * (each * steps[t]);
  }

  template <typename F>
  INLINE void raise(const F& minimum, const float* sums) {
    const f32xr each = minimum(0);
    UNROLLED for (int t = 0; t < T; ++t) total[t] += each * sums[t];
  }

  INLINE void store(float* to) const { UNROLLED for (int t = 0; t < T; ++t) hybridge::store(to + t * LANES, total[t]); }
};

}  // namespace hybridge::inline INSTRUCTION_SET
