// Sixteen lanes whatever the processor: the compiler's vector types, and the few instructions that it does not find by itself.
#pragma once

#include <cstdint>
#include <cstring>

#include "instruction_set.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hybridge::inline INSTRUCTION_SET {

// A loop whose index has to be a constant: arrays stay in registers only where each element has a name, so to speak. For a
// function's arguments and members to stay there the function has to be INLINE.
#define UNROLLED _Pragma("GCC unroll 16")
#define INLINE [[gnu::always_inline]] inline

constexpr int LANES = 16;

using f32x16 = float __attribute__((vector_size(64)));
using i32x16 = int32_t __attribute__((vector_size(64)));
using u32x16 = uint32_t __attribute__((vector_size(64)));
using i8x16 = int8_t __attribute__((vector_size(16)));
using u8x64 = uint8_t __attribute__((vector_size(64)));
#if defined(__aarch64__)
using half = __fp16;
#else
using half = _Float16;
#endif
using f16x16 = half __attribute__((vector_size(32)));

template <typename V, typename T>
inline V load(const T* from) {
  V v;
  std::memcpy(&v, from, sizeof(V));
  return v;
}

template <typename V, typename T>
inline void store(T* to, V v) {
  std::memcpy(to, &v, sizeof(V));
}

// Keeps what was loaded in its register: compilers load it again for each product, and loads are what is scarce.
inline f32x16 keep(f32x16 v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#endif
  return v;
}

inline f32x16 splat(float x) { return f32x16{} + x; }

inline float largest(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps((__m512)v);
#else
  float top = v[0];
  for (int i = 1; i < LANES; ++i) top = v[i] > top ? v[i] : top;
  return top;
#endif
}

inline float sum(f32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps((__m512)v);
#else
  float total = 0.0f;
  for (int i = 0; i < LANES; ++i) total += v[i];
  return total;
#endif
}

inline int32_t sum(i32x16 v) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_epi32((__m512i)v);
#else
  int32_t total = 0;
  for (int i = 0; i < LANES; ++i) total += v[i];
  return total;
#endif
}

inline f32x16 magnitude(f32x16 v) { return (f32x16)((i32x16)v & 0x7fffffff); }

// v, with 0 for NaN and for what is too large: no processor agrees with another, or C++ with any, on the whole number of those.
inline f32x16 convertible(f32x16 v) { return magnitude(v) < 4194304.0f ? v : f32x16{}; }

// To the nearest whole number, to the even one of two; see convertible().
inline i32x16 rounded(f32x16 v) {
  v = convertible(v);
#if defined(__AVX512F__)
  return (i32x16)_mm512_cvtps_epi32((__m512)v);
#elif defined(__AVX2__)
  i32x16 whole;
  for (int i = 0; i < LANES; i += 8) {
    const __m256i part = _mm256_cvtps_epi32(load<__m256>((const float*)&v + i));
    std::memcpy((int32_t*)&whole + i, &part, sizeof part);
  }
  return whole;
#elif defined(__aarch64__)
  i32x16 whole;
  for (int i = 0; i < LANES; i += 4) vst1q_s32((int32_t*)&whole + i, vcvtnq_s32_f32(vld1q_f32((const float*)&v + i)));
  return whole;
#else
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
  return (i32x16)(v + magic) - (i32x16)magic;
#endif
}

inline f32x16 larger(f32x16 a, f32x16 b) { return a > b ? a : b; }

inline f32x16 to_float(i32x16 v) { return __builtin_convertvector(v, f32x16); }

inline f32x16 to_float(f16x16 v) {
#if defined(__AVX512F__)
  return (f32x16)_mm512_cvtph_ps((__m256i)v);
#elif defined(__aarch64__)
  union { f16x16 whole; float16x4_t part[4]; } a{v};
  union { float32x4_t part[4]; f32x16 whole; } b;
  for (int i = 0; i < 4; ++i) b.part[i] = vcvt_f32_f16(a.part[i]);
  return b.whole;
#elif defined(__F16C__)
  f32x16 wide;
  for (int i = 0; i < LANES; i += 8) {
    const __m256 part = _mm256_cvtph_ps(load<__m128i>((const half*)&v + i));
    std::memcpy((float*)&wide + i, &part, sizeof part);
  }
  return wide;
#else
  return __builtin_convertvector(v, f32x16);
#endif
}

