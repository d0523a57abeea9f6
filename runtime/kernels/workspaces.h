// Scratch memory of the threads that work on one call. All of it is taken before the first of them begins, so that a
// call for which there is too little fails before it has written anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <new>

#include "checks.h"
#include "kernel.h"

namespace hybridge::inline INSTRUCTION_SET {

template <typename T>
class Workspaces {
 public:
  // One of `size` numbers for each part of parallel(count, each, …) that may run at the same time.
  Workspaces(KernelRuntimeContext& context, int64_t count, int64_t each, int64_t size)
      : workspaces_(parts_at_once(count, each)), stride_(product(size / LINE + 1, LINE)) {
    taken_ = scratch<std::atomic_flag>(context, workspaces_);
    memory_ = scratch<T>(context, workspaces_ == 1 ? size : product(workspaces_, stride_));
    for (int64_t i = 0; taken_ && i < workspaces_; ++i) new (taken_ + i) std::atomic_flag();
  }

  explicit operator bool() const { return taken_ && memory_; }

  // A workspace that no other thread has, until this is destroyed.
  class Lease {
   public:
    explicit Lease(const Workspaces& of) : of_(of) {
      while (of_.taken_[index_].test_and_set(std::memory_order_acquire)) index_ = (index_ + 1) % of_.workspaces_;
    }
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    ~Lease() { of_.taken_[index_].clear(std::memory_order_release); }

    T* memory() const { return of_.memory_ + index_ * of_.stride_; }

   private:
    const Workspaces& of_;
    int64_t index_ = 0;
  };

  Lease take() const { return Lease(*this); }

 private:
  static constexpr int64_t LINE = 64 / sizeof(T);  // threads share no cache line

  int64_t workspaces_, stride_;
  std::atomic_flag* taken_;
  T* memory_;
};

// f(batch, head, tokens) for each head of a recurrence, in threads, each of which has Tokens(memory, most, shape) of
// its own; false where there is no memory for them, and f was not called.
template <typename Tokens, typename Shape, typename F>
bool for_heads(KernelRuntimeContext& context, int64_t batch, const Shape& shape, int64_t most, const F& f) {
  const int64_t count = batch * shape.heads, each = shape.head_size() * 2 * sizeof(float);
  const Workspaces<float> workspaces(context, count, each, Tokens::size(most, shape));
  if (!workspaces) return false;
  parallel(count, each, [&](int64_t begin, int64_t end) {
    const auto own = workspaces.take();
    Tokens tokens(own.memory(), most, shape);
    for (int64_t item = begin; item < end; ++item) f(item / shape.heads, item % shape.heads, tokens);
  });
  return true;
}

}  // namespace hybridge::inline INSTRUCTION_SET
