// State into snapshot slots and back, and emptied: whole copies, made where a flag says so.
#include "kernel.h"

#include <cstring>

namespace hybridge {
namespace {

// The memory of slot `index` of slots [1, N, ...], as large as the state; null where the two do not fit together.
uint8_t* slot_of(const Tensor& slots, const Tensor& state, int64_t index) {
  const int64_t count = slots.size(1), bytes = state.nbytes();
  const bool fits = int64_t(slots.nbytes()) == count * bytes && index >= 0 && index < count;
  return fits ? static_cast<uint8_t*>(const_cast<void*>(slots.const_data_ptr())) + index * bytes : nullptr;
}

void copy(void* to, const void* from, int64_t bytes) {
  parallel(bytes, 1, [&](int64_t begin, int64_t end) {
    std::memcpy(static_cast<uint8_t*>(to) + begin, static_cast<const uint8_t*>(from) + begin, end - begin);
  });
}

Tensor& keep_state_out(KernelRuntimeContext& context, const Tensor& state, Tensor& slots, const Tensor& slot, const Tensor& when, Tensor& out) {
  uint8_t* kept = slot_of(slots, state, *data<int64_t>(slot));
  ET_KERNEL_CHECK(context, kept, InvalidArgument, out);
  if (*data<bool>(when)) copy(kept, state.const_data_ptr(), state.nbytes());
  return out;
}

Tensor& bring_back_out(KernelRuntimeContext& context, const Tensor& slots, Tensor& state, const Tensor& slot, const Tensor& when, Tensor& out) {
  const uint8_t* kept = slot_of(slots, state, *data<int64_t>(slot));
  ET_KERNEL_CHECK(context, kept, InvalidArgument, out);
  if (*data<bool>(when)) copy(state.mutable_data_ptr(), kept, state.nbytes());
  return out;
}

Tensor& clear_out(KernelRuntimeContext& context, Tensor& state, const Tensor& when, Tensor& out) {
  if (*data<bool>(when)) std::memset(state.mutable_data_ptr(), 0, state.nbytes());
  return out;
}

EXECUTORCH_LIBRARY(hybridge, "keep_state.out", keep_state_out);
EXECUTORCH_LIBRARY(hybridge, "bring_back.out", bring_back_out);
EXECUTORCH_LIBRARY(hybridge, "clear.out", clear_out);

}  // namespace
}  // namespace hybridge
