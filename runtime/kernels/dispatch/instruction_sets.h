// Which instruction set of those that the kernels are compiled for runs: the best that the processor has, or
// $HYBRIDGE_ISA.
#pragma once

namespace hybridge {

// Returns whether it is the set of this name. If $HYBRIDGE_ISA is none of this processor's it is no set, and stderr
// says so once.
bool is_chosen(const char* instruction_set);

}  // namespace hybridge

extern "C" {
// The chosen set's name, or null where $HYBRIDGE_ISA is not one of
[[gnu::visibility("default")]] const char* hybridge_instruction_set();
// the names of those that this processor has, with spaces between, the best last.
[[gnu::visibility("default")]] const char* hybridge_instruction_sets();
}
