// The product of tokens and one weight in panels (panels.h) of 4, 8 or 32 bits: y = x W^T + b, either over x rounded to 8 bits by
// group or over x as it is.
#pragma once

#include "kernel.h"
#include "panels.h"
#include "vector.h"
#include "vector_math.h"

namespace hybridge {

struct Product {
  Panels weight;
  const float* x;
  const float* bias;
  float* out;
  int64_t T;
  // x in 8 bits, and by group its scales and what the bytes' offset makes of its sums; or null. A tile of t tokens has them
  // side by side: quanta [K / 4, t, 4], steps and offsets [K / group, t], the tiles behind each other.
  int8_t* quanta;
  float* steps;
  int32_t* offsets;
};

// How many of `left` tokens go together. Tiles of 12 leave room in 32 registers for what they multiply with.
constexpr int64_t tile_size(int64_t left) { return left >= 12 ? 12 : left >= 8 ? 8 : left >= 4 ? 4 : left; }

constexpr int64_t SUMMED = 128;
constexpr int64_t AHEAD = 1024;  // bytes: processors fetch what follows by themselves, but not beyond a page, and not soon enough

constexpr int offset(int bits) { return bits == 4 ? 8 : SIGNED_OFFSET; }

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

// Rounds one group of x: quanta = round(x / step), step = max |x| / 127, or NaN; `apart` bytes from four to the next four.
// Returns the sum of the quanta.
inline int32_t quantize(const float* x, int64_t count, int8_t* quanta, int64_t apart, float* step) {
  const auto part = [&](int64_t k) { return load_up_to(x + k, count - k); };
  f32x16 tops = {}, nothing = {};
  for (int64_t k = 0; k < count; k += LANES) {
    tops = larger(tops, magnitude(part(k)));
    nothing += part(k) * 0.0f;  // NaN for NaN, which must not become a number
  }
  const float top = largest(tops), inverse = top > 0.0f ? 127.0f / top : 0.0f;
  i32x16 total = {};
  for (int64_t k = 0; k < count; k += LANES) {
    const i32x16 whole = rounded(part(k) * inverse);
    const i8x16 bytes = __builtin_convertvector(whole, i8x16);
    for (int64_t quad = 0; quad < std::min<int64_t>(4, (count - k) / 4); ++quad)
      std::memcpy(quanta + (k / 4 + quad) * apart, reinterpret_cast<const int8_t*>(&bytes) + 4 * quad, 4);
    total += whole;
  }
  *step = top * (1.0f / 127.0f) + sum(nothing);
  return sum(total);
}

inline void quantize_tokens(const Product& p, int64_t begin, int64_t end) {
  const int64_t K = p.weight.K, group = p.weight.group, groups = p.weight.groups();
  for (int64_t token = begin; token < end; ++token) {
    const auto [first, count] = tile_of(token, p.T);
    const int64_t t = token - first;
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = first * groups + g * count + t;
      int8_t* quanta = p.quanta + first * K + g * group * count + 4 * t;
      p.offsets[at] = -offset(p.weight.bits) * quantize(p.x + token * K + g * group, group, quanta, 4 * count, p.steps + at);
    }
  }
}

// acc[t] += sixteen rows times T tokens in whole numbers over one group, with the offset of the stored bytes.
template <int Bits, int T>
inline void group_products(i32x16 (&acc)[T], const uint8_t* w, const int8_t* a, int64_t group) {
  if constexpr (Bits == 4) {
    for (int64_t k = 0; k < group; k += 8, w += 64, a += 8 * T) {
      __builtin_prefetch(w + AHEAD);
      const u8x64 both = load<u8x64>(w), low = both & uint8_t(15), high = both >> 4;
      for (int t = 0; t < T; ++t) acc[t] = dot4(acc[t], low, a + 4 * t);
      for (int t = 0; t < T; ++t) acc[t] = dot4(acc[t], high, a + 4 * (T + t));
    }
  } else {
    for (int64_t k = 0; k < group; k += 4, w += 64, a += 4 * T) {
      __builtin_prefetch(w + AHEAD);
      const u8x64 bytes = load<u8x64>(w);
      for (int t = 0; t < T; ++t) acc[t] = dot4_signed(acc[t], bytes, a + 4 * t);
    }
  }
}

template <int Bits, int T>
void integer_tile(const Product& p, int64_t panel, int64_t t0, f32x16 (&total)[T]) {
  const int64_t K = p.weight.K, group = p.weight.group, groups = p.weight.groups();
  const uint8_t* w = p.weight.panel(panel);
  const half* scale = p.weight.panel_scales(panel);
  const int8_t* quanta = p.quanta + t0 * K;
  const float* steps = p.steps + t0 * groups;
  const int32_t* offsets = p.offsets + t0 * groups;
  for (int64_t g = 0; g < groups; ++g, w += group * LANES * Bits / 8, scale += LANES, quanta += group * T, steps += T, offsets += T) {
    i32x16 acc[T];
    for (int t = 0; t < T; ++t) acc[t] = i32x16{} + offsets[t];
    group_products<Bits, T>(acc, w, quanta, group);
    const f32x16 step = to_float(load<f16x16>(scale));
    for (int t = 0; t < T; ++t) total[t] += to_float(acc[t]) * (step * steps[t]);
  }
}

