#include "engine/draft_model.h"

#include <algorithm>
#include <span>
#include <string>
#include <utility>

#include "engine/logits.h"

namespace hybridge {

namespace {

constexpr int64_t SLOT = 0;  // its state at the end of the text, before it proposes

}  // namespace

Result<DraftModel> DraftModel::create(std::shared_ptr<const Model> draft, const ModelInfo& target) {
  const ModelInfo& info = draft->info();
  if (info.vocab_size != target.vocab_size) {
    return Status(
        HYBRIDGE_INVALID_DRAFTER, "the draft model has " + std::to_string(info.vocab_size) + " tokens and the target " +
                                      std::to_string(target.vocab_size) +
                                      "; use one that was trained with the target's tokenizer"
    );
  }
  if (info.snapshot_slots < 1) {
    return Status(
        HYBRIDGE_INVALID_DRAFTER,
        "the draft model's artifact has no snapshot slots to go back by; export it with --snapshot-slots 1"
    );
  }
  auto session = Session::create(std::move(draft));
  if (!session.ok()) return session.status();
  return DraftModel(std::move(*session), target.encoder ? target.encoder->placeholder : 0);
}

size_t DraftModel::unread(Tokens text) const {
  const size_t missing = text.size() - std::min(text.size(), start_ + kept_);
  return kept_ > 0 ? std::min(missing, reach_) : missing;
}

Proposal DraftModel::propose(Tokens text, size_t limit, Sampler& sampler) {
  const Numbers tokens = as_tokens(text, placeholder_);  // it reads no pictures
  text = tokens;
  limit = std::min(limit, max_seq_len() - reach_);
  Proposal proposal;
  if (limit == 0 || !follow(text, limit).ok()) return restart(0), proposal;
  std::vector<int64_t> all(text.begin(), text.end());
  const auto add = [&](std::span<const float> after) {
    proposal.tokens.push_back(sampler.draft(after, all));
    all.push_back(proposal.tokens.back());
  };
  add(after_text_);
  while (proposal.tokens.size() < limit) {
    const auto logits = session_->decode(proposal.tokens.back());
    if (!logits.ok()) return restart(0), proposal;
    ahead_.push_back(proposal.tokens.back());
    add(logits->last());
  }
  return proposal;
}

DraftModel::DraftModel(std::unique_ptr<Session> session, int64_t placeholder)
    : session_(std::move(session)), placeholder_(placeholder) {
  reach_ = std::min(static_cast<size_t>(session_->info().prefill_chunk), max_seq_len() / 2);
}

Status DraftModel::follow(Tokens text, size_t limit) {
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

bool DraftModel::continues(Tokens text) const {
  const Tokens mine = session_->tokens().first(kept_);
  return text.size() >= start_ + kept_ &&
         std::equal(mine.begin(), mine.end(), text.begin() + static_cast<ptrdiff_t>(start_));
}

Status DraftModel::roll_back(Tokens text) {
  const Tokens came = text.subspan(start_ + kept_);
  const bool right = came.size() > ahead_.size() && std::equal(ahead_.begin(), ahead_.end(), came.begin());
  return ahead_.empty() || right ? Status() : session_->restore(SLOT).status();
}

void DraftModel::restart(size_t start) {
  (void)session_->reset();
  start_ = start;
  kept_ = 0;
  ahead_.clear();
}

}  // namespace hybridge
