// How this thread's last call ended, in words; and nothing that is thrown leaves it.
#ifndef HYBRIDGE_C_API_FAILURE_H
#define HYBRIDGE_C_API_FAILURE_H

#include <exception>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>

#include <hybridge/hybridge.h>

#include "engine/status.h"

namespace hybridge::c {

// words: empty for those that the code has in general.
struct Ending {
  hybridge_status code = HYBRIDGE_OK;
  std::string words;
};

inline Ending& last_ending() {
  thread_local Ending last;
  return last;
}

// Refuses a call in words of ours, or in those of the code.
inline hybridge_status refused(hybridge_status why, std::string words = {}) {
  last_ending() = {why, std::move(words)};
  return why;
}

// Ends a call as the core did.
inline hybridge_status answer(const Status& status) { return refused(status.code(), status.words()); }

// What a function of the caller's threw.
struct CallbackError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Calls a function of the caller's.
template <typename Function, typename... Arguments>
auto call_back(Function function, Arguments... arguments) {
  try {
    return function(arguments...);
  } catch (const std::exception& thrown) {
    throw CallbackError(std::string("a callback threw an exception: ") + thrown.what());
  } catch (...) {
    throw CallbackError("a callback threw what is no std::exception");
  }
}

// Runs `call`, out of which nothing is thrown.
template <typename Call>
hybridge_status guarded(Call&& call) {
  Ending& last = last_ending();
  try {
    last = {};
    last.code = call();
    if (last.code == HYBRIDGE_OK) last.words.clear();
    return last.code;
  } catch (const std::bad_alloc&) {
    return refused(HYBRIDGE_OUT_OF_MEMORY);
  } catch (const std::exception& thrown) {
    const bool is_callback = dynamic_cast<const CallbackError*>(&thrown) != nullptr;
    try {
      if (is_callback) return refused(HYBRIDGE_CALLBACK_FAILED, thrown.what());
      return refused(HYBRIDGE_INTERNAL, std::string("an exception was thrown: ") + thrown.what());
    } catch (...) {
      return refused(is_callback ? HYBRIDGE_CALLBACK_FAILED : HYBRIDGE_INTERNAL);
    }
  } catch (...) {
    return refused(HYBRIDGE_INTERNAL);
  }
}

}  // namespace hybridge::c

#endif
