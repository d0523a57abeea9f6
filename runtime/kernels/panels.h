// Layout of weights in memory: panels of 16 rows, one row a lane, so that a product needs no sum across lanes.
//
// 4 bits: uint8 [N / 16, K / 8, 64]; byte 4 lane + j of a block of 8 columns has column j in its low and 4 + j in its
// high half. 5 and 6 bits: uint8 [N / 16, K / 32, 320] and [N / 16, K / 16, 192]. So many columns are a unit: the lower
// four bits of its
//   numbers as above, and behind them 64 bytes, of which byte 4 lane + j has the upper bits of columns j, 4 + j, 8 + j and so on.
// 8 bits: int8 [N / 16, K / 4, 64]; byte 4 lane + j of a block of 4 columns has column j, -127..127.
// 16 and 32 bits: float16, bfloat16 or float32 [N / 16, K, 16].
//
// Numbers u of less than 8 bits are around their middle: a weight is (u - 2^(bits - 1)) * scale. With minima it is
// u * scale + minimum, with a table, int8 [16], of 4 bits table[u] * scale. Scales and minima are [N / 16, K / group,
// 16], either
//   float16,
//   int8, times a float16 of superscales [N / 16, S, 16], which K / group / S groups share;
//     with minima [N / 16, 2 S, 16], the factors of a superblock's minima behind those of its scales,
//   or uint8, as scales of a table alone: exponents of two, 2^(e - 128).
// Rows past N are zero.
#pragma once

#include "checks.h"
#include "kernel.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

// The format of a panel's numbers: 4, 5, 6 or 8 bits, or one of these.
constexpr int TABLE = 1, HALF = 16, BFLOAT = 17, FLOAT = 32;

constexpr int bits_of(int code) { return code == TABLE ? 4 : code == BFLOAT ? 16 : code; }

// True if the numbers have a sign of their own.
constexpr bool is_signed(int code) { return code == 8 || code == TABLE; }

// How many panels one token meets in turns. The weights of a decode come from memory, which delivers more where it is
// read at several places at once: one thread of an EPYC of family 25 reads 19 GB/s at one, 26 at two and 28 at four.
// Neither AVX-512 nor a phone has been measured.
#if defined(__AVX2__)
constexpr int panels_at_once(int code) { return code < 8 ? 2 : 4; }
#else
constexpr int panels_at_once(int) { return 1; }
#endif

// How many bytes ahead weights are fetched, by the number of places at which they are read. Processors fetch by
// themselves what follows, but not beyond a page, and not soon enough. On the same processor, products at one place
// take 0.85 of the time with 4,096 that they take with 1,024; with 16,384 most of the gain is gone.
#if defined(__x86_64__)
constexpr int64_t ahead(int places) { return 4096 - 1024 * (places - 1); }
#else
constexpr int64_t ahead(int) { return 1024; }
#endif

// Columns that lie together, and their bytes.
constexpr int unit_of(int code) { return code == 5 ? 32 : code == 6 ? 16 : code >= 16 ? 1 : 32 / bits_of(code); }
constexpr int unit_bytes(int code) { return unit_of(code) * LANES * bits_of(code) / 8; }

// Scales or minima of all panels.
struct Factors {
  const uint8_t* numbers = nullptr;
  const half* superscales = nullptr;
  enum Form { HALVES, BYTES, EXPONENTS } form = HALVES;
  int64_t groups = 0;
  int64_t superblocks = 1;
  int64_t inverse = 0;  // superblocks / groups in 2^-40, and a hair more: a quotient without a division
  int64_t stride = 0;   // from a superscale to the next

  Factors from(int64_t panel) const {
    Factors f = *this;
    f.numbers += panel * groups * LANES * (form == HALVES ? 2 : 1);
    if (superscales) f.superscales += panel * superblocks * stride;
    return f;
  }

  // The numbers of one group and a register of rows, the first of them `lane`.
  INLINE f32xr at(int64_t group, int lane) const {
    if (form == HALVES) return of_form<HALVES>(group, lane);
    return form == BYTES ? of_form<BYTES>(group, lane) : of_form<EXPONENTS>(group, lane);
  }

  // The superscales of a superblock, and the numbers of a group in it that has such superscales.
  INLINE f32xr superscale(int64_t superblock, int lane) const {
    return to_float(load<f16xr>(superscales + superblock * stride + lane));
  }
  INLINE f32xr scaled(int64_t group, int lane, f32xr superscale) const {
    return to_float(widened(numbers + group * LANES + lane)) * superscale;
  }

