// Shared by attention over float32 and int8 rows: dividing the work, the rows that a token sees, and merging partial
// results.
//
// A unit of work is up to QUERIES queries and a part of the rows: of one key/value head, or of several side by side,
// whose rows are next to each other in memory. It walks over its rows in blocks that stay in the processor's cache,
// with a running maximum and sum (online softmax; Milakov and Gimelshein, arXiv:1805.02867), so that every row is read
// once for all queries. Parts of the rows are merged at the end, as in Flash-Decoding. What no query sees weighs
// nothing, whatever it holds, NaN included; NaN that a query sees makes its output NaN.
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
  int64_t begin, end;                 // positions, or rows if there is a mask
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
    const float shrink = std::exp(top - score);
    for (float* each = sum; each <= &weight; ++each) *each *= shrink;
    top = score;
  }
};

INLINE f32x16 capped(f32x16 score, float cap) { return cap * (1.0f - 2.0f / (exp(score * (2.0f / cap)) + 1.0f)); }

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

// Divides the rows of all heads into units.
struct Cut {
  int64_t groups, heads, parts,
      part;  // of the queries of a head; side by side; of the rows; rows of a part, whole blocks
  float* sums = nullptr;

  explicit Cut(const Attention& a)
      : groups((a.queries() + QUERIES - 1) / QUERIES), heads(std::clamp<int64_t>(QUERIES / a.queries(), 1, a.G)) {
    while (a.G % heads) --heads;
    parts = a.G / heads * groups < 4 ? std::clamp<int64_t>(a.seen() / PART, 1, 8) : 1;
    part = ((a.seen() + parts - 1) / parts + ROWS - 1) / ROWS * ROWS;
  }

  int64_t units(const Attention& a) const { return a.G / heads * groups * parts; }

  Unit unit(const Attention& a, int64_t index) const {
    const int64_t first = index / parts % groups * QUERIES, end = a.end(a.T - 1);
    const int64_t begin = std::min(a.first(0) + index % parts * part, end);
    return {
        index / parts / groups * heads,
        heads,
        first,
        std::min(QUERIES, a.queries() - first),
        begin,
        std::min(begin + part, end),
        sums + index * QUERIES * (a.columns() + 2)
    };
  }

  // The partial sums of unit `part` of the rows for a query of a key/value head.
  Running running(const Attention& a, int64_t head, int64_t query, int64_t part) const {
    const Unit u = unit(a, (head / heads * groups + query / QUERIES) * parts + part);
    return Running(a, u, head % heads * u.count + query % QUERIES);
  }
};

// Puts the parts of a query together, with its sink, which takes a share and has no value.
inline void merge(const Attention& a, const Cut& cut, int64_t head, int64_t query) {
  const int64_t own = head * a.shared() + query % a.shared();
  float largest = a.sinks ? a.sinks[own] : NEVER;
  for (int64_t p = 0; p < cut.parts; ++p) largest = std::max(largest, cut.running(a, head, query, p).top);
  float total = a.sinks ? std::exp(a.sinks[own] - largest) : 0.0f;
  float* out = a.out + (query / a.shared() * a.H + own) * a.V;
  std::fill_n(out, a.V, 0.0f);
  for (int64_t p = 0; p < cut.parts; ++p) {
    const Running each = cut.running(a, head, query, p);
    if (each.weight == 0.0f) continue;  // it has seen nothing; a NaN that it has seen is in its weight
    const float share = std::exp(each.top - largest);
    total += share * each.weight;
    for (int64_t v = 0; v < a.V; ++v) out[v] += share * each.sum[v];
  }
  for (int64_t v = 0; v < a.V; ++v) out[v] /= total;
}

// Runs f(unit, memory) over all units, each with `memory` bytes of its own, and merges them; false without memory. A
// unit takes `cost` for each row and query.
template <typename F>
bool attend(KernelRuntimeContext& context, const Attention& a, int64_t memory, int64_t cost, const F& f) {
  Cut cut(a);
  const int64_t units = cut.units(a);
  memory = (memory + 63) / 64 * 64;
  cut.sums = scratch<float>(context, units * QUERIES * (a.columns() + 2));
  uint8_t* own = scratch<uint8_t>(context, units * memory);
  if (!cut.sums || !own) return false;
  parallel(
      units, cost * std::min(cut.part, a.seen()) * cut.heads * std::min(QUERIES, a.queries()),
      [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end; ++index) {
          const Unit unit = cut.unit(a, index);
          for (int64_t i = 0; i < unit.queries(); ++i) Running(a, unit, i).clear();
          f(unit, own + index * memory);
        }
      }
  );
  parallel(a.G * a.queries(), cut.parts * a.V * sizeof(float), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) merge(a, cut, i / a.queries(), i % a.queries());
  });
  return true;
}

}  // namespace hybridge::inline INSTRUCTION_SET
