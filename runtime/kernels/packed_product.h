// The product of tokens and one weight in panels (panels.h): y = x W^T + b, either over x rounded to 8 bits by group or
// over x as it is.
#pragma once

#include <bit>

#include "kernel.h"
#include "panels.h"
#include "products.h"
#include "vector.h"
#include "vector_math.h"

namespace hybridge::inline INSTRUCTION_SET {

struct Product {
  Panels weight;
  const float* x;
  const float* bias;
  float* out;
  int64_t T;
  // Panels of the weight to multiply with alone, each by its index, and the rows that they have; or null for all of
  // them.
  const int64_t* chosen = nullptr;
  int64_t chosen_rows = 0;
  // x in 8 bits, and by group its scales, its sums, and what the bytes' offset makes of those; or null. A tile of t
  // tokens has them side by side: quanta [K / group][group * t], see at(), steps, offsets and sums [K / group, t], the
  // tiles behind each other.
  int8_t* quanta = nullptr;
  float* steps = nullptr;
  int32_t* offsets = nullptr;
  float* sums = nullptr;  // for weights with minima

  int64_t stored(int64_t place) const {
    return chosen ? chosen[place] : place;
  }  // the panel whose product is the place-th of out
  int64_t width() const { return chosen ? chosen_rows : weight.N; }
  int64_t panels() const { return (width() + LANES - 1) / LANES; }
};

constexpr int64_t SUMMED = 128;

// Returns how many of `left` tokens are multiplied together when sums are floats; registers hold no more.
#if defined(__AVX512F__)
constexpr int64_t float_tile_size(int64_t left) { return left >= 12 ? 12 : left >= 8 ? 8 : left; }
#else
constexpr int64_t float_tile_size(int64_t left) { return left < 4 ? left : 4; }
#endif

// A tile that a token is in.
struct Tile {
  int64_t first, count;
};

inline Tile tile_of(int64_t token, int64_t T) {
  Tile tile{0, tile_size(T)};
  while (token >= tile.first + tile.count) {
    tile.first += tile.count;
    tile.count = tile_size(T - tile.first);
  }
  return tile;
}

// Rounds one group of x: quanta = round(x / step), step = max |x| / 127, or NaN; they are those of token t in a tile of
// T, see at(). as_masked: see masked().
INLINE QuantaSums
quantize(const float* x, int64_t count, int8_t* quanta, auto as_masked, int64_t t, int64_t T, float* step) {
  const auto part = [&](int64_t k) { return load_up_to(x + k, count - k); };
  i32x16 tops = {};  // magnitudes' bits: NaN is above all numbers, and must not become one
  for (int64_t k = 0; k < count; k += LANES) tops = larger(tops, (i32x16)magnitude(part(k)));
  const float top = std::bit_cast<float>(largest(tops)), inverse = top > 0.0f ? 127.0f / top : 0.0f;
  i32x16 total = {}, below = {};
  for (int64_t k = 0; k < count; k += LANES) {
    const i32x16 whole = rounded(part(k) * inverse), mask = whole >> 31;
    int8_t bytes[LANES], masks[LANES];
    store_bytes(bytes, as_masked ? (whole ^ mask) - mask : whole);
    if (as_masked) store_bytes(masks, mask), below += whole & mask;
    const auto put = [&](int64_t j) {
      int8_t* to = quanta + at(k + j, t, T, count) * (as_masked ? 2 : 1);
      std::memcpy(to, bytes + j, 4);
      if (as_masked) std::memcpy(to + 4, masks + j, 4);
    };
    if (count - k >= LANES) {
      put(0), put(4), put(8), put(12);  // a loop becomes a scatter, which takes longer than all the rest
    } else {
      for (int64_t j = 0; j < count - k; j += 4) put(j);
    }
    total += whole;
  }
  *step = top * (1.0f / 127.0f) + top * 0.0f;  // NaN for infinity
  return {total, below};
}

inline void quantize_tokens(const Product& p, int64_t begin, int64_t end) {
  const int64_t K = p.weight.K, group = p.weight.group, groups = p.weight.groups();
  const int64_t most = quantum_bytes(p.weight.code);
  for (int64_t token = begin; token < end; ++token) {
    const auto [first, count] = tile_of(token, p.T);
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t to = first * groups + g * count + token - first;
      int8_t* quanta = p.quanta + first * K * most + g * group * count * quantum_bytes(p.weight.code, count);
      const float* x = p.x + token * K + g * group;
      const auto round = [&](auto columns) {
        const auto as = [&](auto as_masked) {
          return quantize(x, columns, quanta, as_masked, token - first, count, p.steps + to);
        };
        return masked(p.weight.code, count) ? as(std::true_type()) : as(std::false_type());
      };
      const QuantaSums sums = group == 32   ? round(std::integral_constant<int64_t, 32>())
                              : group == 16 ? round(std::integral_constant<int64_t, 16>())
                                            : round(group);
      p.offsets[to] = offset(p.weight, count, sums);
      if (p.sums) p.sums[to] = p.steps[to] * sum(sums.all);
    }
  }
}

