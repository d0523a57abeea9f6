// Exponentials of sixteen lanes at once, within 2 units in the last place, and the gates that are made of them.
#pragma once

#include "vector.h"

namespace hybridge {

inline f32x16 largest(f32x16 a, f32x16 b) { return a > b ? a : b; }

// 2^n for whole n of -126..127.
inline f32x16 power_of_two(i32x16 n) { return (f32x16)((n + 127) << 23); }

// Cephes' expf: e^x = 2^n e^r with |r| <= ln 2 / 2. Overflows to infinity, underflows to 0, NaN stays NaN.
inline f32x16 exp(f32x16 x) {
  constexpr float ROUND = 12582912.0f;  // 1.5 * 2^23: adding it leaves no place for a fraction
  x = x < splat(-104.0f) ? splat(-104.0f) : x;
  x = x > splat(89.0f) ? splat(89.0f) : x;
  const f32x16 shifted = x * 1.44269504088896341f + ROUND, n = shifted - ROUND;
  const f32x16 r = (x - n * 0.693359375f) - n * -2.12194440e-4f;
  f32x16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const i32x16 whole = (i32x16)shifted - (i32x16)splat(ROUND), half = whole >> 1;
  return p * power_of_two(half) * power_of_two(whole - half);  // in two steps, for what has no exponent of its own
}

// log(1 + y) for y of 0..1, as 2 artanh(y / (2 + y)).
inline f32x16 log1p_of_fraction(f32x16 y) {
  const f32x16 z = y / (y + 2.0f), zz = z * z;
  f32x16 p = zz * (1.0f / 15) + 1.0f / 13;
  p = p * zz + 1.0f / 11;
  p = p * zz + 1.0f / 9;
  p = p * zz + 1.0f / 7;
  p = p * zz + 1.0f / 5;
  p = p * zz + 1.0f / 3;
  return z * 2.0f + z * 2.0f * zz * p;
}

inline f32x16 softplus(f32x16 x) {
  const f32x16 zero{}, negative = x > zero ? -x : x;
  return (x < zero ? zero : x) + log1p_of_fraction(exp(negative));
}

inline f32x16 sigmoid(f32x16 x) { return 1.0f / (1.0f + exp(-x)); }

inline f32x16 silu(f32x16 x) { return x / (1.0f + exp(-x)); }

// The first `count` lanes of memory that ends there, zeros in the others.
inline f32x16 load_first(const float* from, int64_t count) {
  f32x16 v{};
  std::memcpy(&v, from, count * sizeof(float));
  return v;
}

inline void store_first(float* to, f32x16 v, int64_t count) { std::memcpy(to, &v, count * sizeof(float)); }

}  // namespace hybridge