// The j-th of the four columns of a block of signed bytes.
inline f32x16 column(u8x64 block, int j) { return to_float(((i32x16)block << (24 - 8 * j)) >> 24); }

// acc[t] += sixteen rows times T tokens over one group of columns; x is at the group's first.
template <int Bits, int T>
inline void group_sums(f32x16 (&acc)[T], const uint8_t* w, const float* x, int64_t K, int64_t group) {
  if constexpr (Bits == 32) {
    for (int64_t k = 0; k < group; ++k, w += 64) {
      const f32x16 weights = load<f32x16>(w);
      for (int t = 0; t < T; ++t) acc[t] += weights * x[t * K + k];
    }
  } else {
    for (int64_t k = 0; k < group; w += 64) {
      const u8x64 bytes = load<u8x64>(w);
      for (int nibble = 0; nibble < 8 / Bits; ++nibble) {
        u8x64 part = bytes;
        if constexpr (Bits == 4) part = (nibble ? bytes >> 4 : bytes & uint8_t(15)) - uint8_t(8);
        for (int j = 0; j < 4; ++j, ++k) {
          const f32x16 weights = column(part, j);
          for (int t = 0; t < T; ++t) acc[t] += weights * x[t * K + k];
        }
      }
    }
  }
}

template <int Bits, int T>
void float_tile(const Product& p, int64_t panel, int64_t t0, f32x16 (&total)[T]) {
  const int64_t K = p.weight.K, group = p.weight.group;
  const uint8_t* w = p.weight.panel(panel);
  const float* x = p.x + t0 * K;
  if constexpr (Bits == 32) {
    // Sums of sums: one long sum would round a thousand times.
    for (int64_t k = 0; k < K; k += SUMMED, w += SUMMED * 64, x += SUMMED) {
      f32x16 acc[T] = {};
      group_sums<32, T>(acc, w, x, K, std::min(SUMMED, K - k));
      for (int t = 0; t < T; ++t) total[t] += acc[t];
    }
  } else {
    const half* scale = p.weight.panel_scales(panel);
    for (int64_t g = 0; g < p.weight.groups(); ++g, w += group * LANES * Bits / 8, x += group, scale += LANES) {
      f32x16 acc[T] = {};
      group_sums<Bits, T>(acc, w, x, K, group);
      const f32x16 step = to_float(load<f16x16>(scale));
      for (int t = 0; t < T; ++t) total[t] += acc[t] * step;
    }
  }
}

template <int Bits, int T>
void tile(const Product& p, int64_t panel, int64_t t0) {
  f32x16 total[T] = {};
  if constexpr (Bits == 32) {
    float_tile<Bits, T>(p, panel, t0, total);
  } else if (p.quanta) {
    integer_tile<Bits, T>(p, panel, t0, total);
  } else {
    float_tile<Bits, T>(p, panel, t0, total);
  }
  const int64_t n = panel * LANES, count = std::min<int64_t>(LANES, p.weight.N - n);
  for (int t = 0; t < T; ++t) {
    float* out = p.out + (t0 + t) * p.weight.N + n;
    if (count == LANES) {
      store(out, p.bias ? total[t] + load<f32x16>(p.bias + n) : total[t]);
    } else {
      for (int64_t lane = 0; lane < count; ++lane) out[lane] = total[t][lane] + (p.bias ? p.bias[n + lane] : 0.0f);
    }
  }
}

template <int Bits>
void panel_product_of(const Product& p, int64_t panel) {
  for (int64_t t = 0; t < p.T; t += tile_size(p.T - t)) {
    switch (tile_size(p.T - t)) {
      case 12: tile<Bits, 12>(p, panel, t); break;
      case 8: tile<Bits, 8>(p, panel, t); break;
      case 4: tile<Bits, 4>(p, panel, t); break;
      case 3: tile<Bits, 3>(p, panel, t); break;
      case 2: tile<Bits, 2>(p, panel, t); break;
      default: tile<Bits, 1>(p, panel, t);
    }
  }
}

inline void panel_product(const Product& p, int64_t panel) {
  if (p.weight.bits == 4) panel_product_of<4>(p, panel);
  if (p.weight.bits == 8) panel_product_of<8>(p, panel);
  if (p.weight.bits == 32) panel_product_of<32>(p, panel);
}

// What parallel() should take one panel for.
inline int64_t panel_cost(const Product& p) { return p.weight.bytes() * std::min<int64_t>(p.T, 4); }

// Memory for the rounded x of any products over `tokens` tokens together. False where there is none.
inline bool allocate_rounded(KernelRuntimeContext& context, Product& p, int64_t tokens) {
  p.quanta = scratch<int8_t>(context, tokens * p.weight.K);
  p.steps = scratch<float>(context, tokens * p.weight.groups());
  p.offsets = scratch<int32_t>(context, tokens * p.weight.groups());
  return p.quanta && p.steps && p.offsets;
}

}  // namespace hybridge
