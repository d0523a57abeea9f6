// Attention over float32 or float16 rows (attention.h), T of which is either.
#include "attention.h"
#include "checks.h"

#include <bit>

namespace hybridge {
namespace {

template <typename T>
struct Rows {
  const T *keys, *values;  // [R, G, D] and [R, G, V]
};

INLINE f32xr numbers(const float* row) { return keep(load<f32xr>(row)); }
INLINE f32xr numbers(const half* row) { return to_float(load<f16xr>(row)); }

// The first `count` of a register's numbers, zeros after them.
INLINE f32xr first_numbers(const float* row, int64_t count) { return load_first<f32xr>(row, count); }
INLINE f32xr first_numbers(const half* row, int64_t count) {
  half some[REGISTER_LANES] = {};
  std::copy_n(row, count, some);
  return numbers(some);
}

// Returns the number of vectors of rows for Q queries, so that sums fill half of the registers.
template <int Q>
constexpr int AT_ONCE = std::min(TILE, REGISTERS / 2 / Q);

// Writes the sum() of each of N registers, eight of them with a third of the instructions where a register is one of
// eight numbers: halves are added as sum() adds them.
template <int N>
INLINE void store_each_sum(float* to, const f32xr (&v)[N]) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  if constexpr (N > 4 && N <= 8) {
    __m256 quarters[2], halves[4];
    UNROLLED for (int i = 0; i < 4; ++i) {
      const __m256 a = (__m256)v[i], b = (__m256)v[std::min(i + 4, N - 1)];
      halves[i] = _mm256_add_ps(_mm256_permute2f128_ps(a, b, 0x20), _mm256_permute2f128_ps(a, b, 0x31));
    }
    UNROLLED for (int i = 0; i < 2; ++i) {
      const __m256 a = halves[2 * i], b = halves[2 * i + 1];
      quarters[i] = _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x44), _mm256_shuffle_ps(a, b, 0xee));
    }
    const __m256 a = _mm256_shuffle_ps(quarters[0], quarters[1], 0x88),
                 b = _mm256_shuffle_ps(quarters[0], quarters[1], 0xdd);
    store_first(to, (f32xr)_mm256_add_ps(a, b), N);
    return;
  }
#endif
  UNROLLED for (int i = 0; i < N; ++i) to[i] = sum(v[i]);
}

// scores[query][row] of N rows and Q queries, each the sum() of a register, to which a lane adds every
// REGISTER_LANES-th column. `next`, as far apart as the rows, is what will be read after them.
template <int Q, int N, typename T>
[[gnu::noinline]] void dot_tile(
    const T* rows, const T* next, int64_t stride, const float* query, int64_t D, float* scores
) {
  f32xr acc[Q * N];
  UNROLLED for (int i = 0; i < Q * N; ++i) acc[i] = f32xr{};
  int64_t d = 0;
  for (; d + REGISTER_LANES <= D; d += REGISTER_LANES) {
    f32xr q[Q];
    UNROLLED for (int i = 0; i < Q; ++i) q[i] = keep(load<f32xr>(query + i * D + d));
    UNROLLED for (int n = 0; n < N; ++n) {
      const f32xr row = numbers(rows + n * stride + d);
      if (next) __builtin_prefetch(next + n * stride + d);
      UNROLLED for (int i = 0; i < Q; ++i) acc[i * N + n] = fused(row, q[i], acc[i * N + n]);
    }
  }
  if (d < D)
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < Q; ++i)
        acc[i * N + n] = fused(
            first_numbers(rows + n * stride + d, D - d), first_numbers(query + i * D + d, D - d), acc[i * N + n]
        );
  float sums[Q * N];
  store_each_sum(sums, acc);
  UNROLLED for (int i = 0; i < Q; ++i) std::memcpy(scores + i * ROWS, sums + i * N, N * sizeof(float));
}

