// Let XNNPACK pack every weight once for all methods and sessions of this process, and not once for each method.
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

using executorch::runtime::BackendInterface;
using executorch::runtime::Error;

extern "C" bool hybridge_share_packed_weights() {
  BackendInterface* xnnpack = executorch::runtime::get_backend_class("XnnpackBackend");
  executorch::runtime::BackendOptions<1> once;
  executorch::runtime::BackendOptionContext context;
  return xnnpack != nullptr && once.set_option("weight_cache_enabled", true) == Error::Ok &&
         xnnpack->set_option(context, once.view()) == Error::Ok;
}
