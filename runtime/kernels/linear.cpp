// y = x W^T + b with W in float32, as it lies in the checkpoint: [N, K], nothing packed, so that an embedding can be
// the same tensor.
//
// A tile is ROWS rows of W by TOKENS rows of x, summed along K in a register each; only the ends of the sums cross
// lanes.
#include "checks.h"
#include "kernel.h"
#include "vector.h"

namespace hybridge {
namespace {

constexpr int ROWS = 4;
constexpr int TOKENS = REGISTERS > 16 ? 4 : 3;

struct Linear {
  const float* x;
  const float* weight;
  const float* bias;
  float* out;
  int64_t T, N, K;
};

// Not inline, so that sums stay in registers.
template <int R, int T>
[[gnu::noinline]] void tile(const Linear& l, int64_t t0, int64_t n0) {
  const int64_t K = l.K;
  const float *x = l.x + t0 * K, *w = l.weight + n0 * K;
  f32xr acc[R][T];
  UNROLLED for (int r = 0; r < R; ++r) UNROLLED for (int t = 0; t < T; ++t) acc[r][t] = f32xr{};
  int64_t k = 0;
  for (; k + REGISTER_LANES <= K; k += REGISTER_LANES) {
    f32xr row[R];
    UNROLLED for (int r = 0; r < R; ++r) row[r] = load<f32xr>(w + r * K + k);
    UNROLLED for (int t = 0; t < T; ++t) {
      const f32xr token = load<f32xr>(x + t * K + k);
      UNROLLED for (int r = 0; r < R; ++r) acc[r][t] = fused(row[r], token, acc[r][t]);
    }
  }
  UNROLLED for (int r = 0; r < R; ++r) UNROLLED for (int t = 0; t < T; ++t) {
    float total = sum(acc[r][t]);
    for (int64_t rest = k; rest < K; ++rest) total += w[r * K + rest] * x[t * K + rest];
    l.out[(t0 + t) * l.N + n0 + r] = total + (l.bias ? l.bias[n0 + r] : 0.0f);
  }
}

template <int R, int T = TOKENS>
void rows_of(const Linear& l, int64_t n, int64_t t = 0) {
  for (; t + T <= l.T; t += T) tile<R, T>(l, t, n);
  if constexpr (T > 1) rows_of<R, T - 1>(l, n, t);
}

Tensor& linear_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, Tensor& out
) {
  Size T, N, K;
  REQUIRE(is_rows<float>(x, T, K));
  REQUIRE(is<float>(weight, N, K));
  REQUIRE(is<float>(bias, N));
  REQUIRE(is_rows<float>(out, T, N));
  const Linear l{data<float>(x), data<float>(weight), bias ? data<float>(*bias) : nullptr, data<float>(out), T, N, K};
  parallel((l.N + ROWS - 1) / ROWS, ROWS * l.K * sizeof(float), [&](int64_t begin, int64_t end) {
    for (int64_t n = begin * ROWS; n < std::min(end * ROWS, l.N); n += ROWS) {
      if (n + ROWS <= l.N) {
        rows_of<ROWS>(l, n);
      } else {
        for (int64_t rest = n; rest < l.N; ++rest) rows_of<1>(l, rest);
      }
    }
  });
  return out;
}

HYBRIDGE_KERNEL("linear.out", linear_out);

}  // namespace
}  // namespace hybridge