template <int Q, typename T>
void dot_rows(
    const T* rows, const T* next, int64_t count, int64_t stride, const float* query, int64_t D, float* scores
) {
  const auto after = [&](int64_t n) { return next ? next + n * stride : next; };
  int64_t n = 0;
  for (; n + AT_ONCE<Q> <= count; n += AT_ONCE<Q>)
    dot_tile<Q, AT_ONCE<Q>>(rows + n * stride, after(n), stride, query, D, scores + n);
  for (; n < count; ++n) dot_tile<Q, 1>(rows + n * stride, after(n), stride, query, D, scores + n);
}

// Where a block's scores, then weights, lie: those of a query in a row, or the queries side by side.
struct InRows {
  static constexpr int64_t of(int64_t query, int64_t row) { return query * ROWS + row; }
};
struct SideBySide {
  static constexpr int64_t of(int64_t query, int64_t row) { return row * QUERIES + query; }
};

// sums[query][v] += weights[query][row] * rows[row][v], for Q queries and N vectors of v.
template <int Q, int N, typename Place, typename T>
void weigh_tile(
    const T* rows, const T* next, int64_t count, int64_t stride, const float* weights, float* sums, int64_t width
) {
  f32xr acc[Q][N];
  for (int i = 0; i < Q; ++i)
    for (int n = 0; n < N; ++n) acc[i][n] = load<f32xr>(sums + i * width + n * REGISTER_LANES);
  for (int64_t row = 0; row < count; ++row) {
    f32xr value[N];
    for (int n = 0; n < N; ++n) {
      value[n] = numbers(rows + row * stride + n * REGISTER_LANES);
      if (next) __builtin_prefetch(next + row * stride + n * REGISTER_LANES);
    }
    for (int i = 0; i < Q; ++i)
      for (int n = 0; n < N; ++n) acc[i][n] = fused(value[n], weights[Place::of(i, row)], acc[i][n]);
  }
  for (int i = 0; i < Q; ++i)
    for (int n = 0; n < N; ++n) store(sums + i * width + n * REGISTER_LANES, acc[i][n]);
}

template <int Q, typename Place, typename T>
void weigh_rows(
    const T* rows, const T* next, int64_t count, int64_t stride, const float* weights, float* sums, int64_t V,
    int64_t width
) {
  const auto after = [&](int64_t v) { return next ? next + v : next; };
  int64_t v = 0;
  constexpr int N = AT_ONCE<Q>;
  for (; v + N * REGISTER_LANES <= V; v += N * REGISTER_LANES)
    weigh_tile<Q, N, Place>(rows + v, after(v), count, stride, weights, sums + v, width);
  for (; v + REGISTER_LANES <= V; v += REGISTER_LANES)
    weigh_tile<Q, 1, Place>(rows + v, after(v), count, stride, weights, sums + v, width);
  if (v < V &&
      V >= REGISTER_LANES) {  // the last columns, in a register with some before them, whose sums stay as they are
    const int64_t first = V - REGISTER_LANES;
    float last[Q * REGISTER_LANES];
    for (int i = 0; i < Q; ++i) store(last + i * REGISTER_LANES, load<f32xr>(sums + i * width + first));
    weigh_tile<Q, 1, Place>(rows + first, after(first), count, stride, weights, last, REGISTER_LANES);
    for (int i = 0; i < Q; ++i) std::copy_n(last + i * REGISTER_LANES + (v - first), V - v, sums + i * width + v);
    return;
  }
  if (v < V)  // sums are padded
    for (int i = 0; i < Q; ++i) {
      f32xr acc = load<f32xr>(sums + i * width);
      for (int64_t row = 0; row < count; ++row)
        acc = fused(first_numbers(rows + row * stride, V), weights[Place::of(i, row)], acc);
      store(sums + i * width, acc);
    }
}

// The rows of a block, begin..begin + count, of those that any query of a unit sees; the others are not touched.
struct Block {
  struct Run {
    int64_t begin, count;  // positions whose rows follow each other, from the block's first
  };
  int64_t begin, count;
  bool all = false;  // all queries see all rows
  int64_t size = 0;
  Run runs[ROWS / 2];

