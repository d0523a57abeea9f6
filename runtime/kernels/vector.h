// Instructions that the compiler does not choose by itself, over sixteen lanes (lanes.h).
#pragma once

#include "lanes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hybridge::inline INSTRUCTION_SET {

// Keeps what was loaded in its register: compilers load it again for each product, and loads are what is scarce.
template <typename V>
INLINE V keep(V v) {
#if defined(__AVX512F__)
  asm("" : "+v"(v));
#endif
  return v;
}

template <typename V>
INLINE V larger(V a, V b) {
  return select(a > b, a, b);
}

// All lanes put together two by two by f, which takes vectors and numbers.
template <typename F, typename V>
INLINE auto together_by(const F& f, V v) {
  if constexpr (!IS_REGISTER<V>) {
    return together_by(f, f(v.low, v.high));
  } else {
    constexpr int COUNT = sizeof(V) / sizeof(v[0]);
    if constexpr (COUNT == 2) {
      return f(v[0], v[1]);
    } else {
      using Half = typename Vector<typename NumberOf<V>::type, 1, COUNT / 2>::type;
      typename NumberOf<V>::type numbers[COUNT];
      store(numbers, v);
      return together_by(f, f(load<Half>(numbers), load<Half>(numbers + COUNT / 2)));
    }
  }
}

template <typename V>
INLINE auto largest(V v) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<V, f32x16>) return _mm512_reduce_max_ps((__m512)v);
  else return _mm512_reduce_max_epi32((__m512i)v);
#else
  const auto larger_of = [](auto a, auto b) {
    if constexpr (std::is_arithmetic_v<decltype(a)>) return a > b ? a : b;
    else return larger(a, b);
  };
  return together_by(larger_of, v);
#endif
}

template <typename V>
INLINE auto sum(V v) {
#if defined(__AVX512F__)
  if constexpr (std::is_same_v<V, f32x16>) return _mm512_reduce_add_ps((__m512)v);
  else if constexpr (std::is_same_v<V, i32x16>) return _mm512_reduce_add_epi32((__m512i)v);
  else
#endif
    return together_by([](auto a, auto b) { return a + b; }, v);
}

// a b + c, rounded once if the processor can: compilers do so in some loops, and in others not.
template <typename V>
INLINE V fused(V a, V b, V c) {
  return by_register(
      [](f32xr x, f32xr y, f32xr z) {
#if defined(__AVX512F__)
        return (f32xr)_mm512_fmadd_ps((__m512)x, (__m512)y, (__m512)z);
#elif defined(__FMA__)
        return (f32xr)_mm256_fmadd_ps((__m256)x, (__m256)y, (__m256)z);
#elif defined(__aarch64__)
        return (f32xr)vfmaq_f32((float32x4_t)z, (float32x4_t)x, (float32x4_t)y);
#else
        return x * y + z;
#endif
      },
      a, b, c
  );
}

// The same of one number b.
INLINE f32xr fused(f32xr a, float b, f32xr c) {
#if defined(__AVX512F__)
  return fused(a, (f32xr)_mm512_set1_ps(b), c);
#elif defined(__AVX2__)
  return fused(a, (f32xr)_mm256_set1_ps(b), c);
#elif defined(__aarch64__)
  return (f32xr)vfmaq_n_f32((float32x4_t)c, (float32x4_t)a, b);
#else
  return a * b + c;
#endif
}

// a b of vectors, one half of it added to the other if it has halves: the first step of sum(a b).
template <typename V>
INLINE auto folded_product(V a, V b) {
  if constexpr (IS_REGISTER<V>) return a * b;
  else return fused(a.low, b.low, a.high * b.high);
}

// The sum of each of sixteen vectors, in the order of sum().
template <typename V>
INLINE f32x16 sums(const V* v) {
  float to[LANES];
#if defined(__AVX2__) && !defined(__AVX512F__)
  const auto four = [v](int i) {  // of i and of i + 4: sums of two lanes
    const __m256 a = (__m256)v[i], b = (__m256)v[i + 4];
    return _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
  };
  const auto two = [&](int i) {
    const __m256d a = _mm256_castps_pd(four(i)), b = _mm256_castps_pd(four(i + 1));
    return _mm256_add_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(a, b)), _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)));
  };
  for (int i = 0; i < LANES; i += 8) {
    const __m256 a = two(i), b = two(i + 2);
    _mm256_storeu_ps(to + i, _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd)));
  }
