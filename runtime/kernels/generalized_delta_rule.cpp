// The generalized delta rule (RWKV-7) over states [K, V], one for each head:
//
//   S <- diag(exp(log_decay)) S - (rate removed) (removed^T S) + key value^T,   out = query^T S
//
// Columns of a state are independent: a tile of them goes through all tokens of a block in the first cache.
#include "checks.h"
#include "kernel.h"
#include "recurrent.h"
#include "workspaces.h"

#include <utility>

namespace hybridge {
namespace {

constexpr int TILE = REGISTERS / 8;  // registers of a row that are in a tile
constexpr int64_t MOST = 16;         // tokens at a time: their decays stay in the first cache

struct Shape {
  int64_t heads, K, V;
  int64_t head_size() const { return K * V; }  // of a state
};

// Inputs of a head's tokens, `heads` K or V numbers from each other; a commit has no query.
struct Rows {
  const float *query, *log_decay, *rate, *removed, *key, *value;
};

// What a head's tokens do to its state, the same for all columns, and memory for a tile of these.
struct Tokens {
  // Returns how many numbers `most` tokens take.
  static int64_t size(int64_t most, const Shape& s) {
    return product(most, 2 * padded(s.K)) + product(s.K, TILE * REGISTER_LANES);
  }

  Tokens(float* next, int64_t most, const Shape& s) : stride(padded(s.K)) {
    const auto take = [&next](int64_t count) { return std::exchange(next, next + count); };
    tile = take(s.K * TILE * REGISTER_LANES);
    decay = take(most * stride), taken = take(most * stride);
  }
  int64_t stride, T = 0;
  float *decay, *taken;  // [T, stride]: e^log_decay, and -rate removed
  float* tile;           // [K, TILE registers]
};

// Compiled once, so that every form rounds in one way.
[[gnu::noinline]] void read_tokens(Tokens& tokens, const Rows& rows, const Shape& s, int64_t T) {
  tokens.T = T;
  for (int64_t t = 0; t < T; ++t)
    for (int64_t k = 0; k < s.K; k += LANES) {
      const int64_t from = t * s.heads * s.K + k, to = t * tokens.stride + k, count = s.K - k;
      store(tokens.decay + to, exp(load_up_to(rows.log_decay + from, count)));
      store(tokens.taken + to, -(load_up_to(rows.rate + from, count) * load_up_to(rows.removed + from, count)));
    }
}

// Token t over R registers of each row of the state, on the way from rows to rows; `width` numbers if they are not
// whole.
template <Form F, bool Whole, int R>
void step(
    const Tokens& tokens, int64_t t, const Rows& rows, const Shape& s, int64_t v, const float* from,
    int64_t from_stride, float* to, int64_t to_stride, float* out
) {
  const int64_t keys = t * s.heads * s.K, values = t * s.heads * s.V + v, width = s.V - v;
  const float *removed = rows.removed + keys, *key = rows.key + keys, *decay = tokens.decay + t * tokens.stride,
              *taken = tokens.taken + t * tokens.stride;
  f32xr even[R] = {}, odd[R] = {}, value[R], sums[R] = {};
  const auto read = [&](f32xr* total, int64_t k) __attribute__((always_inline)) {
    UNROLLED for (int r = 0; r < R; ++r)
        total[r] = fused(get<Whole>(from + k * from_stride + r * REGISTER_LANES, width), removed[k], total[r]);
  };
  int64_t k = 0;
  for (; k + 2 <= s.K; k += 2) read(even, k), read(odd, k + 1);
  if (k < s.K) read(even, k);
  UNROLLED for (int r = 0; r < R; ++r) {
    even[r] = even[r] + odd[r];
    value[r] = get<Whole>(rows.value + values + r * REGISTER_LANES, width);
  }
  for (k = 0; k < s.K; ++k) {
    const f32xr fades = splat<f32xr>(decay[k]);
    UNROLLED for (int r = 0; r < R; ++r) {
      f32xr row = get<Whole>(from + k * from_stride + r * REGISTER_LANES, width) * fades;
      row = fused(value[r], key[k], fused(even[r], taken[k], row));
      if constexpr (F != Form::COMMIT) sums[r] = fused(row, rows.query[keys + k], sums[r]);
      put<Whole>(to + k * to_stride + r * REGISTER_LANES, row, width);
    }
  }
  if constexpr (F != Form::COMMIT)
    UNROLLED for (int r = 0; r < R; ++r) put<Whole>(out + values + r * REGISTER_LANES, sums[r], width);
}

// All tokens over R registers of columns from v on.
template <Form F, bool Whole, int R>
[[gnu::noinline]] void columns(
    const Tokens& tokens, const Rows& rows, const Shape& s, int64_t v, float* state, float* out
) {
  float *from = state + v, *to = F == Form::VERIFY ? tokens.tile : from;
  const int64_t to_stride = F == Form::VERIFY ? TILE * REGISTER_LANES : s.V;
  int64_t from_stride = s.V;
  for (int64_t t = 0; t < tokens.T; ++t, from = to, from_stride = to_stride)
    step<F, Whole, R>(tokens, t, rows, s, v, from, from_stride, to, to_stride, out);
}

template <Form F>
void all_columns(const Tokens& tokens, const Rows& rows, const Shape& s, float* state, float* out) {
  int64_t v = 0;
  for (; v + TILE * REGISTER_LANES <= s.V; v += TILE * REGISTER_LANES)
    columns<F, true, TILE>(tokens, rows, s, v, state, out);
  for (; v + REGISTER_LANES <= s.V; v += REGISTER_LANES) columns<F, true, 1>(tokens, rows, s, v, state, out);
  if (v < s.V) columns<F, false, 1>(tokens, rows, s, v, state, out);
}

// log_decay, rate, removed, key [B, T, H, K], value [B, T, H, V]; state [B, H, K, V].
struct Inputs {
  const Tensor &log_decay, &rate, &removed, &key, &value;
  Size B, T, H, K, V;
  bool agree(const Tensor& state) {
    return is<float>(state, B, H, K, V) && is<float>(log_decay, B, T, H, K) && is<float>(rate, B, T, H, K) &&
           is<float>(removed, B, T, H, K) && is<float>(key, B, T, H, K) && is<float>(value, B, T, H, V);
  }
  Shape shape() const { return {H, K, V}; }
  // From token t on, of one head.
  Rows rows(const float* query, int64_t batch, int64_t t, int64_t head) const {
    const int64_t row = (batch * T + t) * H + head, k = row * K;
    const auto keys = [k](const Tensor& x) { return data<float>(x) + k; };
    return {query ? query + k : nullptr, keys(log_decay), keys(rate), keys(removed), keys(key),
            data<float>(value) + row * V};
  }
};

// The first n tokens of every head over its state in place, in parts; `query` and `out` are null for a commit.
template <Form F>
bool run(KernelRuntimeContext& context, const Inputs& in, const float* query, float* state, int64_t n, float* out) {
  const Shape s = in.shape();
  const int64_t most = F == Form::VERIFY ? n : MOST;  // a verify's tile holds what is not to be written to the state
  return for_heads<Tokens>(context, in.B, s, most, [&](int64_t batch, int64_t head, Tokens& tokens) {
    float* own = state + (batch * s.heads + head) * s.head_size();
    for (int64_t first = 0; first < n; first += most) {
      const Rows rows = in.rows(query, batch, first, head);
      read_tokens(tokens, rows, s, std::min(most, n - first));
      all_columns<F>(tokens, rows, s, own, out ? out + ((batch * in.T + first) * s.heads + head) * s.V : nullptr);
    }
  });
}

Tensor& generalized_delta_rule_out(
    KernelRuntimeContext& context, const Tensor& query, const Tensor& log_decay, const Tensor& rate,
    const Tensor& removed, const Tensor& key, const Tensor& value, Tensor& state, const Tensor& count, Tensor& out
) {
  Inputs in{log_decay, rate, removed, key, value};
  int64_t n;
  REQUIRE(in.agree(state));
  REQUIRE(is<float>(query, in.B, in.T, in.H, in.K));
  REQUIRE(is<float>(out, in.B, in.T, in.H, in.V));
  REQUIRE(reads(count, n, 0, in.T));
  const bool done = run<Form::EXTEND>(context, in, data<float>(query), data<float>(state), n, data<float>(out));
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  const int64_t row = in.H * in.V;
  for (int64_t batch = 0; batch < in.B; ++batch)
    std::fill_n(data<float>(out) + (batch * in.T + n) * row, (in.T - n) * row, 0.0f);
  return out;
}

Tensor& generalized_delta_rule_verify_out(
    KernelRuntimeContext& context, const Tensor& query, const Tensor& log_decay, const Tensor& rate,
    const Tensor& removed, const Tensor& key, const Tensor& value, Tensor& staged_log_decay, Tensor& staged_rate,
    Tensor& staged_removed, Tensor& staged_key, Tensor& staged_value, const Tensor& state, Tensor& out
) {
  Inputs in{log_decay, rate, removed, key, value};
  Size S;
  REQUIRE(in.agree(state));
  REQUIRE(is<float>(query, in.B, in.T, in.H, in.K));
  REQUIRE(is<float>(out, in.B, in.T, in.H, in.V));
  REQUIRE(is<float>(staged_value, in.B, S, in.H, in.V) && in.T <= S);
  for (const Tensor* staged : {&staged_log_decay, &staged_rate, &staged_removed, &staged_key})
    REQUIRE(is<float>(*staged, in.B, S, in.H, in.K));
  float* read_only = const_cast<float*>(data<float>(state));
  const bool done = run<Form::VERIFY>(context, in, data<float>(query), read_only, in.T, data<float>(out));
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  stage(staged_log_decay, log_decay), stage(staged_rate, rate), stage(staged_removed, removed);
  stage(staged_key, key), stage(staged_value, value);
  return out;
}

Tensor& generalized_delta_rule_commit_out(
    KernelRuntimeContext& context, Tensor& state, const Tensor& log_decay, const Tensor& rate, const Tensor& removed,
    const Tensor& key, const Tensor& value, const Tensor& count, Tensor& out
) {
  Inputs in{log_decay, rate, removed, key, value};
  int64_t n;
  REQUIRE(in.agree(state));
  REQUIRE(reads(count, n, 0, in.T));
  REQUIRE(holds<int64_t>(out, 1));
  *data<int64_t>(out) = n;
  const bool done = run<Form::COMMIT>(context, in, nullptr, data<float>(state), n, nullptr);
  ET_KERNEL_CHECK(context, done, MemoryAllocationFailed, out);
  return out;
}

HYBRIDGE_KERNEL("generalized_delta_rule.out", generalized_delta_rule_out);
HYBRIDGE_KERNEL("generalized_delta_rule_verify.out", generalized_delta_rule_verify_out);
HYBRIDGE_KERNEL("generalized_delta_rule_commit.out", generalized_delta_rule_commit_out);

}  // namespace
}  // namespace hybridge
