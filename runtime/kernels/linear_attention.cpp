// Decayed linear attention (Mamba-2's state space duality, lightning attention) over states [P, N], one for each head:
//
//   S <- g S + (h v) k^T,   out = S q, and a skip
//
// with g the decay of a token and h its step. Rows of a state are independent: a tile of them goes through all tokens
// of a block in the first cache, some tokens at a time in registers, and the state is read and written once.
#include "activation.h"
#include "checks.h"
#include "kernel.h"
#include "recurrent.h"
#include "workspaces.h"

#include <utility>

namespace hybridge {
namespace {

constexpr int ROWS = REGISTERS / 4, TOGETHER = 2;  // rows of a tile, and tokens for which its registers are loaded once
constexpr int64_t MOST = 16;                       // tokens at a time: their keys and queries stay in the first cache

struct Shape {
  int64_t T, heads, groups, P, N;
  bool by_head;
  int64_t head_size() const { return P * N; }  // of a state
  int64_t row() const { return by_head ? heads * (2 * N + P) : heads * P + 2 * groups * N; }
  int64_t group(int64_t head) const { return head / (heads / groups); }
  int64_t value(int64_t head) const { return by_head ? head * (2 * N + P) + 2 * N : head * P; }
  int64_t key(int64_t head) const { return by_head ? head * (2 * N + P) + N : heads * P + group(head) * N; }
  int64_t query(int64_t head) const { return by_head ? head * (2 * N + P) : heads * P + (groups + group(head)) * N; }
};

// Steps before their activation, [T, stride] from `raw` on; all 1 without them.
struct Gates {
  const float *raw, *bias, *rate;
  int64_t stride;
  float low;
  std::optional<double> high;
  // Writes those of T tokens from `first` on. Compiled once, as what else gives steps and decays, so that they round in
  // one way.
  [[gnu::noinline]] void read(float* steps, int64_t first, int64_t T, int64_t head) const {
    if (!raw) return std::fill_n(steps, T, 1.0f), void();
    for (int64_t t = 0; t < T; ++t) steps[t] = raw[(first + t) * stride + head] + (bias ? bias[head] : 0.0f);
    for (int64_t t = 0; t < T; t += LANES) {
      f32x16 step = Softplus::of(load_up_to(steps + t, T - t));
      step = select(step < low, splat(low), step);
      if (high) step = select(step > float(*high), splat(float(*high)), step);
      store_up_to(steps + t, step, T - t);
    }
  }
};

// Inputs of some tokens for one head, the same for all rows of its state, and memory for a tile of these; keys and
// queries are padded to whole vectors.
struct Tokens {
  // Returns how many numbers `most` tokens take.
  static int64_t size(int64_t most, const Shape& s) {
    return product(most, 2 * padded(s.N) + 2 + s.P) + product(ROWS, padded(s.N));
  }

