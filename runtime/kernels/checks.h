// The checks at the head of every kernel. A program may be forged, so a tensor is trusted with nothing before its
// dtype, its rank, every size and its layout in memory are those that the kernel's loops go by; a call that is refused
// fails, and touches nothing.
//
//   Size B, T, C, W;
//   REQUIRE(is<float>(x, B, T, C));       // the first tensor with a size sets it
//   REQUIRE(is<float>(window, B, W, C));  // and every other must have the same
//   REQUIRE(is<float>(taps, W + 1, C));
//   REQUIRE(is<float>(bias, C));          // an optional tensor is checked where it is given
//
// No size may be 0. Then a product of some of a tensor's sizes is at most the number of its elements, which are in
// memory, and cannot overflow; products of sizes of several tensors or of integer arguments go through product().
#pragma once

#include "kernel.h"

#include <type_traits>

#define REQUIRE(...) ET_KERNEL_CHECK(context, (__VA_ARGS__), InvalidArgument, out)

namespace hybridge::inline INSTRUCTION_SET {

// A size that tensors share: unknown until the first of them is checked.
class Size {
 public:
  operator int64_t() const { return value_; }

  bool is(int64_t size) {
    if (!value_) value_ = size;
    return size > 0 && size == value_;
  }

 private:
  int64_t value_ = 0;
};

inline bool same(int64_t size, Size& wanted) { return wanted.is(size); }
inline bool same(int64_t size, int64_t wanted) { return size > 0 && size == wanted; }

template <typename T>
constexpr ScalarType type_of() {
  if constexpr (std::is_same_v<T, float>) return ScalarType::Float;
  if constexpr (std::is_same_v<T, int64_t>) return ScalarType::Long;
  if constexpr (std::is_same_v<T, int8_t>) return ScalarType::Char;
  if constexpr (std::is_same_v<T, uint8_t>) return ScalarType::Byte;
  if constexpr (std::is_same_v<T, bool>) return ScalarType::Bool;
  return ScalarType::Half;  // whatever a processor calls it
}

// Elements lie in memory one behind another in the order of the dimensions; how those of size 1 are ordered makes no
// difference.
inline bool is_dense(const Tensor& x) {
  const auto order = x.dim_order();
  int64_t before = -1;
  for (int64_t i = 0; i < x.dim(); ++i) {
    const int64_t d = order[i];
    if (x.size(d) == 1) continue;
    if (d < before) return false;
    before = d;
  }
  return reinterpret_cast<uintptr_t>(x.const_data_ptr()) % x.element_size() == 0 &&
         (x.const_data_ptr() || x.numel() == 0);
}

template <typename T>
bool is_dense_of(const Tensor& x) {
  return x.scalar_type() == type_of<T>() && is_dense(x);
}

// A tensor of exactly this shape.
template <typename T, typename... S>
bool is(const Tensor& x, S&&... sizes) {
  int64_t d = 0;
  return x.dim() == int64_t(sizeof...(S)) && is_dense_of<T>(x) && (same(x.size(d++), sizes) && ...);
}

// A tensor of any rank with so many elements.
template <typename T, typename S>
bool holds(const Tensor& x, S&& count) {
  return is_dense_of<T>(x) && same(x.numel(), count);
}

// A tensor of rank 1 or more, seen as rows of its last dimension.
template <typename T, typename R, typename W>
bool is_rows(const Tensor& x, R&& count, W&& width) {
  return x.dim() > 0 && is_dense_of<T>(x) && same(last(x), width) && same(x.numel() / last(x), count);
}

template <typename T, typename... S>
bool is(const std::optional<Tensor>& x, S&&... sizes) {
  return !x || is<T>(*x, sizes...);
}

template <typename T, typename S>
bool holds(const std::optional<Tensor>& x, S&& count) {
  return !x || holds<T>(*x, count);
}

template <typename T, typename R, typename W>
bool is_rows(const std::optional<Tensor>& x, R&& count, W&& width) {
  return !x || is_rows<T>(*x, count, width);
}

// The only number of an int64 tensor.
inline bool reads(const Tensor& x, int64_t& value) {
  if (!holds<int64_t>(x, 1)) return false;
  value = *data<int64_t>(x);
  return true;
}

// The only truth of a bool tensor, whose byte may be any.
inline bool reads(const Tensor& x, bool& value) {
  if (!holds<bool>(x, 1)) return false;
  value = *data<uint8_t>(x) != 0;
  return true;
}

// A tensor's number that lies within low..high.
inline bool reads(const Tensor& x, int64_t& value, int64_t low, int64_t high) {
  return reads(x, value) && low <= value && value <= high;
}

// `count` things from `first` on lie within 0..size.
inline bool fits(int64_t first, int64_t count, int64_t size) {
  return first >= 0 && count <= size && first <= size - count;
}

// The product of sizes; -1, which no size is, where it overflows.
template <typename... N>
int64_t product(N... sizes) {
  int64_t total = 1;
  const bool overflows = (__builtin_mul_overflow(total, int64_t(sizes), &total) | ...);
  return overflows ? -1 : total;
}

}  // namespace hybridge::inline INSTRUCTION_SET
