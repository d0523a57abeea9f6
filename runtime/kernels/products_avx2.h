// Products in 256 bits: with AVX-VNNI, or with AVX2 alone.
//
// AVX2 multiplies unsigned by signed bytes and adds two products to 16 bits, with saturation. A nibble times an activation is
// at most 15 * 127, so eight such pairs, the 32 columns of a usual group, fit 16 bits and are widened once. Two products of whole
// bytes fit too, but no more.
#pragma once

#include "panels.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

constexpr int64_t tile_size(int64_t left) { return left < 4 ? left : 4; }
constexpr int64_t together(int64_t) { return 4; }

// Leaves v in a register here and now: else g++ puts off all additions, until the products that wait for them fill the stack.
INLINE __m256i keep(__m256i v) {
  asm volatile("" : "+x"(v));
  return v;
}

INLINE __m256i quad(const int8_t* x) { return _mm256_set1_epi32(load<int32_t>(x)); }
INLINE __m256i whole(const uint8_t* w) { return load<__m256i>(w); }
INLINE __m256i low(const uint8_t* w) { return _mm256_and_si256(whole(w), _mm256_set1_epi8(15)); }
INLINE __m256i high(const uint8_t* w) { return _mm256_and_si256(_mm256_srli_epi16(whole(w), 4), _mm256_set1_epi8(15)); }

#if defined(__AVXVNNI__)

constexpr int offset(int bits) { return bits == 4 ? 8 : 128; }

template <int Bits, int T>
struct Sums {
  static constexpr int ROWS = 16, PARTS = ROWS / 8;
  __m256i sum[T][PARTS];

  INLINE void multiply(const __m256i (&w)[PARTS], const int8_t* x) {
    UNROLLED for (int t = 0; t < T; ++t) {
      const __m256i token = quad(x + 4 * t);
      UNROLLED for (int part = 0; part < PARTS; ++part) sum[t][part] = keep(_mm256_dpbusd_avx_epi32(sum[t][part], w[part], token));
    }
  }

  template <int Blocks>
  INLINE void add_blocks(const uint8_t* w, const int8_t* x) {
    UNROLLED for (int block = 0; block < Blocks; ++block, w += 64) {
      __builtin_prefetch(w + AHEAD);
      __m256i rows[PARTS];
      if constexpr (Bits == 4) {
        UNROLLED for (int part = 0; part < PARTS; ++part) rows[part] = low(w + 32 * part);
        multiply(rows, x + 8 * T * block);
        UNROLLED for (int part = 0; part < PARTS; ++part) rows[part] = high(w + 32 * part);
        multiply(rows, x + 8 * T * block + 4 * T);
      } else {
        UNROLLED for (int part = 0; part < PARTS; ++part) rows[part] = _mm256_xor_si256(whole(w + 32 * part), _mm256_set1_epi8(-128));
        multiply(rows, x + 4 * T * block);
      }
    }
  }
};

#else

constexpr int offset(int bits) { return bits == 4 ? 8 : 0; }

template <int Bits, int T>
struct Sums {
  static constexpr int ROWS = T > 2 ? 8 : 16, PARTS = ROWS / 8;
  __m256i sum[T][PARTS];

  INLINE void widen(__m256i pairs, int t, int part) {
    sum[t][part] = _mm256_add_epi32(sum[t][part], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }

  // Nibbles of up to 32 columns.
  template <int Blocks>
  INLINE void add_nibbles(const uint8_t* w, const int8_t* x) {
    __m256i pairs[T][PARTS];
    UNROLLED for (int block = 0; block < Blocks; ++block, w += 64) {
      __builtin_prefetch(w + AHEAD);
      UNROLLED for (int nibble = 0; nibble < 2; ++nibble, x += 4 * T) {
        __m256i rows[PARTS];
        UNROLLED for (int part = 0; part < PARTS; ++part) rows[part] = nibble ? high(w + 32 * part) : low(w + 32 * part);
        UNROLLED for (int t = 0; t < T; ++t) {
          const __m256i token = quad(x + 4 * t);
          UNROLLED for (int part = 0; part < PARTS; ++part) {
            const __m256i more = _mm256_maddubs_epi16(rows[part], token);
            pairs[t][part] = keep(block + nibble ? _mm256_add_epi16(pairs[t][part], more) : more);
          }
        }
      }
    }
    UNROLLED for (int t = 0; t < T; ++t)
      UNROLLED for (int part = 0; part < PARTS; ++part) widen(pairs[t][part], t, part);
  }

  INLINE void add_bytes(const uint8_t* w, const int8_t* x) {
    UNROLLED for (int t = 0; t < T; ++t) {
      const __m256i token = quad(x + 4 * t), size = _mm256_abs_epi8(token);
      UNROLLED for (int part = 0; part < PARTS; ++part)
        widen(_mm256_maddubs_epi16(size, _mm256_sign_epi8(whole(w + 32 * part), token)), t, part);
    }
  }

  template <int Blocks>
  INLINE void add_blocks(const uint8_t* w, const int8_t* x) {
    if constexpr (Bits == 4) return add_nibbles<Blocks>(w, x);
    UNROLLED for (int block = 0; block < Blocks; ++block) {
      __builtin_prefetch(w + 64 * block + AHEAD);
      add_bytes(w + 64 * block, x + 4 * T * block);
    }
  }
};

#endif

template <int Bits, int T>
struct IntegerTile : Sums<Bits, T> {
  using Sums<Bits, T>::PARTS, Sums<Bits, T>::sum;
  __m256 total[T][PARTS] = {};

  INLINE void start(const int32_t* offsets) {
    UNROLLED for (int t = 0; t < T; ++t)
      UNROLLED for (int part = 0; part < PARTS; ++part) sum[t][part] = _mm256_set1_epi32(offsets[t]);
  }

  INLINE void add(const uint8_t* w, const int8_t* x, int64_t columns) {
    constexpr int each = 32 / Bits;
    for (; columns >= 4 * each; columns -= 4 * each, w += 4 * 64, x += 4 * each * T) this->template add_blocks<4>(w, x);
    for (; columns > 0; columns -= each, w += 64, x += each * T) this->template add_blocks<1>(w, x);
  }

  INLINE void finish(const half* scales, const float* steps) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      const __m256 scale = _mm256_cvtph_ps(load<__m128i>(scales + 8 * part));
      UNROLLED for (int t = 0; t < T; ++t)
        total[t][part] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[t][part]), scale * _mm256_set1_ps(steps[t]), total[t][part]);
    }
  }

  INLINE void store(float* to) const {
    UNROLLED for (int t = 0; t < T; ++t)
      UNROLLED for (int part = 0; part < PARTS; ++part) hybridge::store(to + t * LANES + 8 * part, total[t][part]);
  }
};

}  // namespace hybridge::inline INSTRUCTION_SET
