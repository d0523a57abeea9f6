// Shared by attention over float32 and int8 rows: dividing the work, the rows that a token sees, and merging partial
// results.
//
// A unit of work is up to QUERIES queries and some of the rows: of one key/value head, or of several side by side,
// whose rows are next to each other in memory. It walks over its rows in blocks that stay in the processor's cache,
// with a running maximum and sum (online softmax; Milakov and Gimelshein, arXiv:1805.02867), so that every row is read
// once for all queries. What no query sees weighs nothing, whatever it holds, NaN included; NaN that a query sees makes
// its output NaN.
//
// A query's output has the same bits whatever is computed beside it. So blocks of ROWS positions and parts of PART
// begin at multiples of these, and each part has a sum of its own, which are added in the order of positions: by the
// unit that walks over them, or, as in Flash-Decoding, once units that have a part each are done.
#pragma once

#include "kernel.h"
#include "vector.h"
#include "vector_math.h"

#include <cmath>
#include <limits>

namespace hybridge::inline INSTRUCTION_SET {

constexpr int64_t QUERIES = 32, ROWS = 64, PART = 512;
constexpr int TILE = 4;
constexpr float NEVER = -std::numeric_limits<float>::infinity();

struct Attention {
  const float* query;  // [T, H, D]
  const float* sinks;  // [H] or null
  float* out;          // [T, H, V]
  int64_t T, H, D, R, G, V, start;
  float scale, softcap;
  const uint8_t* mask = nullptr;  // [T, R], which rows a token sees, any byte but 0; without it position p is in row p,
                                  // and a token sees those up to its own
  int64_t ring = 0, window = 0;   // where not 0: position p is in row p % ring, or, if R > ring and it is of the block,
                                  // in row ring + p - start
  bool chunked = false;           // a token sees its own chunk of `window` positions, not the last `window` of them
  const float* bias = nullptr;  // [T, H, E + 1], added to the scores of keys 0..E - 1 before a token, and of all others
  int64_t E = 0;
  bool sinks_by_token = false;  // sinks are [H, T]

  int64_t shared() const { return H / G; }
  int64_t queries() const { return T * shared(); }  // of one key/value head, those of a token side by side
  int64_t columns() const { return (V + LANES - 1) / LANES * LANES; }

  // The first position that a token sees, or row if there is a mask.
  int64_t first(int64_t token) const {
    if (!window) return 0;
    const int64_t at = start + token;
    return chunked ? at / window * window : std::max<int64_t>(0, at - window + 1);
  }
  // One behind the last.
  int64_t end(int64_t token) const { return mask ? R : start + token + 1; }
  int64_t seen() const { return end(T - 1) - first(0); }
  int64_t row(int64_t at) const { return !ring ? at : R > ring && at >= start ? ring + at - start : at % ring; }
  // Returns the number of consecutive rows from position `at` on.
  int64_t run(int64_t at) const {
    return !ring                     ? R
           : R > ring && at >= start ? start + T
                                     : std::min(at - at % ring + ring, R > ring ? start : start + T);
  }
};

// Part of the queries and rows of some key/value heads.
struct Unit {
  int64_t head, heads, first, count;  // queries first..first + count of each
  int64_t begin, end;                 // positions that any of them sees, or rows if there is a mask
  float* sums;  // [heads * count, columns + 2]: the weighted sum of a query so far, its weight, and its largest score

  int64_t queries() const { return heads * count; }
  int64_t token(const Attention& a, int64_t i) const { return (first + i % count) / a.shared(); }
  const float* query(const Attention& a, int64_t i) const {
    return a.query + (token(a, i) * a.H + (head + i / count) * a.shared() + (first + i % count) % a.shared()) * a.D;
  }
};

// The running sum of one query.
struct Running {
  float* sum;
  float &weight, &top;

  Running(const Attention& a, const Unit& u, int64_t i)
      : sum(u.sums + i * (a.columns() + 2)), weight(sum[a.columns()]), top(sum[a.columns() + 1]) {}

  void clear() {
    std::fill(sum, &top, 0.0f);
    top = NEVER;
  }

  // A score larger than all before.
  void raise(float score) {
    if (score <= top) return;
    if (weight != 0.0f) {
      const float shrink = std::exp(top - score);
      for (float* each = sum; each <= &weight; ++each) *each *= shrink;
    }
    top = score;
  }

  // Adds the sum of the rows before those of this one; compiled once, so that it rounds in one way.
  [[gnu::noinline]] void follow(Running before) {
    if (before.weight == 0.0f) return;  // it has seen nothing; a NaN that it has seen is in its weight
    if (weight != 0.0f) {
      const float largest = std::max(top, before.top), own = std::exp(top - largest),
                  other = std::exp(before.top - largest);
      for (float *to = sum, *from = before.sum; to <= &weight; ++to, ++from) *to = *to * own + *from * other;
      top = largest;
    } else {
      std::copy(before.sum, &before.top + 1, sum);
    }
  }
};

INLINE f32x16 capped(f32x16 score, float cap) { return cap * (1.0f - 2.0f / (exp(score * (2.0f / cap)) + 1.0f)); }

// e^(score - top), the weight of a score; top is the largest one, or NEVER as long as there is none. As exp(), but for
// numbers up to 0 alone, and 0 below -87, NEVER among them.
INLINE f32x16 weight_of(f32x16 score, f32x16 top) {
  const f32x16 x = score - larger(top, splat(-std::numeric_limits<float>::max()));
  const auto [fraction, power] = split_exp(x);
  return select(x < -87.0f, f32x16{}, fraction * (f32x16)((power + 127) << 23));
}

// The number of each lane.
inline i32x16 lane() {
  static constexpr int32_t NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load<i32x16>(NUMBERS);
}

// f(first, count as a constant) over `count` in tiles.
template <typename F>
void in_tiles(int64_t count, const F& f) {
  int64_t i = 0;
  for (; i + TILE <= count; i += TILE) f(i, std::integral_constant<int, TILE>());
  if (count - i == 3) f(i, std::integral_constant<int, 3>());
  if (count - i == 2) f(i, std::integral_constant<int, 2>());
  if (count - i == 1) f(i, std::integral_constant<int, 1>());
}

// Divides the rows of all heads into units, which have a part each where they would be few.
struct Cut {
  int64_t groups, heads, parts,
      first;     // of the queries of a head; side by side; of the rows; the first position's part
  int64_t size;  // of a unit's sums
  float* sums = nullptr;

