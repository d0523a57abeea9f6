// The gated delta rule over states [K, V], one for each value head, some tokens at a time.
//
// With g_t the decay of token t (one for each channel of the key) and d(s, t) = g_(s+1) ... g_t, the definition unrolls
// to
//
//   e_t   = v_t - (d(0, t) k_t)^T S - sum over s < t of beta_s (k_t . d(s, t) k_s) e_s
//   out_t = (d(0, t) q_t)^T S + sum over s <= t of beta_s (q_t . d(s, t) k_s) e_s
//   S    <- d(0, T) S + sum over s of (beta_s d(s, T) k_s) e_s^T
//
// so all T tokens read the state once and write it once. A verify keeps k, e, log g and beta, and leaves out the last
// line, which is what a commit does. Decays are products of those in between, never quotients, so nothing overflows.
#include "activation.h"
#include "checks.h"
#include "kernel.h"
#include "vector.h"
#include "vector_math.h"
#include "workspaces.h"

#include <cmath>
#include <utility>

namespace hybridge {
namespace {

constexpr int ACCUMULATORS = REGISTERS / 2;
constexpr int MOST = ACCUMULATORS / 2;  // tokens at a time: each has a key and a query

inline int64_t padded(int64_t K) { return (K + LANES - 1) / LANES * LANES; }

struct Gates {
  const float* decay;  // [T, H] or [T, H K]
  const float* beta;   // [T, H]
  const float* rate;   // [H]
  const float* bias;   // [H] or [H K]
  std::optional<double> floor;
  float strength;
};

struct Shape {
  int64_t T, key_heads, heads, K, V;
  bool by_channel;
  int64_t head_size() const { return K * V; }  // of a state
  int64_t row() const { return 2 * key_heads * K + heads * V; }
  int64_t decays() const { return by_channel ? heads * K : heads; }
  int64_t key_head(int64_t head) const { return head / (heads / key_heads); }
};

// Inputs of some tokens for one head, the same for all columns of its state, and their errors where nobody else keeps
// them. Rows are padded with zeros to whole vectors.
struct Tokens {
  // Returns how many numbers `most` tokens take.
  static int64_t size(int64_t most, const Shape& s) { return product(most + 1, 8 * padded(s.K) + 2 * most + 2 + s.V); }