  Block(const Attention& a, const Unit& u, int64_t from) : begin(from / ROWS * ROWS) {
    const int64_t first = u.first / a.shared(), last = (u.first + u.count - 1) / a.shared();
    count = std::min(ROWS, u.end - begin);
    if (a.mask) {
      read_mask(a, first, last);
      return;
    }
    for (int64_t at = from, end; at < begin + count; at = end) {
      end = std::min(begin + count, a.run(at));
      runs[size++] = {at - begin, end - at};
    }
    all = begin >= a.first(last) && begin + count <= a.end(first);
  }

 private:
  void read_mask(const Attention& a, int64_t first, int64_t last) {
    uint8_t some[ROWS] = {}, every[ROWS];
    std::fill_n(every, ROWS, 1);
    const auto look = [&](auto rows) {
      for (int64_t token = first; token <= last; ++token)
        for (int64_t row = 0; row < rows; ++row) {
          const uint8_t seen = a.mask[token * a.R + begin + row] != 0;
          some[row] |= seen;
          every[row] &= seen;
        }
    };
    count == ROWS ? look(std::integral_constant<int64_t, ROWS>())
                  : look(count);  // of a number that is known in a few instructions
    for (int64_t row = 0; row < count; ++row)
      if (some[row]) {
        const int64_t end = std::find<const uint8_t*>(some + row, some + count, 0) - some;
        runs[size++] = {row, end - row};
        row = end;
      }
    all = std::count(every, every + count, 0) == 0;
  }
};

// Adds to a block's scores what the distance of a key says.
template <typename Place>
void add_bias(const Attention& a, const Unit& u, float* scores, int64_t begin, int64_t count) {
  if (!a.bias) return;
  for (int64_t i = 0; i < u.queries(); ++i) {
    const int64_t at = a.start + u.token(a, i) - begin;
    const float* bias = a.bias + (u.query(a, i) - a.query) / a.D * (a.E + 1);
    for (int64_t row = 0; row < std::min(count, at + 1); ++row)
      scores[Place::of(i, row)] += bias[std::min(at - row, a.E)];
  }
}

// Which of the positions begin + 0..15 a token sees.
i32x16 seen_rows(const Attention& a, int64_t token, int64_t begin, int64_t count) {
  if (!a.mask)
    return (lane() >= int32_t(a.first(token) - begin)) & (lane() < int32_t(std::min(a.end(token) - begin, count)));
  int32_t seen[LANES] = {};
  for (int64_t row = 0; row < std::min<int64_t>(LANES, count); ++row)
    seen[row] = a.mask[token * a.R + begin + row] ? -1 : 0;
  return load<i32x16>(seen);
}

// Scores [QUERIES, ROWS] to weights. A row that is not seen, and NaN in it, weighs 0; NaN of one that is seen stays
// NaN.
void soften(const Attention& a, const Unit& u, float* all_scores, int64_t begin, int64_t count, bool all) {
  for (int64_t i = 0; i < u.queries(); ++i) {
    float* scores = all_scores + i * ROWS;
    Running running(a, u, i);
    f32x16 tops = splat(running.top);
    for (int64_t r = 0; r < count; r += LANES) {
      f32x16 score = load<f32x16>(scores + r);
      if (a.softcap > 0.0f) score = capped(score, a.softcap);
      if (!all || count - r < LANES)
        score = select(seen_rows(a, u.token(a, i), begin + r, count - r), score, splat(NEVER));
      tops = larger(tops, score);
      store(scores + r, score);
    }
    running.raise(largest(tops));
    const f32x16 top = splat(running.top);
    f32x16 weights{};
    for (int64_t r = 0; r < count; r += LANES) {
      const f32x16 one = weight_of(load<f32x16>(scores + r), top);
      weights += one;
      store(scores + r, one);
    }
    running.weight += sum(weights);
  }
}

