// The number of threads that sessions compute on: ExecuTorch's pool of the process, one thread for each fast core.
//
// ExecuTorch makes a thread for every processor. On a phone, half of these are a third as fast as the others, and share their
// memory: what waits for them is slower with them than without. In a container there may be sixty-four, and a quota of two.
#ifndef HYBRIDGE_NATIVE_THREADS_H
#define HYBRIDGE_NATIVE_THREADS_H

#include <executorch/runtime/core/error.h>
#include <executorch/runtime/platform/log.h>

#include <cstddef>
#include <cstdint>
#include <mutex>

#include <hybridge/processors.h>

#if __has_include(<executorch/extension/threadpool/threadpool.h>)
#include <executorch/extension/threadpool/threadpool.h>
#else
// ExecuTorch's installed package has this in a library, and not among its headers.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t new_thread_count);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool
#endif

namespace hybridge {

namespace threads {

// The process's choice. Another number of threads is another pool, and the old one is gone then.
struct Choice {
  std::mutex turn;
  bool is_made = false;
  size_t holders = 0;  // of programs that keep a pointer to the pool
};

inline Choice& choice() {
  static Choice one;
  return one;
}

// Keeps the pool as it is for as long as it lives: for programs with parts of XNNPACK, which point to it from their load on.
class PoolHold {
 public:
  PoolHold() {
    const std::lock_guard lock(choice().turn);
    ++choice().holders;
  }
  PoolHold(const PoolHold&) = delete;
  PoolHold& operator=(const PoolHold&) = delete;
  ~PoolHold() {
    const std::lock_guard lock(choice().turn);
    --choice().holders;
  }
};

}  // namespace threads

// Returns the number of threads.
inline size_t thread_count() {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  return pool != nullptr ? pool->get_thread_count() : 1;
}

namespace threads {

// The caller has the turn.
inline executorch::runtime::Error use(size_t count) {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  if (pool != nullptr && count != pool->get_thread_count()) {
    if (choice().holders > 0) {
      ET_LOG(Error, "open sessions compute with XNNPACK on the %zu threads that they found: close them, or set the threads before",
             pool->get_thread_count());
      return executorch::runtime::Error::InvalidState;
    }
    pool->_unsafe_reset_threadpool(static_cast<uint32_t>(count));
  }
  choice().is_made = true;
  return executorch::runtime::Error::Ok;
}

}  // namespace threads

// Sets the threads of every session in this process; 0: one for each fast core, the default. InvalidState, and nothing changes, for
// another number than there is while sessions hold the pool. Programs with XNNPACK that an app has loaded by itself are not known
// here: call it before they are.
inline executorch::runtime::Error set_threads(size_t count) {
  const std::lock_guard lock(threads::choice().turn);
  return threads::use(count > 0 ? count : fast_cores());
}

// Sets the default threads when the first model is loaded, unless a number was chosen.
inline void set_default_threads() {
  const std::lock_guard lock(threads::choice().turn);
  if (!threads::choice().is_made) (void)threads::use(fast_cores());
}

}  // namespace hybridge

#endif