  Tokens(float* next, int64_t most, const Shape& s) : stride(padded(s.N)) {
    const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
    tile = take(ROWS * stride);  // the first, whose rows begin where cache lines do
    key = take(most * stride), query = take(most * stride), added = take(most * s.P);
    step = take(most), decay = take(most);
  }
  int64_t stride, T = 0;
  const float* read = nullptr;  // the first of the keys that are here
  float *key, *query;           // [T, stride]
  float *step, *decay;          // [T]: h and g
  float* added;                 // [T, P]: h v
  float* tile;                  // [ROWS, stride]
};

// Decays of all tokens by their steps, and what they add.
[[gnu::noinline]] void set_steps(Tokens& tokens, float rate, const float* value, const Shape& s) {
  for (int64_t t = 0; t < tokens.T; t += LANES) {
    const int64_t count = tokens.T - t;
    store_up_to(tokens.decay + t, exp(load_up_to(tokens.step + t, count) * rate), count);
  }
  for (int64_t t = 0; t < tokens.T; ++t)
    for (int64_t p = 0; p < s.P; ++p) tokens.added[t * s.P + p] = value[t * s.row() + p] * tokens.step[t];
}

// Keys of T tokens, and queries where they are wanted, from a head's first; heads of a group have the same.
void read_rows(Tokens& tokens, const float* mixed, const Shape& s, int64_t head, int64_t T, bool queries) {
  const float *key = mixed + s.key(head), *query = mixed + s.query(head);
  tokens.T = T;
  if (std::exchange(tokens.read, key) == key) return;
  for (int64_t t = 0; t < T; ++t) {
    copy_row(tokens.key + t * tokens.stride, key + t * s.row(), s.N, tokens.stride);
    if (queries) copy_row(tokens.query + t * tokens.stride, query + t * s.row(), s.N, tokens.stride);
  }
}

void read_tokens(
    Tokens& tokens, const float* mixed, const Gates& gates, const Shape& s, int64_t head, int64_t first, int64_t T
) {
  const float* rows = mixed + first * s.row();
  read_rows(tokens, rows, s, head, T, true);
  gates.read(tokens.step, first, T, head);
  set_steps(tokens, gates.rate[head], rows + s.value(head), s);
}

// T tokens from t on over R rows of the state, on the way from rows to rows; their outputs without the skip.
template <Form F, int T, int R>
[[gnu::noinline]] void steps(
    const Tokens& tokens, int64_t t, const Shape& s, int64_t p, const float* from, int64_t from_stride, float* to,
    int64_t to_stride, float* out, int64_t out_stride
) {
  f32xr sums[T][R] = {}, added[T][R], decay[T];
  UNROLLED for (int i = 0; i < T; ++i) {
    decay[i] = splat<f32xr>(tokens.decay[t + i]);
    UNROLLED for (int r = 0; r < R; ++r) added[i][r] = splat<f32xr>(tokens.added[(t + i) * s.P + p + r]);
  }
  const int64_t stride = tokens.stride, N = s.N;
  const float *key = tokens.key + t * stride, *query = tokens.query + t * stride;
  const auto step = [&]<bool Whole>(int64_t n) __attribute__((always_inline)) {
    f32xr row[R];
    UNROLLED for (int r = 0; r < R; ++r) row[r] = get<Whole>(from + r * from_stride + n, N - n);
    UNROLLED for (int i = 0; i < T; ++i) {
      const f32xr k = load<f32xr>(key + i * stride + n);
      UNROLLED for (int r = 0; r < R; ++r) row[r] = fused(k, added[i][r], row[r] * decay[i]);
      if constexpr (F != Form::COMMIT) {
        const f32xr q = load<f32xr>(query + i * stride + n);
        UNROLLED for (int r = 0; r < R; ++r) sums[i][r] = fused(row[r], q, sums[i][r]);
      }
    }
    UNROLLED for (int r = 0; r < R; ++r) put<Whole>(to + r * to_stride + n, row[r], N - n);
  };
  int64_t n = 0;
  for (; n + REGISTER_LANES <= N; n += REGISTER_LANES) step.template operator()<true>(n);
  if (n < N) step.template operator()<false>(n);
  if constexpr (F != Form::COMMIT)
    UNROLLED for (int i = 0; i < T; ++i) store_sums<R>(out + (t + i) * out_stride + p, sums[i]);
}

// All tokens over R rows from p on.
template <Form F, int R>
void rows_of(const Tokens& tokens, const Shape& s, int64_t p, float* state, float* out, int64_t out_stride) {
  float *from = state + p * s.N, *to = F == Form::VERIFY ? tokens.tile : from;
  const int64_t to_stride = F == Form::VERIFY ? tokens.stride : s.N;
  int64_t from_stride = s.N, t = 0;
  for (int64_t at = 0; at < R * s.N; at += LANES) __builtin_prefetch(from + R * s.N + at);  // the next tile
  const auto next = [&](int64_t read) { t += read, from = to, from_stride = to_stride; };
  constexpr int MANY = F == Form::COMMIT ? 2 * TOGETHER : TOGETHER;  // it keeps no sums
  const auto at_most = [&]<int T>(std::integral_constant<int, T>, const auto& self) -> void {
    for (; t + T <= tokens.T; next(T))
      steps<F, T, R>(tokens, t, s, p, from, from_stride, to, to_stride, out, out_stride);
    if constexpr (T > 1) self(std::integral_constant<int, T - 1>(), self);
  };
  at_most(std::integral_constant<int, MANY>(), at_most);
}

template <Form F>
void all_rows(const Tokens& tokens, const Shape& s, float* state, float* out, int64_t out_stride) {
  int64_t p = 0;
  for (; p + ROWS <= s.P; p += ROWS) rows_of<F, ROWS>(tokens, s, p, state, out, out_stride);
  for (; p < s.P; ++p) rows_of<F, 1>(tokens, s, p, state, out, out_stride);
}

// Adds the skip to outputs [T, P].
void add_skip(const Tokens& tokens, const Shape& s, const float* value, float skip, float* out, int64_t out_stride) {
  for (int64_t t = 0; t < tokens.T; ++t)
    for (int64_t p = 0; p < s.P; p += LANES) {
      const int64_t count = s.P - p;
      const f32x16 own = load_up_to(value + t * s.row() + p, count);
      float* to = out + t * out_stride + p;
      store_up_to(to, fused(own, splat(skip), load_up_to(to, count)), count);
    }
}

// mixed [B, T, C] with C as a row of the shape lies; state [B, H, P, N], rate [H].
struct Sizes {
  Size B, T, H, P, N;
  Shape shape(int64_t tokens, int64_t groups, bool by_head) const { return {tokens, H, groups, P, N, by_head}; }
  bool agree(const Tensor& mixed, const Tensor& rate, const Tensor& state, int64_t groups, bool by_head) {
    Size row;
    return is<float>(state, B, H, P, N) && is<float>(mixed, B, T, row) && holds<float>(rate, H) && groups > 0 &&
           groups <= H && H % groups == 0 && row == shape(T, groups, by_head).row();
  }
  // Needed for outputs only: steps [B, T, X], read from `start` on, bias and skip [H], out [B, T, H P].
  bool agree(
      const std::optional<Tensor>& steps, const std::optional<Tensor>& bias, const std::optional<Tensor>& skip,
      int64_t start, const Tensor& out
  ) {
    Size X;
    return is<float>(steps, B, T, X) && (!steps || fits(start, H, X)) && holds<float>(bias, H) &&
           holds<float>(skip, H) && is<float>(out, B, T, H * P);
  }
};

Gates gates_of(
    const std::optional<Tensor>& steps, const std::optional<Tensor>& bias, const Tensor& rate, int64_t start,
    double low, std::optional<double> high, int64_t batch
) {
  const int64_t stride = steps ? last(*steps) : 0;
  return {
      steps ? data<float>(*steps) + batch * steps->size(1) * stride + start : nullptr,
      bias ? data<float>(*bias) : nullptr,
      data<float>(rate),
      stride,
      float(low),
      high
  };
}

Tensor& linear_attention_out(
    KernelRuntimeContext& context, const Tensor& mixed, const std::optional<Tensor>& steps,
    const std::optional<Tensor>& bias, const Tensor& rate, const std::optional<Tensor>& skip, Tensor& state,
    const Tensor& count, int64_t start, double low, std::optional<double> high, int64_t groups, bool by_head,
    Tensor& out
) {
  Sizes sizes;
  int64_t n;
  REQUIRE(sizes.agree(mixed, rate, state, groups, by_head));
  REQUIRE(sizes.agree(steps, bias, skip, start, out));
  REQUIRE(reads(count, n, 0, sizes.T));
  const Shape s = sizes.shape(sizes.T, groups, by_head);
  const int64_t width = s.heads * s.P;
  const bool done = for_heads<Tokens>(context, sizes.B, s, MOST, [&](int64_t batch, int64_t head, Tokens& tokens) {
    const float* rows = data<float>(mixed) + batch * s.T * s.row();
    const Gates gates = gates_of(steps, bias, rate, start, low, high, batch);
    float *answers = data<float>(out) + batch * s.T * width + head * s.P,
          *own = data<float>(state) + (batch * s.heads + head) * s.head_size();
    for (int64_t first = 0; first < n; first += MOST) {
      const float* value = rows + first * s.row() + s.value(head);
      read_tokens(tokens, rows, gates, s, head, first, std::min<int64_t>(MOST, n - first));
      all_rows<Form::EXTEND>(tokens, s, own, answers + first * width, width);
      if (skip) add_skip(tokens, s, value, data<float>(*skip)[head], answers + first * width, width);
    }
    for (int64_t t = n; t < s.T; ++t) std::fill_n(answers + t * width, s.P, 0.0f);
  });
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

Tensor& linear_attention_verify_out(
    KernelRuntimeContext& context, const Tensor& mixed, const std::optional<Tensor>& steps,
    const std::optional<Tensor>& bias, const Tensor& rate, const std::optional<Tensor>& skip, const Tensor& state,
    Tensor& staged_mixed, Tensor& staged_steps, int64_t start, double low, std::optional<double> high, int64_t groups,
    bool by_head, Tensor& out
) {
  Sizes sizes;
  Size S;
  REQUIRE(sizes.agree(mixed, rate, state, groups, by_head));
  REQUIRE(sizes.agree(steps, bias, skip, start, out));
  const Shape s = sizes.shape(sizes.T, groups, by_head);
  REQUIRE(is<float>(staged_mixed, sizes.B, S, s.row()) && s.T <= S);
  REQUIRE(is<float>(staged_steps, sizes.B, S, s.heads));
  const int64_t width = s.heads * s.P;
  const bool done = for_heads<Tokens>(context, sizes.B, s, s.T, [&](int64_t batch, int64_t head, Tokens& tokens) {
    const float *rows = data<float>(mixed) + batch * s.T * s.row(), *value = rows + s.value(head);
    read_tokens(tokens, rows, gates_of(steps, bias, rate, start, low, high, batch), s, head, 0, s.T);
    for (int64_t t = 0; t < s.T; ++t) data<float>(staged_steps)[(batch * S + t) * s.heads + head] = tokens.step[t];
    float* read_only = const_cast<float*>(data<float>(state)) + (batch * s.heads + head) * s.head_size();
    float* answers = data<float>(out) + batch * s.T * width + head * s.P;
    all_rows<Form::VERIFY>(tokens, s, read_only, answers, width);
    if (skip) add_skip(tokens, s, value, data<float>(*skip)[head], answers, width);
  });
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  stage(staged_mixed, mixed);
  return out;
}

Tensor& linear_attention_commit_out(
    KernelRuntimeContext& context, Tensor& state, const Tensor& mixed, const Tensor& steps, const Tensor& rate,
    const Tensor& count, int64_t groups, bool by_head, Tensor& out
) {
  Sizes sizes;
  int64_t n;
  REQUIRE(sizes.agree(mixed, rate, state, groups, by_head));
  REQUIRE(is<float>(steps, sizes.B, sizes.T, sizes.H));
  REQUIRE(reads(count, n, 0, sizes.T));
  REQUIRE(holds<int64_t>(out, 1));
  const Shape s = sizes.shape(n, groups, by_head);
  const int64_t S = sizes.T;
  *data<int64_t>(out) = n;
  if (n == 0) return out;
  const bool done = for_heads<Tokens>(context, sizes.B, s, MOST, [&](int64_t batch, int64_t head, Tokens& tokens) {
    float* own = data<float>(state) + (batch * s.heads + head) * s.head_size();
    for (int64_t first = 0; first < n; first += MOST) {
      const float* rows = data<float>(mixed) + (batch * S + first) * s.row();
      read_rows(tokens, rows, s, head, std::min<int64_t>(MOST, n - first), false);
      for (int64_t t = 0; t < tokens.T; ++t)
        tokens.step[t] = data<float>(steps)[(batch * S + first + t) * s.heads + head];
      set_steps(tokens, data<float>(rate)[head], rows + s.value(head), s);
      all_rows<Form::COMMIT>(tokens, s, own, nullptr, 0);
    }
  });
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

HYBRIDGE_KERNEL("linear_attention.out", linear_attention_out);
HYBRIDGE_KERNEL("linear_attention_verify.out", linear_attention_verify_out);
HYBRIDGE_KERNEL("linear_attention_commit.out", linear_attention_commit_out);

}  // namespace
}  // namespace hybridge
