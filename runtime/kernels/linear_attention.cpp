// Decayed linear attention (Mamba-2's state space duality, lightning attention) over states [P, N], one for each head.
//
// With g_t the decay of token t, d(s, t) = g_(s+1) ... g_t and h_t its step, the definition unrolls to
//
//   out_t = S (d(0, t) q_t) + sum over s <= t of h_s d(s, t) (k_s . q_t) v_s, and a skip
//   S    <- d(0, T) S + sum over s of (h_s d(s, T) v_s) k_s^T
//
// so every row of the state is read once for all tokens of a block, and written once.
#include "activation.h"
#include "checks.h"
#include "kernel.h"
#include "vector.h"
#include "workspaces.h"

#include <utility>

namespace hybridge {
namespace {

constexpr int MOST = 8;  // tokens at a time

inline int64_t padded(int64_t N) { return (N + LANES - 1) / LANES * LANES; }

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
  float step(int64_t t, int64_t head) const {
    if (!raw) return 1.0f;
    const float step = std::max(of_one(Softplus::of, raw[t * stride + head] + (bias ? bias[head] : 0.0f)), low);
    return high ? std::min(step, float(*high)) : step;
  }
};

// Inputs of some tokens for one head, the same for all rows of its state; keys and queries are padded to whole vectors.
struct Tokens {
  // Returns how many numbers `most` tokens take.
  static int64_t size(int64_t most, const Shape& s) { return product(most, 3 * padded(s.N) + most + 3 + s.P); }

  Tokens(float* next, int64_t most, const Shape& s) : stride(padded(s.N)) {
    const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
    key = take(most * stride), query = take(most * stride), faded = take(most * stride);
    mixing = take(most * most), step = take(most), decay = take(most), to_end = take(most), sums = take(most * s.P);
  }
  int64_t stride, T = 0;
  float *key, *query, *faded;    // [T, stride]; the last is the query times d(0, t)
  float* mixing;                 // [T, T]: h_s d(s, t) (k_s . q_t)
  float *step, *decay, *to_end;  // [T]: h, g, and h d(s, T)
  float* sums;                   // [T, P]: S (d(0, t) q_t)
  float total;                   // d(0, T)
};

void copy_row(float* to, const float* from, int64_t count, int64_t stride) {
  std::memcpy(to, from, count * sizeof(float));
  std::fill(to + count, to + stride, 0.0f);
}

void set_step(Tokens& tokens, int64_t t, float step, float rate) {
  tokens.step[t] = step;
  tokens.decay[t] = of_one(exp, step * rate);
}

void read_tokens(
    Tokens& tokens, const float* mixed, const Gates& gates, const Shape& s, int64_t head, int64_t first, int64_t T
) {
  tokens.T = T;
  for (int64_t t = 0; t < T; ++t) {
    const float* row = mixed + (first + t) * s.row();
    copy_row(tokens.key + t * tokens.stride, row + s.key(head), s.N, tokens.stride);
    copy_row(tokens.query + t * tokens.stride, row + s.query(head), s.N, tokens.stride);
    set_step(tokens, t, gates.step(first + t, head), gates.rate[head]);
  }
}

float dot(const float* a, const float* b, int64_t stride) {
  f32x16 total{};
  for (int64_t n = 0; n < stride; n += LANES) total += load<f32x16>(a + n) * load<f32x16>(b + n);
  return sum(total);
}

// mixing and faded.
void relate(Tokens& tokens) {
  float since = 1.0f;
  for (int64_t t = 0; t < tokens.T; ++t) {
    const float* query = tokens.query + t * tokens.stride;
    since *= tokens.decay[t];
    for (int64_t n = 0; n < tokens.stride; n += LANES)
      store(tokens.faded + t * tokens.stride + n, load<f32x16>(query + n) * since);
    float between = 1.0f;
    for (int64_t s = t; s >= 0; --s) {
      tokens.mixing[t * tokens.T + s] = tokens.step[s] * between *
                                        dot(tokens.key + s * tokens.stride, query, tokens.stride);
      between *= tokens.decay[s];
    }
  }
}

// to_end and total.
void fade_to_end(Tokens& tokens) {
  tokens.total = 1.0f;
  for (int64_t s = tokens.T - 1; s >= 0; --s) {
    tokens.to_end[s] = tokens.step[s] * tokens.total;
    tokens.total *= tokens.decay[s];
  }
}

enum class Form { EXTEND, VERIFY, COMMIT };

// Rows of the state [P, N] for T tokens, `first` after others: their sums, and what they leave of the rows.
template <Form F, int T>
void state_rows(
    const Tokens& tokens, int64_t first, const Shape& s, const float* value, int64_t value_stride, float* state
) {
  const float *key = tokens.key + first * tokens.stride, *faded = tokens.faded + first * tokens.stride;
  for (int64_t p = 0; p < s.P; ++p, state += s.N) {
    f32xr acc[T] = {};
    float scaled[T];
    for (int t = 0; t < T; ++t) scaled[t] = F == Form::VERIFY ? 0.0f : tokens.to_end[t] * value[t * value_stride + p];
    for (int64_t n = 0; n < s.N; n += REGISTER_LANES) {
      const int64_t count = s.N - n;
      f32xr row = load_up_to<f32xr>(state + n, count);
      if constexpr (F != Form::COMMIT)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) acc[t] += row * load<f32xr>(faded + t * tokens.stride + n);
      if constexpr (F != Form::VERIFY) {
        row *= tokens.total;
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) row += load<f32xr>(key + t * tokens.stride + n) * scaled[t];
        store_up_to(state + n, row, count);
      }
    }
    if constexpr (F != Form::COMMIT)
      for (int t = 0; t < T; ++t) tokens.sums[(first + t) * s.P + p] = sum(acc[t]);
  }
}

