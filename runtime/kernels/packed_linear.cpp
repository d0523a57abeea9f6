// Linear layers and embeddings over weights in panels (panels.h).
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
  Product p{panels(packed, scales, N, last(x)), data<float>(x), bias ? data<float>(*bias) : nullptr, data<float>(out), rows(x), nullptr, nullptr, nullptr};
  ET_KERNEL_CHECK(context, p.weight.K > 0 && out.numel() == p.T * N, InvalidArgument, out);
  ET_KERNEL_CHECK(context, !integer || (p.weight.bits < 32 && round_activations(context, p)), MemoryAllocationFailed, out);
  parallel(p.weight.count(), panel_cost(p), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel) panel_product(p, panel);
  });
  return out;
}

Tensor& packed_embedding_out(KernelRuntimeContext& context, const Tensor& tokens, const Tensor& packed, const std::optional<Tensor>& scales,
    int64_t N, int64_t K, Tensor& out) {
  const Panels weight = panels(packed, scales, N, K);
  ET_KERNEL_CHECK(context, weight.K > 0 && out.numel() == tokens.numel() * K, InvalidArgument, out);
  const int64_t* ids = data<int64_t>(tokens);
  for (int64_t t = 0; t < tokens.numel(); ++t) {
    ET_KERNEL_CHECK_MSG(context, ids[t] >= 0 && ids[t] < N, InvalidArgument, out, "token %lld is not below %lld", (long long)ids[t], (long long)N);
    for (int64_t k = 0; k < K; ++k) data<float>(out)[t * K + k] = weight.value(ids[t], k);
  }
  return out;
}

EXECUTORCH_LIBRARY(hybridge, "packed_linear.out", packed_linear_out);
EXECUTORCH_LIBRARY(hybridge, "packed_embedding.out", packed_embedding_out);

}  // namespace
}  // namespace hybridge
