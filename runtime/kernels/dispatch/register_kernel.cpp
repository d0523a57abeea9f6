#include "register_kernel.h"

#include <algorithm>
#include <string_view>

#include "instruction_sets.h"

namespace hybridge {

bool register_kernel(const char* instruction_set, const char* name, executorch::runtime::OpFunction kernel) {
  const auto has_name = [name](const executorch::runtime::Kernel& known) {
    return known.name_ != nullptr && known.name_ == std::string_view(name);
  };
  // Another copy of this library may be in the process, as of a plug-in: its kernels are used then. The runtime ends
  // the process where a second one of a name is registered.
  return is_chosen(instruction_set) && std::ranges::none_of(executorch::runtime::get_registered_kernels(), has_name) &&
         executorch::runtime::register_kernel(executorch::runtime::Kernel(name, kernel)) ==
             executorch::runtime::Error::Ok;
}

}  // namespace hybridge