  Tokens(float* next, int64_t most, const Shape& s) : stride(padded(s.K)) {
    const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
    key = take(most * stride), query = take(most * stride), decay = take(most * stride), faded = take(most * stride);
    left = take(2 * most * stride), right = take(most * stride), total = take(stride);
    on_error = take(most * most), on_output = take(most * most), beta = take(most), log_decay = take(most * stride);
    error = take(most * s.V);
  }
  int64_t stride, T = 0;
  float *key, *query, *decay, *log_decay, *faded;  // [T, stride]
  float* left;   // MOST tokens after another, each time [K, 2 T]: d(0, t) k_t of each, then d(0, t) q_t
  float* right;  // [K, T]: beta_s d(s, T) k_s
  float* total;  // [K]: d(0, T)
  float *on_error,
      *on_output;  // [T, T]: beta_s k_t . d(s, t) k_s below the diagonal, beta_s q_t . d(s, t) k_s up to it
  float* beta;     // [T]
  float* error;    // [T, V]
};

void copy_row(float* to, const float* from, int64_t K, int64_t stride) {
  std::memcpy(to, from, K * sizeof(float));
  std::fill(to + K, to + stride, 0.0f);
}

float dot(const float* a, const float* b, int64_t stride) {
  f32x16 total{};
  for (int64_t k = 0; k < stride; k += LANES) total += load<f32x16>(a + k) * load<f32x16>(b + k);
  return sum(total);
}

void scale(float* row, float by, int64_t stride) {
  for (int64_t k = 0; k < stride; k += LANES) store(row + k, load<f32x16>(row + k) * by);
}

// transformers' l2norm: epsilon inside the root.
float inverse_norm(const float* row, int64_t stride) { return 1.0f / std::sqrt(dot(row, row, stride) + 1e-6f); }

f32x16 log_decay_of(f32x16 x, float rate, const std::optional<double>& floor) {
  return floor ? Sigmoid::of(x * rate) * float(*floor) : Softplus::of(x) * -rate;
}

void read_gates(Tokens& tokens, int64_t t, const Gates& gates, const Shape& shape, int64_t at, int64_t head) {
  float* logs = tokens.log_decay + t * tokens.stride;
  const float rate = gates.rate[head];
  if (shape.by_channel) {
    const float *decay = gates.decay + (at * shape.heads + head) * shape.K, *bias = gates.bias + head * shape.K;
    for (int64_t k = 0; k < shape.K; k += LANES) {
      const int64_t count = std::min<int64_t>(LANES, shape.K - k);
      store(logs + k, log_decay_of(load_first(decay + k, count) + load_first(bias + k, count), rate, gates.floor));
    }
  } else {
    const f32x16 log = log_decay_of(splat(gates.decay[at * shape.heads + head] + gates.bias[head]), rate, gates.floor);
    for (int64_t k = 0; k < tokens.stride; k += LANES) store(logs + k, log);
  }
  tokens.beta[t] = of_one(Sigmoid::of, gates.beta[at * shape.heads + head]) * gates.strength;
}

// The logarithms' exponentials; where a head has one decay, it is computed once.
void read_decays(Tokens& tokens, bool by_channel) {
  for (int64_t t = 0; t < tokens.T; ++t) {
    const float* logs = tokens.log_decay + t * tokens.stride;
    f32x16 decay = exp(load<f32x16>(logs));
    for (int64_t k = 0; k < tokens.stride; k += LANES) {
      if (by_channel && k) decay = exp(load<f32x16>(logs + k));
      store(tokens.decay + t * tokens.stride + k, decay);
    }
  }
}

void read_tokens(
    Tokens& tokens, const float* mixed, const Gates& gates, const Shape& shape, int64_t head, int64_t first, int64_t T
) {
  const int64_t K = shape.K, own = shape.key_head(head) * K;
  tokens.T = T;
  for (int64_t t = 0; t < T; ++t) {
    const float* row = mixed + (first + t) * shape.row();
    float *query = tokens.query + t * tokens.stride, *key = tokens.key + t * tokens.stride;
    copy_row(query, row + own, K, tokens.stride);
    copy_row(key, row + shape.key_heads * K + own, K, tokens.stride);
    scale(query, inverse_norm(query, tokens.stride) / std::sqrt(float(K)), tokens.stride);
    scale(key, inverse_norm(key, tokens.stride), tokens.stride);
    read_gates(tokens, t, gates, shape, first + t, head);
  }
  read_decays(tokens, shape.by_channel);
}

// Products between the tokens: on_error and on_output.
void relate(Tokens& tokens) {
  const int64_t T = tokens.T, stride = tokens.stride;
  for (int64_t t = 0; t < T; ++t) {
    const float *key = tokens.key + t * stride, *query = tokens.query + t * stride, *decay = tokens.decay + t * stride;
    for (int64_t s = 0; s < t; ++s) {
      float* faded = tokens.faded + s * stride;
      f32x16 for_error{}, for_output{};
      for (int64_t k = 0; k < stride; k += LANES) {
        const f32x16 now = load<f32x16>(faded + k) * load<f32x16>(decay + k);
        store(faded + k, now);
        for_error += load<f32x16>(key + k) * now;
        for_output += load<f32x16>(query + k) * now;
      }
      tokens.on_error[t * T + s] = sum(for_error) * tokens.beta[s];
      tokens.on_output[t * T + s] = sum(for_output) * tokens.beta[s];
    }
    std::memcpy(tokens.faded + t * stride, key, stride * sizeof(float));
    tokens.on_output[t * T + t] = dot(query, key, stride) * tokens.beta[t];
  }
}

// left: keys and queries, decayed since the start.
void fade_from_start(Tokens& tokens, int64_t K) {
  const int64_t stride = tokens.stride;
  for (int64_t k = 0; k < stride; k += LANES) {
    f32x16 since = splat(1.0f);
    for (int64_t t = 0; t < tokens.T; ++t) {
      since *= load<f32x16>(tokens.decay + t * stride + k);
      const int64_t group = t / MOST * MOST, width = std::min<int64_t>(MOST, tokens.T - group);
      float* left = tokens.left + 2 * group * K + t - group;
      const f32x16 key = load<f32x16>(tokens.key + t * stride + k) * since,
                   query = load<f32x16>(tokens.query + t * stride + k) * since;
      float keys[LANES], queries[LANES];
      store(keys, key);
      store(queries, query);
      for (int64_t lane = 0; lane < std::min<int64_t>(LANES, K - k); ++lane) {
        left[(k + lane) * 2 * width] = keys[lane];
        left[(k + lane) * 2 * width + width] = queries[lane];
      }
    }
  }
}

// right and total: keys, decayed until the end.
void fade_to_end(Tokens& tokens, int64_t K) {
  const int64_t T = tokens.T, stride = tokens.stride;
  for (int64_t k = 0; k < stride; k += LANES) {
    f32x16 until = splat(1.0f);
    for (int64_t s = T - 1; s >= 0; --s) {
      const f32x16 key = load<f32x16>(tokens.key + s * stride + k) * until * tokens.beta[s];
      float keys[LANES];
      store(keys, key);
      for (int64_t lane = 0; lane < std::min<int64_t>(LANES, K - k); ++lane)
        tokens.right[(k + lane) * T + s] = keys[lane];
      until *= load<f32x16>(tokens.decay + s * stride + k);
    }
    store(tokens.total + k, until);
  }
}

// Some columns of one head: of its state [K, V], of its values and outputs, and of e.
struct Columns {
  const float* value;
  int64_t value_stride;
  float* out;
  int64_t out_stride;
  float* error;
  int64_t error_stride;
  float* state;
  int64_t state_stride;
  int64_t width;                // of the last vector, if it is not whole
  const float* next = nullptr;  // the next head's state, which is fetched meanwhile: in the order of memory, where
                                // columns would jump
  Columns from(int64_t column, const Shape& shape, int64_t left) const {
    Columns c = *this;
    c.next = state + shape.K * (shape.V + column);
    return c.value += column, c.out += column, c.error += column, c.state += column, c.width = left, c;
  }
};

template <bool Whole>
inline f32xr get(const float* from, int64_t width) {
  if constexpr (Whole) return load<f32xr>(from);
  return load_first<f32xr>(from, width);
}

template <bool Whole>
inline void put(float* to, f32xr v, int64_t width) {
  if constexpr (Whole) return store(to, v);
  store_first(to, v, width);
}

// e and out of T tokens, which follow `first` others.
template <int T, int V, bool Whole>
void answer(const Tokens& tokens, int64_t first, int64_t K, const Columns& c) {
  f32xr acc[2 * T][V] = {};
  const float *left = tokens.left + 2 * first * K, *state = c.state;
  for (int64_t k = 0; k < K; ++k, left += 2 * T, state += c.state_stride) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      const f32xr row = get<Whole>(state + v * REGISTER_LANES, c.width);
      if constexpr (T > 1) __builtin_prefetch(c.next + (k * V + v) * REGISTER_LANES);
#pragma GCC unroll 16
      for (int i = 0; i < 2 * T; ++i) acc[i][v] += row * left[i];
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < T; ++t) {
    const int64_t at = first + t;
    const float *on_error = tokens.on_error + at * tokens.T, *on_output = tokens.on_output + at * tokens.T;
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      f32xr error = get<Whole>(c.value + at * c.value_stride + v * REGISTER_LANES, c.width) - acc[t][v],
            out = acc[T + t][v];
      for (int64_t s = 0; s < first; ++s) {
        const f32xr before = get<Whole>(c.error + s * c.error_stride + v * REGISTER_LANES, c.width);
        error -= before * on_error[s], out += before * on_output[s];
      }
#pragma GCC unroll 8
      for (int s = 0; s < t; ++s) error -= acc[s][v] * on_error[first + s], out += acc[s][v] * on_output[first + s];
      acc[t][v] = error;
      put<Whole>(c.error + at * c.error_stride + v * REGISTER_LANES, error, c.width);
      put<Whole>(c.out + at * c.out_stride + v * REGISTER_LANES, out + error * on_output[at], c.width);
    }
  }
}

