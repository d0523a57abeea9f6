// Runs the calls that it reads, each behind its length, and answers each with a line; see target.py and stub_runtime.h.
//
// Every tensor ends where its memory ends, so that the sanitizers see what a kernel touches behind it. A call that is refused must
// leave all tensors but the output, which is the last, as they were, unless they share their memory.
#include <cstring>

namespace hybridge {
static std::map<std::string, const char* (*)()>& kernels() {
  static std::map<std::string, const char* (*)()> all;
  return all;
}

bool add_kernel(const char*, const char* name, const char* (*call)()) { return kernels().emplace(name, call).second; }
}  // namespace hybridge

namespace {

using namespace hybridge;

std::string answer(const char* (*kernel)()) {
  const char* refused = kernel();
  if (!refused) return "accepted";
  for (size_t i = 0; i + 1 < seen().size() && !some_share_memory(); ++i)
    if (*seen()[i].bytes != given()[i]) return "wrong: it refused (" + std::string(refused) + ") and wrote to tensor " + std::to_string(i);
  return "refused: " + std::string(refused);
}

}  // namespace

int main(int count, char**) {
  if (count > 1) {  // any argument: the kernels' names
    for (const auto& each : kernels()) std::puts(each.first.c_str());
    return 0;
  }
  uint32_t length;
  while (std::fread(&length, sizeof length, 1, stdin) == 1) {
    for (const Tensor& tensor : seen()) delete tensor.bytes;
    seen().clear(), given().clear(), some_share_memory() = false;
    const auto found = kernels().find(get_many<std::string>());
    if (found == kernels().end()) return 3;
    std::puts(answer(found->second).c_str());
    std::fflush(stdout);
  }
}