// A panel's scales and minima, decoded where they are used: those of a group and of a register of the rows behind
// `row`. Held are those numbers that a tile keeps from one group to the next.
template <Factors::Form FORM>
struct StoredFactors {
  Factors scales, minima;

  template <int ROWS>
  struct Held {
    INLINE void move(const StoredFactors&, int64_t, int, bool) {}
  };
  INLINE f32xr scale(int64_t group, int row, int lane, const auto&) const {
    return scales.of_form<FORM>(group, row + lane);
  }
  INLINE f32xr minimum(int64_t group, int row, int lane, const auto&) const {
    return minima.of_form<FORM>(group, row + lane);
  }
};

// The same with superscales, which are read once for their groups.
struct SuperblockFactors {
  Factors scales, minima;

  template <int ROWS>
  struct Held {
    int64_t superblock = 0, end = 0;  // the next, and the group that it begins with
    f32xr scales[ROWS / REGISTER_LANES], minima[ROWS / REGISTER_LANES];

    INLINE void move(const SuperblockFactors& of, int64_t group, int row, bool has_minima) {
      if (group < end) return;
      UNROLLED for (int i = 0; i < ROWS / REGISTER_LANES; ++i) {
        scales[i] = of.scales.superscale(superblock, row + i * REGISTER_LANES);
        if (has_minima) minima[i] = of.minima.superscale(superblock, row + i * REGISTER_LANES);
      }
      ++superblock, end += of.scales.groups / of.scales.superblocks;
    }
  };
  INLINE f32xr scale(int64_t group, int row, int lane, const auto& held) const {
    return scales.scaled(group, row + lane, held.scales[lane / REGISTER_LANES]);
  }
  INLINE f32xr minimum(int64_t group, int row, int lane, const auto& held) const {
    return minima.scaled(group, row + lane, held.minima[lane / REGISTER_LANES]);
  }
};

// The same decoded once for all tiles of tokens: float [K / group, 16], minima behind scales.
struct DecodedFactors {
  const float *scales, *minima;

  // Numbers of memory for them.
  static int64_t size(const Product& p) {
    return p.quanta && p.T > FEW ? (p.weight.scales.groups + p.weight.minima.groups) * LANES : 1;
  }

  DecodedFactors(const Panels& panel, float* memory) : scales(memory), minima(memory + panel.scales.groups * LANES) {
    panel.scales.decode(memory);
    if (panel.minima.numbers) panel.minima.decode(memory + panel.scales.groups * LANES);
  }

  template <int ROWS>
  struct Held {
    INLINE void move(const DecodedFactors&, int64_t, int, bool) {}
  };
  INLINE f32xr scale(int64_t group, int row, int lane, const auto&) const {
    return load<f32xr>(scales + group * LANES + row + lane);
  }
  INLINE f32xr minimum(int64_t group, int row, int lane, const auto&) const {
    return load<f32xr>(minima + group * LANES + row + lane);
  }
};

// What of a weight's groups the compiler knows: their columns and that there are minima or not, or nothing.
template <int64_t COLUMNS, bool HAS_MINIMA>
struct KnownGroups {
  static constexpr std::integral_constant<int64_t, COLUMNS> columns = {};
  static constexpr bool has_minima = HAS_MINIMA, start_at_zero = HAS_MINIMA;

  // Whether weights of this code have this form of scales: others, which nobody publishes, are AnyGroups.
  static constexpr bool has(int code, Factors::Form form) {
    return form == Factors::HALVES || HAS_MINIMA || (code != 4 && code != 8);
  }
};

struct AnyGroups {
  int64_t columns;
  bool has_minima;
  static constexpr bool start_at_zero = false;

  static constexpr bool has(int, Factors::Form) { return true; }
};

