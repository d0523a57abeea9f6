// Products in 256 bits: with AVX-VNNI, or with AVX2 alone.
//
// AVX2 multiplies unsigned by signed bytes and adds two products to 16 bits, with saturation. A nibble times an
// activation is at most 15 * 127, so eight such pairs, the 32 columns of a usual group, fit 16 bits and are widened
// once: of 5 bits four, of 6 two. Two products of whole bytes fit too, but no more.
#pragma once

#include "panels.h"
#include "quads.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

constexpr int64_t tile_size(int64_t left) { return left < 4 ? left : 4; }
constexpr int64_t FEW = 2;
constexpr int64_t usual_group(int code) { return code == 6 ? 16 : 32; }  // of nearly all published weights
constexpr int64_t together(int64_t) { return 4; }

// Leaves v in a register here and now: else g++ puts off all additions, until the products that wait for them fill the
// stack.
INLINE __m256i keep(__m256i v) {
  asm volatile("" : "+x"(v));
  return v;
}

INLINE __m256i four(const int8_t* x) { return _mm256_set1_epi32(load<int32_t>(x)); }

// Four columns of eight rows.
template <int Code>
INLINE __m256i eight_rows(const uint8_t* unit, __m256i beside, int q) {
  return (__m256i)quad<Code>(unit, (u8xr)beside, q);
}

constexpr int PARTS = LANES / 8;  // registers of a panel's rows

// Sums of a group of columns. add_units<Units, First>() adds some units to them; First: the sums begin with these.
#if defined(__AVXVNNI__)

constexpr int SIGNED = 128;
constexpr bool masked(int, int64_t) { return false; }
constexpr bool begins_with_pairs(const Panels&) { return false; }

template <int Code, int T>
struct Sums {
  static constexpr bool HAS_OFFSETS = true;
  static constexpr int BYTES = 1;
  __m256i sum[T][PARTS];

  template <int Units, bool First>
  INLINE void add_units(const uint8_t* w, const int8_t* x, const int8_t* table) {
    constexpr int unit = unit_of(Code);
    UNROLLED for (int i = 0; i < Units; ++i, w += unit_bytes(Code)) {
      fetch_ahead<unit_bytes(Code) / 64, Code, T>(w);
      __m256i more[PARTS];
      UNROLLED for (int part = 0; part < PARTS; ++part) {
        more[part] = (__m256i)beside<Code, u8xr>(w + 32 * part, table);
        if constexpr (Code == TABLE) more[part] = _mm256_xor_si256(more[part], _mm256_set1_epi8(-128));
      }
      UNROLLED for (int q = 0; q < unit / 4; ++q, x += 4 * T) {
        __m256i rows[PARTS];
        UNROLLED for (int part = 0; part < PARTS; ++part) {
          rows[part] = eight_rows<Code>(w + 32 * part, more[part], q);
          if constexpr (Code == 8) rows[part] = _mm256_xor_si256(rows[part], _mm256_set1_epi8(-128));
        }
        UNROLLED for (int t = 0; t < T; ++t) {
          const __m256i token = four(x + 4 * t);
          UNROLLED for (int part = 0; part < PARTS; ++part) {
            const __m256i before = First && i == 0 && q == 0 ? __m256i{} : sum[t][part];
            sum[t][part] = keep(_mm256_dpbusd_avx_epi32(before, rows[part], token));
          }
        }
      }
    }
  }
};

#else

constexpr int SIGNED = 0;
// With masks, because _mm256_sign_epi8 needs the two ports that multiply; but a single token waits for the weights.
constexpr bool masked(int code, int64_t T) { return is_signed(code) && T > 1; }

// Numbers of 5 or 6 bits around their middle: all pairs of a usual group fit 16 bits if they begin with their offset.
inline bool begins_with_pairs(const Panels& w) {
  return (w.code == 5 || w.code == 6) && w.group == usual_group(w.code) && !w.minima.numbers;
}

template <int Code, int T>
struct Sums {
  static constexpr bool MASKED = masked(Code, T), HAS_OFFSETS = MASKED || !is_signed(Code);
  static constexpr int BYTES = MASKED ? 2 : 1;  // of an activation
  __m256i sum[T][PARTS];

  INLINE void widen(__m256i pairs, int t, int part, bool first) {
    const __m256i added = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    sum[t][part] = first ? added : _mm256_add_epi32(sum[t][part], added);
  }

  template <int Units, bool First>
  INLINE void add_units(const uint8_t* w, const int8_t* x, const int8_t* table) {
    if constexpr (is_signed(Code)) add_signed<Units, First>(w, x, table);
    else add_unsigned<Units, First, false>(w, x, table, nullptr);
  }

