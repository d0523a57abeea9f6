// ExecuTorch's log: kept for hybridge_failure, and printed unless that is switched off.
#ifndef HYBRIDGE_NATIVE_C_API_RUNTIME_LOG_H
#define HYBRIDGE_NATIVE_C_API_RUNTIME_LOG_H

#include <executorch/runtime/platform/platform.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <string>

#include "failure.h"

namespace hybridge::c {

// Takes lines from where the runtime, or an app's own platform layer, would print them.
class RuntimeLog {
 public:
  static void print(bool wanted) { is_printed_ = wanted; }

  // Called when the library is loaded, and again when a model is: a library that came meanwhile, such as the runtime's Python
  // extension, may have had its turn. The runtime itself prints a warning where this is not the first to listen.
  static bool listen() {
    const pal_emit_log_message_method now = executorch::runtime::get_pal_impl()->emit_log_message;
    if (now == take) return true;
    printing_ = now;
    return executorch::runtime::register_pal(executorch::runtime::PalImpl::create(take, __FILE__));
  }

 private:
  static constexpr size_t MOST = 4000;  // bytes of lines that a call keeps

  static void take(
      et_timestamp_t timestamp, et_pal_log_level_t level, const char* file, const char* function, size_t line,
      const char* message, size_t length) {
    if (level == kError || level == kFatal) keep(message, length);
    const pal_emit_log_message_method printing = printing_;
    if (is_printed_ && printing != nullptr) printing(timestamp, level, file, function, line, message, length);
  }

  // The runtime logs on its way out of a failure, where nothing may be thrown.
  static void keep(const char* message, size_t length) noexcept {
    try {
      std::string& lines = logged();
      lines.append(message, std::min(length, MOST - std::min(lines.size(), MOST)));
      if (lines.size() < MOST) lines += '\n';
    } catch (...) {
    }
  }

  static inline std::atomic<bool> is_printed_ = true;
  static inline std::atomic<pal_emit_log_message_method> printing_ = nullptr;
};

}  // namespace hybridge::c

#endif
