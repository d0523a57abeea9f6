// Runs one call; see stub_runtime.h. With an argument it says which instruction set would.
#include "dispatch/instruction_sets.h"

// All that the kernels need of the C++ library: building that for ARM64 would take longer than every test of it.
void* operator new(size_t size) { return std::malloc(size); }
void* operator new[](size_t size) { return std::malloc(size); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
#ifdef _LIBCPP_VERSION
namespace std::inline _LIBCPP_ABI_NAMESPACE {
void __libcpp_verbose_abort(const char*, ...) noexcept { std::abort(); }
}  // namespace std::inline _LIBCPP_ABI_NAMESPACE
#endif

namespace hybridge {
static std::map<std::string, const char* (*)()>& kernels() {
  static std::map<std::string, const char* (*)()> all;
  return all;
}

bool add_kernel(const char* instruction_set, const char* name, const char* (*call)()) {
  return is_chosen(instruction_set) && kernels().emplace(name, call).second;
}
}  // namespace hybridge

int main(int count, char**) {
  using namespace hybridge;
  if (count > 1) return std::printf("%s of %s", hybridge_instruction_set(), hybridge_instruction_sets()) < 0;
  const auto found = kernels().find(get_many<std::string>());
  if (found == kernels().end()) return 3;
  if (const char* refused = found->second()) return std::fprintf(stderr, "the kernel failed: %s\n", refused), 1;
  for (const Tensor& tensor : seen()) std::fwrite(tensor.bytes->data(), tensor.bytes->size(), 1, stdout);
}