#else
  for (int i = 0; i < LANES; ++i) to[i] = sum(v[i]);
#endif
  return load<f32x16>(to);
}

INLINE f32x16 magnitude(f32x16 v) { return (f32x16)((i32x16)v & 0x7fffffff); }

// Returns whether all magnitudes are below a limit, and none is NaN; where that takes no time, else false.
INLINE bool all_below(f32x16 magnitudes, float limit) {
#if defined(__AVX512F__)
  return _mm512_cmp_ps_mask((__m512)magnitudes, _mm512_set1_ps(limit), _CMP_LT_OQ) == 0xffff;
#elif defined(__AVX2__)  // as whole numbers: a NaN is the largest
  const __m256i most = _mm256_max_epi32((__m256i)magnitudes.low, (__m256i)magnitudes.high);
  return _mm256_movemask_ps((__m256)_mm256_sub_epi32(most, (__m256i)splat<f32xr>(limit))) == 0xff;
#else
  return false;
#endif
}

// v, with 0 for NaN and for what is too large: no processor agrees with another, or C++ with any, on the whole number
// of those.
INLINE f32x16 convertible(f32x16 v) { return select(magnitude(v) < 4194304.0f, v, f32x16{}); }

// To the nearest whole number, to the even one of two; see convertible().
INLINE i32x16 rounded(f32x16 v) {
  return by_register(
      [](f32xr part) {
#if defined(__AVX512F__)
        return (i32xr)_mm512_cvtps_epi32((__m512)part);
#elif defined(__AVX2__)
        return (i32xr)_mm256_cvtps_epi32((__m256)part);
#elif defined(__aarch64__)
        return (i32xr)vcvtnq_s32_f32((float32x4_t)part);
#else
        const f32xr magic = splat<f32xr>(
            12582912.0f
        );  // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
        return (i32xr)(part + magic) - (i32xr)magic;
#endif
      },
      convertible(v)
  );
}

// Writes numbers of -128..127 as sixteen bytes.
INLINE void store_bytes(int8_t* to, i32x16 v) {
#if defined(__AVX512F__)
  _mm_storeu_si128((__m128i*)to, _mm512_cvtepi32_epi8((__m512i)v));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_packs_epi32(
      (__m256i)v.low, (__m256i)v.high
  );  // of lanes 0..3 and 8..11, then 4..7 and 12..15
  const __m256i words = _mm256_permute4x64_epi64(pairs, 0xd8);
  _mm_storeu_si128((__m128i*)to, _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
#elif defined(__x86_64__)
  const __m128i low = _mm_packs_epi32((__m128i)v.low.low, (__m128i)v.low.high);
  _mm_storeu_si128((__m128i*)to, _mm_packs_epi16(low, _mm_packs_epi32((__m128i)v.high.low, (__m128i)v.high.high)));
#elif defined(__aarch64__)
  const auto words = [](auto half) {
    return vcombine_s16(vmovn_s32((int32x4_t)half.low), vmovn_s32((int32x4_t)half.high));
  };
  vst1q_s8(to, vcombine_s8(vmovn_s16(words(v.low)), vmovn_s16(words(v.high))));
#else
  int32_t numbers[LANES];
  store(numbers, v);
  for (int lane = 0; lane < LANES; ++lane) to[lane] = int8_t(numbers[lane]);
#endif
}

// Converts integers or float16 to float32.
template <typename V>
INLINE auto to_float(V v) {
  return by_register(
      [](auto part) {
        if constexpr (std::is_same_v<typename NumberOf<V>::type, half>) {
#if defined(__AVX512F__)
          return (f32xr)_mm512_cvtph_ps((__m256i)part);
#elif defined(__F16C__)
          return (f32xr)_mm256_cvtph_ps((__m128i)part);
#elif defined(__aarch64__)
          return (f32xr)vcvt_f32_f16((float16x4_t)part);
#endif
        }
        return __builtin_convertvector(part, f32xr);
      },
      v
  );
}

// A register of signed bytes as whole numbers.
INLINE i32xr widened(const uint8_t* from) {
#if defined(__AVX512F__)
  return (i32xr)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from));
#elif defined(__AVX2__)
  return (i32xr)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from));
#else
  i32xr numbers;
  for (int lane = 0; lane < REGISTER_LANES; ++lane) numbers[lane] = int8_t(from[lane]);
  return numbers;
#endif
}

