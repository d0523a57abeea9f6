// Mamba's selective scan: a state [N] for each channel, whose elements fade each at a rate of its own.
//
//   h <- exp(step rate) h + (step x) key,   out = h . query + skip x
//
// Channels are independent: sixteen of them run through all tokens with their states in the first cache, so that memory
// sees a state once. Elements of a state are lanes, and sums over these are made for sixteen channels at once.
#include "activation.h"
#include "checks.h"
#include "kernel.h"
#include "recurrent.h"
#include "workspaces.h"

namespace hybridge {
namespace {

constexpr int64_t BLOCK = 64;  // channels at a time: their inputs share cache lines

// x [T, C], key and query [T, H, N], rate [C, N], skip [C]; query and skip are null where only the state is wanted.
struct Scan {
  const float *x, *key, *query, *rate, *skip;
  int64_t C, H, N;
};

// Up to sixteen channels from c on through n tokens, `count` elements of their states from `at` on; adds their share of
// the outputs.
template <bool Whole>
void scan(
    const Scan& s, int64_t n, int64_t c, int64_t channels, int64_t at, const float* steps, int64_t stride,
    const float* before, float* after, float* out
) {
  const int64_t count = std::min<int64_t>(LANES, s.N - at);
  const auto get = [count](const float* from) { return Whole ? load<f32x16>(from) : load_first(from, count); };
  f32x16 rate[LANES], h[LANES];
  decltype(folded_product(h[0], h[0])) products[LANES] = {};
  int64_t row[LANES];  // of a token's keys and queries
  for (int64_t i = 0; i < channels; ++i) {
    rate[i] = get(s.rate + (c + i) * s.N + at);
    h[i] = get(before + (c + i) * s.N + at);
    row[i] = (c + i) / (s.C / s.H) * s.N + at;
  }
  for (int64_t t = 0; t < n; ++t) {
    const f32x16 step = load_up_to(steps + t * stride, channels), x = load_up_to(s.x + t * s.C + c, channels);
    float step_of[LANES], added[LANES];
    store(step_of, step);
    store(added, step * x);
    const float *key = s.key + t * s.H * s.N, *query = s.query ? s.query + t * s.H * s.N : nullptr;
    for (int64_t i = 0; i < channels; ++i) {
      h[i] = fused(get(key + row[i]), splat(added[i]), exp(rate[i] * step_of[i]) * h[i]);
      if (s.query) products[i] = folded_product(h[i], get(query + row[i]));
    }
    float* to = out + t * s.C + c;
    if (s.query) store_up_to(to, load_up_to(to, channels) + sums(products), channels);
  }
  if (after)
    for (int64_t i = 0; i < channels; ++i) store_up_to(after + (c + i) * s.N + at, h[i], count);
}

void scan_channels(
    const Scan& s, int64_t n, int64_t begin, int64_t end, const float* steps, int64_t stride, const float* before,
    float* after, float* out
) {
  for (int64_t c = begin; c < end; c += LANES) {
    const int64_t channels = std::min<int64_t>(LANES, end - c);
    if (s.query)
      for (int64_t t = 0; t < n; ++t) {
        const auto get = [&](const float* from) { return load_up_to(from + c, channels); };
        store_up_to(out + t * s.C + c, get(s.skip) * get(s.x + t * s.C), channels);
      }
    for (int64_t at = 0; at < s.N; at += LANES)
      (s.N - at >= LANES ? scan<true> : scan<false>)(s, n, c, channels, at, steps + c - begin, stride, before, after,
                                                     out);
  }
}

// sizes [n, stride] = softplus(raw + bias) of some channels.
void read_steps(
    float* sizes, int64_t stride, const float* raw, const float* bias, int64_t C, int64_t n, int64_t begin, int64_t end
) {
  for (int64_t t = 0; t < n; ++t)
    for (int64_t c = begin; c < end; c += LANES) {
      const int64_t count = std::min<int64_t>(LANES, end - c);
      const f32x16 added = bias ? load_first(bias + c, count) : f32x16{};
      store_first(sizes + t * stride + c - begin, Softplus::of(load_first(raw + t * C + c, count) + added), count);
    }
}

Scan scan_of(
    const Tensor& x, const Tensor& key, const Tensor* query, const Tensor& rate, const Tensor* skip, int64_t batch
) {
  const int64_t T = x.size(1), C = last(x), H = key.size(2), N = last(key);
  const auto at = [batch, rows = T * H * N](const Tensor& tensor) { return data<float>(tensor) + batch * rows; };
  return {
      data<float>(x) + batch * T * C,
      at(key),
      query ? at(*query) : nullptr,
      data<float>(rate),
      skip ? data<float>(*skip) : nullptr,
      C,
      H,
      N
  };
}

// x and steps [B, T, C], key [B, T, H, N], rate [C, N], state with B C N numbers.
struct Sizes {
  Size B, T, C, H, N;
  bool agree(const Tensor& x, const Tensor& steps, const Tensor& key, const Tensor& rate, const Tensor& state) {
    return is<float>(x, B, T, C) && is<float>(steps, B, T, C) && is<float>(key, B, T, H, N) && C % H == 0 &&
           is<float>(rate, C, N) && holds<float>(state, product(B, C, N));
  }
  // Needed for outputs only: bias and skip [C], query [B, T, H, N], out [B, T, C].
  bool agree(const std::optional<Tensor>& bias, const Tensor& query, const Tensor& skip, const Tensor& out) {
    return holds<float>(bias, C) && is<float>(query, B, T, H, N) && holds<float>(skip, C) && is<float>(out, B, T, C);
  }
};

Tensor& selective_scan_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& steps, const std::optional<Tensor>& bias,
    const Tensor& key, const Tensor& query, const Tensor& rate, const Tensor& skip, Tensor& state, const Tensor& count,
    Tensor& out
) {
  Sizes s;
  int64_t n;
  REQUIRE(s.agree(x, steps, key, rate, state));
  REQUIRE(s.agree(bias, query, skip, out));
  REQUIRE(reads(count, n, 0, s.T));
  const int64_t T = s.T, C = s.C, N = s.N;
  const Workspaces<float> workspaces(context, s.B * ((C + BLOCK - 1) / BLOCK), BLOCK * T * N * 8, product(T, BLOCK));
  ET_KERNEL_CHECK(context, workspaces, MemoryAllocationFailed, out);
  for_channels<BLOCK>(s.B, C, T * N * 8, [&](int64_t batch, int64_t begin, int64_t end) {
    const auto sizes = workspaces.take();
    float *own = data<float>(state) + batch * C * N, *answers = data<float>(out) + batch * T * C;
    read_steps(
        sizes.memory(), BLOCK, data<float>(steps) + batch * T * C, bias ? data<float>(*bias) : nullptr, C, n, begin, end
    );
    scan_channels(scan_of(x, key, &query, rate, &skip, batch), n, begin, end, sizes.memory(), BLOCK, own, own, answers);
    for (int64_t t = n; t < T; ++t) std::fill(answers + t * C + begin, answers + t * C + end, 0.0f);
  });
  return out;
}

Tensor& selective_scan_verify_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& steps, const std::optional<Tensor>& bias,
    const Tensor& key, const Tensor& query, const Tensor& rate, const Tensor& skip, Tensor& staged_x,
    Tensor& staged_steps, Tensor& staged_key, const Tensor& state, Tensor& out
) {
  Sizes s;
  Size S;
  REQUIRE(s.agree(x, steps, key, rate, state));
  REQUIRE(s.agree(bias, query, skip, out));
  REQUIRE(is<float>(staged_x, s.B, S, s.C) && s.T <= S);
  REQUIRE(is<float>(staged_steps, s.B, S, s.C));
  REQUIRE(is<float>(staged_key, s.B, S, s.H, s.N));
  const int64_t T = s.T, C = s.C, N = s.N;
  stage(staged_x, x), stage(staged_key, key);
  for_channels<BLOCK>(s.B, C, T * N * 8, [&](int64_t batch, int64_t begin, int64_t end) {
    float* sizes = data<float>(staged_steps) + batch * S * C + begin;
    read_steps(sizes, C, data<float>(steps) + batch * T * C, bias ? data<float>(*bias) : nullptr, C, T, begin, end);
    scan_channels(
        scan_of(x, key, &query, rate, &skip, batch), T, begin, end, sizes, C, data<float>(state) + batch * C * N,
        nullptr, data<float>(out) + batch * T * C
    );
  });
  return out;
}

