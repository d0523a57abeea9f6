// A smaller model as drafter: a second artifact over the same vocabulary, with a state of its own that is rolled back
// too.
//
//   auto small = hybridge::Model::load("DRAFT/model.pte");      // exported with --snapshot-slots 1
//   auto drafter = hybridge::DraftModel::create(*small, session.facts());
//   hybridge::generate(session, prompt, {.max_new_tokens = 64}, *drafter, on_token);
#ifndef HYBRIDGE_ENGINE_DRAFT_MODEL_H
#define HYBRIDGE_ENGINE_DRAFT_MODEL_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/distribution.h"
#include "engine/drafter.h"
#include "engine/session.h"

namespace hybridge {

// Proposes the draft model's own continuation, one token after the other.
//
// Without a seed it draws by the model's own settings and says from which distribution, which accepts most. Greedily
// and with a seed it proposes its best tokens.
//
// Its session runs ahead of the text as it proposes; the next proposal goes back to the end of what was right by the
// draft's own snapshot, so that hybrid drafts work as well as attention-only ones. Where the text has run away from it,
// while nothing was proposed or beyond its own context, it starts anew with the text's last tokens.
class DraftModel final : public Drafter {
 public:
  // A session of its own over `draft`. INVALID_DRAFTER where its vocabulary is not the target's, or where it has no
  // snapshot slot to go back by. That both tokenizers mean the same by a token is for whoever brings the files.
  static Result<DraftModel> create(std::shared_ptr<const Model> draft, const Facts& target) {
    const Facts& facts = draft->facts();
    if (facts.vocab_size != target.vocab_size) {
      return Status(
          HYBRIDGE_INVALID_DRAFTER, "the draft model has " + std::to_string(facts.vocab_size) +
                                        " tokens and the target " + std::to_string(target.vocab_size) +
                                        "; use one that was trained with the target's tokenizer"
      );
    }
    if (facts.snapshot_slots < 1) {
      return Status(
          HYBRIDGE_INVALID_DRAFTER,
          "the draft model's artifact has no snapshot slots to go back by; export it with --snapshot-slots 1"
      );
    }
    auto session = Session::create(std::move(draft));
    if (!session.ok()) return session.status();
    return DraftModel(std::move(*session), target.encoder ? target.encoder->placeholder : 0);
  }

  size_t unread(Tokens text) const override {
    const size_t missing = text.size() - std::min(text.size(), start_ + kept_);
    return kept_ > 0 ? std::min(missing, reach_) : missing;
  }

  // `limit` tokens, fewer only if the draft's whole context is smaller, or where it fails: the text does not need them.
  Proposal propose(Tokens text, size_t limit, Sampler& sampler) override {
    const Numbers tokens = as_tokens(text, placeholder_);  // it reads no pictures
    text = tokens;
    limit = std::min(limit, max_seq_len() - reach_);
    Proposal proposal;
    if (limit == 0 || !follow(text, limit).ok()) return restart(0), proposal;
    add(proposal, after_text_, text, sampler);
    while (proposal.tokens.size() < limit) {
      const auto logits = session_->decode(proposal.tokens.back());
      if (!logits.ok()) return restart(0), proposal;
      ahead_.push_back(proposal.tokens.back());
      add(proposal, logits->last(), text, sampler);
    }
    return proposal;
  }

 private:
  // Adds the token behind `text` and what is proposed so far.
  static void add(Proposal& proposal, std::span<const float> logits, Tokens text, Sampler& sampler) {
    if (!sampler.draws_drafts()) return proposal.tokens.push_back(best(logits));
    std::vector<int64_t> all(text.begin(), text.end());
    all.insert(all.end(), proposal.tokens.begin(), proposal.tokens.end());
    proposal.distributions.push_back(sampler.distribution(logits, all));
    proposal.tokens.push_back(pick(proposal.distributions.back(), sampler.noise(all.size(), Stream::draft)));
  }

  static constexpr int64_t SLOT = 0;  // its state at the end of the text, before it proposes

  DraftModel(std::unique_ptr<Session> session, int64_t placeholder)
      : session_(std::move(session)), placeholder_(placeholder) {
    reach_ = std::min(static_cast<size_t>(session_->facts().prefill_chunk), max_seq_len() / 2);
  }

  size_t max_seq_len() const { return static_cast<size_t>(session_->facts().max_seq_len); }

  // Returns the position in the text of the draft's state.
  size_t position() const { return start_ + static_cast<size_t>(session_->length()); }

  // Brings the draft's state to the end of the text and keeps it, and the logits there.
  Status follow(Tokens text, size_t limit) {
    if (!continues(text)) restart(0);
    HYBRIDGE_TRY(roll_back(text));
    const size_t missing = text.size() - position();
    const bool fits = missing + limit <= static_cast<size_t>(session_->room());
    if (!fits || (kept_ > 0 && missing > reach_)) restart(text.size() > reach_ ? text.size() - reach_ : 0);
    if (text.size() > position()) {
      const Logits logits = HYBRIDGE_TRY(session_->prefill(text.subspan(position())));
      after_text_.assign(logits.last().begin(), logits.last().end());
    }
    kept_ = static_cast<size_t>(HYBRIDGE_TRY(session_->snapshot(SLOT)));
    ahead_.clear();
    return Status();
  }

  // Returns whether the text continues the slot's.
  bool continues(Tokens text) const {
    const Tokens mine = session_->tokens().first(kept_);
    return text.size() >= start_ + kept_ &&
           std::equal(mine.begin(), mine.end(), text.begin() + static_cast<ptrdiff_t>(start_));
  }

  // Keeps draft tokens that turned out right, unless the text has not come so far.
  Status roll_back(Tokens text) {
    const Tokens came = text.subspan(start_ + kept_);
    const bool right = came.size() > ahead_.size() && std::equal(ahead_.begin(), ahead_.end(), came.begin());
    return ahead_.empty() || right ? Status() : session_->restore(SLOT).status();
  }

  void restart(size_t start) {
    (void)session_->reset();
    start_ = start;
    kept_ = 0;
    ahead_.clear();
  }

  std::unique_ptr<Session> session_;
  int64_t placeholder_;  // of a row of a picture
  size_t reach_ = 0;
  size_t start_ = 0, kept_ = 0;  // the text's position that the draft's own text starts at; tokens that the slot keeps
  std::vector<int64_t> ahead_;   // draft tokens that the session committed beyond them
  std::vector<float> after_text_;  // its logits behind what the slot keeps
};

}  // namespace hybridge

#endif