// To the nearest, to the even one of two; infinite where it is too large.
inline f16x16 to_half(f32x16 v) {
#if defined(__AVX512F__)
  return (f16x16)_mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__aarch64__)
  f16x16 narrow;
  for (int i = 0; i < LANES; i += 4) {
    const float16x4_t part = vcvt_f16_f32(vld1q_f32((const float*)&v + i));
    std::memcpy((half*)&narrow + i, &part, sizeof part);
  }
  return narrow;
#elif defined(__F16C__)
  f16x16 narrow;
  for (int i = 0; i < LANES; i += 8) {
    const __m128i part = _mm256_cvtps_ph(load<__m256>((const float*)&v + i), _MM_FROUND_TO_NEAREST_INT);
    std::memcpy((half*)&narrow + i, &part, sizeof part);
  }
  return narrow;
#else
  return __builtin_convertvector(v, f16x16);
#endif
}

// acc[lane] += the four products of the lane's unsigned bytes (0..127) with the four signed bytes at `quad` (-127..127).
inline i32x16 dot4(i32x16 acc, u8x64 bytes, const int8_t* quad) {
#if defined(__AVX512VNNI__)
  // The compiler would load the quad by an instruction of its own; half of them would then be loads.
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(bytes), "m"(*reinterpret_cast<const int8_t(*)[4]>(quad)));
  return acc;
#elif defined(__AVXVNNI__)
  union { i32x16 whole; __m256i half[2]; } a{acc};
  union { u8x64 whole; __m256i half[2]; } b{bytes};
  const __m256i q = _mm256_set1_epi32(load<int32_t>(quad));
  for (int i = 0; i < 2; ++i) a.half[i] = _mm256_dpbusd_avx_epi32(a.half[i], b.half[i], q);
  return a.whole;
#elif defined(__AVX2__)
  union { i32x16 whole; __m256i half[2]; } a{acc};
  union { u8x64 whole; __m256i half[2]; } b{bytes};
  const __m256i q = _mm256_set1_epi32(load<int32_t>(quad)), ones = _mm256_set1_epi16(1);
  for (int i = 0; i < 2; ++i)
    a.half[i] = _mm256_add_epi32(a.half[i], _mm256_madd_epi16(_mm256_maddubs_epi16(b.half[i], q), ones));
  return a.whole;
#elif defined(__ARM_FEATURE_DOTPROD)
  union { i32x16 whole; int32x4_t part[4]; } a{acc};
  union { u8x64 whole; int8x16_t part[4]; } b{bytes};
  const int8x16_t q = vreinterpretq_s8_s32(vdupq_n_s32(load<int32_t>(quad)));
  for (int i = 0; i < 4; ++i) a.part[i] = vdotq_s32(a.part[i], b.part[i], q);
  return a.whole;
#else
  for (int lane = 0; lane < LANES; ++lane)
    for (int j = 0; j < 4; ++j) acc[lane] += int32_t(bytes[4 * lane + j]) * quad[j];
  return acc;
#endif
}

// The same for signed bytes, up to SIGNED_OFFSET times the sum of the quad, which the caller takes off.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int SIGNED_OFFSET = 128;
inline i32x16 dot4_signed(i32x16 acc, u8x64 bytes, const int8_t* quad) { return dot4(acc, bytes ^ uint8_t(0x80), quad); }
#else
constexpr int SIGNED_OFFSET = 0;
inline i32x16 dot4_signed(i32x16 acc, u8x64 bytes, const int8_t* quad) {
#if defined(__AVX2__)
  union { i32x16 whole; __m256i half[2]; } a{acc};
  union { u8x64 whole; __m256i half[2]; } b{bytes};
  const __m256i q = _mm256_set1_epi32(load<int32_t>(quad)), size = _mm256_abs_epi8(q), ones = _mm256_set1_epi16(1);
  for (int i = 0; i < 2; ++i) {
    const __m256i products = _mm256_maddubs_epi16(size, _mm256_sign_epi8(b.half[i], q));
    a.half[i] = _mm256_add_epi32(a.half[i], _mm256_madd_epi16(products, ones));
  }
  return a.whole;
#elif defined(__ARM_FEATURE_DOTPROD)
  return dot4(acc, bytes, quad);  // its bytes are signed already
#else
  for (int lane = 0; lane < LANES; ++lane)
    for (int j = 0; j < 4; ++j) acc[lane] += int32_t(int8_t(bytes[4 * lane + j])) * quad[j];
  return acc;
#endif
}
#endif

}  // namespace hybridge::inline INSTRUCTION_SET