// Scores of a block. Rows are read in the order of memory, all heads of a few, where each has few queries; else a
// head's queries stay in the cache.
template <typename T>
void score(
    const Attention& a, const Unit& u, const T* keys, const T* values, int64_t count, const float* query, float* scores
) {
  const int64_t step = u.count > TILE ? ROWS : TILE;
  for (int64_t n = 0; n < count; n += step)
    for (int64_t h = 0; h < u.heads; ++h)
      in_tiles(u.count, [&](int64_t i, auto q) {
        const int64_t at = h * u.count + i, row = n * a.G + h;
        const T* next = i || a.D != a.V ? nullptr : values + row * a.V;
        dot_rows<q()>(
            keys + row * a.D, next, std::min(step, count - n), a.G * a.D, query + at * a.D, a.D, scores + at * ROWS + n
        );
      });
}

// Adds a block's weighted values to the sums.
template <typename Place, typename T>
void weigh(
    const Attention& a, const Unit& u, const T* values, const T* next_keys, int64_t count, const float* weights
) {
  const int64_t width = a.columns() + 2;
  for (int64_t h = 0; h < u.heads; ++h)
    in_tiles(u.count, [&](int64_t i, auto q) {
      const int64_t at = h * u.count + i;
      const T* next = i || !next_keys ? nullptr : next_keys + h * a.D;
      weigh_rows<q(), Place>(
          values + h * a.V, next, count, a.G * a.V, weights + Place::of(at, 0), u.sums + at * width, a.V, width
      );
    });
}

// Many queries of one head side by side, each in a lane of its own: no sum goes across lanes.
constexpr int SIDES = std::min<int>(QUERIES / REGISTER_LANES, REGISTERS / 8), ROWS_AT_ONCE = REGISTERS / 2 / SIDES;

// The lane that sum() adds as the index-th: it adds halves, so these are numbers with their bits in reverse.
template <int Lanes>
constexpr int64_t nth_lane(int index) {
  int64_t lane = 0;
  for (int bit = 1; bit < Lanes; bit *= 2) lane = 2 * lane + (index / bit & 1);
  return lane;
}

// The sums that sum() makes of a vector of Lanes numbers, in its order; add(lane, sums) makes what a lane would hold.
template <int Lanes, typename V, int N, typename F>
INLINE void sum_by_lanes(V (&total)[N], const F& add) {
  V halves[std::bit_width(unsigned(Lanes)) - 1][N];  // the sums that wait for their other half
  for (unsigned i = 0; i < Lanes; ++i) {
    V sums[N] = {};
    add(nth_lane<Lanes>(i), sums);
    int waiting = std::popcount(i);
    for (unsigned ones = i; ones & 1; ones >>= 1) {
      --waiting;
      UNROLLED for (int n = 0; n < N; ++n) sums[n] = halves[waiting][n] + sums[n];
    }
    V(&to)[N] = i + 1 < Lanes ? halves[waiting] : total;
    UNROLLED for (int n = 0; n < N; ++n) to[n] = sums[n];
  }
}

// scores [N, QUERIES] of N rows, of queries [D, QUERIES], whose columns are in the order in which dot_tile() adds them.
template <int N>
void score_tile(const float* rows, int64_t stride, const float* query, int64_t D, float* scores) {
  for (int64_t first = 0; first < QUERIES; first += SIDES * REGISTER_LANES) {
    f32xr totals[N * SIDES];
    const float* next = query + first;
    sum_by_lanes<REGISTER_LANES>(totals, [&](int64_t lane, f32xr(&sums)[N* SIDES]) {
      for (int64_t d = lane; d < D; d += REGISTER_LANES, next += QUERIES) {
        f32xr q[SIDES];
        for (int i = 0; i < SIDES; ++i) q[i] = keep(load<f32xr>(next + i * REGISTER_LANES));
        for (int n = 0; n < N; ++n)
          for (int i = 0; i < SIDES; ++i) sums[n * SIDES + i] = fused(q[i], rows[n * stride + d], sums[n * SIDES + i]);
      }
    });
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < SIDES; ++i) store(scores + n * QUERIES + first + i * REGISTER_LANES, totals[n * SIDES + i]);
  }
}