// S <- total S + right e.
template <int T, int V, bool Whole>
void advance(const Tokens& tokens, int64_t K, const Columns& c) {
  f32xr error[T][V];
  for (int t = 0; t < T; ++t)
    for (int v = 0; v < V; ++v) error[t][v] = get<Whole>(c.error + t * c.error_stride + v * REGISTER_LANES, c.width);
  const float* right = tokens.right;
  float* state = c.state;
  for (int64_t k = 0; k < K; ++k, right += T, state += c.state_stride) {
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      f32xr row = get<Whole>(state + v * REGISTER_LANES, c.width) * tokens.total[k];
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) row += error[t][v] * right[t];
      put<Whole>(state + v * REGISTER_LANES, row, c.width);
    }
  }
}

enum class Form { EXTEND, VERIFY, COMMIT };

template <Form F, int T, int V, bool Whole>
void tile(const Tokens& tokens, int64_t first, int64_t K, const Columns& c) {
  if constexpr (F != Form::COMMIT) answer<T, V, Whole>(tokens, first, K, c);
  if constexpr (F != Form::VERIFY) advance<T, V, Whole>(tokens, K, c);
}

// All columns for T tokens, as many vectors of them at a time as fit the registers.
template <Form F, int T>
void columns(const Tokens& tokens, int64_t first, const Shape& shape, const Columns& c) {
  // A commit does little with a row: it keeps its sums alone in registers, and reads the state as it lies in memory.
  constexpr int V = F == Form::COMMIT ? ACCUMULATORS / 2 : ACCUMULATORS / 2 / T ? ACCUMULATORS / 2 / T : 1;
  int64_t at = 0;
  const auto from = [&](int64_t left) { return c.from(at, shape, left); };
  for (; at + V * REGISTER_LANES <= shape.V; at += V * REGISTER_LANES)
    tile<F, T, V, true>(tokens, first, shape.K, from(REGISTER_LANES));
  for (; at + REGISTER_LANES <= shape.V; at += REGISTER_LANES)
    tile<F, T, 1, true>(tokens, first, shape.K, from(REGISTER_LANES));
  if (at < shape.V) tile<F, T, 1, false>(tokens, first, shape.K, from(shape.V - at));
}

