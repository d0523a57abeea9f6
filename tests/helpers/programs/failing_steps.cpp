// Preloaded into a process with the native core: fails the n-th kernel of the runtime's methods, or the n-th request
// for memory in them.
//
// wrap_kernels() comes once, after all kernels are registered and before the methods to be tested are loaded.
// fail_at(what, n) arms; steps() then says how many kernels or requests there were.
#include <dlfcn.h>
#include <executorch/runtime/kernel/kernel_runtime_context.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <link.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <utility>

extern "C" void* __libc_malloc(size_t);

namespace {

using executorch::runtime::Kernel;

constexpr size_t MOST_KERNELS = 2000;  // as many as the runtime's registry has room for
enum What { NOTHING, ALLOCATION, KERNEL };

std::atomic<int> armed = NOTHING, wanted = 0, count = 0;
std::atomic<bool> is_inside = false;  // a method runs
std::array<executorch::runtime::OpFunction, MOST_KERNELS> originals;

bool fails(What what) { return is_inside && armed == what && ++count == wanted; }

template <size_t I>
void call(
    executorch::runtime::KernelRuntimeContext& context, executorch::runtime::Span<executorch::runtime::EValue*> values
) {
  if (fails(KERNEL)) return context.fail(executorch::runtime::Error::Internal);
  originals[I](context, values);
}

// A function of the runtime by its mangled name: Python loads the library later, for itself alone.
template <typename Function>
Function* in_runtime(const char* name) {
  static void* const library = dlopen("libexecutorch.so", RTLD_NOW | RTLD_NOLOAD);
  return reinterpret_cast<Function*>(dlsym(library, name));
}

template <size_t... I>
void wrap(std::index_sequence<I...>) {
  static constexpr executorch::runtime::OpFunction calls[] = {call<I>...};
  const auto get = in_runtime<executorch::runtime::Span<const Kernel>()>(
      "_ZN10executorch7runtime22get_registered_kernelsEv"
  );
  const auto kernels = get();
  for (size_t i = 0; i < kernels.size() && i < MOST_KERNELS; ++i) {
    auto& function = const_cast<Kernel&>(kernels[i]).op_;
    if (originals[i] == nullptr) originals[i] = std::exchange(function, calls[i]);
  }
}

// Where the libraries lie whose requests count: those of the C++ library would end the process.
struct Range {
  uintptr_t begin, end;
};
std::array<Range, 2> ranges;

int find(dl_phdr_info* library, size_t, void*) {
  const char* names[] = {"libexecutorch", "libhybridge_kernels"};
  for (size_t i = 0; i < ranges.size(); ++i) {
    if (std::strstr(library->dlpi_name, names[i]) == nullptr) continue;
    uintptr_t end = library->dlpi_addr;
    for (int part = 0; part < library->dlpi_phnum; ++part) {
      const auto& header = library->dlpi_phdr[part];
      if (header.p_type == PT_LOAD) end = library->dlpi_addr + header.p_vaddr + header.p_memsz;
    }
    ranges[i] = {library->dlpi_addr, end};
  }
  return 0;
}

bool is_counted(uintptr_t caller) {
  for (const Range& range : ranges)
    if (range.begin <= caller && caller < range.end) return true;
  return false;
}

}  // namespace

extern "C" void* malloc(size_t size) {
  const bool is_ours = is_inside && is_counted(reinterpret_cast<uintptr_t>(__builtin_return_address(0)));
  return is_ours && fails(ALLOCATION) ? nullptr : __libc_malloc(size);
}

extern "C" void wrap_kernels() {
  dl_iterate_phdr(find, nullptr);
  wrap(std::make_index_sequence<MOST_KERNELS>());
}

extern "C" void fail_at(int what, int n) {
  armed = NOTHING;
  count = 0;
  wanted = n;
  armed = what;
}

extern "C" int steps() { return count; }

// executorch::runtime::Error executorch::runtime::Method::execute(), by its mangled name.
#define EXECUTE "_ZN10executorch7runtime6Method7executeEv"
extern "C" uint32_t execute(void* method) asm(EXECUTE);

uint32_t execute(void* method) {
  static const auto really = in_runtime<uint32_t(void*)>(EXECUTE);
  is_inside = true;
  const uint32_t error = really(method);
  is_inside = false;
  return error;
}
