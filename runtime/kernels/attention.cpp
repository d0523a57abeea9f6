// Attention over cached keys and values, float32 or int8 with a scale for each row and head.
//
// A unit of work is one key/value head, up to QUERIES of the queries that share it, and a part of the rows. It walks over its
// rows in blocks that stay in the cache, with a running maximum and sum (online softmax; Milakov and Gimelshein,
// arXiv:1805.02867), so that every row is read once for all queries. Parts of the rows are merged at the end, as in
// Flash-Decoding. Rows that no query sees are never read: they may hold anything, NaN included.
#include "kernel.h"
#include "vector.h"
#include "vector_math.h"

#include <cmath>
#include <limits>

namespace hybridge {
namespace {

constexpr int64_t QUERIES = 32, ROWS = 64, PART = 512;
constexpr int TILE = 4;
constexpr float NEVER = -std::numeric_limits<float>::infinity();

struct Attention {
  const float* query;  // [T, H, D]
  const void *keys, *values;  // [R, G, D] and [R, G, V], float32 or int8
  const float *key_scales, *value_scales;  // [R, G], for int8
  const bool* mask;  // [T, R]; or null: token t sees the rows up to start + t
  const float* sinks;  // [H] or null
  float* out;  // [T, H, V]
  int64_t T, H, D, R, G, V, start;
  float scale, softcap;

  int64_t shared() const { return H / G; }
  int64_t queries() const { return T * shared(); }  // of one key/value head, those of a token side by side
  int64_t seen() const { return mask ? R : std::min(R, start + T); }
};

struct Work {
  int64_t groups, parts;  // of the queries of a head, and of the rows
  float *query, *scores, *sums;  // of each unit: [QUERIES, D], [QUERIES, ROWS] and [QUERIES, V + 2]: sum, weight, maximum
  int64_t units(const Attention& a) const { return a.G * groups * parts; }
};

inline f32x16 elements(const float* from) { return load<f32x16>(from); }

inline f32x16 elements(const int8_t* from) { return to_float(load<i8x16>(from)); }

inline float element(const float* from) { return *from; }

inline float element(const int8_t* from) { return *from; }

// scores[query][row] of N rows and Q queries. `next`, as far apart as the rows, is what will be read after them.
template <int Q, int N, typename E>
void dot_tile(const E* rows, const E* next, int64_t stride, const float* query, int64_t D, float* scores) {
  f32x16 acc[N][Q] = {};
  int64_t d = 0;
  for (; d + LANES <= D; d += LANES) {
    f32x16 q[Q];
    for (int i = 0; i < Q; ++i) q[i] = keep(load<f32x16>(query + i * D + d));
    for (int n = 0; n < N; ++n) {
      const f32x16 row = keep(elements(rows + n * stride + d));
      if (next && d % int64_t(64 / sizeof(E)) == 0) __builtin_prefetch(next + n * stride + d);
      for (int i = 0; i < Q; ++i) acc[n][i] += row * q[i];
    }
  }
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < Q; ++i) {
      float total = sum(acc[n][i]);
      for (int64_t rest = d; rest < D; ++rest) total += element(rows + n * stride + rest) * query[i * D + rest];
      scores[i * ROWS + n] = total;
    }
}

template <int Q, typename E>
void dot_rows(const E* rows, const E* next, int64_t count, int64_t stride, const float* query, int64_t D, float* scores) {
  const auto after = [&](int64_t n) { return next ? next + n * stride : next; };
  int64_t n = 0;
  for (; n + TILE <= count; n += TILE) dot_tile<Q, TILE>(rows + n * stride, after(n), stride, query, D, scores + n);
  for (; n < count; ++n) dot_tile<Q, 1>(rows + n * stride, after(n), stride, query, D, scores + n);
}

// sums[query][v] += weights[query][row] * rows[row][v], for Q queries and N vectors of v.
template <int Q, int N, typename E>
void weigh_tile(const E* rows, const E* next, int64_t count, int64_t stride, const float* weights, float* sums, int64_t width) {
  f32x16 acc[Q][N];
  for (int i = 0; i < Q; ++i)
    for (int n = 0; n < N; ++n) acc[i][n] = load<f32x16>(sums + i * width + n * LANES);
  for (int64_t row = 0; row < count; ++row) {
    f32x16 value[N];
    for (int n = 0; n < N; ++n) {
      value[n] = keep(elements(rows + row * stride + n * LANES));
      if (next && n * LANES % int(64 / sizeof(E)) == 0) __builtin_prefetch(next + row * stride + n * LANES);
    }
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) acc[i][n] += value[n] * weights[i * ROWS + row];
  }
  for (int i = 0; i < Q; ++i)
    for (int n = 0; n < N; ++n) store(sums + i * width + n * LANES, acc[i][n]);
}