// `Count` panels times T tokens from t0 on in whole numbers, a group of each after the other: to out [Count, T, 16].
template <int Code, int T, int Count, typename F>
void integer_tile(const Product& p, const Panels* panels, const F* factors, auto groups, int64_t t0, float* out) {
  constexpr int64_t bytes = quantum_bytes(Code, T);
  const int64_t count = p.weight.groups();
  for (int row = 0; row < LANES; row += IntegerTile<Code, T>::ROWS) {
    IntegerTile<Code, T> tiles[Count];
    typename F::template Held<IntegerTile<Code, T>::ROWS> held[Count];
    int64_t at = 4 * row;
    const int8_t* quanta = p.quanta + t0 * p.weight.K * quantum_bytes(Code);
    const float *steps = p.steps + t0 * count, *sums = groups.has_minima ? p.sums + t0 * count : nullptr;
    const int32_t* offsets = p.offsets + t0 * count;
    for (int64_t g = 0; g < count;
         ++g, at += groups.columns * LANES * bits_of(Code) / 8, quanta += groups.columns * T * bytes) {
      UNROLLED for (int i = 0; i < Count; ++i) {
        const F& own = factors[i];
        held[i].move(own, g, row, groups.has_minima);
        if constexpr (groups.start_at_zero) tiles[i].start();
        else tiles[i].start(offsets + g * T);
        tiles[i].add(panels[i].packed + at, quanta, groups.columns, p.weight.table);
        tiles[i].finish([&](int lane) { return own.scale(g, row, lane, held[i]); }, steps + g * T);
        if (groups.has_minima)
          tiles[i].raise([&](int lane) { return own.minimum(g, row, lane, held[i]); }, sums + g * T);
      }
    }
    UNROLLED for (int i = 0; i < Count; ++i) tiles[i].store(out + i * T * LANES + row);
  }
}

// The j-th of the four columns of a block of signed bytes.
INLINE f32x16 column(u8x64 block, int j) { return to_float(((i32x16)block << (24 - 8 * j)) >> 24); }

// All lanes' factors of a group.
inline f32x16 sixteen(const Factors& factors, int64_t group) {
  float values[LANES];
  for (int lane = 0; lane < LANES; lane += REGISTER_LANES) store(values + lane, factors.at(group, lane));
  return load<f32x16>(values);
}

// acc[i][t] += panel i's rows times T tokens over columns of 16 or 32 bits from k on; x is at the first of them.
template <int Code, int T, int Count>
INLINE void float_sums(f32x16 (&acc)[Count][T], const Panels* panels, int64_t k, const float* x, int64_t columns) {
  const int64_t K = panels->K;
  for (const int64_t end = k + columns; k < end; ++k, ++x) {
    UNROLLED for (int i = 0; i < Count; ++i) {
      const uint8_t* w = panels[i].packed + k * unit_bytes(Code);
      f32x16 weights;
      if constexpr (Code == HALF) weights = to_float(load<f16x16>(w));
      else if constexpr (Code == BFLOAT) weights = (f32x16)(convert<u32x16>(load<u16x16>(w)) << 16);
      else weights = load<f32x16>(w);
      UNROLLED for (int t = 0; t < T; ++t) acc[i][t] += weights * x[t * K];
    }
  }
}

// acc[t] += the same of one panel of whole numbers; with minima, which are for scaled ones, `scale` is theirs.
template <int Code, int T, typename F>
INLINE void group_sums(
    f32x16 (&acc)[T], const uint8_t* w, const float* x, int64_t K, int64_t group, const Panels& weight, const F& scaled
) {
  constexpr int unit = unit_of(Code);
  const uint8_t zero = weight.zero();
  for (int64_t k = 0; k < group; w += unit_bytes(Code)) {
    const u8x64 more = beside<Code, u8x64>(w, weight.table);
    UNROLLED for (int q = 0; q < unit / 4; ++q) {
      u8x64 part = quad<Code>(w, more, q);
      if constexpr (Code == 4 || Code == 5 || Code == 6) part = part - zero;
      UNROLLED for (int j = 0; j < 4; ++j, ++k) {
        const f32x16 weights = scaled(column(part, j));
        UNROLLED for (int t = 0; t < T; ++t) acc[t] += weights * x[t * K + k];
      }
    }
  }
}

// The same over x as it is, of weights that are floats.
template <int Code, int T, int Count>
void float_tile(const Product& p, const Panels* panels, int64_t t0, float* out) {
  const int64_t K = p.weight.K;
  const float* x = p.x + t0 * K;
  f32x16 total[Count][T] = {};
  // Sums of sums: one long sum would round a thousand times.
  for (int64_t k = 0; k < K; k += SUMMED, x += SUMMED) {
    f32x16 acc[Count][T] = {};
    float_sums<Code, T>(acc, panels, k, x, std::min(SUMMED, K - k));
    UNROLLED for (int i = 0; i < Count; ++i) UNROLLED for (int t = 0; t < T; ++t) total[i][t] += acc[i][t];
  }
  UNROLLED for (int i = 0; i < Count; ++i) UNROLLED for (int t = 0; t < T; ++t)
      store(out + (i * T + t) * LANES, total[i][t]);
}

