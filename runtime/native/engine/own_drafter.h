// The drafter inside an artifact (--drafter, --mtp of hybridge export): it proposes from the model's own hidden states.
//
//   hybridge::BlockDrafter drafter(session);   // where session.facts().has_drafter()
//   hybridge::Generator generator(session, {.max_new_tokens = 64}, {&drafter});
#ifndef HYBRIDGE_ENGINE_OWN_DRAFTER_H
#define HYBRIDGE_ENGINE_OWN_DRAFTER_H

#include <cstddef>
#include <optional>

#include "engine/calibration.h"
#include "engine/draft.h"
#include "engine/drafter.h"
#include "engine/model_info.h"
#include "engine/sampling.h"
#include "engine/session.h"

namespace hybridge {

// While it lives and listens, the session keeps the hidden states that it has yet to read. Its state rolls back with
// the session's, and is a part of its checkpoints.
class OwnDrafter final : public Drafter {
 public:
  explicit OwnDrafter(Session& session) : session_(session) { listen(true); }
  ~OwnDrafter() override { listen(false); }

  OwnDrafter(const OwnDrafter&) = delete;
  OwnDrafter& operator=(const OwnDrafter&) = delete;

  // Starts or stops reading what is committed. Unless it cannot pay, it reads a text before a checkpoint of it is made:
  // that is a prefill, too.
  void listen(bool wanted);

  size_t longest() const override { return static_cast<size_t>(session_.info().draft_blocks.back()) - 1; }

  size_t unread(Tokens) const override { return session_.hidden().count(); }

  // Each token has a calibrated confidence. A drafter that samples draws by the noise of the target's tokens. A
  // failure proposes nothing; the session knows if it left a broken state.
  Proposal propose(Tokens text, size_t limit, Sampler& sampler) override;

 private:
  // Returns the noise that draft tokens are drawn by; nothing for the best ones.
  std::optional<Draws> draws(size_t start, size_t limit, const Sampler& sampler) const;

  Session& session_;
  Calibration calibration_;
};

}  // namespace hybridge

#endif
