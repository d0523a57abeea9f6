// The number of threads that sessions compute on: ExecuTorch's pool of the process, one thread for each fast core.
//
// ExecuTorch makes a thread for every processor. On a phone, half of these are a third as fast as the others, and share
// their memory: what waits for them is slower with them than without. In a container there may be sixty-four, and a
// quota of two.
#ifndef HYBRIDGE_ENGINE_THREADS_H
#define HYBRIDGE_ENGINE_THREADS_H

#include <cstddef>

#include "engine/status.h"

namespace hybridge {

// Returns the number of threads.
size_t thread_count();

// Sets the threads of every session in this process; 0: one for each fast core, the default. BUSY, and nothing
// changes, for another number than there is while sessions hold the pool. Programs with XNNPACK that an app has loaded
// by itself are not known here: call it before they are.
Status set_threads(size_t count);

}  // namespace hybridge

#endif