template <Form F, int T = MOST>
void state_rows_of(
    int64_t count, const Tokens& tokens, int64_t first, const Shape& s, const float* value, int64_t value_stride,
    float* state
) {
  if (count == T) return state_rows<F, T>(tokens, first, s, value, value_stride, state);
  if constexpr (T > 1) state_rows_of<F, T - 1>(count, tokens, first, s, value, value_stride, state);
}

// Outputs [T, P] from the sums, and from the values of the tokens themselves.
void answer(
    const Tokens& tokens, const Shape& s, const float* value, int64_t value_stride, float skip, float* out,
    int64_t out_stride
) {
  for (int64_t t = 0; t < tokens.T; ++t)
    for (int64_t p = 0; p < s.P; p += LANES) {
      const int64_t count = std::min<int64_t>(LANES, s.P - p);
      const auto get = [&](const float* row) { return load_up_to(row + p, count); };
      f32x16 total = get(tokens.sums + t * s.P) + get(value + t * value_stride) * skip;
      for (int64_t before = 0; before <= t; ++before)
        total += get(value + before * value_stride) * tokens.mixing[t * tokens.T + before];
      store_up_to(out + t * out_stride + p, total, count);
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
      relate(tokens), fade_to_end(tokens);
      state_rows_of<Form::EXTEND>(tokens.T, tokens, 0, s, value, s.row(), own);
      answer(tokens, s, value, s.row(), skip ? data<float>(*skip)[head] : 0.0f, answers + first * width, width);
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
    relate(tokens);
    float* read_only = const_cast<float*>(data<float>(state)) + (batch * s.heads + head) * s.head_size();
    for (int64_t first = 0; first < s.T; first += MOST)
      state_rows_of<Form::VERIFY>(std::min<int64_t>(MOST, s.T - first), tokens, first, s, value, s.row(), read_only);
    answer(
        tokens, s, value, s.row(), skip ? data<float>(*skip)[head] : 0.0f,
        data<float>(out) + batch * s.T * width + head * s.P, width
    );
  });
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  for (int64_t batch = 0; batch < sizes.B; ++batch)
    std::memmove(
        data<float>(staged_mixed) + batch * S * s.row(), data<float>(mixed) + batch * s.T * s.row(),
        s.T * s.row() * sizeof(float)
    );
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
      tokens.T = std::min<int64_t>(MOST, n - first);
      for (int64_t t = 0; t < tokens.T; ++t) {
        copy_row(tokens.key + t * tokens.stride, rows + t * s.row() + s.key(head), s.N, tokens.stride);
        set_step(tokens, t, data<float>(steps)[(batch * S + first + t) * s.heads + head], data<float>(rate)[head]);
      }
      fade_to_end(tokens);
      state_rows_of<Form::COMMIT>(tokens.T, tokens, 0, s, rows + s.value(head), s.row(), own);
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
