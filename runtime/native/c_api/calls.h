// Calls of the C functions: one call of a session at a time, a model's programs in turn, and errors as numbers and
// words.
#ifndef HYBRIDGE_C_API_CALLS_H
#define HYBRIDGE_C_API_CALLS_H

#include <algorithm>
#include <memory>
#include <utility>

#include <hybridge/hybridge.h>

#include "engine/session.h"

#include "c_api/failure.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/turn.h"

namespace hybridge::c {

// Runs `call` on the session, in which no other call is then. Other sessions of its model may run: for what belongs to
// it alone. changes: a generation that was begun and not ended has ended then.
template <typename Call>
hybridge_status with_session(hybridge_session handle, Call&& call, bool changes = false) {
  return guarded([&] {
    const auto session = handles<OpenSession>().find(handle);
    if (session == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    if (const hybridge_status entered = session->enter(changes); entered != HYBRIDGE_OK) return entered;
    struct Leave {
      OpenSession& session;
      ~Leave() { session.leave(); }
    } leave{*session};
    if (changes) session->stop_generation();
    return call(*session);
  });
}

// The same in its model's turn, for what runs the program or uses checkpoints.
template <typename Call>
hybridge_status with_session_in_turn(hybridge_session handle, Call&& call, bool changes = false) {
  const auto in_turn = [&](OpenSession& open) {
    open.turn.take({open.model->turn});
    return call(open);
  };
  return with_session(handle, in_turn, changes);
}

// The same, for a call that changes the text.
template <typename Call>
hybridge_status with_session_ending_generation(hybridge_session handle, Call&& call) {
  return with_session_in_turn(handle, std::forward<Call>(call), true);
}

// Runs `call` on a generation that was begun.
template <typename Call>
hybridge_status with_generation(hybridge_session handle, Call&& call) {
  return with_session(handle, [&](OpenSession& open) {
    if (open.generator == nullptr) {
      return refused(
          HYBRIDGE_INVALID_STATE,
          "no generation runs: none was begun, it has ended, or the session's text was changed while it waited; "
          "begin another"
      );
    }
    return call(open, *open.generator);
  });
}

// Lets other sessions run between two chunks of a prompt.
inline OnRead let_others_run(OpenSession& open, OnRead on_read = nullptr) {
  return [&open, on_read = std::move(on_read)](size_t count) {
    open.turn.release();
    if (on_read != nullptr) on_read(count);
    open.turn.take();
  };
}

// Runs `call` on a model or a cache in its turn.
inline std::shared_ptr<Turn> turn_of(const OpenModel& model) { return model.turn; }
inline std::shared_ptr<Turn> turn_of(const OpenCache& cache) { return cache.model->turn; }

template <typename Open, typename Call>
hybridge_status with_open_in_turn(HandleOf<Open> handle, Call&& call) {
  return guarded([&] {
    const auto open = handles<Open>().find(handle);
    if (open == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    const InTurn turn({turn_of(*open)});
    return call(*open);
  });
}

// Runs `call` on what does not change while it is open.
template <typename Open, typename Call>
hybridge_status with_open(HandleOf<Open> handle, Call&& call) {
  return guarded([&] {
    const auto open = handles<Open>().find(handle);
    return open == nullptr ? refused(HYBRIDGE_INVALID_HANDLE) : call(*open);
  });
}

template <typename T>
hybridge_status answer(const Result<T>& result) {
  return answer(result.status());
}

inline hybridge_status answer(const Result<Logits>& logits, float* out) {
  if (logits.ok() && out != nullptr) std::ranges::copy(logits->all(), out);
  return answer(logits.status());
}

// Copies the tokens of a round.
inline hybridge_status answer(const Result<Tokens>& round, int64_t* out, size_t capacity, size_t* count) {
  if (!round.ok()) return answer(round.status());
  *count = round->size();
  if (round->size() > capacity)
    return refused(HYBRIDGE_INVALID_ARGUMENT, "a round has up to verify_len tokens: give room for as many");
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