// The same of one panel of whole numbers.
template <int Code, int T>
void scaled_tile(const Product& p, const Panels& panel, int64_t t0, float* out) {
  const int64_t K = panel.K, group = panel.group;
  const uint8_t* w = panel.packed;
  const float* x = p.x + t0 * K;
  f32x16 total[T] = {};
  for (int64_t g = 0; g < panel.groups(); ++g, w += group * LANES * bits_of(Code) / 8, x += group) {
    f32x16 acc[T] = {};
    const f32x16 step = sixteen(panel.scales, g);
    if (panel.minima.numbers) {
      const f32x16 low = sixteen(panel.minima, g);
      group_sums<Code, T>(total, w, x, K, group, panel, [&](f32x16 numbers) { return numbers * step + low; });
    } else {
      group_sums<Code, T>(acc, w, x, K, group, panel, [](f32x16 numbers) { return numbers; });
      UNROLLED for (int t = 0; t < T; ++t) total[t] += acc[t] * step;
    }
  }
  UNROLLED for (int t = 0; t < T; ++t) store(out + t * LANES, total[t]);
}

inline void put(const Product& p, int64_t place, int64_t t0, int64_t T, const float* sums) {
  const int64_t width = p.width(), n = place * LANES, count = std::min<int64_t>(LANES, width - n);
  const float* bias = p.bias ? p.bias + p.stored(place) * LANES : nullptr;
  for (int64_t t = 0; t < T; ++t, sums += LANES) {
    float* out = p.out + (t0 + t) * width + n;
    if (count == LANES) {
      store(out, bias ? load<f32x16>(sums) + load<f32x16>(bias) : load<f32x16>(sums));
    } else {
      for (int64_t lane = 0; lane < count; ++lane) out[lane] = sums[lane] + (bias ? bias[lane] : 0.0f);
    }
  }
}

// f(count as a constant) for a count that is a size of tiles, of N at most.
template <auto Size, int N, typename F>
void as_constant(int64_t count, const F& f) {
  if constexpr (Size(N) == N)
    if (count == N) return f(std::integral_constant<int, N>());
  if constexpr (N > 1) as_constant<Size, N - 1>(count, f);
}

// A panel times all tokens, by tiles of which `Size` says how many tokens they have.
template <auto Size, typename F>
void in_tiles_of(const Product& p, int64_t place, const F& f) {
  constexpr int MOST = Size(1 << 20);
  alignas(64) float sums[MOST * LANES];
  for (int64_t t = 0, count; t < p.T; t += count) {
    count = Size(p.T - t);
    as_constant<Size, MOST>(count, [&](auto T) { f(T, t, sums); });
    put(p, place, t, count, sums);
  }
}

// A weight that meets few tokens may come from memory, and its factors with it: to decode all of these first would hold
// it up.
constexpr int64_t few_tokens(int64_t left) { return tile_size(std::min(left, FEW)); }

// One token times the panels of places begin..end: several in turns, which lie parts of the weight apart, to
// tile(panels, sums). Returns the place of the first that is left.
template <int Count, typename F>
int64_t in_turns(const Product& p, int64_t begin, int64_t end, const F& tile) {
  if (Count == 1 || p.T != 1) return begin;
  const int64_t apart = (end - begin) / Count;
  for (int64_t first = begin; first < begin + apart; ++first) {
    Panels panels[Count];
    alignas(64) float sums[Count * LANES];
    for (int i = 0; i < Count; ++i) panels[i] = p.weight.from(p.stored(first + i * apart));
    tile(panels, sums);
    for (int i = 0; i < Count; ++i) put(p, first + i * apart, 0, 1, sums + i * LANES);
  }
  return begin + Count * apart;
}

// FEW tokens at most times some panels, whose factors are an F.
template <int Code, typename F>
void products_of_few(const Product& p, int64_t begin, int64_t end, auto groups) {
  constexpr int COUNT = panels_at_once(Code);
  begin = in_turns<COUNT>(p, begin, end, [&](const Panels* panels, float* sums) {
    F factors[COUNT];
    for (int i = 0; i < COUNT; ++i) factors[i] = {panels[i].scales, panels[i].minima};
    integer_tile<Code, 1, COUNT>(p, panels, factors, groups, 0, sums);
  });
  for (; begin < end; ++begin) {
    const Panels panel = p.weight.from(p.stored(begin));
    const F factors{panel.scales, panel.minima};
    in_tiles_of<few_tokens>(p, begin, [&](auto T, int64_t t, float* out) {
      integer_tile<Code, T(), 1>(p, &panel, &factors, groups, t, out);
    });
  }
}

