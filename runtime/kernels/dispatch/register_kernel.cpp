#include "register_kernel.h"

#include "instruction_sets.h"

namespace hybridge {

bool register_kernel(const char* instruction_set, const char* name, executorch::runtime::OpFunction kernel) {
  // Another copy of this library may be in the process, as of a plug-in: its kernels are used then. The runtime ends
  // the process where a second one of a name is registered.
  return is_chosen(instruction_set) && !executorch::runtime::registry_has_op_function(name) &&
         executorch::runtime::register_kernel(executorch::runtime::Kernel(name, kernel)) ==
             executorch::runtime::Error::Ok;
}

}  // namespace hybridge
