// Functions of sixteen numbers at once, as accurate as a C library's own.
#pragma once

#include "vector.h"

namespace hybridge {

// e^x to 2 units in the last place; 0 below -104, infinite above 88.73, NaN for NaN.
// Source: the Cephes library's expf: e^x = 2^n e^r with |r| <= ln 2 / 2, and a polynomial for e^r.
inline f32x16 exp(f32x16 x) {
  x = x > 89.0f ? splat(89.0f) : x;
  x = x < -105.0f ? splat(-105.0f) : x;
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
  const f32x16 shifted = x * 1.44269504088896341f + magic, whole = shifted - magic;
  const f32x16 r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  f32x16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // In two steps, because 2^n may lie outside of what a float holds where the product does not.
  const i32x16 n = (i32x16)shifted - (i32x16)magic, half = n >> 1;
  return p * (f32x16)((half + 127) << 23) * (f32x16)((n - half + 127) << 23);
}

// The first `count` < 16 numbers of `from`, zeros behind them.
inline f32x16 load_first(const float* from, int64_t count) {
  f32x16 v = {};
  std::memcpy(&v, from, count * sizeof(float));
  return v;
}

inline void store_first(float* to, f32x16 v, int64_t count) { std::memcpy(to, &v, count * sizeof(float)); }

}  // namespace hybridge
