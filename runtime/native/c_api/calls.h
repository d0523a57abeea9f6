// Calls of the C functions: one call of a session at a time, a model's in turn, and errors as numbers.
#ifndef HYBRIDGE_NATIVE_C_API_CALLS_H
#define HYBRIDGE_NATIVE_C_API_CALLS_H

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include <hybridge/hybridge.h>
#include <hybridge/session.h>

#include "failure.h"
#include "handles.h"
#include "open_session.h"
#include "runtime_log.h"

namespace hybridge::c {

inline hybridge_status status(Error error) {
  switch (error) {
    case Error::Ok: return HYBRIDGE_OK;
    case Error::InvalidArgument: return HYBRIDGE_INVALID_ARGUMENT;
    case Error::OutOfResources: return HYBRIDGE_NO_ROOM;
    case Error::InvalidState: return HYBRIDGE_INVALID_STATE;
    case Error::InvalidProgram:
    case Error::InvalidExternalData: return HYBRIDGE_INVALID_FILE;
    case Error::AccessFailed: return HYBRIDGE_FILE_ACCESS;
    case Error::OperatorMissing:
    case Error::NotFound: return HYBRIDGE_MISSING_OPERATOR;
    case Error::MemoryAllocationFailed: return HYBRIDGE_OUT_OF_MEMORY;
    case Error::NotSupported: return HYBRIDGE_NOT_FINITE;
    default: return HYBRIDGE_INTERNAL;
  }
}

// Runs `call` on the session, in which no other call is then.
template <typename Call>
hybridge_status in(hybridge_session handle, Call&& call) {
  return guarded([&] {
    const auto session = handles<OpenSession>().find(handle);
    if (session == nullptr) return HYBRIDGE_INVALID_HANDLE;
    if (session->busy.exchange(true)) return HYBRIDGE_BUSY;
    struct Release {
      std::atomic<bool>& busy;
      ~Release() { busy = false; }
    } release{session->busy};
    if (session->running == nullptr) session->cancelled = false;  // a cancel may come while the call waits for its turn
    if (session->session == nullptr) return HYBRIDGE_INVALID_HANDLE;  // closed between the two lines above
    const auto of = session->of, small = session->small ? session->small : of;  // which the call may let go of
    std::unique_lock turn(*of->turn, std::defer_lock), other(*small->turn, std::defer_lock);
    std::lock(turn, other);
    return call(*session);
  });
}

// The same, for a call that changes the text: a generation that was begun and not ended has ended then.
template <typename Call>
hybridge_status change(hybridge_session handle, Call&& call) {
  return in(handle, [&](OpenSession& it) {
    if (it.running != nullptr) it.stop_running();
    return call(it);
  });
}

// Runs `call` on the model in its turn.
template <typename Call>
hybridge_status of(hybridge_model handle, Call&& call) {
  return guarded([&] {
    const auto model = handles<OpenModel>().find(handle);
    if (model == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const std::lock_guard turn(*model->turn);
    return call(*model);
  });
}

// Runs `call` on a checkpoint or a cache in its model's turn, in which it is let go of as well, should it be closed meanwhile.
template <typename Kept, typename Call>
hybridge_status in_turn(uint64_t handle, Call&& call) {
  return guarded([&] {
    auto kept = handles<Kept>().find(handle);
    if (kept == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const auto of = kept->of;
    const std::lock_guard turn(*of->turn);
    const hybridge_status answer = call(*kept);
    kept.reset();
    return answer;
  });
}

template <typename T>
hybridge_status answer(const Result<T>& result) {
  return status(result.error());
}

inline hybridge_status answer(const Result<Logits>& logits, float* out) {
  if (logits.ok() && out != nullptr) std::ranges::copy(logits->all(), out);
  return status(logits.error());
}

// Copies the tokens of a round.
inline hybridge_status answer(const Result<Tokens>& round, int64_t* out, size_t capacity, size_t* count) {
  if (!round.ok()) return status(round.error());
  *count = round->size();
  if (round->size() > capacity) return HYBRIDGE_INVALID_ARGUMENT;
  std::ranges::copy(*round, out);
  return HYBRIDGE_OK;
}

// Copies the first `capacity` of `all`; their number goes into `count`.
inline hybridge_status answer(Tokens all, int64_t* out, size_t capacity, size_t* count) {
  *count = all.size();
  std::ranges::copy(all.first(std::min(capacity, all.size())), out);
  return HYBRIDGE_OK;
}

// Returns whether the caller has room for what `answer` copies.
inline bool has_room(const int64_t* out, size_t capacity, const size_t* count) {
  return count != nullptr && (out != nullptr || capacity == 0);
}

inline Tokens span(const int64_t* tokens, size_t count) {
  return tokens == nullptr ? Tokens() : Tokens(tokens, count);  // none is refused
}

}  // namespace hybridge::c

#endif