void score_side_by_side(
    const float* rows, int64_t count, int64_t stride, const float* query, int64_t D, float* scores
) {
  int64_t n = 0;
  for (; n + ROWS_AT_ONCE <= count; n += ROWS_AT_ONCE)
    score_tile<ROWS_AT_ONCE>(rows + n * stride, stride, query, D, scores + n * QUERIES);
  for (; n < count; ++n) score_tile<1>(rows + n * stride, stride, query, D, scores + n * QUERIES);
}

// Which of sixteen queries of a unit, from `first` on, see a row.
struct SeenBy {
  const Attention& a;
  int64_t origin;
  int32_t tokens[LANES], begins[LANES], ends[LANES];  // what a query sees, in positions behind `origin`

  SeenBy(const Attention& of, const Unit& u, int64_t first) : a(of), origin(u.begin) {
    for (int64_t i = 0; i < LANES; ++i) {
      const int64_t token = u.token(a, std::min(first + i, u.count - 1));
      tokens[i] = int32_t(token);
      begins[i] = a.mask ? 0 : int32_t(std::max<int64_t>(a.first(token) - origin, 0));
      ends[i] = a.mask ? 0 : int32_t(a.end(token) - origin);
    }
  }

  i32x16 operator()(int64_t row) const {
    const auto at = int32_t(row - origin);
    if (!a.mask) return (load<i32x16>(begins) < at + 1) & (load<i32x16>(ends) > at);
    int32_t seen[LANES];
    for (int i = 0; i < LANES; ++i) seen[i] = a.mask[tokens[i] * a.R + row] ? -1 : 0;
    return load<i32x16>(seen);
  }
};

// As soften(), of scores [ROWS, QUERIES].
void soften_side_by_side(const Attention& a, const Unit& u, float* all_scores, int64_t begin, int64_t count, bool all) {
  for (int64_t first = 0; first < u.count; first += LANES) {
    const int64_t queries = std::min<int64_t>(LANES, u.count - first);
    std::optional<SeenBy> seen;
    if (!all) seen.emplace(a, u, first);
    float top[LANES];
    std::fill_n(top, LANES, NEVER);
    for (int64_t i = 0; i < queries; ++i) top[i] = Running(a, u, first + i).top;
    f32x16 tops = load<f32x16>(top);
    for (int64_t r = 0; r < count; ++r) {
      float* scores = all_scores + r * QUERIES + first;
      f32x16 score = load<f32x16>(scores);
      if (a.softcap > 0.0f) score = capped(score, a.softcap);
      if (seen) score = select((*seen)(begin + r), score, splat(NEVER));
      tops = larger(tops, score);
      if (seen || a.softcap > 0.0f) store(scores, score);
    }
    store(top, tops);
    for (int64_t i = 0; i < queries; ++i) Running(a, u, first + i).raise(top[i]);
    for (int64_t r = 0; r < count; ++r) {
      float* scores = all_scores + r * QUERIES + first;
      store(scores, weight_of(load<f32x16>(scores), tops));
    }
    f32x16 weights[1];
    sum_by_lanes<LANES>(weights, [&](int64_t lane, f32x16(&sum)[1]) {
      for (int64_t r = lane; r < count; r += LANES) sum[0] += load<f32x16>(all_scores + r * QUERIES + first);
    });
    store(top, weights[0]);
    for (int64_t i = 0; i < queries; ++i) Running(a, u, first + i).weight += top[i];
  }
}

