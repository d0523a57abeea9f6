// Models, checkpoints, pictures and sessions behind handles.
#ifndef HYBRIDGE_C_API_OPEN_SESSION_H
#define HYBRIDGE_C_API_OPEN_SESSION_H

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include <hybridge/hybridge.h>

#include "engine/draft_model.h"
#include "engine/own_drafter.h"
#include "engine/picture_processor.h"
#include "engine/prefix_cache.h"
#include "engine/prompt_lookup.h"
#include "engine/speculative.h"

#include "c_api/callback_drafter.h"
#include "c_api/constraint.h"
#include "c_api/turn.h"

namespace hybridge::c {

// The turn of all models of one file: their checkpoints share rows.
std::shared_ptr<Turn> turn_of(uint64_t fingerprint);

// turn: in which its programs run, and in which checkpoints and states are destroyed.
class OpenModel {
 public:
  using Handle = hybridge_model;

  explicit OpenModel(std::shared_ptr<const Model> opened);

  const std::shared_ptr<const Model> model;
  const std::shared_ptr<Turn> turn;

  // Most tokens of a text in sessions that are opened from now on.
  std::atomic<int64_t> max_seq_len;

  // How they read prompts.
  std::atomic<int64_t> delegate_from = 0;
  std::atomic<bool> strict_reuse = false;

  // A session as these say.
  Result<std::unique_ptr<Session>> session() const;

  // What prepares its pictures; null before that was said.
  std::shared_ptr<const PictureProcessor> pictures() const;
  void prepare_by(std::shared_ptr<const PictureProcessor> pictures);

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const PictureProcessor> pictures_;
};

// Whoever drops the last reference to one of these leaves what it holds to the model's turn.

struct OpenCheckpoint {
  using Handle = hybridge_checkpoint;

  std::shared_ptr<OpenModel> model;
  std::shared_ptr<const Checkpoint> checkpoint;

  ~OpenCheckpoint() { model->turn->leave(std::const_pointer_cast<Checkpoint>(std::move(checkpoint))); }
};

// Checkpoints by their texts.
struct OpenCache {
  using Handle = hybridge_cache;

  std::shared_ptr<OpenModel> model;
  std::shared_ptr<PrefixCache> cache;

  ~OpenCache() { model->turn->leave(std::move(cache)); }
};

struct OpenPicture {
  using Handle = hybridge_picture;

  std::shared_ptr<OpenModel> model;
  std::shared_ptr<const PreparedPicture> picture;
};

// One call is in it at a time. What a call reads of the session alone needs no turn.
struct OpenSession {
  using Handle = hybridge_session;

  std::shared_ptr<OpenModel> model;
  std::unique_ptr<Session> session;
  PromptLookup prompt_lookup;
  std::optional<OwnDrafter> own_drafter;  // of the session, behind which it is declared
  std::shared_ptr<OpenModel> draft_model;
  std::shared_ptr<DraftModel> model_drafter;
  std::map<uint64_t, std::unique_ptr<CallbackDrafter>> callback_drafters;  // the caller's own that have a number, and 0
  std::unique_ptr<Generator> generator;                                    // refers to the drafters
  Drafted drafted;                                                         // what hybridge_draft answered with
  std::vector<std::shared_ptr<Turn>> turns;                                // of the last generation
  InTurn turn;                                                             // of the call that is in it
  std::atomic<bool> cancelled = false;

  ~OpenSession();

  // Lets a call in; changes: one that ends a generation which was begun. A cancel counts from here on: one that came
  // before was for another call.
  hybridge_status enter(bool changes);

  void leave();

  void cancel();

  // Lets no call in any more; by the one that is in it.
  void close();

  // Ends a generation that nobody ended.
  void stop_generation();

  void drop_draft_model();

 private:
  std::mutex mutex_;
  bool is_busy_ = false, is_closed_ = false;
};

}  // namespace hybridge::c

#endif
