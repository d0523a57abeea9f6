// Preloaded into a process with the native core: lets the runtime fail in a method, some calls after a file says so.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace {

// True once the number in the file that HYBRIDGE_FAIL names, counted down by each call, is 0; the file is then gone.
bool fails() {
  const char* path = std::getenv("HYBRIDGE_FAIL");
  FILE* file = path ? std::fopen(path, "r") : nullptr;
  if (file == nullptr) return false;
  int left = 0;
  const bool read = std::fscanf(file, "%d", &left) == 1;
  std::fclose(file);
  if (!read) return false;
  if (left == 0) return std::remove(path) == 0;
  file = std::fopen(path, "w");
  std::fprintf(file, "%d", left - 1);
  std::fclose(file);
  return false;
}

}  // namespace

// executorch::runtime::Error executorch::runtime::Method::execute(), by its mangled name.
#define EXECUTE "_ZN10executorch7runtime6Method7executeEv"
extern "C" uint32_t execute(void* method) asm(EXECUTE);

uint32_t execute(void* method) {
  static void* const library = dlopen("libexecutorch.so", RTLD_NOW | RTLD_NOLOAD);
  static const auto really = reinterpret_cast<uint32_t (*)(void*)>(dlsym(library, EXECUTE));
  return fails() ? 1 /* Internal */ : really(method);
}
