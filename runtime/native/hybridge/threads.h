// The number of threads that sessions compute on: ExecuTorch's pool of the process, one for each fast core.
//
// ExecuTorch makes a thread for every core. On a phone, half of these are a third as fast as the others, and share their
// memory: what waits for them is slower with them than without.
#ifndef HYBRIDGE_NATIVE_THREADS_H
#define HYBRIDGE_NATIVE_THREADS_H

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#if defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__linux__)
#include <sched.h>
#endif

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

#if defined(__linux__)
// Returns a core's relative speed by Linux; 0 if it gives none.
inline int64_t speed(const std::string& cores, int core) {
  const std::string folder = cores + "/cpu" + std::to_string(core) + "/";
  for (const char* name : {"cpu_capacity", "cpufreq/cpuinfo_max_freq"}) {
    std::ifstream file(folder + name);
    if (int64_t value = 0; file >> value) return value;
  }
  return 0;
}
#endif

// True once a number was chosen.
inline std::atomic<bool>& chosen() {
  static std::atomic<bool> any = false;
  return any;
}

inline void use(size_t count) {
  if (auto* pool = executorch::extension::threadpool::get_threadpool()) pool->_unsafe_reset_threadpool(static_cast<uint32_t>(count));
}

}  // namespace threads

// Returns the number of cores that this process may run on with at least half the fastest one's speed; 1 or more. `cores`:
// Linux's description of them.
inline size_t fast_cores([[maybe_unused]] const std::string& cores = "/sys/devices/system/cpu") {
#if defined(__APPLE__)
  int count = 0;
  size_t size = sizeof(count);
  if (sysctlbyname("hw.perflevel0.physicalcpu", &count, &size, nullptr, 0) == 0 && count > 0) return static_cast<size_t>(count);
#elif defined(__linux__)
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof(allowed), &allowed) == 0) {
    int64_t speeds[CPU_SETSIZE], *end = speeds;
    for (int core = 0; core < CPU_SETSIZE; ++core)
      if (CPU_ISSET(core, &allowed)) *end++ = threads::speed(cores, core);
    const int64_t fastest = *std::max_element(speeds, end);
    return static_cast<size_t>(std::count_if(speeds, end, [&](int64_t each) { return 2 * each >= fastest; }));
  }
#endif
  return std::max<size_t>(1, std::thread::hardware_concurrency());
}

// Sets the threads of every session in this process; 0: one for each fast core, the default. Call it before models are loaded:
// XNNPACK keeps the threads that it found.
inline void set_threads(size_t count) {
  threads::chosen() = true;
  threads::use(count > 0 ? count : fast_cores());
}

// Returns the number of threads.
inline size_t thread_count() {
  auto* pool = executorch::extension::threadpool::get_threadpool();
  return pool != nullptr ? pool->get_thread_count() : 1;
}

// Sets the default threads when the first model is loaded, unless a number was chosen.
inline void set_default_threads() {
  if (!threads::chosen().exchange(true)) threads::use(fast_cores());
}

}  // namespace hybridge

#endif
