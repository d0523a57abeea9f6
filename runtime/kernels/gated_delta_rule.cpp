// The gated delta rule over states [K, V], one for each value head:
//
//   S <- g S,   e = beta (v - k^T S),   S <- S + k e^T,   out = q^T S
//
// with g the decay of a token, one for each channel of the key. Columns of a state are independent: all tokens of a
// block are steps over a tile of columns that stays in the first cache, and the state is read and written once. A step
// reads its tile once, because out is (g q)^T S + (q . k) e of the state before it, and its own change is made as the
// next step reads. A verify keeps k, e / beta, log g and beta, and leaves the state alone; a commit makes the changes.
#include "activation.h"
#include "checks.h"
#include "kernel.h"
#include "recurrent.h"
#include "workspaces.h"

#include <cmath>
#include <utility>

namespace hybridge {
namespace {

constexpr int COLUMNS = REGISTERS > REGISTER ? 8 : 4;  // registers of a tile: sums of two dots each, and errors
constexpr int64_t MOST = 32;                           // tokens at a time: their inputs stay in the second cache

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

// Inputs of some tokens for one head, the same for all columns of its state, and memory for a tile of these. Rows are
// padded with zeros to whole vectors.
struct Tokens {
  static constexpr int64_t WIDTH = COLUMNS * REGISTER_LANES;

  // Returns how many numbers `most` tokens take.
  static int64_t size(int64_t most, const Shape& s) {
    return product(most + 1, 5 * padded(s.K) + 2) + product(s.K, WIDTH);
  }

