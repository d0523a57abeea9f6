#include "engine/lazy_memory.h"

#include <sys/mman.h>

#include <algorithm>

namespace hybridge {

namespace {

#ifdef MAP_NORESERVE
constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS;
#endif

}  // namespace

LazyMemory::LazyMemory(size_t size) : size_(std::max(size, size_t(1))) {
  memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
  if (memory_ == MAP_FAILED) memory_ = nullptr;
#ifdef MADV_NOHUGEPAGE
  if (memory_ != nullptr) (void)::madvise(memory_, size_, MADV_NOHUGEPAGE);  // kernels without large pages refuse it
#endif
}

LazyMemory::~LazyMemory() {
  if (memory_ != nullptr) (void)::munmap(memory_, size_);
}

}  // namespace hybridge
