// Attention over int8 rows (attention.h, quantized_rows.h), in whole numbers.
//
// Queries and weights are rounded to 15 bits and written as two digits of 8, high * 128 + low, so that both products
// are those of bytes; what this rounding adds is a hundredth of what that of the rows costs. Rows of a block that no
// token sees are multiplied all the same, because bytes are always numbers, and weigh nothing.
#include "attention.h"
#include "checks.h"
#include "quantized_rows.h"

namespace hybridge {
namespace {

static_assert(ROWS == BLOCK);

constexpr float LARGEST = 127 * 128;  // with two digits

// A unit's own memory.
struct Memory {
  int32_t *query,
      *weights;  // quads of digits: [K / 4] or [16] of them for each tile of queries, high and low of each query
  float *scores,
      *steps;        // [QUERIES, ROWS], which begin as whole numbers; [QUERIES], what a query's last digit is worth
  int32_t* offsets;  // [QUERIES], see SIGNED_OFFSET

  Memory(void* own, int64_t K) {
    query = static_cast<int32_t*>(own);
    weights = query + QUERIES * K / 2;
    scores = reinterpret_cast<float*>(weights + QUERIES * ROWS / 2);
    steps = scores + QUERIES * ROWS;
    offsets = reinterpret_cast<int32_t*>(steps + QUERIES);
  }

