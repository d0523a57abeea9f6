// ExecuTorch in this process: its pool of threads, its tables of operators and backends, and its log.

#include <dlfcn.h>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/platform.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/processors.h"
#include "engine/runtime.h"
#include "engine/threads.h"

#include "runtime.h"

#if __has_include(<executorch/extension/threadpool/threadpool.h>)
#include <executorch/extension/threadpool/threadpool.h>
#else
// ExecuTorch's installed package has this in a library, and not among its headers.
namespace executorch::extension::threadpool {
class ThreadPool {
 public:
  size_t get_thread_count() const;
  bool _unsafe_reset_threadpool(uint32_t new_thread_count);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool
#endif

// Of our kernels, which an app may link or load, before or after this library.
extern "C" __attribute__((weak)) const char* hybridge_instruction_set();

namespace hybridge {

using executorch::extension::threadpool::get_threadpool;

namespace {

// The process's choice. Another number of threads is another pool, and the old one is gone then.
struct Choice {
  std::mutex turn;
  bool is_made = false;
  size_t holders = 0;  // of programs that keep a pointer to the pool
};

Choice& choice() {
  static auto& one = *new Choice;  // sessions may be destroyed while the process ends
  return one;
}

// The caller has the turn.
Status use(size_t count) {
  auto* pool = get_threadpool();
  if (pool != nullptr && count != pool->get_thread_count()) {
    if (choice().holders > 0) {
      return Status(
          HYBRIDGE_BUSY, "open sessions compute with XNNPACK on the " + std::to_string(pool->get_thread_count()) +
                             " threads that they found: close them, or set the threads before"
      );
    }
    pool->_unsafe_reset_threadpool(static_cast<uint32_t>(count));
  }
  choice().is_made = true;
  return Status();
}

// Returns one of our kernels that are registered; null without any.
const executorch::ET_RUNTIME_NAMESPACE::Kernel* kernel_of_ours() {
  const auto kernels = executorch::ET_RUNTIME_NAMESPACE::get_registered_kernels();
  const auto* found = std::find_if(kernels.begin(), kernels.end(), [](const auto& each) {
    return std::string_view(each.name_).starts_with("hybridge::");
  });
  return found == kernels.end() ? nullptr : &*found;
}

constexpr size_t MOST = 4000;  // bytes of lines that are kept

std::string& lines() {
  thread_local std::string kept;
  return kept;
}

std::atomic<bool> is_printed = false;
std::atomic<pal_emit_log_message_method> printing = nullptr;

// The runtime logs on its way out of a failure, where nothing may be thrown.
void keep(const char* message, size_t length) noexcept {
  try {
    std::string& kept = lines();
    if (kept.find(std::string_view(message, length)) != std::string::npos)
      return;  // the same of each call of a missing operator
    if (!kept.empty() && kept.size() < MOST) kept += "; ";
    kept.append(message, std::min(length, MOST - std::min(kept.size(), MOST)));
  } catch (...) {}
}

// Takes lines from where the runtime, or an app's own platform layer, would print them.
void take(
    et_timestamp_t timestamp, et_pal_log_level_t level, const char* file, const char* function, size_t line,
    const char* message, size_t length
) {
  if (level == kError || level == kFatal) keep(message, length);
  const pal_emit_log_message_method print = printing;
  if (is_printed && print != nullptr) print(timestamp, level, file, function, line, message, length);
}

// Before anything is called: the runtime's table of functions should not change under running threads.
[[maybe_unused]] const bool is_listening = (pte::listen_to_log(), true);

}  // namespace

size_t thread_count() {
  auto* pool = get_threadpool();
  return pool != nullptr ? pool->get_thread_count() : 1;
}

Status set_threads(size_t count) {
  const std::lock_guard lock(choice().turn);
  return use(count > 0 ? count : fast_cores());
}

const char* instruction_set() {
  using Name = const char* (*)();
  Name name = hybridge_instruction_set;
  if (name == nullptr) {  // loaded as a library of its own: it is where the kernels are
    const auto* found = kernel_of_ours();
    Dl_info where;
    if (found == nullptr || dladdr(reinterpret_cast<void*>(found->op_), &where) == 0) return "";
    void* library = dlopen(where.dli_fname, RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return "";
    name = reinterpret_cast<Name>(dlsym(library, "hybridge_instruction_set"));
    dlclose(library);
  }
  const char* chosen = name != nullptr ? name() : nullptr;
  return chosen != nullptr ? chosen : "";
}

bool has_operator(const char* name) { return executorch::ET_RUNTIME_NAMESPACE::registry_has_op_function(name); }

bool has_backend(const char* name) { return executorch::ET_RUNTIME_NAMESPACE::get_backend_class(name) != nullptr; }

void print_runtime_log(bool wanted) { is_printed = wanted; }

namespace pte {

PoolHold::PoolHold() {
  const std::lock_guard lock(choice().turn);
  ++choice().holders;
}

PoolHold::~PoolHold() {
  const std::lock_guard lock(choice().turn);
  --choice().holders;
}

void set_default_threads() {
  const std::lock_guard lock(choice().turn);
  if (!choice().is_made) (void)use(fast_cores());
}

// The runtime itself prints a warning where this is not the first to listen.
void listen_to_log() {
  const pal_emit_log_message_method now = executorch::runtime::get_pal_impl()->emit_log_message;
  if (now == take) return;
  if (printing == nullptr)
    printing = now;  // later it may be that of another copy of this library, which calls this one
  (void)executorch::runtime::register_pal(executorch::runtime::PalImpl::create(take, __FILE__));
}

void clear_log() { lines().clear(); }

std::string logged() { return lines().empty() ? std::string() : ": " + lines(); }

std::string missing_kernels() {
  if (kernel_of_ours() != nullptr || lines().find("hybridge::") == std::string::npos) return "";
  const char* wanted = std::getenv("HYBRIDGE_ISA");
  if (wanted != nullptr && *wanted != '\0')
    return std::string(": HYBRIDGE_ISA is ") + wanted + ", for which there are no kernels here: unset it";
  return ": there are no kernels of hybridge in this process: link or load libhybridge_kernels too";
}

}  // namespace pte

}  // namespace hybridge
