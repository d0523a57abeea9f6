// Rows of x, each through the weight of the expert that it chose. Rows of the same expert go together, so that the
// weight of each chosen expert is read once, and that of the others never.
#include "checks.h"
#include "kernel.h"
#include "packed_product.h"
#include "workspaces.h"

namespace hybridge {
namespace {

struct Experts {
  Panels all;         // the weights [E, N, K] behind each other, N a multiple of 16
  const float* bias;  // [E, N] or null
  int64_t E, N;
  int64_t* first;  // [E + 1], where an expert's rows begin among the sorted ones
  int64_t* order;  // [M], which row of x each of them is
  int64_t* used;   // the experts that any row chose
  int64_t chosen;  // how many these are

  int64_t panels() const { return (N + LANES - 1) / LANES; }
};

// Sorts the rows by their experts. False for an expert that there is not.
bool sort_rows(Experts& e, const int64_t* choices, int64_t M) {
  std::fill_n(e.first, e.E + 1, 0);
  for (int64_t m = 0; m < M; ++m) {
    if (choices[m] < 0 || choices[m] >= e.E) return false;
    ++e.first[choices[m] + 1];
  }
  e.chosen = 0;
  for (int64_t i = 0; i < e.E; ++i) {
    if (e.first[i + 1]) e.used[e.chosen++] = i;
    e.first[i + 1] += e.first[i];
  }
  for (int64_t m = 0; m < M; ++m) e.order[e.first[choices[m]]++] = m;
  for (int64_t i = e.E; i > 0; --i) e.first[i] = e.first[i - 1];  // each has moved on to where the next begins
  e.first[0] = 0;
  return true;
}

// The product of one expert, whose rows are a part of `all`'s.
Product of_expert(const Experts& e, const Product& all, int64_t expert) {
  const int64_t at = e.first[expert], K = e.all.K, groups = e.all.code < 16 ? e.all.groups() : 0;
  Product p = all;
  p.weight = e.all.from(expert * e.panels());
  p.weight.N = e.N;
  p.bias = e.bias ? e.bias + expert * e.N : nullptr;
  p.x += at * K;
  p.out += at * e.N;
  p.T = e.first[expert + 1] - at;
  if (p.quanta) {
    p.quanta += at * K * quantum_bytes(p.weight.code);
    p.steps += at * groups;
    p.offsets += at * groups;
    if (p.sums) p.sums += at * groups;
  }
  return p;
}

// False where there is no memory.
bool run(KernelRuntimeContext& context, const Experts& e, const Product& all) {
  const int64_t count = e.chosen * e.panels();
  const Workspaces<float> factors(context, count, panel_cost(all), DecodedFactors::size(all));
  if (!factors) return false;
  if (all.quanta)
    parallel(e.chosen, e.all.K * sizeof(float), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Product p = of_expert(e, all, e.used[i]);
        quantize_tokens(p, 0, p.T);
      }
    });
  parallel(count, panel_cost(all), [&](int64_t begin, int64_t end) {
    const auto own = factors.take();
    for (int64_t stop; begin < end; begin = stop) {
      const int64_t i = begin / e.panels(), first = i * e.panels();
      stop = std::min(end, first + e.panels());
      panel_products(of_expert(e, all, e.used[i]), begin - first, stop - first, own.memory());
    }
  });
  return true;
}

Tensor& block_experts_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& chosen, const Tensor& packed,
    const std::optional<Tensor>& scales, const std::optional<Tensor>& minima, const std::optional<Tensor>& superscales,
    const std::optional<Tensor>& table, const std::optional<Tensor>& bias, int64_t N, bool integer, Tensor& out
) {
  Size M, K;
  REQUIRE(is_rows<float>(x, M, K));
  REQUIRE(is_rows<float>(out, M, N));
  REQUIRE(holds<int64_t>(chosen, M));
  const int64_t each = (N - 1) / LANES + 1;
  REQUIRE(packed.dim() == 3 && packed.size(0) % each == 0);
  Experts e{{}, bias ? data<float>(*bias) : nullptr, packed.size(0) / each, N, nullptr, nullptr, nullptr, 0};
  REQUIRE(holds<float>(bias, product(e.E, N)));
  e.all = panels({packed, scales, minima, superscales, table}, packed.size(0) * LANES, K);
  REQUIRE(e.all.K > 0);
  REQUIRE(!integer || e.all.code < 16);
  Product p{e.all, scratch<float>(context, M * K), nullptr, scratch<float>(context, M * N), M};
  e.first = scratch<int64_t>(context, e.E + 1);
  e.order = scratch<int64_t>(context, M);
  e.used = scratch<int64_t>(context, e.E);
  const bool there = p.x && p.out && e.first && e.order && e.used && (!integer || allocate_rounded(context, p, M));
  ET_KERNEL_CHECK(context, there, MemoryAllocationFailed, out);
  ET_KERNEL_CHECK_MSG(
      context, sort_rows(e, data<int64_t>(chosen), M), InvalidArgument, out, "an expert is not below %lld",
      (long long)e.E
  );
  for (int64_t m = 0; m < M; ++m) std::copy_n(data<float>(x) + e.order[m] * K, K, const_cast<float*>(p.x) + m * K);
  ET_KERNEL_CHECK(context, run(context, e, p), MemoryAllocationFailed, out);
  for (int64_t m = 0; m < M; ++m) std::copy_n(p.out + m * N, N, data<float>(out) + e.order[m] * N);
  return out;
}

HYBRIDGE_KERNEL("block_experts.out", block_experts_out);

}  // namespace
}  // namespace hybridge