// The keys of a block as float32, and how far apart they are.
std::pair<const float*, int64_t> as_floats(const float* keys, int64_t, int64_t stride, int64_t, float*) {
  return {keys, stride};
}
std::pair<const float*, int64_t> as_floats(const half* keys, int64_t count, int64_t stride, int64_t D, float* room) {
  for (int64_t n = 0; n < count; ++n) {
    int64_t d = 0;
    for (; d + REGISTER_LANES <= D; d += REGISTER_LANES) store(room + n * D + d, numbers(keys + n * stride + d));
    for (; d < D; ++d) room[n * D + d] = float(keys[n * stride + d]);
  }
  return {room, D};
}

// Whether a unit's queries lie side by side.
bool side_by_side(const Attention& a, const Unit& u) { return a.T >= QUERIES && u.heads == 1; }

// Scales the queries of a unit, to [queries, D], or to [D, QUERIES] as score_tile() reads them.
void put_queries(const Attention& a, const Unit& u, float* query) {
  if (!side_by_side(a, u)) {
    for (int64_t i = 0; i < u.queries(); ++i)
      for (int64_t d = 0; d < a.D; ++d) query[i * a.D + d] = u.query(a, i)[d] * a.scale;
    return;
  }
  std::fill_n(query, QUERIES * a.D, 0.0f);
  for (int64_t i = 0; i < u.count; ++i) {
    const float* from = u.query(a, i);
    float* to = query + i;
    for (int index = 0; index < REGISTER_LANES; ++index)
      for (int64_t d = nth_lane<REGISTER_LANES>(index); d < a.D; d += REGISTER_LANES, to += QUERIES)
        *to = from[d] * a.scale;
  }
}

template <typename T>
void run_side_by_side(const Attention& a, const Rows<T>& rows, const Unit& u, const float* query, float* scores) {
  float* room = scores + QUERIES * ROWS;
  for (int64_t begin = u.begin; begin < u.end; begin = begin / ROWS * ROWS + ROWS) {
    const Block block(a, u, begin);
    for (int64_t i = 0; i < block.size; ++i) {
      const auto [from, count] = block.runs[i];
      const auto [keys, stride] = as_floats(
          rows.keys + (a.row(block.begin + from) * a.G + u.head) * a.D, count, a.G * a.D, a.D, room
      );
      score_side_by_side(keys, count, stride, query, a.D, scores + from * QUERIES);
    }
    add_bias<SideBySide>(a, u, scores, block.begin, block.count);
    soften_side_by_side(a, u, scores, block.begin, block.count, block.all);
    for (int64_t i = 0; i < block.size; ++i) {
      const auto [from, count] = block.runs[i];
      const T* values = rows.values + (a.row(block.begin + from) * a.G + u.head) * a.V;
      weigh<SideBySide, T>(a, u, values, nullptr, count, scores + from * QUERIES);
    }
  }
}

template <typename T>
void run(const Attention& a, const Rows<T>& rows, const Unit& u, const float* query, float* scores) {
  if (side_by_side(a, u)) return run_side_by_side(a, rows, u, query, scores);
  for (int64_t begin = u.begin; begin < u.end; begin = begin / ROWS * ROWS + ROWS) {
    const Block block(a, u, begin);
    // Memory is slow to begin: while keys are multiplied their values are fetched, and with those the next keys.
    const auto each_run = [&](const auto& f) {
      for (int64_t i = 0; i < block.size; ++i) {
        const auto [from, count] = block.runs[i];
        const int64_t row = a.row(block.begin + from) * a.G + u.head;
        f(rows.keys + row * a.D, rows.values + row * a.V, count, scores + from);
      }
    };
    each_run([&](const T* keys, const T* values, int64_t count, float* to) {
      score(a, u, keys, values, count, query, to);
    });
    add_bias<InRows>(a, u, scores, block.begin, block.count);
    soften(a, u, scores, block.begin, block.count, block.all);
    const bool fetches = block.begin + 2 * ROWS <= u.end && a.D == a.V;
    each_run([&](const T* keys, const T* values, int64_t count, const float* weights) {
      weigh<InRows>(a, u, values, fetches ? keys + ROWS * a.G * a.D : nullptr, count, weights);
    });
  }
}

