// A smaller model as drafter: a second artifact over the same vocabulary, with a state of its own that is rolled back
// too.
//
//   auto draft = hybridge::Model::load("DRAFT/model.pte");      // exported with --snapshot-slots 1
//   auto drafter = hybridge::DraftModel::create(*draft, session.facts());
//   hybridge::Generator generator(session, {.max_new_tokens = 64}, {&*drafter});
#ifndef HYBRIDGE_ENGINE_DRAFT_MODEL_H
#define HYBRIDGE_ENGINE_DRAFT_MODEL_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/drafter.h"
#include "engine/model_info.h"
#include "engine/program.h"
#include "engine/sampling.h"
#include "engine/session.h"
#include "engine/status.h"

namespace hybridge {

// Proposes the draft model's own continuation, one token after the other.
//
// It draws as the target does, by the same settings and the same noise.
//
// Its session runs ahead of the text as it proposes; the next proposal goes back to the end of what was right by the
// draft's own snapshot, so that hybrid drafts work as well as attention-only ones. Where the text has run away from it,
// while nothing was proposed or beyond its own context, it starts anew with the text's last tokens.
class DraftModel final : public Drafter {
 public:
  // A session of its own over `draft`. INVALID_DRAFTER where its vocabulary is not the target's, or where it has no
  // snapshot slot to go back by. That both tokenizers mean the same by a token is for whoever brings the files.
  static Result<DraftModel> create(std::shared_ptr<const Model> draft, const ModelInfo& target);

  size_t unread(Tokens text) const override;

  // `limit` tokens, fewer only if the draft's whole context is smaller, or where it fails: the text does not need them.
  Proposal propose(Tokens text, size_t limit, Sampler& sampler) override;

 private:
  DraftModel(std::unique_ptr<Session> session, int64_t placeholder);

  size_t max_seq_len() const { return static_cast<size_t>(session_->max_seq_len()); }

  // Returns the position in the text of the draft's state.
  size_t position() const { return start_ + static_cast<size_t>(session_->length()); }

  // Brings the draft's state to the end of the text and keeps it, and the logits there.
  Status follow(Tokens text, size_t limit);

  // Returns whether the text continues the slot's.
  bool continues(Tokens text) const;

  // Keeps draft tokens that turned out right, unless the text has not come so far.
  Status roll_back(Tokens text);

  void restart(size_t start);

  std::unique_ptr<Session> session_;
  int64_t placeholder_;  // of a row of a picture
  size_t reach_ = 0;
  size_t start_ = 0, kept_ = 0;  // the text's position that the draft's own text starts at; tokens that the slot keeps
  std::vector<int64_t> ahead_;   // draft tokens that the session committed beyond them
  std::vector<float> after_text_;  // its logits after what the slot keeps
};

}  // namespace hybridge

#endif
