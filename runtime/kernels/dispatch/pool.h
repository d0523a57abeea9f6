// Threads for the pieces of one kernel's work.
#pragma once

#include <cstdint>

namespace hybridge {

// Runs piece(context, 0) … piece(context, count - 1), each once, on this thread and on those of the pool that are free, if they
// help (help.h). There are as many as ExecuTorch's pool has. Returns when all pieces are done. cost: of all pieces, in bytes read
// or operations.
void run_pieces(int64_t count, int64_t cost, void (*piece)(void* context, int64_t index), void* context);

// Returns how many threads run the pieces of a kernel at most, the one that asks among them.
int64_t pool_threads();

}  // namespace hybridge
