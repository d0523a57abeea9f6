// ExecuTorch for kernels: its types, threads of its pool, and views of tensors.
#ifndef HYBRIDGE_KERNEL_H
#define HYBRIDGE_KERNEL_H

#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/runtime/kernel/kernel_includes.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "dispatch/pool.h"
#include "dispatch/register_kernel.h"

namespace hybridge::inline INSTRUCTION_SET {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::Error;
using executorch::runtime::KernelRuntimeContext;

// In bytes or operations: what is worth waking other threads for, and the least that a thread takes at a time.
constexpr int64_t WORTH_THREADS = 128 << 10, WORTH_TAKING = 32 << 10;

// Returns into how many pieces `count` things are cut; `each` is what one of them costs, in bytes read or operations.
inline int64_t pieces_of(int64_t count, int64_t each) {
  each = std::max<int64_t>(1, each);
  if (count < 2 || count <= WORTH_THREADS / each) return 1;
  return piece_count(count, WORTH_TAKING / each, pool_threads());
}

// f(begin, end) over parts of 0..count; `each` is what one of them costs, in bytes read or operations.
template <typename F>
void parallel(int64_t count, int64_t each, const F& f) {
  const int64_t pieces = pieces_of(count, each);
  if (pieces == 1) return f(int64_t(0), count);
  const auto piece = [&](int64_t index) { f(index * count / pieces, (index + 1) * count / pieces); };
  run_pieces(
      pieces, count * each, [](void* run, int64_t index) { (*static_cast<decltype(piece)*>(run))(index); },
      (void*)&piece
  );
}

// Returns how many parts of parallel(count, each, …) run at the same time, at most.
inline int64_t parts_at_once(int64_t count, int64_t each) { return std::min(pieces_of(count, each), pool_threads()); }

// Memory for one call; freed with it. Null where there is none, and the call has failed.
template <typename T>
T* scratch(KernelRuntimeContext& context, int64_t count) {
  size_t bytes = 0;
  if (count < 0 || __builtin_mul_overflow(size_t(count), sizeof(T), &bytes)) return nullptr;
  auto memory = context.allocate_temp(bytes, 64);
  return memory.ok() ? static_cast<T*>(memory.get()) : nullptr;
}

template <typename T>
const T* data(const Tensor& tensor) {
  return tensor.const_data_ptr<T>();
}

template <typename T>
T* data(Tensor& tensor) {
  return tensor.mutable_data_ptr<T>();
}

inline int64_t last(const Tensor& tensor) { return tensor.size(tensor.dim() - 1); }

// A float32 tensor as rows of its last dimension.
inline int64_t rows(const Tensor& tensor) { return last(tensor) == 0 ? 0 : tensor.numel() / last(tensor); }

template <typename T>
bool is_kind(const executorch::runtime::EValue& value, const T*) {
  return value.tryTo<T>().ok();
}

template <typename T>
bool is_kind(const executorch::runtime::EValue& value, const std::optional<T>*) {
  return value.isNone() || value.tryTo<T>().ok();
}

// Checks that a program calls a kernel with enough values (those that it returns may follow), and of the right kinds.
template <typename R, typename... A>
bool takes(R (*)(KernelRuntimeContext&, A...), executorch::runtime::Span<executorch::runtime::EValue*> values) {
  size_t i = 0;
  return values.size() >= sizeof...(A) && (is_kind(*values[i++], static_cast<std::decay_t<A>*>(nullptr)) && ...);
}

template <typename Kernel, typename R, typename... A>
void call_with_values(
    KernelRuntimeContext& context, executorch::runtime::Span<executorch::runtime::EValue*> values,
    R (*)(KernelRuntimeContext&, A...)
) {
  using namespace executorch::extension::kernel_util_internal;
  using Types = typelist<A...>;
  call_functor_with_args_from_stack<Kernel, count_nonconst_tensors<Types>::value>(
      context, values, std::index_sequence_for<A...>(), static_cast<Types*>(nullptr)
  );
}

// Calls a kernel once its values are checked. ExecuTorch's own wrapper checks neither their number nor their kinds, and
// takes no list of outputs.
template <typename Kernel>
void call(KernelRuntimeContext& context, executorch::runtime::Span<executorch::runtime::EValue*> values) {
  if (takes(Kernel::func_ptr(), values)) return call_with_values<Kernel>(context, values, Kernel::func_ptr());
  ET_LOG(
      Error, "%s is called with %zu values, or with values of other kinds than its own", Kernel::func_name_,
      values.size()
  );
  context.fail(Error::InvalidArgument);
}

}  // namespace hybridge::inline INSTRUCTION_SET

// The kernel of operator hybridge::NAME. Every set's files run this when the library is loaded, on any processor, so it
// only passes addresses on.
#define HYBRIDGE_KERNEL(NAME, FUNCTION)                                                                       \
  static constexpr char FUNCTION##_name[] = "hybridge::" NAME;                                                \
  [[maybe_unused]] static const bool FUNCTION##_registered = ::hybridge::register_kernel(                     \
      INSTRUCTION_SET_NAME, FUNCTION##_name, &::hybridge::call<EXECUTORCH_FN_TYPE(FUNCTION, FUNCTION##_name)> \
  )

#endif
