// Linear layers and embeddings over weights in panels (panels.h).
#include "checks.h"
#include "kernel.h"
#include "packed_product.h"

namespace hybridge {
namespace {

bool round_activations(KernelRuntimeContext& context, Product& p) {
  if (!allocate_rounded(context, p, p.T)) return false;
  parallel(p.T, p.weight.K * sizeof(float), [&](int64_t begin, int64_t end) { quantize_tokens(p, begin, end); });
  return true;
}

Tensor& packed_linear_out(KernelRuntimeContext& context, const Tensor& x, const Tensor& packed, const std::optional<Tensor>& scales,
    const std::optional<Tensor>& bias, int64_t N, bool integer, Tensor& out) {
  Size T, K;
  REQUIRE(is_rows<float>(x, T, K));
  REQUIRE(is_rows<float>(out, T, N));
  REQUIRE(holds<float>(bias, N));
  Product p{panels(packed, scales, N, K), data<float>(x), bias ? data<float>(*bias) : nullptr, data<float>(out), T, nullptr, nullptr, nullptr};
  REQUIRE(p.weight.K > 0);
  REQUIRE(!integer || p.weight.bits < 32);
  ET_KERNEL_CHECK(context, !integer || round_activations(context, p), MemoryAllocationFailed, out);
  parallel(p.weight.count(), panel_cost(p), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) panel_product(p, panel);
  });
  return out;
}

Tensor& packed_embedding_out(KernelRuntimeContext& context, const Tensor& tokens, const Tensor& packed, const std::optional<Tensor>& scales,
    int64_t N, int64_t K, Tensor& out) {
  Size T;
  REQUIRE(holds<int64_t>(tokens, T));
  REQUIRE(is_rows<float>(out, T, K));
  const Panels weight = panels(packed, scales, N, K);
  REQUIRE(weight.K > 0);
  for (int64_t t = 0; t < T; ++t) {
    const int64_t id = data<int64_t>(tokens)[t];
    ET_KERNEL_CHECK_MSG(context, id >= 0 && id < N, InvalidArgument, out, "token %lld is not below %lld", (long long)id, (long long)N);
    for (int64_t k = 0; k < K; ++k) data<float>(out)[t * K + k] = weight.value(id, k);
  }
  return out;
}

HYBRIDGE_KERNEL("packed_linear.out", packed_linear_out);
HYBRIDGE_KERNEL("packed_embedding.out", packed_embedding_out);

}  // namespace
}  // namespace hybridge