  // Writes the first panel's numbers as floats [groups, LANES].
  void decode(float* to) const {
    if (form == HALVES) return decode_as<HALVES>(to);
    if (form == EXPONENTS) return decode_as<EXPONENTS>(to);
    for (int64_t superblock = 0, group = 0; superblock < superblocks; ++superblock) {
      f32xr held[LANES / REGISTER_LANES];
      UNROLLED for (int i = 0; i < LANES / REGISTER_LANES; ++i) held[i] = superscale(superblock, i * REGISTER_LANES);
      for (const int64_t end = group + groups / superblocks; group < end; ++group, to += LANES)
        UNROLLED for (int i = 0; i < LANES / REGISTER_LANES; ++i)
            store(to + i * REGISTER_LANES, scaled(group, i * REGISTER_LANES, held[i]));
    }
  }

  float at_row(int64_t group, int lane) const {
    float values[REGISTER_LANES];
    store(values, at(group, lane / REGISTER_LANES * REGISTER_LANES));
    return values[lane % REGISTER_LANES];
  }

  // The same as at() where the form is FORM.
  template <Form FORM>
  INLINE f32xr of_form(int64_t group, int lane) const {
    const uint8_t* bytes = numbers + group * LANES + lane;
    if constexpr (FORM == HALVES) return to_float(load<f16xr>(bytes + group * LANES + lane));
    const i32xr whole = widened(bytes), e = whole & 255;
    if constexpr (FORM == BYTES)
      return to_float(whole) * to_float(load<f16xr>(superscales + (group * inverse >> 40) * stride + lane));
    return (f32xr)select(e < 2, (e + 1) << 21, (e - 1) << 23);
  }

 private:
  template <Form FORM>
  void decode_as(float* to) const {
    for (int64_t group = 0; group < groups; ++group, to += LANES)
      UNROLLED for (int lane = 0; lane < LANES; lane += REGISTER_LANES) store(to + lane, of_form<FORM>(group, lane));
  }
};

struct Panels {
  const uint8_t* packed;
  Factors scales, minima;  // without numbers where there are none
  const int8_t* table;
  int64_t N, K, group;
  int code;

  int64_t count() const { return (N + LANES - 1) / LANES; }
  int64_t groups() const { return K / group; }
  int64_t bytes() const { return K * LANES * bits_of(code) / 8; }
  const uint8_t* panel(int64_t index) const { return packed + index * bytes(); }

  // The same without the first panels.
  Panels from(int64_t panel) const {
    Panels p = *this;
    p.packed += panel * bytes();
    if (scales.numbers) p.scales = scales.from(panel);
    if (minima.numbers) p.minima = minima.from(panel);
    return p;
  }

  // Offset to subtract from a number of 4, 5 or 6 bits.
  int zero() const { return code == 4 || code == 5 || code == 6 ? minima.numbers ? 0 : 1 << (code - 1) : 0; }

  // A row's number before it is scaled, of less than 16 bits.
  int quantum(int64_t row, int64_t k) const {
    const int unit = unit_of(code), at = k % unit, quad = at / 4, byte = 4 * (row % LANES) + at % 4;
    const uint8_t* w = panel(row / LANES) + k / unit * unit_bytes(code);
    if (code == 8) return int8_t(w[byte]);
    const int low = w[64 * (quad / 2) + byte] >> (quad % 2 * 4) & 15;
    if (code == TABLE) return table[low];
    if (code == 4) return low - zero();
    const int upper = code - 4, high = w[64 * (unit / 8) + byte] >> (quad * upper) & ((1 << upper) - 1);
    return (high << 4 | low) - zero();
  }

  // A row of weights, for embeddings: float32 [K].
  void row(int64_t index, float* to) const {
    const int64_t lane = index % LANES;
    if (code >= 16) {
      const uint8_t* w = panel(index / LANES) + lane * bits_of(code) / 8;
      for (int64_t k = 0; k < K; ++k, w += unit_bytes(code)) to[k] = number(w);
      return;
    }
    const Factors factors = scales.from(index / LANES), lows = minima.numbers ? minima.from(index / LANES) : minima;
    for (int64_t g = 0; g < groups(); ++g) {
      const float scale = factors.at_row(g, lane), low = minima.numbers ? lows.at_row(g, lane) : 0.0f;
      for (int64_t k = g * group; k < (g + 1) * group; ++k) to[k] = quantum(index, k) * scale + low;
    }
  }

 private:
  float number(const uint8_t* at) const {
    float value;
    if (code == HALF) return load<half>(at);
    const uint32_t bits = code == BFLOAT ? uint32_t(load<uint16_t>(at)) << 16 : load<uint32_t>(at);
    std::memcpy(&value, &bits, sizeof value);
    return value;
  }
};