  static int64_t bytes(int64_t K) { return QUERIES * (K / 2 + ROWS / 2 + ROWS + 2) * sizeof(float); }
};

// Sixteen numbers up to LARGEST as digits, 0 for NaN, four to a quad: quad i of them to quads[i * stride] and behind
// it. Returns them rounded.
INLINE i32x16 put_digits(f32x16 numbers, int32_t* quads, int64_t stride, int64_t count = 4) {
  const f32x16 magic = splat(12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest whole number in the low bits
  const i32x16 whole = (i32x16)(convertible(numbers) + magic) - (i32x16)magic, high = (whole + 64) >> 7,
               low = whole - (high << 7);
  int8_t bytes[2][LANES];
  store_bytes(bytes[0], high);
  store_bytes(bytes[1], low);
  int32_t digits[2][4];
  std::memcpy(digits, bytes, sizeof digits);
  for (int64_t i = 0; i < count; ++i)
    for (int d = 0; d < 2; ++d) quads[i * stride + d] = digits[d][i];
  return whole;
}

// The digits of query i, which stands at `quads`, with its step and offset.
void put_query(const Attention& a, const Unit& u, int64_t i, int32_t* quads, int64_t stride, Memory& m) {
  const float* query = u.query(a, i);
  const auto part = [&](int64_t d) { return load_up_to(query + d, a.D - d); };
  f32x16 tops{}, nothing{};
  for (int64_t d = 0; d < a.D; d += LANES) {
    tops = larger(tops, magnitude(part(d)));
    nothing += part(d) * 0.0f;  // NaN for what is not finite, and then every score is
  }
  const float top = largest(tops), inverse = top > 0.0f ? LARGEST / top : 0.0f;
  i32x16 whole{};
  for (int64_t d = 0; d < a.D; d += LANES)
    whole += put_digits(part(d) * inverse, quads + d / 4 * stride, stride, std::min<int64_t>(4, (a.D - d + 3) / 4));
  m.steps[i] = top / LARGEST * a.scale + sum(nothing);
  m.offsets[i] = SIGNED_OFFSET * sum(whole);
}

// Whole sums without their offset, which may have taken them past 32 bits.
INLINE i32x16 less(i32x16 sums, int32_t offset) { return (i32x16)((u32x16)sums - uint32_t(offset)); }

inline const int8_t* bytes_of(const int32_t* quad) { return reinterpret_cast<const int8_t*>(quad); }

// The same for a register's share of the lanes.
template <int Q, int N>
INLINE void register_products(
    const int8_t* panels, const int8_t* next, int64_t apart, const int32_t* quads, int64_t K,
    int32_t (&out)[N][Q][LANES], int lane
) {
  i32xr high[N][Q] = {}, low[N][Q] = {};
  for (int64_t k = 0; k < K; ++k, panels += 64, quads += 2 * Q) UNROLLED for (int n = 0; n < N; ++n) {
      const u8xr bytes = load<u8xr>(panels + n * apart);
      if (next) __builtin_prefetch(next + k * 64 + n * apart);
      UNROLLED for (int i = 0; i < Q; ++i) {
        high[n][i] = dot4_signed(high[n][i], bytes, bytes_of(quads + 2 * i));
        low[n][i] = dot4_signed(low[n][i], bytes, bytes_of(quads + 2 * i + 1));
      }
    }
  for (int n = 0; n < N; ++n)
    // An overflow of 32 bits is undone when the offset is subtracted.
    for (int i = 0; i < Q; ++i) store(out[n][i] + lane, (u32xr)(high[n][i] << 7) + (u32xr)low[n][i]);
}

// out[panel][query] of N panels of vectors, `apart` bytes from each other, and Q queries: the sums of K quads of
// products.
template <int Q, int N>
void products(
    const int8_t* panels, const int8_t* next, int64_t apart, const int32_t* quads, int64_t K,
    int32_t (&out)[N][Q][LANES]
) {
  for (int lane = 0; lane < LANES; lane += REGISTER_LANES)
    register_products<Q, N>(panels + 4 * lane, lane ? nullptr : next, apart, quads, K, out, lane);
}

// As many panels at once as make enough independent sums, and as registers hold.
template <int Q>
constexpr int AT_ONCE = Q == 1                      ? (REGISTERS > 16 ? 4 : 2)
                        : Q == 4 && REGISTERS == 16 ? 1
                                                    : 2;

// Whole scores of a tile of Q queries for the ROWS rows from a panel on.
template <int Q>
void dot_rows(const int8_t* keys, const int8_t* next, const int32_t* query, int64_t K, float* scores) {
  constexpr int N = AT_ONCE<Q>;
  for (int64_t r = 0; r < ROWS; r += N * LANES) {
    int32_t out[N][Q][LANES];
    products<Q, N>(keys + r * K, next ? next + r * K : next, K * LANES, query, K / 4, out);
    for (int n = 0; n < N; ++n)
      for (int i = 0; i < Q; ++i) std::memcpy(scores + i * ROWS + r + n * LANES, out[n][i], sizeof out[n][i]);
  }
}

// Adds the block's weighted values to the sums of a tile of Q queries.
template <int Q, int N>
void weigh_tiles(
    const int8_t* values, const int8_t* next, const int32_t* weights, const float* steps, const int32_t* offsets,
    float* sums, int64_t width
) {
  int32_t out[N][Q][LANES];
  products<Q, N>(values, next, ROWS * LANES, weights, ROWS / 4, out);
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < Q; ++i) {
      float* sum = sums + i * width + n * LANES;
      store(sum, load<f32x16>(sum) + to_float(less(load<i32x16>(out[n][i]), offsets[i])) * steps[i]);
    }
}

template <int Q>
void weigh_rows(
    const int8_t* values, const int8_t* next, int64_t C, const int32_t* weights, const float* steps,
    const int32_t* offsets, float* sums, int64_t width
) {
  constexpr int N = AT_ONCE<Q>;
  const auto after = [&](int64_t c) { return next ? next + c * ROWS : next; };
  int64_t c = 0;
  for (; c + N * LANES <= C; c += N * LANES)
    weigh_tiles<Q, N>(values + c * ROWS, after(c), weights, steps, offsets, sums + c, width);
  for (; c < C; c += LANES) weigh_tiles<Q, 1>(values + c * ROWS, after(c), weights, steps, offsets, sums + c, width);
}

// Values of a block's rounded weights.
struct Worth {
  float step;
  int32_t offset;
};

// Whole scores of query i to the digits of its weights, times the scales of the values.
Worth soften(
    const Attention& a, const QuantizedRows& rows, const Unit& u, int64_t i, int64_t begin, const Memory& m,
    int32_t* quads, int64_t stride
) {
  Running running(a, u, i);
  float* scores = m.scores + i * ROWS;
  const int64_t block = rows.block(u.head + i / u.count, begin);
  const int64_t seen = std::min(u.end, a.start + u.token(a, i) + 1) - begin;
  f32x16 tops = splat(running.top);
  for (int64_t r = 0; r < ROWS; r += LANES) {
    f32x16 score = to_float(less(load<i32x16>(scores + r), m.offsets[i])) *
                   (load<f32x16>(rows.key_scales + block + r) * m.steps[i]);
    if (a.softcap > 0.0f) score = capped(score, a.softcap);
    score = select(lane() < int32_t(seen - r), score, splat(NEVER));
    tops = larger(tops, score);
    store(scores + r, score);
  }
  running.raise(largest(tops));
  const f32x16 best = splat(running.top);
  f32x16 weights{};
  tops = f32x16{};
  for (int64_t r = 0; r < ROWS; r += LANES) {
    const f32x16 score = load<f32x16>(scores + r), one = weight_of(score, best);
    const f32x16 scaled = select(score == splat(NEVER), splat(0.0f), one * load<f32x16>(rows.value_scales + block + r));
    weights += one + scaled * 0.0f;  // NaN for a row of NaN, which no digit says
    tops = larger(tops, scaled);
    store(scores + r, scaled);
  }
  running.weight += sum(weights);
  const float top = largest(tops), inverse = top > 0.0f ? LARGEST / top : 0.0f;
  i32x16 whole{};
  for (int64_t r = 0; r < ROWS; r += LANES)
    whole += put_digits(load<f32x16>(scores + r) * inverse, quads + r / 4 * stride, stride);
  return {top / LARGEST, SIGNED_OFFSET * sum(whole)};
}

// Returns the start of the next block that a unit reads.
int64_t next_block(const QuantizedRows& rows, const Unit& u, int64_t head, int64_t begin) {
  return head + 1 < u.head + u.heads ? rows.block(head + 1, begin)
                                     : rows.block(u.head, begin + ROWS < u.end ? begin + ROWS : begin);
}

// A block of rows for a tile of Q queries from query i on.
template <int Q>
void take_block(
    const Attention& a, const QuantizedRows& rows, const Unit& u, int64_t i, int64_t begin, const Memory& m
) {
  const int64_t head = u.head + i / u.count, block = rows.block(head, begin), width = a.columns() + 2;
  int32_t* weights = m.weights + i * ROWS / 2;
  const bool first = i % u.count == 0 && rows.K == rows.C;
  const int8_t* next = first ? rows.keys + next_block(rows, u, head, begin) * rows.K : nullptr;
  dot_rows<Q>(
      rows.keys + block * rows.K, first ? rows.values + block * rows.C : nullptr, m.query + i * rows.K / 2, rows.K,
      m.scores + i * ROWS
  );
  float steps[Q];
  int32_t offsets[Q];
  for (int j = 0; j < Q; ++j) {
    const Worth worth = soften(a, rows, u, i + j, begin, m, weights + 2 * j, 2 * Q);
    steps[j] = worth.step;
    offsets[j] = worth.offset;
  }
  weigh_rows<Q>(rows.values + block * rows.C, next, rows.C, weights, steps, offsets, u.sums + i * width, width);
}

// f(first, count as a constant) over the queries of each head in tiles.
template <typename F>
void in_tiles_of_heads(const Unit& u, const F& f) {
  for (int64_t h = 0; h < u.heads; ++h) in_tiles(u.count, [&](int64_t i, auto q) { f(h * u.count + i, q); });
}

void put_queries(const Attention& a, const QuantizedRows& rows, const Unit& u, Memory m) {
  in_tiles_of_heads(u, [&](int64_t i, auto q) {
    for (int j = 0; j < q; ++j) put_query(a, u, i + j, m.query + i * rows.K / 2 + 2 * j, 2 * q, m);
  });
}

void run(const Attention& a, const QuantizedRows& rows, const Unit& u, Memory m) {
  const int64_t last = a.start + u.token(a, u.count - 1);  // row that the last query sees
  for (int64_t begin = u.begin; begin < std::min(u.end, last + 1); begin += ROWS)
    in_tiles_of_heads(u, [&](int64_t i, auto q) { take_block<q()>(a, rows, u, i, begin, m); });
}

Tensor& quantized_attention_out(
    KernelRuntimeContext& context, const Tensor& query, const Tensor& keys, const Tensor& key_scales,
    const Tensor& values, const Tensor& value_scales, const Tensor& start, const std::optional<Tensor>& sinks,
    int64_t V, double scale, double softcap, Tensor& out
) {
  Size T, H, D;
  int64_t first;
  REQUIRE(is<float>(query, 1, T, H, D) && D <= 1024);
  REQUIRE(is<float>(out, 1, T, H, V));
  REQUIRE(holds<float>(sinks, H));
  const QuantizedRows rows = quantized_rows(keys, key_scales, values, value_scales);
  REQUIRE(rows.hold(D, V) && H % rows.G == 0);
  REQUIRE(reads(start, first) && fits(first, T, rows.R));
  const Attention a{
      data<float>(query),
      sinks ? data<float>(*sinks) : nullptr,
      data<float>(out),
      T,
      H,
      D,
      rows.R,
      rows.G,
      V,
      first,
      float(scale),
      float(softcap)
  };
  const auto prepare = [&](const Unit& unit, void* own) { put_queries(a, rows, unit, Memory(own, rows.K)); };
  const bool done = attend(
      context, a, Memory::bytes(rows.K), (a.D + a.V) / 4, prepare,
      [&](const Unit& part, void* own) { run(a, rows, part, Memory(own, rows.K)); }
  );
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

HYBRIDGE_KERNEL("quantized_attention.out", quantized_attention_out);

}  // namespace
}  // namespace hybridge