  Tokens(float* next, int64_t most, const Shape& s) : stride(padded(s.K)) {
    const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
    tile = take(s.K * WIDTH);  // the first, whose rows begin where cache lines do
    key = take(most * stride), decay = take(most * stride), log_decay = take(most * stride);
    on_error = take(most * stride), on_output = take(most * stride), beta = take(most), overlap = take(most);
  }
  int64_t stride, T = 0;
  float *key, *decay, *log_decay;  // [T, stride]
  float *on_error, *on_output;     // [T, stride]: g k, g q
  float *beta, *overlap;           // [T]; overlap is q . k
  float* tile;                     // [K, WIDTH]
};

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

// The logarithms' exponentials, once where a head has one decay. Compiled once, so that it rounds in one way.
[[gnu::noinline]] void read_decays(Tokens& tokens, bool by_channel) {
  for (int64_t t = 0; t < tokens.T; ++t) {
    const float* logs = tokens.log_decay + t * tokens.stride;
    f32x16 decay = exp(load<f32x16>(logs));
    for (int64_t k = 0; k < tokens.stride; k += LANES) {
      if (by_channel && k) decay = exp(load<f32x16>(logs + k));
      store(tokens.decay + t * tokens.stride + k, decay);
    }
  }
}

void fetch(const float* row, int64_t count) {
  for (int64_t at = 0; at < count; at += LANES) __builtin_prefetch(row + at);
}

// The same for whoever reads them. The inputs that are read next, of later tokens or of the next head, are fetched
// meanwhile: rows of tokens are far apart.
[[gnu::noinline]] void read_tokens(
    Tokens& tokens, const float* mixed, const Gates& gates, const Shape& shape, int64_t head, int64_t first, int64_t T
) {
  const int64_t K = shape.K, own = shape.key_head(head) * K, stride = tokens.stride;
  tokens.T = T;
  for (int64_t t = 0; t < T; ++t) {
    const float* row = mixed + (first + t) * shape.row();
    if (const bool later = first + t + T < shape.T; later || head + 1 < shape.heads) {
      const int64_t next = head + !later, at = shape.key_head(next) * K;
      const float* from = row + later * T * shape.row();
      fetch(from + at, K);
      fetch(from + shape.key_heads * K + at, K);
      fetch(from + 2 * shape.key_heads * K + next * shape.V, shape.V);
    }
    float *query = tokens.on_output + t * stride, *key = tokens.key + t * stride;
    copy_row(query, row + own, K, stride);
    copy_row(key, row + shape.key_heads * K + own, K, stride);
    scale(query, inverse_norm(query, stride) / std::sqrt(float(K)), stride);
    scale(key, inverse_norm(key, stride), stride);
    tokens.overlap[t] = dot(query, key, stride);
    read_gates(tokens, t, gates, shape, first + t, head);
  }
  read_decays(tokens, shape.by_channel);
  for (int64_t k = 0; k < T * stride; k += LANES) {
    const f32x16 decay = load<f32x16>(tokens.decay + k);
    store(tokens.on_error + k, load<f32x16>(tokens.key + k) * decay);
    store(tokens.on_output + k, load<f32x16>(tokens.on_output + k) * decay);
  }
}

// Some columns of one head: of its state [K, V], of its values and outputs, and of e / beta where it is kept.
struct Columns {
  const float* value;
  int64_t value_stride;
  float* out;
  int64_t out_stride;
  float* error;
  int64_t error_stride;
  float* state;
  int64_t width = REGISTER_LANES;  // of the last register, if it is not whole
  const float* next = nullptr;     // the next head's state, which is fetched meanwhile in the order of memory, where
                                   // columns would jump
  Columns from(int64_t column, int64_t left, const Shape& shape) const {
    Columns c = *this;
    c.next = state + shape.K * (shape.V + column);
    c.value += column, c.out += column, c.error += column, c.state += column, c.width = left;
    return c;
  }
};

// Rows of columns: of a state, or of the tile.
struct Rows {
  float* first;
  int64_t stride;
};

// e of the token before, and the sums of a token: S^T g k and S^T g q.
template <int C>
struct Sums {
  f32xr error[C], by_key[C], by_query[C];
};

// The change that token t - 1 makes, on the way from rows to rows, and the sums of token t: with CHANGES and SUMS. Not
// inline, so that registers are for vectors; K times `step` numbers from `next` on are fetched meanwhile.
template <int C, bool Whole, bool CHANGES, bool SUMS>
[[gnu::noinline]] void pass(
    const Tokens& tokens, int64_t t, int64_t K, int64_t width, Rows from, Rows to, Sums<C>& sums, const float* next,
    int64_t step
) {
  const int64_t at = t * tokens.stride, before = at - tokens.stride;
  const float *decay = tokens.decay + before, *key = tokens.key + before, *on_error = tokens.on_error + at,
              *on_output = tokens.on_output + at;
  Sums<C> own{};
  UNROLLED for (int c = 0; c < C; ++c) own.error[c] = sums.error[c];
  for (int64_t k = 0; k < K; ++k) {
    // Vectors before the stores, which might change what is read behind them.
    const f32xr faded = splat<f32xr>(CHANGES ? decay[k] : 0.0f), added = splat<f32xr>(CHANGES ? key[k] : 0.0f),
                for_error = splat<f32xr>(SUMS ? on_error[k] : 0.0f),
                for_output = splat<f32xr>(SUMS ? on_output[k] : 0.0f);
    __builtin_prefetch(next + k * step);
    UNROLLED for (int c = 0; c < C; ++c) {
      f32xr row = get<Whole>(from.first + k * from.stride + c * REGISTER_LANES, width);
      if constexpr (CHANGES) {
        row = fused(own.error[c], added, row * faded);
        put<Whole>(to.first + k * to.stride + c * REGISTER_LANES, row, width);
      }
      if constexpr (SUMS) {
        own.by_key[c] = fused(row, for_error, own.by_key[c]);
        own.by_query[c] = fused(row, for_output, own.by_query[c]);
      }
    }
  }
  if constexpr (SUMS) sums = own;
}

// All tokens over C registers of columns. Each pass fetches its share of the next head's state: all of it at once would
// be waited for.
template <Form F, int C, bool Whole>
void steps(const Tokens& tokens, const Shape& s, const Columns& c) {
  const Rows state{c.state, s.V}, tile{tokens.tile, C * REGISTER_LANES};
  const int64_t passes = tokens.T + (F == Form::EXTEND), step = (C * REGISTER_LANES + passes - 1) / passes;
  const float* next = c.next;
  Sums<C> sums;
  for (int64_t t = 0; t < tokens.T; ++t, next += s.K * step) {
    if (t == 0) pass<C, Whole, false, true>(tokens, t, s.K, c.width, state, tile, sums, next, step);
    else pass<C, Whole, true, true>(tokens, t, s.K, c.width, t == 1 ? state : tile, tile, sums, next, step);
    UNROLLED for (int i = 0; i < C; ++i) {
      const int64_t at = i * REGISTER_LANES;
      const f32xr apart = get<Whole>(c.value + t * c.value_stride + at, c.width) - sums.by_key[i];
      if constexpr (F == Form::VERIFY) put<Whole>(c.error + t * c.error_stride + at, apart, c.width);
      sums.error[i] = apart * tokens.beta[t];
      put<Whole>(c.out + t * c.out_stride + at, fused(sums.error[i], tokens.overlap[t], sums.by_query[i]), c.width);
    }
  }
  if constexpr (F == Form::EXTEND)
    pass<C, Whole, true, false>(tokens, tokens.T, s.K, c.width, tokens.T == 1 ? state : tile, state, sums, next, step);
}

// The changes of T tokens from t on, for each row one after the other.
template <int T, int C, bool Whole>
[[gnu::noinline]] void change(const Tokens& tokens, int64_t t, const Shape& s, const Columns& c) {
  const int64_t stride = tokens.stride, K = s.K, V = s.V;
  const float *key = tokens.key + t * stride, *decay = tokens.decay + t * stride, *next = c.next;
  float* state = c.state;
  f32xr error[T][C];
  UNROLLED for (int i = 0; i < T; ++i) UNROLLED for (int j = 0; j < C; ++j)
      error[i][j] = get<Whole>(c.error + (t + i) * c.error_stride + j * REGISTER_LANES, c.width) * tokens.beta[t + i];
  for (int64_t k = 0; k < K; ++k, state += V, next += C * REGISTER_LANES) {
    f32xr row[C];
    UNROLLED for (int j = 0; j < C; ++j) {
      row[j] = get<Whole>(state + j * REGISTER_LANES, c.width);
      __builtin_prefetch(next + j * REGISTER_LANES);
    }
    UNROLLED for (int i = 0; i < T; ++i) {
      const f32xr added = splat<f32xr>(key[i * stride + k]), faded = splat<f32xr>(decay[i * stride + k]);
      UNROLLED for (int j = 0; j < C; ++j) row[j] = fused(error[i][j], added, row[j] * faded);
    }
    UNROLLED for (int j = 0; j < C; ++j) put<Whole>(state + j * REGISTER_LANES, row[j], c.width);
  }
}

// Those of all tokens, up to T at a time.
template <int C, bool Whole, int T = 4>
void changes(const Tokens& tokens, int64_t t, const Shape& s, const Columns& c) {
  for (; t + T <= tokens.T; t += T) change<T, C, Whole>(tokens, t, s, c);
  if constexpr (T > 1)
    if (t < tokens.T) changes<C, Whole, T - 1>(tokens, t, s, c);
}

template <Form F, int C, bool Whole>
void tile(const Tokens& tokens, const Shape& s, const Columns& c) {
  if constexpr (F == Form::COMMIT) changes<C, Whole>(tokens, 0, s, c);
  else steps<F, C, Whole>(tokens, s, c);
}

template <Form F>
void all_columns(const Tokens& tokens, const Shape& s, const Columns& c) {
  int64_t at = 0;
  for (; at + Tokens::WIDTH <= s.V; at += Tokens::WIDTH)
    tile<F, COLUMNS, true>(tokens, s, c.from(at, REGISTER_LANES, s));
  for (; at + REGISTER_LANES <= s.V; at += REGISTER_LANES) tile<F, 1, true>(tokens, s, c.from(at, REGISTER_LANES, s));
  if (at < s.V) tile<F, 1, false>(tokens, s, c.from(at, s.V - at, s));
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
      const float* value = rows + first * s.row() + 2 * key_heads * s.K + head * s.V;
      all_columns<Form::EXTEND>(
          tokens, s,
          {value, s.row(), answers + first * s.heads * s.V, s.heads * s.V, nullptr, 0,
           data<float>(state) + (batch * s.heads + head) * s.head_size()}
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
    float* read_only = const_cast<float*>(data<float>(state)) + (batch * s.heads + head) * s.head_size();
    all_columns<Form::VERIFY>(
        tokens, s,
        {rows + 2 * key_heads * s.K + head * s.V, s.row(), data<float>(out) + (batch * s.T * s.heads + head) * s.V,
         s.heads * s.V, staged.error + head * s.V, s.heads * s.V, read_only}
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
          all_columns<Form::COMMIT>(
              tokens, s,
              {nullptr, 0, nullptr, 0, staged.error + (first * s.heads + head) * s.V, s.heads * s.V,
               data<float>(state) + (batch * s.heads + head) * s.head_size()}
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
