// Models, checkpoints, pictures and sessions behind handles.
#ifndef HYBRIDGE_NATIVE_C_API_OPEN_SESSION_H
#define HYBRIDGE_NATIVE_C_API_OPEN_SESSION_H

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "engine/block_drafter.h"
#include "engine/draft_model.h"
#include <hybridge/hybridge.h>
#include "engine/picture_processor.h"
#include "engine/prefix_cache.h"
#include "engine/prompt_lookup.h"
#include "engine/speculative.h"

#include "callback_drafter.h"
#include "constraint.h"
#include "turn.h"

namespace hybridge::c {

// The turn of all models of one file: their checkpoints share rows.
inline std::shared_ptr<Turn> turn_of(uint64_t fingerprint) {
  static auto& mutex = *new std::mutex;
  static auto& turns = *new std::map<uint64_t, std::weak_ptr<Turn>>;
  const std::lock_guard lock(mutex);
  std::erase_if(turns, [](const auto& each) { return each.second.expired(); });
  auto turn = turns[fingerprint].lock();
  if (turn == nullptr) turns[fingerprint] = turn = std::make_shared<Turn>();
  return turn;
}

// turn: in which its programs run, and in which checkpoints and states are destroyed.
class OpenModel {
 public:
  using Handle = hybridge_model;

  explicit OpenModel(std::shared_ptr<const Model> opened)
      : model(std::move(opened)), turn(turn_of(model->fingerprint())) {}

  const std::shared_ptr<const Model> model;
  const std::shared_ptr<Turn> turn;

  // What prepares its pictures; null before that was said.
  std::shared_ptr<const PictureProcessor> pictures() const {
    const std::lock_guard lock(mutex_);
    return pictures_;
  }
  void prepare_by(std::shared_ptr<const PictureProcessor> pictures) {
    const std::lock_guard lock(mutex_);
    pictures_ = std::move(pictures);
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const PictureProcessor> pictures_;
};

// Whoever drops the last reference to one of these leaves what it holds to the model's turn.

struct OpenCheckpoint {
  using Handle = hybridge_checkpoint;

  std::shared_ptr<OpenModel> of;
  std::shared_ptr<const Checkpoint> kept;

  ~OpenCheckpoint() { of->turn->leave(std::const_pointer_cast<Checkpoint>(std::move(kept))); }
};

// Checkpoints by their texts.
struct OpenCache {
  using Handle = hybridge_cache;

  std::shared_ptr<OpenModel> of;
  std::shared_ptr<PrefixCache> kept;

  ~OpenCache() { of->turn->leave(std::move(kept)); }
};

struct OpenPicture {
  using Handle = hybridge_picture;

  std::shared_ptr<OpenModel> of;
  std::shared_ptr<const PreparedPicture> picture;
};

// One call is in it at a time. What a call reads of the session alone needs no turn.
struct OpenSession {
  using Handle = hybridge_session;

  std::shared_ptr<OpenModel> of;
  std::unique_ptr<Session> session;
  PromptLookup lookup;
  std::optional<BlockDrafter> own;   // of the session, behind which it is declared
  std::shared_ptr<OpenModel> small;  // the draft model
  std::shared_ptr<DraftModel> by_small;
  std::map<uint64_t, std::unique_ptr<CallbackDrafter>> outside;  // the caller's own that have a number, and 0
  std::unique_ptr<Generator> running;                            // refers to the drafters
  Drafted drafted;                                               // what hybridge_draft answered with
  std::vector<std::shared_ptr<Turn>> turns;                      // of the last generation
  InTurn turn;                                                   // of the call that is in it
  std::atomic<bool> cancelled = false;

  ~OpenSession() {
    running.reset();
    own.reset();
    outside.clear();
    drop_draft_model();
    of->turn->leave(std::move(session));
  }

  // Lets a call in; changes: one that ends a generation which was begun. A cancel counts from here on: one that came
  // before was for another call.
  hybridge_status enter(bool changes) {
    const std::lock_guard lock(mutex_);
    if (is_closed_) return refused(HYBRIDGE_INVALID_HANDLE);
    if (is_busy_) return refused(HYBRIDGE_BUSY, "the session is in another call; use it from one thread at a time");
    is_busy_ = true;
    if (changes || running == nullptr) cancelled = false;
    return HYBRIDGE_OK;
  }

  void leave() {
    turn.release();
    const std::lock_guard lock(mutex_);
    is_busy_ = false;
  }

  void cancel() {
    const std::lock_guard lock(mutex_);
    cancelled = true;
  }

  // Lets no call in any more; by the one that is in it.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }

  // Ends a generation that nobody ended.
  void stop_running() {
    if (running == nullptr) return;
    running.reset();
    if (own) own->listen(false);
  }

  void drop_draft_model() {
    if (by_small != nullptr) small->turn->leave(std::move(by_small));
  }

 private:
  std::mutex mutex_;
  bool is_busy_ = false, is_closed_ = false;
};

}  // namespace hybridge::c

#endif