template <int Q, typename E>
void weigh_rows(const E* rows, const E* next, int64_t count, int64_t stride, const float* weights, float* sums, int64_t V, int64_t width) {
  const auto after = [&](int64_t v) { return next ? next + v : next; };
  int64_t v = 0;
  for (; v + TILE * LANES <= V; v += TILE * LANES) weigh_tile<Q, TILE>(rows + v, after(v), count, stride, weights, sums + v, width);
  for (; v + LANES <= V; v += LANES) weigh_tile<Q, 1>(rows + v, after(v), count, stride, weights, sums + v, width);
  for (; v < V; ++v)
    for (int i = 0; i < Q; ++i)
      for (int64_t row = 0; row < count; ++row) sums[i * width + v] += element(rows + row * stride + v) * weights[i * ROWS + row];
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

struct Unit {
  int64_t head, first, count;  // queries first..first + count of a key/value head
  int64_t begin, end;  // rows
  float *query, *scores, *sums;
};

bool sees(const Attention& a, int64_t query, int64_t row) {
  const int64_t token = query / a.shared();
  return a.mask ? a.mask[token * a.R + row] : row <= a.start + token;
}

// Narrows begin..end to its first rows in a row that some query of the unit sees; the others are not touched. Returns whether
// all queries see all of them.
bool narrow(const Attention& a, const Unit& u, int64_t& begin, int64_t& end) {
  const int64_t first = u.first / a.shared(), last = (u.first + u.count - 1) / a.shared();
  if (!a.mask) {
    end = std::max(begin, std::min(end, a.start + last + 1));
    return end <= a.start + first + 1;
  }
  const auto seen = [&](int64_t row) {
    for (int64_t token = first; token <= last; ++token)
      if (a.mask[token * a.R + row]) return true;
    return false;
  };
  while (begin < end && !seen(begin)) ++begin;
  int64_t stop = begin;
  while (stop < end && seen(stop)) ++stop;
  end = stop;
  return false;
}

// What scales a block's rows: a scale each for int8, nothing otherwise. Behind the rows go zeros.
void row_scales(const Attention& a, const Unit& u, const float* scales, int64_t begin, int64_t count, float (&of)[ROWS]) {
  for (int64_t r = 0; r < ROWS; ++r) of[r] = r >= count ? 0.0f : scales ? scales[(begin + r) * a.G + u.head] : 1.0f;
}

f32x16 capped(f32x16 score, float cap) { return cap * (1.0f - 2.0f / (exp(score * (2.0f / cap)) + 1.0f)); }

// Which of the rows begin + 0..15 a query sees.
i32x16 seen_rows(const Attention& a, int64_t query, int64_t begin, int64_t count) {
  i32x16 seen{};
  for (int64_t lane = 0; lane < std::min<int64_t>(LANES, count); ++lane) seen[lane] = sees(a, query, begin + lane) ? -1 : 0;
  return seen;
}

// Scores to weights, with the sums of a query rescaled where its maximum grows. A row that is not seen, and NaN in it, weighs 0.
void soften(const Attention& a, const Unit& u, int64_t begin, int64_t count, bool all) {
  float key_scales[ROWS], value_scales[ROWS];
  row_scales(a, u, a.key_scales, begin, count, key_scales);
  row_scales(a, u, a.value_scales, begin, count, value_scales);
  for (int64_t i = 0; i < u.count; ++i) {
    float *scores = u.scores + i * ROWS, *sums = u.sums + i * (a.V + 2), &weight = sums[a.V], &top = sums[a.V + 1];
    f32x16 tops = splat(top);
    for (int64_t r = 0; r < count; r += LANES) {
      f32x16 score = load<f32x16>(scores + r) * load<f32x16>(key_scales + r);
      if (a.softcap > 0.0f) score = capped(score, a.softcap);
      if (!all || count - r < LANES) score = seen_rows(a, u.first + i, begin + r, count - r) ? score : splat(NEVER);
      tops = larger(tops, score);
      store(scores + r, score);
    }
    const float raised = largest(tops);
    if (raised > top) {
      const float shrink = std::exp(top - raised);
      for (int64_t v = 0; v <= a.V; ++v) sums[v] *= shrink;
      top = raised;
    }
    f32x16 weights{};
    for (int64_t r = 0; r < count; r += LANES) {
      const f32x16 score = load<f32x16>(scores + r), one = score > splat(NEVER) ? exp(score - top) : splat(0.0f);
      weights += one;
      store(scores + r, one * load<f32x16>(value_scales + r));
    }
    weight += sum(weights);
  }
}

template <typename E>
void run(const Attention& a, const Unit& u) {
  const int64_t width = a.V + 2;
  for (int64_t i = 0; i < u.count; ++i) {
    std::fill_n(u.sums + i * width, a.V + 1, 0.0f);
    u.sums[i * width + a.V + 1] = NEVER;
    const int64_t token = (u.first + i) / a.shared(), head = u.head * a.shared() + (u.first + i) % a.shared();
    for (int64_t d = 0; d < a.D; ++d) u.query[i * a.D + d] = a.query[(token * a.H + head) * a.D + d] * a.scale;
  }
  for (int64_t begin = u.begin, end; begin < u.end; begin = end) {
    end = std::min(begin + ROWS, u.end);
    const bool all = narrow(a, u, begin, end);
    if (begin == end && !a.mask) break;
    const E* keys = static_cast<const E*>(a.keys) + (begin * a.G + u.head) * a.D;
    const E* values = static_cast<const E*>(a.values) + (begin * a.G + u.head) * a.V;
    // Memory is slow to begin: while keys are multiplied their values are fetched, and with those the next keys.
    in_tiles(u.count, [&](int64_t i, auto q) {
      dot_rows<q()>(keys, i || a.D != a.V ? nullptr : values, end - begin, a.G * a.D, u.query + i * a.D, a.D, u.scores + i * ROWS);
    });
    soften(a, u, begin, end - begin, all);
    const E* next = begin + 2 * ROWS <= u.end && a.D == a.V ? keys + ROWS * a.G * a.D : nullptr;
    in_tiles(u.count, [&](int64_t i, auto q) {
      weigh_rows<q()>(values, i ? nullptr : next, end - begin, a.G * a.V, u.scores + i * ROWS, u.sums + i * width, a.V, width);
    });
  }
}

// Puts the parts of a query together, with its sink, which takes a share and has no value.
void merge(const Attention& a, const Work& w, int64_t head, int64_t query) {
  const int64_t width = a.V + 2, own = head * a.shared() + query % a.shared();
  const auto part = [&](int64_t p) {
    return w.sums + (((head * w.groups + query / QUERIES) * w.parts + p) * QUERIES + query % QUERIES) * width;
  };
  float largest = a.sinks ? a.sinks[own] : NEVER;
  for (int64_t p = 0; p < w.parts; ++p) largest = std::max(largest, part(p)[a.V + 1]);
  float total = a.sinks ? std::exp(a.sinks[own] - largest) : 0.0f;
  float* out = a.out + (query / a.shared() * a.H + own) * a.V;
  std::fill_n(out, a.V, 0.0f);
  for (int64_t p = 0; p < w.parts; ++p) {
    if (part(p)[a.V + 1] == NEVER) continue;
    const float share = std::exp(part(p)[a.V + 1] - largest);
    total += share * part(p)[a.V];
    for (int64_t v = 0; v < a.V; ++v) out[v] += share * part(p)[v];
  }
  for (int64_t v = 0; v < a.V; ++v) out[v] /= total;
}

template <typename E>
bool attend(KernelRuntimeContext& context, const Attention& a) {
  Work w{(a.queries() + QUERIES - 1) / QUERIES, 1, nullptr, nullptr, nullptr};
  if (a.G * w.groups < 4) w.parts = std::clamp<int64_t>(a.seen() / PART, 1, 8);
  const int64_t units = w.units(a), part = (a.seen() + w.parts - 1) / w.parts;
  w.query = scratch<float>(context, units * QUERIES * a.D);
  w.scores = scratch<float>(context, units * QUERIES * ROWS);
  w.sums = scratch<float>(context, units * QUERIES * (a.V + 2));
  if (!w.query || !w.scores || !w.sums) return false;
  const int64_t cost = std::min(part, a.seen()) * (a.D + a.V) * sizeof(E) * std::min(QUERIES, a.queries()) / 4;
  parallel(units, cost, [&](int64_t begin, int64_t end) {
    for (int64_t unit = begin; unit < end; ++unit) {
      const int64_t group = unit / w.parts % w.groups, from = unit % w.parts * part;
      run<E>(a, {unit / w.parts / w.groups, group * QUERIES, std::min(QUERIES, a.queries() - group * QUERIES), from,
                 std::min(from + part, a.seen()), w.query + unit * QUERIES * a.D, w.scores + unit * QUERIES * ROWS,
                 w.sums + unit * QUERIES * (a.V + 2)});
    }
  });
  parallel(a.G * a.queries(), w.parts * a.V * sizeof(float), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) merge(a, w, i / a.queries(), i % a.queries());
  });
  return true;
}