constexpr int64_t MOST_SUMMED = 1 << 17;  // products of a group's bytes: more would not fit a sum of 32 bits

// The tensors of a weight; all but the first may be missing.
struct Stored {
  const Tensor& packed;
  const std::optional<Tensor>& scales;
  const std::optional<Tensor>& minima;
  const std::optional<Tensor>& superscales;
  const std::optional<Tensor>& table;
};

// The code of numbers [N, K]; 0 where they are of no kind, or of other sizes.
inline int code_of(const Tensor& packed, int64_t count, int64_t K, bool has_table) {
  const auto fits = [&](int code) {
    return K % unit_of(code) == 0 && packed.dim() == 3 && packed.size(0) == count &&
           packed.size(1) == K / unit_of(code) && packed.size(2) == (code >= 16 ? LANES : unit_bytes(code)) &&
           packed.numel() > 0 && is_dense(packed);
  };
  switch (packed.scalar_type()) {
    case ScalarType::Byte:
      for (int code : {has_table ? TABLE : 4, 5, 6})
        if (fits(code)) return code;
      return 0;
    case ScalarType::Char: return fits(8) ? 8 : 0;
    case ScalarType::Half: return fits(HALF) ? HALF : 0;
    case ScalarType::BFloat16: return fits(BFLOAT) ? BFLOAT : 0;
    case ScalarType::Float: return fits(FLOAT) ? FLOAT : 0;
    default: return 0;
  }
}

// Scales or minima; `part` says which of a superblock's factors are theirs. None where sizes or types are others.
inline Factors factors(
    const Tensor& numbers, const std::optional<Tensor>& superscales, int64_t count, int parts, int part
) {
  const auto type = numbers.scalar_type();
  const bool bytes = type == ScalarType::Char, exponents = type == ScalarType::Byte && part == 0;
  const bool sound = numbers.dim() == 3 && numbers.size(0) == count && numbers.size(1) > 0 &&
                     numbers.size(2) == LANES && is_dense(numbers) && (type == ScalarType::Half || bytes || exponents);
  if (!sound || bytes != superscales.has_value()) return {};
  Factors f{
      static_cast<const uint8_t*>(numbers.const_data_ptr()),
      nullptr,
      bytes       ? Factors::BYTES
      : exponents ? Factors::EXPONENTS
                  : Factors::HALVES,
      numbers.size(1),
      1,
      0,
      parts * LANES
  };
  if (!bytes) return f;
  Size supers;
  if (!is<half>(*superscales, count, supers, LANES) || supers % parts) return {};
  f.superblocks = supers / parts;
  if (f.superblocks == 0 || f.groups % f.superblocks || f.groups >= 1 << 20) return {};
  f.inverse = (int64_t(1) << 40) * f.superblocks / f.groups + 1;
  f.superscales = static_cast<const half*>(superscales->const_data_ptr()) + part * LANES;
  return f;
}

// The weights [N, K] that are stored; K == 0 where their parts do not fit together.
inline Panels panels(const Stored& s, int64_t N, int64_t K) {
  const int64_t count = N > 0 ? (N - 1) / LANES + 1 : 0;
  Panels p{static_cast<const uint8_t*>(s.packed.const_data_ptr()), {}, {}, nullptr, N, 0, K, 0};
  p.code = code_of(s.packed, count, K, s.table.has_value());
  if (!p.code || (p.code >= 16) != !s.scales) return p;
  if (p.code >= 16) {
    p.K = s.minima || s.superscales || s.table ? 0 : K;
    return p;
  }
  p.scales = factors(*s.scales, s.superscales, count, s.minima ? 2 : 1, 0);
  if (s.minima) p.minima = factors(*s.minima, s.superscales, count, 2, 1);
  if (s.table) p.table = reinterpret_cast<const int8_t*>(s.table->const_data_ptr());
  const int64_t groups = p.scales.groups;
  const bool sound = groups > 0 && K % groups == 0 && K / groups % std::max(8, unit_of(p.code)) == 0 &&
                     K / groups <= MOST_SUMMED &&
                     (!s.minima || (p.minima.groups == groups && (p.code == 4 || p.code == 5 || p.code == 6))) &&
                     (s.table.has_value() == (p.code == TABLE)) &&
                     (p.code == TABLE || p.scales.form != Factors::EXPONENTS) && is<int8_t>(s.table, int64_t(16));
  if (!sound) return p;
  p.K = K;
  p.group = K / groups;
  return p;
}

}  // namespace hybridge::inline INSTRUCTION_SET
