// y = x where the condition holds, else other, all three broadcast: rows of one choice are copied, others go number by
// number.
#include <array>

#include "checks.h"
#include "kernel.h"

namespace hybridge {
namespace {

constexpr int MOST_DIMS = 8;

// Returns the strides of a tensor that is broadcast to the output's dimensions: 0 for a dimension of size one.
using Strides = std::array<int64_t, MOST_DIMS>;

bool strides_of(const Tensor& x, const Tensor& out, Strides& strides) {
  strides.fill(0);
  const int64_t missing = out.dim() - x.dim();
  if (missing < 0) return false;
  for (int64_t d = x.dim() - 1, step = 1; d >= 0; step *= x.size(d--)) {
    if (x.size(d) != 1 && x.size(d) != out.size(missing + d)) return false;
    strides[missing + d] = x.size(d) == 1 ? 0 : step;
  }
  return true;
}

template <typename T>
void fill(const T* from, int64_t step, int64_t count, T* to) {
  if (step) {
    std::copy(from, from + count, to);
  } else {
    std::fill(to, to + count, *from);
  }
}

struct Choice {
  Strides condition, x, other;
  int64_t rows, last;
};

int64_t offset(const Tensor& out, const Strides& strides, int64_t row) {
  int64_t at = 0;
  for (int64_t d = out.dim() - 2; d >= 0; row /= out.size(d--)) at += row % out.size(d) * strides[d];
  return at;
}

template <typename T>
void choose(const Choice& c, const Tensor& condition, const Tensor& x, const Tensor& other, Tensor& out) {
  const auto* holds = static_cast<const uint8_t*>(condition.const_data_ptr());  // a bool, whose byte may be any
  const auto *a = static_cast<const T*>(x.const_data_ptr()), *b = static_cast<const T*>(other.const_data_ptr());
  auto* to = static_cast<T*>(out.mutable_data_ptr());
  const int64_t d = out.dim() - 1, cs = d < 0 ? 0 : c.condition[d], as = d < 0 ? 0 : c.x[d],
                bs = d < 0 ? 0 : c.other[d];
  parallel(c.rows, c.last * int64_t(sizeof(T)), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const uint8_t* when = holds + offset(out, c.condition, row);
      const T *left = a + offset(out, c.x, row), *right = b + offset(out, c.other, row);
      T* y = to + row * c.last;
      if (cs == 0) {
        *when ? fill(left, as, c.last, y) : fill(right, bs, c.last, y);
      } else {
        for (int64_t i = 0; i < c.last; ++i) y[i] = when[i] ? left[i * as] : right[i * bs];
      }
    }
  });
}

Tensor& where_out(
    KernelRuntimeContext& context, const Tensor& condition, const Tensor& x, const Tensor& other, Tensor& out
) {
  Choice c{};
  REQUIRE(out.dim() <= MOST_DIMS && is_dense(out));
  REQUIRE(is_dense_of<bool>(condition) && strides_of(condition, out, c.condition));
  REQUIRE(x.scalar_type() == out.scalar_type() && is_dense(x) && strides_of(x, out, c.x));
  REQUIRE(other.scalar_type() == out.scalar_type() && is_dense(other) && strides_of(other, out, c.other));
  if (out.numel() == 0) return out;
  c.last = out.dim() ? last(out) : 1;
  c.rows = out.numel() / c.last;
  switch (out.element_size()) {
    case 1: choose<uint8_t>(c, condition, x, other, out); break;
    case 2: choose<uint16_t>(c, condition, x, other, out); break;
    case 4: choose<uint32_t>(c, condition, x, other, out); break;
    case 8: choose<uint64_t>(c, condition, x, other, out); break;
    default: REQUIRE(!"a dtype of 1, 2, 4 or 8 bytes");
  }
  return out;
}

HYBRIDGE_KERNEL("where.out", where_out);

}  // namespace
}  // namespace hybridge
