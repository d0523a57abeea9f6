// Products with one row a lane: AVX-512 VNNI, and any processor without an instruction for products of bytes.
#pragma once

#include "panels.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

// Sums and totals of 12 tokens are 24 of AVX-512's 32 registers.
#if defined(__AVX512F__)
constexpr int64_t tile_size(int64_t left) { return left >= 12 ? 12 : left >= 8 ? 8 : left; }
#else
constexpr int64_t tile_size(int64_t left) { return left < 4 ? left : 4; }
#endif
constexpr int64_t together(int64_t) { return 4; }
constexpr int offset(int bits) { return bits == 4 ? 8 : SIGNED_OFFSET; }

template <int Bits, int T>
struct IntegerTile {
  static constexpr int ROWS = REGISTER_LANES;
  f32xr total[T] = {};
  i32xr sum[T];

  INLINE void start(const int32_t* offsets) {
    UNROLLED for (int t = 0; t < T; ++t) sum[t] = i32xr{} + offsets[t];
  }

  INLINE void add(const uint8_t* w, const int8_t* x, int64_t columns) {
    constexpr int each = 32 / Bits;
    for (; columns > 0; columns -= each, w += 64, x += each * T) {
      __builtin_prefetch(w + AHEAD);
      const u8xr bytes = load<u8xr>(w);
      if constexpr (Bits == 4) {
        const u8xr low = bytes & uint8_t(15), high = bytes >> 4;
        UNROLLED for (int t = 0; t < T; ++t) sum[t] = dot4(sum[t], low, x + 4 * t);
        UNROLLED for (int t = 0; t < T; ++t) sum[t] = dot4(sum[t], high, x + 4 * (T + t));
      } else {
        UNROLLED for (int t = 0; t < T; ++t) sum[t] = dot4_signed(sum[t], bytes, x + 4 * t);
      }
    }
  }

  INLINE void finish(const half* scales, const float* steps) {
    const f32xr scale = to_float(load<f16xr>(scales));
    UNROLLED for (int t = 0; t < T; ++t) total[t] += to_float(sum[t]) * (scale * steps[t]);
  }

  INLINE void store(float* to) const {
    UNROLLED for (int t = 0; t < T; ++t) hybridge::store(to + t * LANES, total[t]);
  }
};

}  // namespace hybridge::inline INSTRUCTION_SET
