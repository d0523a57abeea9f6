// Registers a kernel with ExecuTorch where its instruction set is the chosen one.
#pragma once

#include <executorch/runtime/kernel/operator_registry.h>

#include "../instruction_set.h"

namespace hybridge {

bool register_kernel(const char* instruction_set, const char* name, executorch::runtime::OpFunction kernel);

}  // namespace hybridge
