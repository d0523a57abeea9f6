// What the linked ExecuTorch has, and what it logs.
#ifndef HYBRIDGE_ENGINE_RUNTIME_H
#define HYBRIDGE_ENGINE_RUNTIME_H

namespace hybridge {

// Return whether the app links a kernel for an operator, such as "aten::add.out", or a backend.
bool has_operator(const char* name);
bool has_backend(const char* name);

// Returns the instruction set that our kernels run by, such as "avx2"; nothing where the app links none of them.
const char* instruction_set();

// Switches printing of the runtime's log on or off, as it is at first, in the whole process. The words of a failure
// have its lines either way.
void print_runtime_log(bool wanted);

}  // namespace hybridge

#endif
