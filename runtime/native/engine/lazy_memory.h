// Memory of zeros of which a page takes room once it is written: a state has rows for a whole context, and most texts
// are short.
#ifndef HYBRIDGE_ENGINE_LAZY_MEMORY_H
#define HYBRIDGE_ENGINE_LAZY_MEMORY_H

#include <cstddef>
#include <cstdint>
#include <utility>

#include "engine/model_info.h"

namespace hybridge {

class LazyMemory {
 public:
  // Begins on a page. Pages are small ones: a large page would be taken whole for the first row of each buffer in it.
  explicit LazyMemory(size_t size);

  LazyMemory(LazyMemory&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  LazyMemory& operator=(LazyMemory&&) = delete;
  ~LazyMemory();

  // Returns false if the system has no addresses left.
  bool is_there() const { return memory_ != nullptr; }

  Bytes bytes() const { return {static_cast<uint8_t*>(memory_), size_}; }

  // Gives the room of whole pages within a part back to the system, if it is a part of this memory. Their numbers are
  // lost: they are the old ones or zeros.
  void give_back(Bytes part) const;

 private:
  void* memory_;
  size_t size_;
};

}  // namespace hybridge

#endif
