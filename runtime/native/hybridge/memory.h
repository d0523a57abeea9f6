// Memory of a session: arenas that the program was planned for, and a heap for what the runtime builds while it loads methods.
#ifndef HYBRIDGE_NATIVE_MEMORY_H
#define HYBRIDGE_NATIVE_MEMORY_H

#include <executorch/runtime/core/memory_allocator.h>
#include <executorch/runtime/core/span.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <vector>

namespace hybridge {

inline uint8_t* align(uint8_t* address, size_t alignment) {
  return reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(address) + alignment - 1) / alignment * alignment);
}

// Zeros. Where the system hands out cleared pages lazily, those that no token has reached take no memory.
class Arena {
 public:
  explicit Arena(size_t size) : memory_(static_cast<uint8_t*>(std::calloc(size + ALIGNMENT, 1))), size_(size) {}

  bool allocated() const { return memory_ != nullptr; }
  executorch::runtime::Span<uint8_t> bytes() const { return {align(memory_.get(), ALIGNMENT), size_}; }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };

  static constexpr size_t ALIGNMENT = 64;
  std::unique_ptr<uint8_t, Free> memory_;
  size_t size_;
};

// Grows with what is asked of it and gives everything back at its end.
class Heap final : public executorch::runtime::MemoryAllocator {
 public:
  Heap() : MemoryAllocator(0, nullptr) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    std::unique_ptr<uint8_t[]> block(new (std::nothrow) uint8_t[size + alignment]);
    if (block == nullptr) return nullptr;
    blocks_.push_back(std::move(block));
    return align(blocks_.back().get(), alignment);
  }

  void reset() override { blocks_.clear(); }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
};

}  // namespace hybridge

#endif
