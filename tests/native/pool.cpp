// runtime/kernels/dispatch/pool.h under load: from several threads, of changing size, from within itself and in a child.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
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

int main(int argc, char** argv) {
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