template <typename T>
bool attend_over(KernelRuntimeContext& context, const Attention& a, const Rows<T>& rows) {
  const int64_t room = std::is_same_v<T, half> ? ROWS * a.D : 0;  // of a block's keys as float32
  const int64_t memory = (QUERIES * (a.D + ROWS) + room) * sizeof(float);
  const auto prepare = [&](const Unit& unit, void* own) { put_queries(a, unit, static_cast<float*>(own)); };
  return attend(context, a, memory, (a.D + a.V) * sizeof(T) / 4, prepare, [&](const Unit& part, void* own) {
    const float* query = static_cast<float*>(own);
    run(a, rows, part, query, static_cast<float*>(own) + QUERIES * a.D);
  });
}

Tensor& attention(
    KernelRuntimeContext& context, const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& start,
    const std::optional<Tensor>& mask, const std::optional<Tensor>& bias, const std::optional<Tensor>& sinks,
    double scale, double softcap, int64_t ring, int64_t window, bool chunked, Tensor& out
) {
  Size T, H, D, R, G, V, profile;
  int64_t first;
  REQUIRE(is<float>(query, 1, T, H, D));
  const bool halved = keys.scalar_type() == ScalarType::Half;
  REQUIRE(halved ? is<half>(keys, 1, R, G, D) : is<float>(keys, 1, R, G, D));
  REQUIRE(halved ? is<half>(values, 1, R, G, V) : is<float>(values, 1, R, G, V));
  REQUIRE(H % G == 0);
  REQUIRE(is<float>(out, 1, T, H, V));
  REQUIRE(is_rows<bool>(mask, T, R));
  REQUIRE(is<float>(bias, 1, T, H, profile));
  const bool sinks_by_token = bias && sinks && sinks->numel() != H;
  REQUIRE(sinks_by_token ? is<float>(sinks, 1, H, T) : holds<float>(sinks, H));
  REQUIRE(reads(start, first, 0, std::numeric_limits<int64_t>::max() - T - R - PART));
  REQUIRE(ring >= 0 && window >= 0);
  REQUIRE(
      ring ? !mask && window > 0 && fits(window, T - 1, R) && (R == ring || R - T == ring)
           : !window && (mask || fits(first, T, R))
  );
  const Attention a{
      data<float>(query),
      sinks ? data<float>(*sinks) : nullptr,
      data<float>(out),
      T,
      H,
      D,
      R,
      G,
      V,
      first,
      float(scale),
      float(softcap),
      mask ? data<uint8_t>(*mask) : nullptr,
      ring,
      window,
      chunked,
      bias ? data<float>(*bias) : nullptr,
      profile - 1,
      sinks_by_token
  };
  const bool done = halved ? attend_over<half>(context, a, {data<half>(keys), data<half>(values)})
                           : attend_over<float>(context, a, {data<float>(keys), data<float>(values)});
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

Tensor& attention_out(
    KernelRuntimeContext& context, const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& start,
    const std::optional<Tensor>& mask, const std::optional<Tensor>& sinks, double scale, double softcap, int64_t ring,
    int64_t window, bool chunked, Tensor& out
) {
  return attention(
      context, query, keys, values, start, mask, std::nullopt, sinks, scale, softcap, ring, window, chunked, out
  );
}

Tensor& biased_attention_out(
    KernelRuntimeContext& context, const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& start,
    const Tensor& bias, const std::optional<Tensor>& sinks, double scale, int64_t ring, int64_t window, bool chunked,
    Tensor& out
) {
  return attention(
      context, query, keys, values, start, std::nullopt, bias, sinks, scale, 0.0, ring, window, chunked, out
  );
}

HYBRIDGE_KERNEL("attention.out", attention_out);
HYBRIDGE_KERNEL("biased_attention.out", biased_attention_out);

}  // namespace
}  // namespace hybridge
