// What went wrong in a call, in words; and nothing that is thrown leaves it.
#ifndef HYBRIDGE_NATIVE_C_API_FAILURE_H
#define HYBRIDGE_NATIVE_C_API_FAILURE_H

#include <new>
#include <string>
#include <utility>

#include <hybridge/hybridge.h>

namespace hybridge::c {

// Lines of this thread's last call.
inline std::string& logged() {
  thread_local std::string lines;
  return lines;
}

// Refuses a call in words of ours.
inline hybridge_status refused(hybridge_status why, std::string words) {
  logged() = std::move(words);
  return why;
}

// Runs `call`, out of which nothing is thrown.
template <typename Call>
hybridge_status guarded(Call&& call) {
  try {
    logged().clear();
    return call();
  } catch (const std::bad_alloc&) {
    return HYBRIDGE_OUT_OF_MEMORY;
  } catch (...) {
    return HYBRIDGE_INTERNAL;
  }
}

}  // namespace hybridge::c

#endif
