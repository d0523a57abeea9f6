#include "register_kernel.h"

#include "instruction_sets.h"

namespace hybridge {

bool register_kernel(const char* instruction_set, const char* name, executorch::runtime::OpFunction kernel) {
  return is_chosen(instruction_set) &&
         executorch::runtime::register_kernel(executorch::runtime::Kernel(name, kernel)) ==
             executorch::runtime::Error::Ok;
}

}  // namespace hybridge
