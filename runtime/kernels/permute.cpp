// y = x with its dimensions in another order: runs of numbers where the last one stays, tiles where it does not.
#include <array>

#include "checks.h"
#include "kernel.h"

namespace hybridge {
namespace {

constexpr int MOST_DIMS = 8;
constexpr int64_t TILE = 16;

// One dimension of the output: how many steps, and how far apart they are in x and in y.
struct Axis {
  int64_t size, from, to;
};

struct Order {
  std::array<Axis, MOST_DIMS> axes;
  int count = 0;
};

// The output's dimensions without those of size 1, neighbours in both x and y as one.
Order order_of(const Tensor& x, executorch::aten::ArrayRef<int64_t> dims) {
  Order order;
  int64_t stride[MOST_DIMS], to = 1;
  for (int64_t d = x.dim() - 1, s = 1; d >= 0; s *= x.size(d--)) stride[d] = s;
  for (int64_t i = x.dim() - 1; i >= 0; --i) {
    const int64_t d = dims[i] < 0 ? dims[i] + x.dim() : dims[i];
    const Axis axis{x.size(d), stride[d], to};
    to *= axis.size;
    if (axis.size == 1) continue;
    Axis* inner = order.count ? &order.axes[order.count - 1] : nullptr;
    if (inner && axis.from == inner->from * inner->size) {
      inner->size *= axis.size;
    } else {
      order.axes[order.count++] = axis;
    }
  }
  if (order.count == 0) order.axes[order.count++] = {1, 1, 1};
  return order;  // the innermost first
}

template <typename T>
void tiles(const T* x, T* y, const Axis& row, const Axis& column) {
  for (int64_t r0 = 0; r0 < row.size; r0 += TILE)
    for (int64_t c0 = 0; c0 < column.size; c0 += TILE)
      for (int64_t r = r0; r < std::min(r0 + TILE, row.size); ++r)
        for (int64_t c = c0; c < std::min(c0 + TILE, column.size); ++c)
          y[r * row.to + c] = x[r * row.from + c * column.from];
}

// Copies everything below the outermost `level` axes.
template <typename T>
void copy(const Order& order, int level, const T* x, T* y) {
  const Axis &inner = order.axes[0], &axis = order.axes[level];
  if (level == 0) {
    if (axis.from == 1) {
      std::copy(x, x + axis.size, y);
    } else {
      for (int64_t i = 0; i < axis.size; ++i) y[i] = x[i * axis.from];
    }
  } else if (level == 1 && inner.from != 1) {
    tiles(x, y, axis, inner);
  } else {
    for (int64_t i = 0; i < axis.size; ++i) copy(order, level - 1, x + i * axis.from, y + i * axis.to);
  }
}

template <typename T>
void permute(const Order& order, const Tensor& x, Tensor& out) {
  const T* from = static_cast<const T*>(x.const_data_ptr());
  T* to = static_cast<T*>(out.mutable_data_ptr());
  const int top = order.count - 1;
  const Axis outer = order.axes[top];
  parallel(outer.size, x.nbytes() / outer.size, [&](int64_t begin, int64_t end) {
    Order part = order;
    part.axes[top].size = end - begin;
    copy<T>(part, top, from + begin * outer.from, to + begin * outer.to);
  });
}

// Every dimension of x once in `dims`, and the output's sizes in their order.
bool is_order(const Tensor& x, const executorch::aten::ArrayRef<int64_t>& dims, const Tensor& out) {
  if (x.dim() > MOST_DIMS || int64_t(dims.size()) != x.dim() || out.dim() != x.dim()) return false;
  uint32_t seen = 0;
  for (int64_t i = 0; i < x.dim(); ++i) {
    if (dims[i] < -x.dim() || dims[i] >= x.dim()) return false;
    const int64_t d = dims[i] < 0 ? dims[i] + x.dim() : dims[i];
    if (seen >> d & 1 || out.size(i) != x.size(d)) return false;
    seen |= 1u << d;
  }
  return true;
}

Tensor& permute_out(
    KernelRuntimeContext& context, const Tensor& x, executorch::aten::ArrayRef<int64_t> dims, Tensor& out
) {
  REQUIRE(x.scalar_type() == out.scalar_type() && is_dense(x) && is_dense(out));
  REQUIRE(is_order(x, dims, out));
  if (x.numel() == 0) return out;
  const Order order = order_of(x, dims);
  switch (x.element_size()) {
    case 1: permute<uint8_t>(order, x, out); break;
    case 2: permute<uint16_t>(order, x, out); break;
    case 4: permute<uint32_t>(order, x, out); break;
    case 8: permute<uint64_t>(order, x, out); break;
    default: REQUIRE(!"a dtype of 1, 2, 4 or 8 bytes");
  }
  return out;
}

HYBRIDGE_KERNEL("permute.out", permute_out);

}  // namespace
}  // namespace hybridge
