// Linear layers, some outputs of one, and embeddings over weights in panels (panels.h).
#include "checks.h"
#include "kernel.h"
#include "packed_product.h"
#include "workspaces.h"

namespace hybridge {
namespace {

bool round_activations(KernelRuntimeContext& context, Product& p) {
  if (!allocate_rounded(context, p, p.T)) return false;
  parallel(p.T, p.weight.K * sizeof(float), [&](int64_t begin, int64_t end) { quantize_tokens(p, begin, end); });
  return true;
}

// Multiplies with the panels at all places. False where there is no memory.
bool multiply(KernelRuntimeContext& context, Product& p, int64_t places, bool integer) {
  if (integer && !round_activations(context, p)) return false;
  const Workspaces<float> factors(context, places, panel_cost(p), DecodedFactors::size(p));
  if (!factors) return false;
  parallel(places, panel_cost(p), [&](int64_t begin, int64_t end) {
    const auto own = factors.take();
    panel_products(p, begin, end, own.memory());
  });
  return true;
}

Tensor& block_linear_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& packed, const std::optional<Tensor>& scales,
    const std::optional<Tensor>& minima, const std::optional<Tensor>& superscales, const std::optional<Tensor>& table,
    const std::optional<Tensor>& bias, int64_t N, bool integer, Tensor& out
) {
  Size T, K;
  REQUIRE(is_rows<float>(x, T, K));
  REQUIRE(is_rows<float>(out, T, N));
  REQUIRE(holds<float>(bias, N));
  Product p{
      panels({packed, scales, minima, superscales, table}, N, K), data<float>(x), bias ? data<float>(*bias) : nullptr,
      data<float>(out), T
  };
  REQUIRE(p.weight.K > 0);
  REQUIRE(!integer || p.weight.code < 16);
  ET_KERNEL_CHECK(context, multiply(context, p, p.weight.count(), integer), MemoryAllocationFailed, out);
  return out;
}

// Whether the chosen panels are in ascending order, and a weight of N rows has in them `rows` rows, or more in the
// last.
bool has_rows(const int64_t* chosen, int64_t count, int64_t rows, int64_t N) {
  const int64_t whole = (count - 1) * LANES;
  if (chosen[0] < 0 || rows <= whole || rows > whole + LANES) return false;
  for (int64_t i = 1; i < count; ++i)
    if (chosen[i] <= chosen[i - 1]) return false;
  return chosen[count - 1] <= (N - 1) / LANES && chosen[count - 1] * LANES + rows - whole <= N;
}

Tensor& panel_linear_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& packed, const std::optional<Tensor>& scales,
    const std::optional<Tensor>& minima, const std::optional<Tensor>& superscales, const std::optional<Tensor>& table,
    const std::optional<Tensor>& bias, const Tensor& chosen, int64_t N, int64_t rows, bool integer, Tensor& out
) {
  Size T, K, count;
  REQUIRE(is_rows<float>(x, T, K));
  REQUIRE(is_rows<float>(out, T, rows));
  REQUIRE(holds<float>(bias, N));
  REQUIRE(holds<int64_t>(chosen, count));
  Product p{
      panels({packed, scales, minima, superscales, table}, N, K),
      data<float>(x),
      bias ? data<float>(*bias) : nullptr,
      data<float>(out),
      T,
      data<int64_t>(chosen),
      rows
  };
  REQUIRE(p.weight.K > 0);
  REQUIRE(has_rows(p.chosen, count, rows, N));
  REQUIRE(!integer || p.weight.code < 16);
  ET_KERNEL_CHECK(context, multiply(context, p, count, integer), MemoryAllocationFailed, out);
  return out;
}

Tensor& block_embedding_out(
    KernelRuntimeContext& context, const Tensor& tokens, const Tensor& packed, const std::optional<Tensor>& scales,
    const std::optional<Tensor>& minima, const std::optional<Tensor>& superscales, const std::optional<Tensor>& table,
    int64_t N, int64_t K, Tensor& out
) {
  Size T;
  REQUIRE(holds<int64_t>(tokens, T));
  REQUIRE(is_rows<float>(out, T, K));
  const Panels weight = panels({packed, scales, minima, superscales, table}, N, K);
  REQUIRE(weight.K > 0);
  for (int64_t t = 0; t < T; ++t) {
    const int64_t id = data<int64_t>(tokens)[t];
    ET_KERNEL_CHECK_MSG(
        context, id >= 0 && id < N, InvalidArgument, out, "token %lld is not below %lld", (long long)id, (long long)N
    );
    weight.row(id, data<float>(out) + t * K);
  }
  return out;
}

HYBRIDGE_KERNEL("block_linear.out", block_linear_out);
HYBRIDGE_KERNEL("panel_linear.out", panel_linear_out);
HYBRIDGE_KERNEL("block_embedding.out", block_embedding_out);

}  // namespace
}  // namespace hybridge
