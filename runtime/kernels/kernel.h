// What every kernel needs of ExecuTorch: its types, threads of its pool, and views of tensors.
#ifndef HYBRIDGE_KERNEL_H
#define HYBRIDGE_KERNEL_H

#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <cstdint>
#include <optional>

namespace hybridge {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

// Work of so many bytes or operations is worth a thread of its own.
constexpr int64_t WORTH_A_THREAD = 64 << 10;

// f(begin, end) over parts of 0..count; `each` is what one of them costs, in bytes read or operations.
template <typename F>
void parallel(int64_t count, int64_t each, const F& f) {
  const int64_t grain = std::max<int64_t>(1, WORTH_A_THREAD / std::max<int64_t>(1, each));
  if (count <= grain) {
    f(int64_t(0), count);
  } else {
    executorch::extension::parallel_for(0, count, grain, f);
  }
}

// Memory for one call; freed with it. Null where there is none, and the call has failed.
template <typename T>
T* scratch(KernelRuntimeContext& context, int64_t count) {
  auto memory = context.allocate_temp(count * sizeof(T), 64);
  return memory.ok() ? static_cast<T*>(memory.get()) : nullptr;
}

template <typename T>
const T* data(const Tensor& tensor) { return tensor.const_data_ptr<T>(); }

template <typename T>
T* data(Tensor& tensor) { return tensor.mutable_data_ptr<T>(); }

inline int64_t last(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

// A float32 tensor as rows of its last dimension.
inline int64_t rows(const Tensor& tensor) { return last(tensor) == 0 ? 0 : tensor.numel() / last(tensor); }

inline bool is_float(const Tensor& tensor) { return tensor.scalar_type() == ScalarType::Float; }

}  // namespace hybridge

#endif
