// runtime/kernels/dispatch/pool.h under load: from several threads, of changing size, from within itself and in a
// child.
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <thread>
#include <vector>

#include "dispatch/pool.h"

static std::atomic<int64_t> threads = 4;

namespace executorch::extension {
int64_t get_thread_count() { return threads; }  // the real one is the process's pool
}  // namespace executorch::extension

struct Work {
  std::vector<int> done;
  bool nested;
};

static void piece(void* context, int64_t index) {
  Work& work = *static_cast<Work*>(context);
  ++work.done[size_t(index)];
  if (!work.nested) return;
  Work inner{std::vector<int>(5), false};
  hybridge::run_pieces(5, 5, piece, &inner);
  for (int each : inner.done)
    if (each != 1) std::abort();
}

static void often(int times, bool nested) {
  for (int i = 0; i < times; ++i) {
    Work work{std::vector<int>(size_t(i % 40)), nested};
    hybridge::run_pieces(i % 40, i % 40, piece, &work);
    for (int each : work.done)
      if (each != 1) std::abort();
    if (i % 500 == 0) usleep(300);  // long enough for the others to fall asleep
  }
}

// With enough work, threads of equal speed end together: 32 pieces left a third of 24 threads without work at the end.
static void pieces() {
  for (int64_t threads = 1; threads <= 200; ++threads) {
    for (int64_t count : {1, 2, 31, 32, 33, 100, 1000, 100000}) {
      for (int64_t least : {0, 1, 7, 1000}) {
        const int64_t pieces = hybridge::piece_count(count, least, threads);
        if (pieces < 1 || pieces > count) std::abort();
        if (pieces > 1 && pieces * least > count) std::abort();
        if (pieces > threads && pieces % threads != 0) std::abort();
        if (count >= 4 * threads * std::max<int64_t>(1, least) && pieces < 4 * threads) std::abort();
      }
    }
  }
}

struct Wait {
  clockid_t asking;  // the clock of the thread that asks
  std::thread::id name = std::this_thread::get_id();
  std::atomic<bool> begun = false, is_busy = false;

  int64_t spent() const {
    timespec now{};
    clock_gettime(asking, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
  }
};

// A second's work elsewhere, unless the thread that asks has used 20 ms of a processor meanwhile.
static void long_elsewhere(void* context, int64_t) {
  Wait& wait = *static_cast<Wait*>(context);
  if (std::this_thread::get_id() == wait.name) {
    for (int i = 0; i < 10000 && !wait.begun; ++i) usleep(100);
    return;
  }
  const int64_t before = wait.spent();
  wait.begun = true;
  for (int i = 0; i < 100 && !wait.is_busy; ++i) {
    usleep(10000);
    wait.is_busy = wait.spent() - before > 20000;
  }
}

// A thread that waits for another's piece sleeps: if they share a processor, the other one waits for it.
static void waiting_takes_no_time() {
  Wait wait{};
  pthread_getcpuclockid(pthread_self(), &wait.asking);
  hybridge::run_pieces(2, 1, long_elsewhere, &wait);
  if (wait.begun && !wait.is_busy) return;
  std::puts("a thread computes while it waits");
  std::exit(1);
}

int main(int argc, char** argv) {
  pieces();
  waiting_takes_no_time();
  for (int64_t count : {4, 1, 3, 2}) {
    threads = count;
    often(2000, false);
  }
  often(500, true);
  std::vector<std::thread> callers;
  for (int i = 0; i < 3; ++i) callers.emplace_back(often, 2000, false);
  for (std::thread& each : callers) each.join();
  if (argc > 1 && !std::strcmp(argv[1], "fork")) {
    const pid_t child = fork();
    if (child == 0) {
      often(2000, true);
      _exit(0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    if (status != 0) return 1;
    often(100, false);
  }
  std::puts("done");
}
