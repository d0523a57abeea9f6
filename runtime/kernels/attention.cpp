// Attention over float32 or float16 rows (attention.h), T of which is either.
#include "attention.h"
#include "checks.h"

namespace hybridge {
namespace {

template <typename T>
struct Rows {
  const T *keys, *values;  // [R, G, D] and [R, G, V]
};

INLINE f32xr numbers(const float* row) { return keep(load<f32xr>(row)); }
INLINE f32xr numbers(const half* row) { return to_float(load<f16xr>(row)); }

// Returns the number of vectors of rows for Q queries, so that sums fill half of the registers.
template <int Q>
constexpr int AT_ONCE = std::min(TILE, REGISTERS / 2 / Q);

// scores[query][row] of N rows and Q queries. `next`, as far apart as the rows, is what will be read after them.
template <int Q, int N, typename T>
void dot_tile(const T* rows, const T* next, int64_t stride, const float* query, int64_t D, float* scores) {
  f32xr acc[N][Q] = {};
  int64_t d = 0;
  for (; d + REGISTER_LANES <= D; d += REGISTER_LANES) {
    f32xr q[Q];
    for (int i = 0; i < Q; ++i) q[i] = keep(load<f32xr>(query + i * D + d));
    for (int n = 0; n < N; ++n) {
      const f32xr row = numbers(rows + n * stride + d);
      if (next) __builtin_prefetch(next + n * stride + d);
      for (int i = 0; i < Q; ++i) acc[n][i] += row * q[i];
    }
  }
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < Q; ++i) {
      float total = sum(acc[n][i]);
      for (int64_t rest = d; rest < D; ++rest) total += float(rows[n * stride + rest]) * query[i * D + rest];
      scores[i * ROWS + n] = total;
    }
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
      for (int n = 0; n < N; ++n) acc[i][n] += value[n] * weights[Place::of(i, row)];
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
  for (; v < V; ++v)
    for (int i = 0; i < Q; ++i)
      for (int64_t row = 0; row < count; ++row)
        sums[i * width + v] += float(rows[row * stride + v]) * weights[Place::of(i, row)];
}

// Narrows begin..end to rows that some query of the unit sees and that follow each other; the others are not touched.
// Returns whether all queries see all of them.
bool narrow(const Attention& a, const Unit& u, int64_t& begin, int64_t& end) {
  const int64_t first = u.first / a.shared(), last = (u.first + u.count - 1) / a.shared();
  if (!a.mask) {
    begin = std::max(begin, a.first(first));
    end = std::max(begin, std::min({begin + ROWS, u.end, a.end(last), a.run(begin)}));
    return begin >= a.first(last) && end <= a.end(first);
  }
  for (; begin < u.end; begin += ROWS) {
    const int64_t count = std::min(ROWS, u.end - begin);
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
    const uint8_t* from = std::find<const uint8_t*>(some, some + count, 1);
    if (from == some + count) continue;
    const uint8_t* to = std::find<const uint8_t*>(from, some + count, 0);
    end = begin + (to - some);
    begin += from - some;
    return std::count(every + (from - some), every + (to - some), 0) == 0;
  }
  begin = end = u.end;
  return false;
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
    f32x16 weights{};
    for (int64_t r = 0; r < count; r += LANES) {
      const f32x16 score = load<f32x16>(scores + r),
                   one = select(score == splat(NEVER), splat(0.0f), exp(score - running.top));
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

// scores [N, QUERIES] of N rows, of queries [D, QUERIES].
template <int N>
void score_tile(const float* rows, int64_t stride, const float* query, int64_t D, float* scores) {
  for (int64_t first = 0; first < QUERIES; first += SIDES * REGISTER_LANES) {
    f32xr acc[N][SIDES] = {};
    for (int64_t d = 0; d < D; ++d) {
      f32xr q[SIDES];
      for (int i = 0; i < SIDES; ++i) q[i] = keep(load<f32xr>(query + d * QUERIES + first + i * REGISTER_LANES));
      for (int n = 0; n < N; ++n)
        for (int i = 0; i < SIDES; ++i) acc[n][i] += q[i] * rows[n * stride + d];
    }
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < SIDES; ++i) store(scores + n * QUERIES + first + i * REGISTER_LANES, acc[n][i]);
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
      store(scores, score);
    }
    store(top, tops);
    for (int64_t i = 0; i < queries; ++i) Running(a, u, first + i).raise(top[i]);
    f32x16 weights{};
    for (int64_t r = 0; r < count; ++r) {
      float* scores = all_scores + r * QUERIES + first;
      const f32x16 score = load<f32x16>(scores), one = select(score == splat(NEVER), splat(0.0f), exp(score - tops));
      weights += one;
      store(scores, one);
    }
    store(top, weights);
    for (int64_t i = 0; i < queries; ++i) Running(a, u, first + i).weight += top[i];
  }
}

// The keys of a block as float32, and how far apart they are.
std::pair<const float*, int64_t> as_floats(const float* keys, int64_t, int64_t stride, int64_t, float*) {
  return {keys, stride};
}
std::pair<const float*, int64_t> as_floats(const half* keys, int64_t count, int64_t stride, int64_t D, float* room) {
  for (int64_t n = 0; n < count; ++n)
    for (int64_t d = 0; d < D; ++d) room[n * D + d] = float(keys[n * stride + d]);
  return {room, D};
}

template <typename T>
void run_side_by_side(const Attention& a, const Rows<T>& rows, const Unit& u, float* query, float* scores) {
  float* room = scores + QUERIES * ROWS;
  std::fill_n(query, QUERIES * a.D, 0.0f);
  for (int64_t i = 0; i < u.count; ++i)
    for (int64_t d = 0; d < a.D; ++d) query[d * QUERIES + i] = u.query(a, i)[d] * a.scale;
  for (int64_t begin = u.begin, end; begin < u.end; begin = end) {
    const bool all = narrow(a, u, begin, end);
    if (begin == end) break;
    const auto [keys, stride] = as_floats(
        rows.keys + (a.row(begin) * a.G + u.head) * a.D, end - begin, a.G * a.D, a.D, room
    );
    score_side_by_side(keys, end - begin, stride, query, a.D, scores);
    soften_side_by_side(a, u, scores, begin, end - begin, all);
    weigh<SideBySide, T>(a, u, rows.values + (a.row(begin) * a.G + u.head) * a.V, nullptr, end - begin, scores);
  }
}

template <typename T>
void run(const Attention& a, const Rows<T>& rows, const Unit& u, float* query, float* scores) {
  if (a.T >= QUERIES && u.heads == 1) return run_side_by_side(a, rows, u, query, scores);
  for (int64_t i = 0; i < u.queries(); ++i)
    for (int64_t d = 0; d < a.D; ++d) query[i * a.D + d] = u.query(a, i)[d] * a.scale;
  for (int64_t begin = u.begin, end; begin < u.end; begin = end) {
    const bool all = narrow(a, u, begin, end);
    if (begin == end) break;
    const T* keys = rows.keys + (a.row(begin) * a.G + u.head) * a.D;
    const T* values = rows.values + (a.row(begin) * a.G + u.head) * a.V;
    // Memory is slow to begin: while keys are multiplied their values are fetched, and with those the next keys.
    score(a, u, keys, values, end - begin, query, scores);
    soften(a, u, scores, begin, end - begin, all);
    const T* next = begin + 2 * ROWS <= u.end && a.D == a.V ? keys + ROWS * a.G * a.D : nullptr;
    weigh<InRows>(a, u, values, next, end - begin, scores);
  }
}

template <typename T>
bool attend_over(KernelRuntimeContext& context, const Attention& a, const Rows<T>& rows) {
  const int64_t room = std::is_same_v<T, half> ? ROWS * a.D : 0;  // of a block's keys as float32
  const int64_t memory = (QUERIES * (a.D + ROWS) + room) * sizeof(float);
  return attend(context, a, memory, (a.D + a.V) * sizeof(T) / 4, [&](const Unit& unit, void* own) {
    float* query = static_cast<float*>(own);
    run(a, rows, unit, query, query + QUERIES * a.D);
  });
}

Tensor& attention_out(
    KernelRuntimeContext& context, const Tensor& query, const Tensor& keys, const Tensor& values, const Tensor& start,
    const std::optional<Tensor>& mask, const std::optional<Tensor>& sinks, double scale, double softcap, int64_t ring,
    int64_t window, bool chunked, Tensor& out
) {
  Size T, H, D, R, G, V;
  int64_t first;
  REQUIRE(is<float>(query, 1, T, H, D));
  const bool halved = keys.scalar_type() == ScalarType::Half;
  REQUIRE(halved ? is<half>(keys, 1, R, G, D) : is<float>(keys, 1, R, G, D));
  REQUIRE(halved ? is<half>(values, 1, R, G, V) : is<float>(values, 1, R, G, V));
  REQUIRE(H % G == 0);
  REQUIRE(is<float>(out, 1, T, H, V));
  REQUIRE(is_rows<bool>(mask, T, R));
  REQUIRE(holds<float>(sinks, H));
  REQUIRE(reads(start, first, 0, std::numeric_limits<int64_t>::max() - T - R));
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
      chunked
  };
  const bool done = halved ? attend_over<half>(context, a, {data<half>(keys), data<half>(values)})
                           : attend_over<float>(context, a, {data<float>(keys), data<float>(values)});
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

HYBRIDGE_KERNEL("attention.out", attention_out);

}  // namespace
}  // namespace hybridge
