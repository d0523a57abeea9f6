#include "engine/lazy_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace hybridge {

namespace {

#ifdef MAP_NORESERVE
constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
#else
constexpr int FLAGS = MAP_PRIVATE | MAP_ANONYMOUS;
#endif

// On Linux the pages are gone at once; where that name only advises, this one frees them when room is short.
#ifdef __linux__
constexpr int UNUSED = MADV_DONTNEED;
#else
constexpr int UNUSED = MADV_FREE;
#endif

}  // namespace

LazyMemory::LazyMemory(size_t size) : size_(std::max(size, size_t(1))) {
  memory_ = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, FLAGS, -1, 0);
  if (memory_ == MAP_FAILED) memory_ = nullptr;
#ifdef MADV_NOHUGEPAGE
  if (memory_ != nullptr) (void)::madvise(memory_, size_, MADV_NOHUGEPAGE);  // kernels without large pages refuse it
#endif
}

void LazyMemory::give_back(Bytes part) const {
  const auto* begin = static_cast<uint8_t*>(memory_);
  if (part.data() < begin || part.data() + part.size() > begin + size_) return;
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const auto first = static_cast<size_t>(part.data() - begin + page - 1) / page * page;
  const auto last = static_cast<size_t>(part.data() + part.size() - begin) / page * page;
  if (first < last) (void)::madvise(static_cast<uint8_t*>(memory_) + first, last - first, UNUSED);
}

LazyMemory::~LazyMemory() {
  if (memory_ != nullptr) (void)::munmap(memory_, size_);
}

}  // namespace hybridge