  explicit Cut(const Attention& a)
      : groups((a.queries() + QUERIES - 1) / QUERIES),
        heads(std::clamp<int64_t>(QUERIES / a.queries(), 1, a.G)),
        first(a.first(0) / PART) {
    while (a.G % heads) --heads;
    parts = a.G / heads * groups < 4 ? (a.end(a.T - 1) - 1) / PART - first + 1 : 1;
    size = std::min(QUERIES, a.queries()) * heads * (a.columns() + 2);
  }

  int64_t units(const Attention& a) const { return a.G / heads * groups * parts; }

  Unit unit(const Attention& a, int64_t index) const {
    const int64_t query = index / parts % groups * QUERIES, count = std::min(QUERIES, a.queries() - query);
    int64_t begin = a.first(query / a.shared()), end = a.end((query + count - 1) / a.shared());
    if (parts > 1) {
      const int64_t part = (first + index % parts) * PART;
      end = std::min(end, part + PART), begin = std::min(std::max(begin, part), end);
    }
    return {index / parts / groups * heads, heads, query, count, begin, end, sums + index * size};
  }

  // The sums of unit `part` of the rows for a query of a key/value head.
  Running running(const Attention& a, int64_t head, int64_t query, int64_t part) const {
    const Unit u = unit(a, (head / heads * groups + query / QUERIES) * parts + part);
    return Running(a, u, head % heads * u.count + query % QUERIES);
  }
};

// Puts the parts of a query together, with its sink, which takes a share and has no value.
inline void merge(const Attention& a, const Cut& cut, int64_t head, int64_t query) {
  const int64_t own = head * a.shared() + query % a.shared();
  for (int64_t p = 1; p < cut.parts; ++p) cut.running(a, head, query, p).follow(cut.running(a, head, query, p - 1));
  const Running all = cut.running(a, head, query, cut.parts - 1);
  float share = 1.0f, total = all.weight;
  if (a.sinks) {
    const float sink = a.sinks[a.sinks_by_token ? own * a.T + query / a.shared() : own],
                largest = std::max(sink, all.top);
    share = std::exp(all.top - largest);
    total = share * all.weight + std::exp(sink - largest);
  }
  float* out = a.out + (query / a.shared() * a.H + own) * a.V;
  for (int64_t v = 0; v < a.V; ++v) out[v] = share * all.sum[v] / total;
}

// Runs f over the parts of a unit's rows one after the other, and adds their sums; `before` holds those of earlier
// parts.
template <typename F>
void walk(const Attention& a, const Unit& unit, float* before, const F& f) {
  Unit part = unit, earlier = unit;
  earlier.sums = before;
  for (bool is_first = true; is_first || part.begin < unit.end; is_first = false, part.begin = part.end) {
    part.end = std::min(unit.end, part.begin / PART * PART + PART);
    if (!is_first) std::swap(part.sums, earlier.sums);
    for (int64_t i = 0; i < part.queries(); ++i) Running(a, part, i).clear();
    f(part);
    for (int64_t i = 0; i < part.queries() && !is_first; ++i) Running(a, part, i).follow(Running(a, earlier, i));
  }
  if (part.sums != unit.sums) std::copy_n(part.sums, part.queries() * (a.columns() + 2), unit.sums);
}

// Runs prepare(unit, memory) and then f(part, memory) over the parts of each unit, which has `memory` bytes of its own,
// and adds the parts; false without memory. A unit takes `cost` for each row and query.
template <typename P, typename F>
bool attend(
    KernelRuntimeContext& context, const Attention& a, int64_t memory, int64_t cost, const P& prepare, const F& f
) {
  Cut cut(a);
  const int64_t units = cut.units(a);
  memory = (memory + 63) / 64 * 64;
  cut.sums = scratch<float>(context, units * cut.size);
  float* before = scratch<float>(context, cut.parts > 1 ? 0 : units * cut.size);
  uint8_t* own = scratch<uint8_t>(context, units * memory);
  if (!cut.sums || !before || !own) return false;
  const int64_t rows = cut.parts > 1 ? std::min(PART, a.seen()) : a.seen();
  parallel(units, cost * rows * cut.heads * std::min(QUERIES, a.queries()), [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) {
      const Unit unit = cut.unit(a, index);
      prepare(unit, own + index * memory);
      walk(a, unit, before + index * cut.size, [&](const Unit& part) { f(part, own + index * memory); });
    }
  });
  parallel(a.G * a.queries(), cut.parts * a.V * sizeof(float), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) merge(a, cut, i / a.queries(), i % a.queries());
  });
  return true;
}

}  // namespace hybridge::inline INSTRUCTION_SET