template <Form F, int T = MOST>
void columns_of(int64_t count, const Tokens& tokens, int64_t first, const Shape& shape, const Columns& c) {
  if (count == T) return columns<F, T>(tokens, first, shape, c);
  if constexpr (T > 1) columns_of<F, T - 1>(count, tokens, first, shape, c);
}

// mixed [B, T, C] with C as a row of the shape lies; decay [B, T, H] or [B, T, H K], as many numbers in bias; beta [B,
// T, H], rate [H], state [B, H, K, V], out [B, T, H, V].
struct Sizes {
  Size B, T, H, K, V, decays;
  Shape shape(int64_t key_heads) const { return {T, key_heads, H, K, V, decays != H}; }
  bool agree(const Tensor& state, int64_t key_heads) {
    return is<float>(state, B, H, K, V) && key_heads > 0 && key_heads <= H && H % key_heads == 0;
  }
  bool agree(
      const Tensor& mixed, const Tensor& decay, const Tensor& beta, const Tensor& rate, const Tensor& bias,
      const Tensor& state, int64_t key_heads, const Tensor& out
  ) {
    Size row;
    return agree(state, key_heads) && is<float>(mixed, B, T, row) && is_rows<float>(decay, B * T, decays) &&
           (decays == H || decays == H * K) && is_rows<float>(beta, B * T, H) && holds<float>(rate, H) &&
           holds<float>(bias, decays) && row == shape(key_heads).row() && is<float>(out, B, T, H, V);
  }
};

Gates gates_of(
    const Tensor& decay, const Tensor& beta, const Tensor& rate, const Tensor& bias, std::optional<double> floor,
    double strength, int64_t batch, const Shape& s
) {
  return {
      data<float>(decay) + batch * s.T * s.decays(),
      data<float>(beta) + batch * s.T * s.heads,
      data<float>(rate),
      data<float>(bias),
      floor,
      float(strength)
  };
}

