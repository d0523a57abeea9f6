#include "library.h"

#include <dlfcn.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

namespace hybridge_node {

namespace {

std::atomic<const Library*> opened = nullptr;

// The names by which the loader knows a libhybridge: that of the wheel, and that of `hybridge::shared`.
std::vector<std::string> names() {
  const std::string version = HYBRIDGE_VERSION;
#ifdef __APPLE__
  return {"libhybridge.dylib"};
#else
  return {"libhybridge.so", "libhybridge.so." + version.substr(0, version.rfind('.'))};
#endif
}

void* already_open() {
  for (const std::string& name : names()) {
    if (void* found = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD)) return found;
  }
  return nullptr;
}

std::string reason() {
  const char* said = dlerror();
  return said == nullptr ? "no reason given" : said;
}

// Returns what is wrong with the choice of $HYBRIDGE_ISA; nothing for libraries that do not choose.
std::string check_instruction_set(void* kernels) {
  using Text = const char* (*)();
  const auto chosen = reinterpret_cast<Text>(dlsym(kernels, "hybridge_instruction_set"));
  const auto available = reinterpret_cast<Text>(dlsym(kernels, "hybridge_instruction_sets"));
  if (chosen == nullptr || available == nullptr || chosen() != nullptr) return "";
  const char* wanted = std::getenv("HYBRIDGE_ISA");
  return "HYBRIDGE_ISA is " + std::string(wanted == nullptr ? "not set" : wanted) + ", and this processor has " +
         available() + ": set it to one of them, or not at all";
}

std::string find_functions(void* core, const std::string& file) {
  static Library found;
#define HYBRIDGE_FIND(name)                                                                        \
  found.name = reinterpret_cast<decltype(found.name)>(dlsym(core, "hybridge_" #name));             \
  if (found.name == nullptr) {                                                                     \
    return file + " is no libhybridge of version " HYBRIDGE_VERSION ": it has no hybridge_" #name; \
  }
  HYBRIDGE_FIND(version)
  if (std::string(found.version()) != HYBRIDGE_VERSION) {
    return file + " is of hybridge " + found.version() +
           ", and this package is " HYBRIDGE_VERSION ": install the package of that version, or unset HYBRIDGE_LIBRARY";
  }
  HYBRIDGE_FUNCTIONS(HYBRIDGE_FIND)
#undef HYBRIDGE_FIND
  found.print_log(0);  // what the runtime logs about a failure is in the failure's words
  opened = &found;
  return "";
}

}  // namespace

std::string open_library(const std::vector<std::string>& files) {
  static std::mutex turn;
  const std::lock_guard lock(turn);
  if (opened != nullptr) return "";
  if (void* core = already_open()) return find_functions(core, "the libhybridge that this process has");
  void* last = nullptr;
  for (const std::string& file : files) {
    last = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (last == nullptr)
      return file + " cannot be loaded (" + reason() +
             "): install the package again, or set HYBRIDGE_LIBRARY to a libhybridge";
    if (std::string wrong = check_instruction_set(last); !wrong.empty()) return wrong;
  }
  return last == nullptr ? "there is no library to load" : find_functions(last, files.back());
}

const Library* library() { return opened; }

}  // namespace hybridge_node