  // Numbers of 4, 5 or 6 bits. With_pairs: see begins_with_pairs().
  template <int Units, bool First, bool With_pairs>
  INLINE void add_unsigned(const uint8_t* w, const int8_t* x, const int8_t* table, const int32_t* begin) {
    constexpr int quads = unit_of(Code) / 4, most = With_pairs ? Units * quads : 8 >> (Code - 4);
    __m256i pairs[T][PARTS];
    UNROLLED for (int i = 0; i < Units; ++i, w += unit_bytes(Code)) {
      fetch_ahead<unit_bytes(Code) / 64, Code, T>(w);
      __m256i more[PARTS];
      UNROLLED for (int part = 0; part < PARTS; ++part) more[part] = (__m256i)beside<Code, u8xr>(w + 32 * part, table);
      UNROLLED for (int q = 0; q < quads; ++q, x += 4 * T) {
        const int nth = i * quads + q;
        __m256i rows[PARTS];
        UNROLLED for (int part = 0; part < PARTS; ++part) rows[part] = eight_rows<Code>(w + 32 * part, more[part], q);
        UNROLLED for (int t = 0; t < T; ++t) {
          const __m256i token = four(x + 4 * t);
          UNROLLED for (int part = 0; part < PARTS; ++part) {
            const __m256i product = _mm256_maddubs_epi16(rows[part], token);
            if (With_pairs && nth == 0) pairs[t][part] = _mm256_set1_epi32(begin[t]);
            pairs[t][part] = keep(With_pairs || nth % most ? _mm256_add_epi16(pairs[t][part], product) : product);
            if (nth % most == most - 1 || nth == Units * quads - 1) widen(pairs[t][part], t, part, First && nth < most);
          }
        }
      }
    }
  }

  template <int Units, bool First>
  INLINE void add_signed(const uint8_t* w, const int8_t* x, const int8_t* table) {
    constexpr int quads = unit_of(Code) / 4;
    UNROLLED for (int i = 0; i < Units; ++i, w += unit_bytes(Code)) {
      fetch_ahead<1, Code, T>(w);
      const __m256i more = (__m256i)beside<Code, u8xr>(w, table);
      UNROLLED for (int q = 0; q < quads; ++q, x += 4 * T * BYTES) {
        __m256i rows[PARTS];
        UNROLLED for (int part = 0; part < PARTS; ++part) rows[part] = eight_rows<Code>(w + 32 * part, more, q);
        UNROLLED for (int t = 0; t < T; ++t) {
          const __m256i token = four(x + 4 * BYTES * t), size = MASKED ? token : _mm256_abs_epi8(token);
          const __m256i sign = MASKED ? four(x + 8 * t + 4) : token;
          UNROLLED for (int part = 0; part < PARTS; ++part) {
            const __m256i w = MASKED ? _mm256_xor_si256(rows[part], sign) : _mm256_sign_epi8(rows[part], sign);
            widen(_mm256_maddubs_epi16(size, w), t, part, First && i + q == 0);
            sum[t][part] = keep(sum[t][part]);
          }
        }
      }
    }
  }
};

#endif

template <int Code, int T>
struct IntegerTile : Sums<Code, T> {
  using Sums<Code, T>::sum, Sums<Code, T>::HAS_OFFSETS, Sums<Code, T>::BYTES;
  static constexpr int ROWS = LANES;
  __m256 total[T][PARTS] = {};
  const int32_t* offsets = nullptr;

  INLINE void start() {}
  INLINE void start(const int32_t* of_tokens) { offsets = of_tokens; }

  INLINE void add(const uint8_t* w, const int8_t* x, auto columns, const int8_t* table) {
    constexpr int unit = unit_of(Code), bytes = unit_bytes(Code), units = 32 / unit;
    if constexpr (!std::is_same_v<decltype(columns), int64_t>) {
#if !defined(__AVXVNNI__)
      if constexpr (Code == 5 || Code == 6)
        if (offsets) return this->template add_unsigned<columns / unit, true, true>(w, x, table, offsets);
#endif
      this->template add_units<columns / unit, true>(w, x, table);
    } else {
      UNROLLED for (int t = 0; t < T; ++t) UNROLLED for (int part = 0; part < PARTS; ++part) sum[t][part] = __m256i{};
      for (; columns >= 32; columns -= 32, w += units * bytes, x += 32 * T * BYTES)
        this->template add_units<units, false>(w, x, table);
      if constexpr (units > 1)
        for (; columns > 0; columns -= unit, w += bytes, x += unit * T * BYTES)
          this->template add_units<1, false>(w, x, table);
    }
    if (HAS_OFFSETS && offsets)
      UNROLLED for (int t = 0; t < T; ++t) UNROLLED for (int part = 0; part < PARTS; ++part)
          sum[t][part] = _mm256_add_epi32(sum[t][part], _mm256_set1_epi32(offsets[t]));
  }

  template <typename F>
  INLINE void finish(const F& scale, const float* steps) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      const __m256 each = (__m256)scale(8 * part);
      UNROLLED for (int t = 0; t < T; ++t) total[t][part] = _mm256_fmadd_ps(
          _mm256_cvtepi32_ps(sum[t][part]), each * _mm256_set1_ps(steps[t]), total[t][part]
      );
    }
  }

  template <typename F>
  INLINE void raise(const F& minimum, const float* sums) {
    UNROLLED for (int part = 0; part < PARTS; ++part) {
      const __m256 each = (__m256)minimum(8 * part);
      UNROLLED for (int t = 0; t < T; ++t)
          total[t][part] = _mm256_fmadd_ps(each, _mm256_set1_ps(sums[t]), total[t][part]);
    }
  }

  INLINE void store(float* to) const {
    UNROLLED for (int t = 0; t < T; ++t) UNROLLED for (int part = 0; part < PARTS; ++part)
        hybridge::store(to + t * LANES + 8 * part, total[t][part]);
  }
};

}  // namespace hybridge::inline INSTRUCTION_SET