Attention arguments(const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& start,
    const std::optional<Tensor>& mask, const std::optional<Tensor>& sinks, double scale, double softcap, Tensor& out) {
  return {data<float>(query), keys.const_data_ptr(), values.const_data_ptr(), nullptr, nullptr, mask ? data<bool>(*mask) : nullptr,
      sinks ? data<float>(*sinks) : nullptr, data<float>(out), query.size(1), query.size(2), query.size(3), keys.size(1),
      keys.size(2), last(values), *data<int64_t>(start), float(scale), float(softcap)};
}

bool is_sound(const Attention& a, const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& out) {
  return query.size(0) == 1 && a.H % a.G == 0 && last(keys) == a.D && values.size(1) == a.R && values.size(2) == a.G &&
      out.numel() == a.T * a.H * a.V && a.start >= 0 && (a.mask || a.start + a.T <= a.R);
}

Tensor& attention_out(KernelRuntimeContext& context, const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& start,
    const std::optional<Tensor>& mask, const std::optional<Tensor>& sinks, double scale, double softcap, Tensor& out) {
  const Attention a = arguments(query, keys, values, start, mask, sinks, scale, softcap, out);
  ET_KERNEL_CHECK(context, is_sound(a, query, keys, values, out) && is_float(keys) && is_float(values), InvalidArgument, out);
  ET_KERNEL_CHECK(context, attend<float>(context, a), MemoryAllocationFailed, out);
  return out;
}

Tensor& quantized_attention_out(KernelRuntimeContext& context, const Tensor& query, const Tensor& keys, const Tensor& key_scales,
    const Tensor& values, const Tensor& value_scales, const Tensor& start, const std::optional<Tensor>& sinks, double scale,
    double softcap, Tensor& out) {
  Attention a = arguments(query, keys, values, start, std::nullopt, sinks, scale, softcap, out);
  a.key_scales = data<float>(key_scales);
  a.value_scales = data<float>(value_scales);
  const bool whole = keys.scalar_type() == ScalarType::Char && values.scalar_type() == ScalarType::Char &&
      key_scales.numel() == a.R * a.G && value_scales.numel() == a.R * a.G;
  ET_KERNEL_CHECK(context, whole && is_sound(a, query, keys, values, out), InvalidArgument, out);
  ET_KERNEL_CHECK(context, attend<int8_t>(context, a), MemoryAllocationFailed, out);
  return out;
}

EXECUTORCH_LIBRARY(hybridge, "attention.out", attention_out);
EXECUTORCH_LIBRARY(hybridge, "quantized_attention.out", quantized_attention_out);

}  // namespace
}  // namespace hybridge