Tensor& selective_scan_commit_out(
    KernelRuntimeContext& context, Tensor& state, const Tensor& x, const Tensor& steps, const Tensor& key,
    const Tensor& rate, const Tensor& count, Tensor& out
) {
  Sizes s;
  int64_t n;
  REQUIRE(s.agree(x, steps, key, rate, state));
  REQUIRE(reads(count, n, 0, s.T));
  REQUIRE(holds<int64_t>(out, 1));
  const int64_t S = s.T, C = s.C, N = s.N;
  *data<int64_t>(out) = n;
  if (n == 0) return out;
  for_channels<BLOCK>(s.B, C, n * N * 8, [&](int64_t batch, int64_t begin, int64_t end) {
    float* own = data<float>(state) + batch * C * N;
    scan_channels(
        scan_of(x, key, nullptr, rate, nullptr, batch), n, begin, end, data<float>(steps) + batch * S * C + begin, C,
        own, own, nullptr
    );
  });
  return out;
}

HYBRIDGE_KERNEL("selective_scan.out", selective_scan_out);
HYBRIDGE_KERNEL("selective_scan_verify.out", selective_scan_verify_out);
HYBRIDGE_KERNEL("selective_scan_commit.out", selective_scan_commit_out);

}  // namespace
}  // namespace hybridge
