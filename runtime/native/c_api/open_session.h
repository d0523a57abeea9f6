// Models, checkpoints and sessions behind handles.
#ifndef HYBRIDGE_NATIVE_C_API_OPEN_SESSION_H
#define HYBRIDGE_NATIVE_C_API_OPEN_SESSION_H

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include <hybridge/block_drafter.h>
#include <hybridge/draft_model.h>
#include <hybridge/prefix_cache.h>
#include <hybridge/speculative.h>

namespace hybridge::c {

// turn: of its sessions, which run one after the other, or in another's callback, and of whoever lets go of a checkpoint.
struct OpenModel {
  std::shared_ptr<const Model> model;
  std::recursive_mutex turn;
  std::unique_ptr<PrefixCache> cache = std::make_unique<PrefixCache>(0);
};

// It goes before its model does, whose cache may share rows with it.
struct OpenCheckpoint {
  std::shared_ptr<OpenModel> of;
  std::shared_ptr<const Checkpoint> kept;
};

struct OpenSession {
  std::shared_ptr<OpenModel> of;
  std::unique_ptr<Session> session;
  std::atomic<bool> busy = false, cancelled = false;
  NoDrafter none;
  PromptLookup lookup;
  std::optional<BlockDrafter> own;   // of the session, behind which it is declared
  std::shared_ptr<OpenModel> small;  // the draft model, whose turn is waited for as well
  std::optional<DraftModel> by_small;

  using OnToken = std::function<bool(int64_t)>;

  template <typename D>
  Result<Generated> generate(Tokens prompt, const Generation& wishes, D& drafter, const OnToken& wanted) {
    return hybridge::generate(*session, prompt, wishes, drafter, wanted);
  }

  Result<Generated> generate_by_small(Tokens prompt, const Generation& wishes, const OnToken& wanted) {
    if (small == nullptr) return Error::InvalidArgument;
    if (!by_small) {
      auto made = DraftModel::create(small->model, session->facts());
      if (!made.ok()) return made.error();
      by_small.emplace(std::move(*made));
    }
    return generate(prompt, wishes, *by_small, wanted);
  }

  // It listens no longer than it drafts: hidden states that nobody reads would pile up.
  Result<Generated> generate_by_own(Tokens prompt, const Generation& wishes, const OnToken& wanted) {
    if (!session->facts().has_drafter()) return Error::InvalidArgument;
    if (!own) own.emplace(*session);
    own->listen(true);
    auto done = generate(prompt, wishes, *own, wanted);
    own->listen(false);
    return done;
  }

  void close() {
    own.reset();
    by_small.reset();
    session.reset();
  }
};

}  // namespace hybridge::c

#endif
