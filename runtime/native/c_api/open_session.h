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

#include <hybridge/block_drafter.h>
#include <hybridge/draft_model.h>
#include <hybridge/hybridge.h>
#include <hybridge/picture_processor.h>
#include <hybridge/prefix_cache.h>
#include <hybridge/speculative.h>

#include "callback_drafter.h"
#include "constraint.h"

namespace hybridge::c {

using Turn = std::recursive_mutex;

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

// turn: of its sessions, which run one after the other, or in another's callback, and of whoever lets go of a checkpoint.
class OpenModel {
 public:
  explicit OpenModel(std::shared_ptr<const Model> opened) : model(std::move(opened)), turn(turn_of(model->fingerprint())) {}

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

struct OpenCheckpoint {
  std::shared_ptr<OpenModel> of;
  std::shared_ptr<const Checkpoint> kept;
};

struct OpenPicture {
  std::shared_ptr<OpenModel> of;
  std::shared_ptr<const PreparedPicture> picture;
};

// Checkpoints by their texts.
struct OpenCache {
  std::shared_ptr<OpenModel> of;
  std::shared_ptr<PrefixCache> kept;
};

struct OpenSession {
  std::shared_ptr<OpenModel> of;
  std::unique_ptr<Session> session;
  std::atomic<bool> busy = false, cancelled = false;
  PromptLookup lookup;
  std::optional<BlockDrafter> own;   // of the session, behind which it is declared
  std::shared_ptr<OpenModel> small;  // the draft model, whose turn is waited for as well
  std::optional<DraftModel> by_small;
  std::map<uint64_t, std::unique_ptr<CallbackDrafter>> outside;  // the caller's own that have a number, and 0
  std::unique_ptr<Generator> running;  // refers to the drafters
  std::optional<Constraint> constraint;  // of the last generation
  Drafted drafted;  // what hybridge_draft answered with

  // Ends a generation that nobody ended.
  void stop_running() {
    running.reset();
    cancelled = false;
    if (own) own->listen(false);
  }

  void close() {
    running.reset();
    own.reset();
    by_small.reset();
    outside.clear();
    session.reset();
  }
};

}  // namespace hybridge::c

#endif
