#include "instruction_sets.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace hybridge {
namespace {

struct InstructionSet {
  const char* name;
  bool (*is_there)();
};

#if defined(__x86_64__)

bool has_avx2() {
  __builtin_cpu_init();  // libraries are loaded before main, and this is asked while they are
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
}

bool has_avxvnni() { return has_avx2() && __builtin_cpu_supports("avxvnni"); }

bool has_avx512vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

#elif defined(__aarch64__)

#if defined(__APPLE__)

bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value;
}

bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_dotprod() && has("hw.optional.arm.FEAT_I8MM"); }

#elif defined(__linux__)

// From Linux's asm/hwcap.h, of which old versions lack the last. ARMv8.2 has atomics and rounding doubling products as
// well.
constexpr unsigned long ATOMICS = 1 << 8, RDM = 1 << 12, DOTPROD = 1 << 20, I8MM = 1 << 13;

bool has_dotprod() {
  constexpr unsigned long all = ATOMICS | RDM | DOTPROD;
  return (getauxval(AT_HWCAP) & all) == all;
}
bool has_i8mm() { return has_dotprod() && (getauxval(AT_HWCAP2) & I8MM); }

#else

bool has_dotprod() { return false; }
bool has_i8mm() { return false; }

#endif
#endif

bool always() { return true; }

// In the order of instruction_sets.txt.
constexpr InstructionSet SETS[] = {
    {"plain", always},
#if defined(__x86_64__)
    {"avx2", has_avx2},
    {"avxvnni", has_avxvnni},
    {"avx512vnni", has_avx512vnni},
#elif defined(__aarch64__)
    {"dotprod", has_dotprod},
    {"i8mm", has_i8mm},
#endif
};

// Returns whether this library has kernels for it: all of the above, unless an app's build has chosen some.
bool is_compiled(const char* name) {
#ifdef HYBRIDGE_INSTRUCTION_SETS
  for (const char* set : {HYBRIDGE_INSTRUCTION_SETS})
    if (!std::strcmp(set, name)) return true;
  return false;
#else
  return name != nullptr;
#endif
}

bool can_run(const InstructionSet& set) { return is_compiled(set.name) && set.is_there(); }

const char* choose() {
  const char* given = std::getenv("HYBRIDGE_ISA");
  const auto is_wanted = [given](const char* name) { return !given || !*given || !std::strcmp(name, given); };
  const char* best = nullptr;
  for (const InstructionSet& set : SETS)
    if (is_wanted(set.name) && can_run(set)) best = set.name;
  if (!best && given && *given)
    std::fprintf(
        stderr, "hybridge: HYBRIDGE_ISA is %s, but this processor has %s; no kernels.\n", given,
        hybridge_instruction_sets()
    );
  if (!best && !(given && *given))
    std::fprintf(stderr, "hybridge: the kernels are for other processors than this; no kernels.\n");
  return best;
}

}  // namespace

bool is_chosen(const char* instruction_set) {
  const char* chosen = hybridge_instruction_set();
  return chosen && !std::strcmp(instruction_set, chosen);
}

}  // namespace hybridge

const char* hybridge_instruction_set() {
  static const char* const chosen = hybridge::choose();
  return chosen;
}

const char* hybridge_instruction_sets() {
  static char names[64];  // only ever filled with the same
  char* end = names;
  for (const auto& set : hybridge::SETS)
    if (hybridge::can_run(set)) end += std::sprintf(end, end == names ? "%s" : " %s", set.name);
  return names;
}
