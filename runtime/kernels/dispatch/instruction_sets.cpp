#include "instruction_sets.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>

#if defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace hybridge {
namespace {

// The sets that this library has kernels for, each with the compiler's flags: the build defines them, out of
// instruction_sets.txt and in its order.
#ifndef INSTRUCTION_SETS
#define INSTRUCTION_SETS {"plain", ""}
#endif
struct InstructionSet {
  const char *name, *flags;
};
constexpr InstructionSet SETS[] = {INSTRUCTION_SETS};

// How this processor is asked for what a flag lets the compiler use.
struct Feature {
  std::string_view flag;
  bool (*is_there)();
};

bool always() { return true; }

#if defined(__x86_64__)

// The processor is asked while libraries are loaded, before main: __builtin_cpu_init comes first.
#define FEATURE(name) {"-m" name, [] { return __builtin_cpu_init(), bool(__builtin_cpu_supports(name)); }}
constexpr Feature FEATURES[] = {
    {"-march=x86-64", always}, FEATURE("avx2"),     FEATURE("fma"),      FEATURE("f16c"),     FEATURE("avxvnni"),
    FEATURE("avx512f"),        FEATURE("avx512bw"), FEATURE("avx512dq"), FEATURE("avx512vl"), FEATURE("avx512vnni"),
};
#undef FEATURE

#elif defined(__aarch64__)

#if defined(__APPLE__)

bool has(const char* feature) {
  int value = 0;
  size_t size = sizeof value;
  return sysctlbyname(feature, &value, &size, nullptr, 0) == 0 && value;
}

bool has_v8_2() { return true; }
bool has_dotprod() { return has("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has("hw.optional.arm.FEAT_I8MM"); }

#elif defined(__linux__)

// From Linux's asm/hwcap.h, of which old versions lack the last. ARMv8.2 has atomics and rounding doubling products as
// well.
constexpr unsigned long ATOMICS = 1 << 8, RDM = 1 << 12, DOTPROD = 1 << 20, I8MM = 1 << 13;

bool has_v8_2() {
  constexpr unsigned long all = ATOMICS | RDM;
  return (getauxval(AT_HWCAP) & all) == all;
}
bool has_dotprod() { return getauxval(AT_HWCAP) & DOTPROD; }
bool has_i8mm() { return getauxval(AT_HWCAP2) & I8MM; }

#else

bool has_v8_2() { return false; }
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }

#endif

constexpr Feature FEATURES[] = {
    {"-march=armv8-a", always},
    {"-march=armv8.2-a", has_v8_2},
    {"dotprod", has_dotprod},
    {"i8mm", has_i8mm},
};

#else

constexpr Feature FEATURES[] = {{"", always}};

#endif

// Returns whether this processor has what a flag names; false for a flag that is not in the table.
bool has_flag(std::string_view flag) {
  for (const Feature& feature : FEATURES)
    if (feature.flag == flag) return feature.is_there();
  return false;
}

// Returns whether this processor has all that the set's flags name: between spaces, and after a plus within one.
bool can_run(const InstructionSet& set) {
  std::string_view flags = set.flags;
  while (!flags.empty()) {
    const size_t end = std::min(flags.find_first_of(" +"), flags.size());
    if (!has_flag(flags.substr(0, end))) return false;
    flags.remove_prefix(std::min(end + 1, flags.size()));
  }
  return true;
}

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
