// ExecuTorch's pool answers when each of its threads has been woken, has worked and has said so. A decode asks it a
// hundred times, and waking a thread takes as long as a piece of work: on virtual machines 50 microseconds. Here nobody
// waits for a thread that has not begun: it finds the work done, and sleeps on. And a thread that has just worked looks
// out for more before it sleeps. If other threads do not help (help.h), none is asked.
#include "pool.h"

#include <executorch/runtime/kernel/thread_parallel_interface.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <system_error>
#include <thread>
#include <vector>

#include "help.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif
#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace hybridge {
namespace {

// Time that a thread waits without sleeping: for more work longer than one thread computes alone between two kernels,
// or between two methods; for others to end theirs.
constexpr auto LOOKOUT = std::chrono::microseconds(400), PATIENCE = std::chrono::microseconds(100);

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Waits until a condition holds, for some time at most. Returns whether it does.
template <typename F>
bool came_true(std::chrono::microseconds most, const F& condition) {
  const auto end = std::chrono::steady_clock::now() + most;
  do {
    for (int i = 0; i < 32; ++i, pause())
      if (condition()) return true;
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

struct Job {
  const int64_t count;
  void (*const piece)(void*, int64_t);
  void* const context;
  std::atomic<int64_t> next = 0;

  void work() {
    for (int64_t index; (index = next.fetch_add(1, std::memory_order_relaxed)) < count;) piece(context, index);
  }
};

// Threads beside the one that asks. One job at a time.
class Pool {
 public:
  explicit Pool(int64_t threads) : wanted_(threads) {
    try {
      for (int64_t i = 0; i < threads; ++i) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error&) {  // the system gives no more: fewer will do
    }
  }

  ~Pool() {
    ends_ = true;
    announce();
    for (std::thread& each : threads_) each.join();
  }

  int64_t wanted() const { return wanted_; }

  // cost: of the whole job, to compare it with others.
  void run(Job& job, int64_t cost) {
    const auto choice = help_.choose(job.piece, cost);
    const auto began = std::chrono::steady_clock::now();
    if (choice.helped) run_together(job);
    else job.work();
    help_.done(choice, cost, std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count());
  }

 private:
  void run_together(Job& job) {
    job_ = &job;
    announce();
    job.work();
    // Later threads see no job, and earlier ones are counted: either this sees the count, or they see no job.
    job_ = nullptr;
    wait_for_others();
  }

  // A thread that is inside may have lost its processor, perhaps to this one: after a while this one sleeps.
  void wait_for_others() {
    if (came_true(PATIENCE, [this] { return inside_ == 0; })) return;
    for (int inside; (inside = inside_) != 0;) inside_.wait(inside);
  }

  void announce() {
    ++jobs_;
    jobs_.notify_all();
  }

  void serve() {
    for (uint32_t seen = 0; !ends_;) {
      seen = another(seen);
      ++inside_;
      if (Job* job = job_) job->work();
      if (--inside_ == 0) inside_.notify_one();
    }
  }

  // The number of the newest job, once it is another.
  uint32_t another(uint32_t seen) {
    if (!came_true(LOOKOUT, [&] { return jobs_ != seen; })) jobs_.wait(seen);
    return jobs_;
  }

  const int64_t wanted_;
  HelpPolicy help_;
  std::atomic<uint32_t> jobs_ = 0;
  std::atomic<Job*> job_ = nullptr;
  std::atomic<int> inside_ = 0;
  std::atomic<bool> ends_ = false;
  std::vector<std::thread> threads_;  // last: they use the others
};

// The process's pool, which lives as long as it. A child of a fork has none of its parent's threads.
Pool* pool = nullptr;
std::atomic_flag in_use;

void forget_pool() {
  pool = nullptr;
  in_use.clear();
}

// A pool with so many threads; whoever calls has it alone.
Pool& pool_of(int64_t threads) {
#if !defined(_WIN32)
  static const int registered = pthread_atfork(nullptr, nullptr, forget_pool);
  (void)registered;
#endif
  if (pool && pool->wanted() != threads) {
    delete pool;
    pool = nullptr;
  }
  if (!pool) pool = new Pool(threads);
  return *pool;
}

}  // namespace

int64_t pool_threads() { return std::max<int64_t>(1, executorch::extension::get_thread_count()); }

void run_pieces(int64_t count, int64_t cost, void (*piece)(void*, int64_t), void* context) {
  Job job{count, piece, context};
  const int64_t threads = pool_threads() - 1;
  // Another thread's kernel, or this one's own, has the pool: then this thread does it all.
  if (count < 2 || threads < 1 || in_use.test_and_set(std::memory_order_acquire)) return job.work();
  pool_of(threads).run(job, cost);
  in_use.clear(std::memory_order_release);
}

}  // namespace hybridge
