#ifndef HYBRIDGE_NATIVE_PTE_HEAP_H
#define HYBRIDGE_NATIVE_PTE_HEAP_H

#include <executorch/runtime/core/memory_allocator.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace hybridge::pte {

// For what the runtime builds while it loads methods: grows with what is asked of it and gives everything back at its
// end.
class Heap final : public executorch::runtime::MemoryAllocator {
 public:
  Heap() : MemoryAllocator(0, nullptr) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    std::unique_ptr<uint8_t[]> block(new (std::nothrow) uint8_t[size + alignment]);
    if (block == nullptr) return nullptr;
    blocks_.push_back(std::move(block));
    auto* first = blocks_.back().get();
    return first + (alignment - reinterpret_cast<uintptr_t>(first) % alignment) % alignment;
  }

  void reset() override { blocks_.clear(); }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
};

}  // namespace hybridge::pte

#endif
