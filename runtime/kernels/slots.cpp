// State into snapshot slots and back, and emptied: whole copies, made where a flag says so.
#include "checks.h"
#include "kernel.h"

#include <cstring>

namespace hybridge {
namespace {

// Slots [1, N, ...] of any dtype, each as large as the state.
bool fit(const Tensor& slots, const Tensor& state) {
  return slots.dim() > 1 && slots.scalar_type() == state.scalar_type() && is_dense(slots) && is_dense(state) &&
         state.numel() > 0 && slots.numel() == product(slots.size(1), state.numel());
}

// The memory of slot `index`; null where there is no such slot.
uint8_t* slot_of(const Tensor& slots, const Tensor& state, const Tensor& slot) {
  int64_t index;
  const bool there = reads(slot, index, 0, slots.size(1) - 1);
  return there ? static_cast<uint8_t*>(const_cast<void*>(slots.const_data_ptr())) + index * int64_t(state.nbytes())
               : nullptr;
}

void copy(void* to, const void* from, int64_t bytes) {
  parallel(bytes, 1, [&](int64_t begin, int64_t end) {
    std::memmove(static_cast<uint8_t*>(to) + begin, static_cast<const uint8_t*>(from) + begin, end - begin);
  });
}

Tensor& keep_state_out(
    KernelRuntimeContext& context, const Tensor& state, Tensor& slots, const Tensor& slot, const Tensor& when,
    Tensor& out
) {
  bool wanted;
  REQUIRE(fit(slots, state));
  REQUIRE(reads(when, wanted));
  uint8_t* kept = slot_of(slots, state, slot);
  REQUIRE(kept);
  if (wanted) copy(kept, state.const_data_ptr(), state.nbytes());
  return out;
}

Tensor& bring_back_out(
    KernelRuntimeContext& context, const Tensor& slots, Tensor& state, const Tensor& slot, const Tensor& when,
    Tensor& out
) {
  bool wanted;
  REQUIRE(fit(slots, state));
  REQUIRE(reads(when, wanted));
  const uint8_t* kept = slot_of(slots, state, slot);
  REQUIRE(kept);
  if (wanted) copy(state.mutable_data_ptr(), kept, state.nbytes());
  return out;
}

Tensor& clear_out(KernelRuntimeContext& context, Tensor& state, const Tensor& when, Tensor& out) {
  bool wanted;
  REQUIRE(is_dense(state) && state.numel() > 0);
  REQUIRE(reads(when, wanted));
  if (wanted) std::memset(state.mutable_data_ptr(), 0, state.nbytes());
  return out;
}

HYBRIDGE_KERNEL("keep_state.out", keep_state_out);
HYBRIDGE_KERNEL("bring_back.out", bring_back_out);
HYBRIDGE_KERNEL("clear.out", clear_out);

}  // namespace
}  // namespace hybridge
