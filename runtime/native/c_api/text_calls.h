// Calls about texts: on what is open, one at a time where it changes, and refused in the words of the text that cannot
// be read.
#ifndef HYBRIDGE_C_API_TEXT_CALLS_H
#define HYBRIDGE_C_API_TEXT_CALLS_H

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include <hybridge/hybridge.h>

#include "text/error.h"

#include "c_api/failure.h"
#include "c_api/handles.h"

namespace hybridge::c {

// Runs `call` on what is open. why: of a text that it cannot read.
template <typename Open, typename Call>
hybridge_status with_open_text(HandleOf<Open> handle, Call&& call, hybridge_status why = HYBRIDGE_INVALID_ARGUMENT) {
  return guarded([&] {
    const auto open = handles<Open>().find(handle);
    if (open == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    try {
      return call(open);
    } catch (const text::UnsupportedError& error) {
      return refused(HYBRIDGE_UNSUPPORTED, error.what());
    } catch (const text::TextError& error) {
      return refused(why, error.what());
    }
  });
}

// Runs `call` on what is open and has a flag `busy`, in which no other call is then.
template <typename Open, typename Call>
hybridge_status with_one_call(HandleOf<Open> handle, Call&& call, hybridge_status why = HYBRIDGE_INVALID_ARGUMENT) {
  return with_open_text<Open>(
      handle,
      [&](const auto& open) {
        if (open->busy.exchange(true)) return HYBRIDGE_BUSY;
        struct Release {
          std::atomic<bool>& busy;
          ~Release() { busy = false; }
        } release{open->busy};
        call(*open);
        return HYBRIDGE_OK;
      },
      why
  );
}

inline hybridge_status copy(std::string_view from, char* to, size_t capacity, size_t* size) {
  *size = from.size();
  std::copy_n(from.data(), std::min(capacity, from.size()), to);
  return HYBRIDGE_OK;
}

}  // namespace hybridge::c

#endif
