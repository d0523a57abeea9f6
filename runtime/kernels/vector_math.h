// Functions of sixteen numbers at once, as accurate as a C library's own.
#pragma once

#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

// e^x as `fraction` 2^`power`, for an x of which neither is too large.
// Source: the Cephes library's expf: e^x = 2^n e^r with |r| <= ln 2 / 2, and a polynomial for e^r.
struct Exponential {
  f32x16 fraction;
  i32x16 power;
};

INLINE Exponential split_exp(f32x16 x) {
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
  const f32x16 shifted = x * 1.44269504088896341f + magic, whole = shifted - magic;
  const f32x16 r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  f32x16 p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  return {p * (r * r) + r + 1.0f, (i32x16)shifted - (i32x16)magic};
}

// e^x to 2 units in the last place; 0 below -104, infinite above 88.73, NaN for NaN.
INLINE f32x16 exp(f32x16 x) {
  if (all_below(magnitude(x), 87.0f)) {  // for most: the same number in fewer steps
    const auto [fraction, power] = split_exp(x);
    return (f32x16)((i32x16)fraction + (power << 23));
  }
  x = select(x > 89.0f, splat(89.0f), x);
  x = select(x < -105.0f, splat(-105.0f), x);
  const auto [fraction, power] = split_exp(x);
  // In two steps, because 2^n may lie outside of what a float holds where the product does not.
  const i32x16 half = power >> 1;
  return fraction * (f32x16)((half + 127) << 23) * (f32x16)((power - half + 127) << 23);
}

// log(1 + y) for y of 0..1, as 2 artanh(y / (2 + y)), to 2 units in the last place.
INLINE f32x16 log1p_of_fraction(f32x16 y) {
  const f32x16 z = y / (y + 2.0f), zz = z * z;
  f32x16 p = zz * (1.0f / 15) + 1.0f / 13;
  p = p * zz + 1.0f / 11;
  p = p * zz + 1.0f / 9;
  p = p * zz + 1.0f / 7;
  p = p * zz + 1.0f / 5;
  p = p * zz + 1.0f / 3;
  return z * 2.0f + z * 2.0f * zz * p;
}

// tanh x to 2 units in the last place. Source: the Cephes library's tanhf: a polynomial near 0, 1 - 2 / (e^2x + 1)
// elsewhere.
INLINE f32x16 tanh(f32x16 x) {
  const f32x16 zz = x * x;
  f32x16 p = zz * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * zz - 5.37397155531e-2f;
  p = p * zz + 1.33314422036e-1f;
  p = p * zz - 3.33332819422e-1f;
  const f32x16 near = x + x * zz * p, far = 1.0f - 2.0f / (exp(x * 2.0f) + 1.0f);
  return select(zz < 0.390625f, near, far);
}

// erf x to 2 units in the last place: x + x P(x^2) near 0, 1 - e^(|x| Q(|x|)) elsewhere. The polynomials go through
// the functions at Chebyshev nodes of 0..1 and 0.95..4.1; from 4 on erf is 1.
INLINE f32x16 erf(f32x16 x) {
  const f32x16 size = magnitude(x), xx = x * x, t = select(size > 4.0f, splat(4.0f), size);
  f32x16 p = xx * 7.88249709e-05f - 8.01885499e-04f;
  p = p * xx + 5.18931194e-03f;
  p = p * xx - 2.68543288e-02f;
  p = p * xx + 1.12835975e-01f;
  p = p * xx - 3.76126269e-01f;
  p = p * xx + 1.28379166e-01f;
  f32x16 q = t * 2.29264132e-07f - 3.55510142e-06f;
  q = q * t + 4.88820100e-06f;
  q = q * t + 3.13079052e-04f;
  q = q * t - 3.77307295e-03f;
  q = q * t + 2.42042302e-02f;
  q = q * t - 1.06865588e-01f;
  q = q * t - 6.34722281e-01f;
  q = q * t - 1.12876341f;
  const f32x16 near = x * p + x, far = 1.0f - exp(q * t);
  return select(size < 1.0f, near, (f32x16)((i32x16)far ^ ((i32x16)x & INT32_MIN)));
}

// The first `count` numbers of `from`, fewer than a vector has, zeros behind them.
template <typename V = f32x16>
inline V load_first(const float* from, int64_t count) {
  float numbers[sizeof(V) / sizeof(float)] = {};
  std::memcpy(numbers, from, count * sizeof(float));
  return load<V>(numbers);
}

template <typename V>
inline void store_first(float* to, V v, int64_t count) {
  float numbers[sizeof(V) / sizeof(float)];
  store(numbers, v);
  std::memcpy(to, numbers, count * sizeof(float));
}

// The same for up to all numbers of a vector.
template <typename V = f32x16>
INLINE V load_up_to(const float* from, int64_t count) {
  return count >= int64_t(sizeof(V) / sizeof(float)) ? load<V>(from) : load_first<V>(from, count);
}

template <typename V>
INLINE void store_up_to(float* to, V v, int64_t count) {
  count >= int64_t(sizeof(V) / sizeof(float)) ? store(to, v) : store_first(to, v, count);
}

// f of one number, which all lanes have.
template <typename F>
INLINE float of_one(const F& f, float x) {
  float numbers[LANES];
  store(numbers, f(splat(x)));
  return numbers[0];
}

}  // namespace hybridge::inline INSTRUCTION_SET
