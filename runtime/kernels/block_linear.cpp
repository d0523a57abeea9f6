// Linear layers, alone and several over one input, some outputs of one, and embeddings over weights in panels
// (panels.h).
#include "checks.h"
#include "kernel.h"
#include "packed_product.h"
#include "workspaces.h"

namespace hybridge {
namespace {

// Whether two weights meet the same rounded x.
bool round_alike(const Panels& a, const Panels& b) {
  return a.code == b.code && a.group == b.group && !a.minima.numbers == !b.minima.numbers &&
         a.scales.form == b.scales.form && a.scales.superblocks == b.scales.superblocks;
}

// Rounds x for `count` products, once for those that meet the same.
bool round_activations(KernelRuntimeContext& context, Product* products, int64_t count) {
  for (Product* p = products; p < products + count; ++p) {
    const auto like = [p](const Product& before) { return round_alike(before.weight, p->weight); };
    if (const Product* known = std::find_if(products, p, like); known < p) {
      p->quanta = known->quanta, p->steps = known->steps, p->offsets = known->offsets, p->sums = known->sums;
      continue;
    }
    if (!allocate_rounded(context, *p, p->T)) return false;
    parallel(p->T, p->weight.K * sizeof(float), [&](int64_t begin, int64_t end) { quantize_tokens(*p, begin, end); });
  }
  return true;
}

// Multiplies one x with `count` weights. False where there is no memory.
bool multiply(KernelRuntimeContext& context, Product* products, int64_t count, bool integer) {
  if (integer && !round_activations(context, products, count)) return false;
  int64_t panels = 0, cost = 0, numbers = 0;
  for (const Product* p = products; p < products + count; ++p) {
    panels += p->panels();
    cost += p->panels() * panel_cost(*p);
    numbers = std::max(numbers, DecodedFactors::size(*p));
  }
  const Workspaces<float> factors(context, panels, cost / panels, numbers);
  if (!factors) return false;
  parallel(panels, cost / panels, [&](int64_t begin, int64_t end) {
    const auto own = factors.take();
    int64_t first = 0;
    for (const Product* p = products; first < end; first += p->panels(), ++p)
      if (const int64_t stop = std::min(end - first, p->panels()); begin < first + stop)
        panel_products(*p, std::max(begin - first, int64_t(0)), stop, own.memory());
  });
  return true;
}

// Takes a weight and what belongs to it. False where they do not fit x or out.
bool take(
    Product& p, const Tensor& x, const Stored& stored, const std::optional<Tensor>& bias, int64_t N, bool integer,
    Tensor& out
) {
  Size T, K;
  if (!is_rows<float>(x, T, K) || !is_rows<float>(out, T, N) || !holds<float>(bias, N)) return false;
  p = {panels(stored, N, K), data<float>(x), bias ? data<float>(*bias) : nullptr, data<float>(out), T};
  return p.weight.K > 0 && (!integer || p.weight.code < 16);
}

Tensor& block_linear_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& packed, const std::optional<Tensor>& scales,
    const std::optional<Tensor>& minima, const std::optional<Tensor>& superscales, const std::optional<Tensor>& table,
    const std::optional<Tensor>& bias, int64_t N, bool integer, Tensor& out
) {
  Product p;
  REQUIRE(take(p, x, {packed, scales, minima, superscales, table}, bias, N, integer, out));
  ET_KERNEL_CHECK(context, multiply(context, &p, 1, integer), MemoryAllocationFailed, out);
  return out;
}

executorch::aten::ArrayRef<Tensor> block_linears_out(
    KernelRuntimeContext& context, const Tensor& x, executorch::aten::ArrayRef<std::optional<Tensor>> weights,
    executorch::aten::ArrayRef<int64_t> rows, bool integer, executorch::aten::ArrayRef<Tensor> out
) {
  constexpr size_t PARTS = 6;  // of a weight: those of Stored, and the bias
  const size_t count = rows.size();
  REQUIRE(count > 0 && out.size() == count && weights.size() / PARTS == count && weights.size() % PARTS == 0);
  Product* products = scratch<Product>(context, count);
  ET_KERNEL_CHECK(context, products, MemoryAllocationFailed, out);
  for (size_t i = 0; i < count; ++i) {
    const auto* part = &weights[i * PARTS];
    Tensor to = out[i];
    REQUIRE(
        part[0] && take(products[i], x, {*part[0], part[1], part[2], part[3], part[4]}, part[5], rows[i], integer, to)
    );
  }
  ET_KERNEL_CHECK(context, multiply(context, products, count, integer), MemoryAllocationFailed, out);
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
  ET_KERNEL_CHECK(context, multiply(context, &p, 1, integer), MemoryAllocationFailed, out);
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
HYBRIDGE_KERNEL("block_linears.out", block_linears_out);
HYBRIDGE_KERNEL("panel_linear.out", panel_linear_out);
HYBRIDGE_KERNEL("block_embedding.out", block_embedding_out);

}  // namespace
}  // namespace hybridge