// To the nearest, to the even one of two; infinite where it is too large.
INLINE f16x16 to_half(f32x16 v) {
  return by_register(
      [](f32xr part) {
#if defined(__AVX512F__)
        return (f16xr)_mm512_cvtps_ph((__m512)part, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#elif defined(__F16C__)
        return (f16xr)_mm256_cvtps_ph((__m256)part, _MM_FROUND_TO_NEAREST_INT);
#elif defined(__aarch64__)
        return (f16xr)vcvt_f16_f32((float32x4_t)part);
#else
        return __builtin_convertvector(part, f16xr);
#endif
      },
      v
  );
}

#if !defined(__AVX2__) && !defined(__ARM_FEATURE_DOTPROD)
// The same as below, by products of 16 bits.
INLINE i32xr dot4_in_words(i32xr acc, u8xr bytes, const int8_t* quad) {
#if defined(__x86_64__)
  const auto words = [](__m128i doubled) { return _mm_srai_epi16(doubled, 8); };
  const __m128i all = (__m128i)bytes, four = _mm_set1_epi32(load<int32_t>(quad)),
                q = words(_mm_unpacklo_epi8(four, four));
  const __m128 low = (__m128)_mm_madd_epi16(
      words(_mm_unpacklo_epi8(all, all)), q
  );  // of each lane the sums of two and two
  const __m128 high = (__m128)_mm_madd_epi16(words(_mm_unpackhi_epi8(all, all)), q);
  return acc + (i32xr)_mm_shuffle_ps(low, high, 0x88) + (i32xr)_mm_shuffle_ps(low, high, 0xdd);
#elif defined(__aarch64__)
  const int8x16_t all = (int8x16_t)bytes;
  const int8x8_t q = vreinterpret_s8_s32(vdup_n_s32(load<int32_t>(quad)));
  const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(all), q)), high = vpaddlq_s16(vmull_s8(vget_high_s8(all), q));
  return acc + (i32xr)vpaddq_s32(low, high);
#else
  for (int lane = 0; lane < REGISTER_LANES; ++lane)
    for (int j = 0; j < 4; ++j) acc[lane] += int32_t(int8_t(bytes[4 * lane + j])) * quad[j];
  return acc;
#endif
}
#endif

// acc[lane] += the four products of the lane's unsigned bytes (0..127) with the four signed bytes at `quad`
// (-127..127).
INLINE i32xr dot4(i32xr acc, u8xr bytes, const int8_t* quad) {
#if defined(__AVX512VNNI__)
  // The compiler would load the quad by an instruction of its own; half of them would then be loads.
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(acc) : "v"(bytes), "m"(*reinterpret_cast<const int8_t (*)[4]>(quad)));
  return acc;
#elif defined(__AVXVNNI__)
  return (i32xr)_mm256_dpbusd_avx_epi32((__m256i)acc, (__m256i)bytes, _mm256_set1_epi32(load<int32_t>(quad)));
#elif defined(__AVX2__)
  const __m256i pairs = _mm256_maddubs_epi16((__m256i)bytes, _mm256_set1_epi32(load<int32_t>(quad)));
  return acc + (i32xr)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#elif defined(__ARM_FEATURE_DOTPROD)
  return (i32xr)vdotq_s32((int32x4_t)acc, (int8x16_t)bytes, vreinterpretq_s8_s32(vdupq_n_s32(load<int32_t>(quad))));
#else
  return dot4_in_words(acc, bytes, quad);
#endif
}

// The same for signed bytes, up to SIGNED_OFFSET times the sum of the quad, which the caller takes off.
#if defined(__AVX512VNNI__) || defined(__AVXVNNI__)
constexpr int SIGNED_OFFSET = 128;
INLINE i32xr dot4_signed(i32xr acc, u8xr bytes, const int8_t* quad) { return dot4(acc, bytes ^ uint8_t(0x80), quad); }
#else
constexpr int SIGNED_OFFSET = 0;
INLINE i32xr dot4_signed(i32xr acc, u8xr bytes, const int8_t* quad) {
#if defined(__AVX2__)
  const __m256i q = _mm256_set1_epi32(load<int32_t>(quad)), size = _mm256_abs_epi8(q);
  const __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8((__m256i)bytes, q));
  return acc + (i32xr)_mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
#else
  return dot4(acc, bytes, quad);  // its bytes are signed already
#endif
}
#endif

}  // namespace hybridge::inline INSTRUCTION_SET
