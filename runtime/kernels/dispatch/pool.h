// Threads for the pieces of one kernel's work.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hybridge {

// Returns how many threads run the pieces of a kernel at most, the one that asks among them.
int64_t pool_threads();

// Returns the number of pieces to cut `count` parts of work into, of which `least` are worth a piece: a multiple of the
// threads, so that all end together, and several for each, because fast ones should take more than slow ones; fewer if
// there is less work.
constexpr int64_t piece_count(int64_t count, int64_t least, int64_t threads) {
  constexpr int64_t EACH = 4, ALL = 32;
  const int64_t wanted = threads * std::max(EACH, (ALL + threads - 1) / threads);
  const int64_t pieces = std::min(wanted, count / std::max<int64_t>(1, least));
  return std::max<int64_t>(1, pieces < threads ? pieces : pieces - pieces % threads);
}

// Runs piece(context, 0) … piece(context, count - 1), each once, on this thread and on those of the pool that are free,
// if they help (help.h). There are as many as ExecuTorch's pool has. Returns when all pieces are done. cost: of all
// pieces, in bytes read or operations.
void run_pieces(int64_t count, int64_t cost, void (*piece)(void* context, int64_t index), void* context);

}  // namespace hybridge
