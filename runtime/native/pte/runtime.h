// What a program of ExecuTorch needs of the process: its threads, and the lines that the runtime logs.
#ifndef HYBRIDGE_NATIVE_PTE_RUNTIME_H
#define HYBRIDGE_NATIVE_PTE_RUNTIME_H

#include <string>

namespace hybridge::pte {

// Keeps the pool of threads as it is for as long as it lives: for programs with parts of XNNPACK, which point to it
// from their load on.
class PoolHold {
 public:
  PoolHold();
  PoolHold(const PoolHold&) = delete;
  PoolHold& operator=(const PoolHold&) = delete;
  ~PoolHold();
};

// Sets the default threads when the first model is loaded, unless a number was chosen.
void set_default_threads();

// Listens to the runtime's log, again where a library that came meanwhile, such as the runtime's Python extension, has
// had its turn.
void listen_to_log();

// Forgets the lines that this thread has logged so far.
void clear_log();

// Returns ": " and the lines that this thread has logged since, in one; empty without any.
std::string logged();

// Returns ": " and what to do, if lines since then are about kernels of hybridge and none is registered; else empty.
std::string missing_kernels();

}  // namespace hybridge::pte

#endif