template <int Code>
void integer_products(const Product& p, int64_t begin, int64_t end, auto groups, float* memory) {
  const auto form = p.weight.scales.form;
  if (p.T <= FEW) {
    if constexpr (groups.has(Code, Factors::HALVES))
      if (form == Factors::HALVES) return products_of_few<Code, StoredFactors<Factors::HALVES>>(p, begin, end, groups);
    if constexpr (groups.has(Code, Factors::BYTES))
      if (form == Factors::BYTES) return products_of_few<Code, SuperblockFactors>(p, begin, end, groups);
    if constexpr (Code == TABLE) return products_of_few<Code, StoredFactors<Factors::EXPONENTS>>(p, begin, end, groups);
  }
  for (; begin < end; ++begin) {
    const Panels panel = p.weight.from(p.stored(begin));
    const DecodedFactors factors(panel, memory);
    in_tiles_of<tile_size>(p, begin, [&](auto T, int64_t t, float* out) {
      integer_tile<Code, T(), 1>(p, &panel, &factors, groups, t, out);
    });
  }
}

template <int Code>
void float_products(const Product& p, int64_t begin, int64_t end) {
  if constexpr (Code >= 16) {
    constexpr int COUNT = panels_at_once(Code);
    begin = in_turns<COUNT>(p, begin, end, [&](const Panels* panels, float* sums) {
      float_tile<Code, 1, COUNT>(p, panels, 0, sums);
    });
  }
  for (; begin < end; ++begin) {
    const Panels panel = p.weight.from(p.stored(begin));
    in_tiles_of<float_tile_size>(p, begin, [&](auto T, int64_t t, float* out) {
      if constexpr (Code >= 16) float_tile<Code, T(), 1>(p, &panel, t, out);
      else scaled_tile<Code, T()>(p, panel, t, out);
    });
  }
}

template <int Code>
void panel_products_of(const Product& p, int64_t begin, int64_t end, float* memory) {
  if constexpr (Code < 16) {
    if constexpr (constexpr int64_t usual = usual_group(Code); usual > 0) {
      using Alone = KnownGroups<usual, false>;
      using WithMinima = KnownGroups<usual, true>;
      const bool known = p.quanta && p.weight.group == usual;
      if (known && !p.sums && Alone::has(Code, p.weight.scales.form))
        return integer_products<Code>(p, begin, end, Alone(), memory);
      if constexpr (Code == 4 || Code == 5)
        if (known && p.sums) return integer_products<Code>(p, begin, end, WithMinima(), memory);
    }
    if (p.quanta) return integer_products<Code>(p, begin, end, AnyGroups{p.weight.group, p.sums != nullptr}, memory);
  }
  float_products<Code>(p, begin, end);
}

// The panels at some places times all tokens, with memory for DecodedFactors.
inline void panel_products(const Product& p, int64_t begin, int64_t end, float* memory) {
  switch (p.weight.code) {
    case TABLE: return panel_products_of<TABLE>(p, begin, end, memory);
    case 4: return panel_products_of<4>(p, begin, end, memory);
    case 5: return panel_products_of<5>(p, begin, end, memory);
    case 6: return panel_products_of<6>(p, begin, end, memory);
    case 8: return panel_products_of<8>(p, begin, end, memory);
    case HALF: return panel_products_of<HALF>(p, begin, end, memory);
    case BFLOAT: return panel_products_of<BFLOAT>(p, begin, end, memory);
    default: return panel_products_of<FLOAT>(p, begin, end, memory);
  }
}

// Work of one panel, for parallel().
inline int64_t panel_cost(const Product& p) { return p.weight.bytes() * std::min<int64_t>(p.T, 4); }

// Memory for the rounded x of any products over `tokens` tokens together. False where there is none.
inline bool allocate_rounded(KernelRuntimeContext& context, Product& p, int64_t tokens) {
  p.quanta = scratch<int8_t>(context, tokens * p.weight.K * quantum_bytes(p.weight.code));
  p.steps = scratch<float>(context, tokens * p.weight.groups());
  p.offsets = scratch<int32_t>(context, tokens * p.weight.groups());
  if (p.weight.minima.numbers) p.sums = scratch<float>(context, tokens * p.weight.groups());
  return p.quanta && p.steps && p.offsets && (p.sums || !p.weight.minima.numbers);
}

}  // namespace hybridge::inline INSTRUCTION_SET
