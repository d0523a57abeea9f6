// Threads for the pieces of one kernel's work.
#pragma once

#include <cstdint>

namespace hybridge {

// Runs piece(context, 0) … piece(context, count - 1), each once, on this thread and on those of the pool that are free. There
// are as many as ExecuTorch's pool has. Returns when all pieces are done.
void run_pieces(int64_t count, void (*piece)(void* context, int64_t index), void* context);

}  // namespace hybridge