Tensor& gated_delta_rule_out(
    KernelRuntimeContext& context, const Tensor& mixed, const Tensor& decay, const Tensor& beta, const Tensor& rate,
    const Tensor& bias, Tensor& state, const Tensor& count, int64_t key_heads, std::optional<double> floor,
    double strength, Tensor& out
) {
  Sizes sizes;
  int64_t n;
  REQUIRE(sizes.agree(mixed, decay, beta, rate, bias, state, key_heads, out));
  REQUIRE(reads(count, n, 0, sizes.T));
  const Shape s = sizes.shape(key_heads);
  const bool done = for_heads<Tokens>(context, sizes.B, s, MOST, [&](int64_t batch, int64_t head, Tokens& tokens) {
    const float* rows = data<float>(mixed) + batch * s.T * s.row();
    float* answers = data<float>(out) + (batch * s.T * s.heads + head) * s.V;
    const Gates gates = gates_of(decay, beta, rate, bias, floor, strength, batch, s);
    for (int64_t first = 0; first < n; first += MOST) {
      read_tokens(tokens, rows, gates, s, head, first, std::min<int64_t>(MOST, n - first));
      relate(tokens), fade_from_start(tokens, s.K), fade_to_end(tokens, s.K);
      const float* value = rows + first * s.row() + 2 * key_heads * s.K + head * s.V;
      columns_of<Form::EXTEND>(
          tokens.T, tokens, 0, s,
          {value, s.row(), answers + first * s.heads * s.V, s.heads * s.V, tokens.error, s.V,
           data<float>(state) + (batch * s.heads + head) * s.head_size(), s.V, LANES}
      );
    }
    for (int64_t t = n; t < s.T; ++t) std::fill_n(answers + t * s.heads * s.V, s.V, 0.0f);
  });
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

// Buffers of a verify that a commit needs: key [S, Hk, K], error [S, H, V], log decay [S, H] or [S, H, K], beta [S, H].
struct Staged {
  float *key, *error, *log_decay, *beta;
  void keep(const Tokens& tokens, const Shape& s, int64_t head) const {
    for (int64_t t = 0; t < tokens.T; ++t) {
      const int64_t at = t * s.heads + head, width = s.by_channel ? s.K : 1;
      if (head % (s.heads / s.key_heads) == 0)
        std::memcpy(
            key + (t * s.key_heads + s.key_head(head)) * s.K, tokens.key + t * tokens.stride, s.K * sizeof(float)
        );
      std::memcpy(log_decay + at * width, tokens.log_decay + t * tokens.stride, width * sizeof(float));
      beta[at] = tokens.beta[t];
    }
  }
};

Tensor& gated_delta_rule_verify_out(
    KernelRuntimeContext& context, const Tensor& mixed, const Tensor& decay, const Tensor& beta, const Tensor& rate,
    const Tensor& bias, const Tensor& state, Tensor& staged_key, Tensor& staged_error, Tensor& staged_log_decay,
    Tensor& staged_beta, int64_t key_heads, std::optional<double> floor, double strength, Tensor& out
) {
  Sizes sizes;
  Size S;
  REQUIRE(sizes.agree(mixed, decay, beta, rate, bias, state, key_heads, out));
  const Shape s = sizes.shape(key_heads);
  REQUIRE(is<float>(staged_beta, sizes.B, S, s.heads) && s.T <= S);
  REQUIRE(is<float>(staged_key, sizes.B, S, key_heads, s.K));
  REQUIRE(is<float>(staged_error, sizes.B, S, s.heads, s.V));
  REQUIRE(
      s.by_channel ? is<float>(staged_log_decay, sizes.B, S, s.heads, s.K)
                   : is<float>(staged_log_decay, sizes.B, S, s.heads)
  );
  const bool done = for_heads<Tokens>(context, sizes.B, s, s.T, [&](int64_t batch, int64_t head, Tokens& tokens) {
    const float* rows = data<float>(mixed) + batch * s.T * s.row();
    const Staged staged{
        data<float>(staged_key) + batch * S * key_heads * s.K, data<float>(staged_error) + batch * S * s.heads * s.V,
        data<float>(staged_log_decay) + batch * S * s.decays(), data<float>(staged_beta) + batch * S * s.heads
    };
    read_tokens(tokens, rows, gates_of(decay, beta, rate, bias, floor, strength, batch, s), s, head, 0, s.T);
    staged.keep(tokens, s, head);
    relate(tokens), fade_from_start(tokens, s.K);
    float* read_only = const_cast<float*>(data<float>(state)) + (batch * s.heads + head) * s.head_size();
    for (int64_t first = 0; first < s.T; first += MOST)
      columns_of<Form::VERIFY>(
          std::min<int64_t>(MOST, s.T - first), tokens, first, s,
          {rows + 2 * key_heads * s.K + head * s.V, s.row(), data<float>(out) + (batch * s.T * s.heads + head) * s.V,
           s.heads * s.V, staged.error + head * s.V, s.heads * s.V, read_only, s.V, LANES}
      );
  });
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

// The tokens of a staged block from `first` on, as far as a commit asks for them.
void read_staged(Tokens& tokens, const Staged& from, const Shape& s, int64_t head, int64_t first, int64_t T) {
  tokens.T = T;
  for (int64_t t = 0; t < T; ++t) {
    const int64_t at = (first + t) * s.heads + head;
    float* logs = tokens.log_decay + t * tokens.stride;
    copy_row(
        tokens.key + t * tokens.stride, from.key + ((first + t) * s.key_heads + s.key_head(head)) * s.K, s.K,
        tokens.stride
    );
    if (s.by_channel) {
      copy_row(logs, from.log_decay + at * s.K, s.K, tokens.stride);
    } else {
      store(logs, splat(from.log_decay[at]));
    }
    tokens.beta[t] = from.beta[at];
  }
  read_decays(tokens, s.by_channel);
}

Tensor& gated_delta_rule_commit_out(
    KernelRuntimeContext& context, Tensor& state, const Tensor& key, const Tensor& error, const Tensor& log_decay,
    const Tensor& beta, const Tensor& count, Tensor& out
) {
  Size B, S, key_heads, H, K, V;
  int64_t n;
  REQUIRE(is<float>(state, B, H, K, V));
  REQUIRE(is<float>(key, B, S, key_heads, K) && H % key_heads == 0);
  REQUIRE(is<float>(error, B, S, H, V));
  REQUIRE(is<float>(log_decay, B, S, H) || is<float>(log_decay, B, S, H, K));
  REQUIRE(is<float>(beta, B, S, H));
  REQUIRE(reads(count, n, 0, S));
  REQUIRE(holds<int64_t>(out, 1));
  const Shape s{n, key_heads, H, K, V, log_decay.dim() == 4};
  *data<int64_t>(out) = n;
  if (n == 0) return out;
  const auto at = [](const Tensor& tensor, int64_t batch) {
    return const_cast<float*>(data<float>(tensor)) + batch * tensor.numel() / tensor.size(0);
  };
  const bool done = for_heads<Tokens>(
      context, B, s, std::min<int64_t>(MOST, n), [&](int64_t batch, int64_t head, Tokens& tokens) {
        const Staged staged{at(key, batch), at(error, batch), at(log_decay, batch), at(beta, batch)};
        for (int64_t first = 0; first < n; first += MOST) {
          read_staged(tokens, staged, s, head, first, std::min<int64_t>(MOST, n - first));
          fade_to_end(tokens, s.K);
          columns_of<Form::COMMIT>(
              tokens.T, tokens, 0, s,
              {nullptr, 0, nullptr, 0, staged.error + (first * s.heads + head) * s.V, s.heads * s.V,
               data<float>(state) + (batch * s.heads + head) * s.K * s.V, s.V, LANES}
          );
        }
      }
  );
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

HYBRIDGE_KERNEL("gated_delta_rule.out", gated_delta_rule_out);
HYBRIDGE_KERNEL("gated_delta_rule_verify.out", gated_delta_rule_verify_out);
HYBRIDGE_KERNEL("gated_delta_rule_commit.out", gated_delta_rule_commit_out);

}  // namespace
}  // namespace hybridge
