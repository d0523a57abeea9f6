// Products of two matrices that depend on the text, or of a batch of them: each output is one sum along K, in its
// order, however many rows or columns are multiplied at the same time.
#include "checks.h"
#include "kernel.h"
#include "vector.h"
#include "vector_math.h"

namespace hybridge {
namespace {

constexpr int ROWS = REGISTERS / 2 * REGISTER_LANES / LANES;  // of a tile, whose sums are half of the registers

// R rows of a [M, K] by sixteen columns of b [K, N], of which `count` are left.
template <int R>
void tile(const float* a, const float* b, float* out, int64_t K, int64_t N, int64_t count) {
  f32x16 sums[R] = {};
  for (int64_t k = 0; k < K; ++k) {
    const f32x16 row = load_up_to(b + k * N, count);
    UNROLLED for (int r = 0; r < R; ++r) sums[r] = fused(row, splat(a[r * K + k]), sums[r]);
  }
  UNROLLED for (int r = 0; r < R; ++r) store_up_to(out + r * N, sums[r], count);
}

void columns(const float* a, const float* b, float* out, int64_t M, int64_t K, int64_t N, int64_t n) {
  int64_t m = 0;
  for (; m + ROWS <= M; m += ROWS) tile<ROWS>(a + m * K, b + n, out + m * N + n, K, N, N - n);
  for (; m < M; ++m) tile<1>(a + m * K, b + n, out + m * N + n, K, N, N - n);
}

// a [M, K] and b [K, N], or B of both.
Tensor& matmul_out(KernelRuntimeContext& context, const Tensor& a, const Tensor& b, Tensor& out) {
  Size batches, M, K, N;
  const bool is_one = a.dim() == 2;
  REQUIRE(is_one ? is<float>(a, M, K) : is<float>(a, batches, M, K));
  REQUIRE(is_one ? is<float>(b, K, N) : is<float>(b, batches, K, N));
  REQUIRE(is_one ? is<float>(out, M, N) : is<float>(out, batches, M, N));
  const int64_t B = is_one ? 1 : batches;
  const int64_t vectors = (N + LANES - 1) / LANES;
  parallel(B * vectors, K * LANES * M, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t batch = item / vectors, n = item % vectors * LANES;
      columns(
          data<float>(a) + batch * M * K, data<float>(b) + batch * K * N, data<float>(out) + batch * M * N, M, K, N, n
      );
    }
  });
  return out;
}

HYBRIDGE_KERNEL("matmul.out", matmul_out);

}  // namespace
}  // namespace hybridge
