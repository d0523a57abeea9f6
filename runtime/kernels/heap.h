// Memory of one thread for as long as it works. Kernels run where an exception ends the process, so none is thrown.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>

#include "instruction_set.h"

namespace hybridge::inline INSTRUCTION_SET {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

template <typename T>
using Heap = std::unique_ptr<T[], Free>;

// Null where there is no memory.
template <typename T>
Heap<T> heap(int64_t count) {
  size_t bytes = 0;
  const bool overflows = count < 0 || __builtin_mul_overflow(size_t(count), sizeof(T), &bytes);
  return Heap<T>(overflows ? nullptr : static_cast<T*>(std::malloc(bytes)));
}

}  // namespace hybridge::inline INSTRUCTION_SET
