// The number of processors that this process can compute on at once: fast ones that it may run on, each core once, and
// no more than its container's quota lasts for.
#ifndef HYBRIDGE_ENGINE_PROCESSORS_H
#define HYBRIDGE_ENGINE_PROCESSORS_H

#include <cstddef>
#include <string>

namespace hybridge {

// Returns how many threads compute fastest; 1 or more. root: of the files in which Linux describes the machine.
size_t fast_cores(const std::string& root = "");

}  // namespace hybridge

#endif
