#include "engine/prefix_cache.h"

#include <algorithm>

namespace hybridge {

PrefixCache::Kept PrefixCache::find(Tokens text, const Session* session) {
  auto found = kept_.end();
  for (auto each = kept_.begin(); each != kept_.end(); ++each) {
    const bool is_longer = found == kept_.end() || (*each)->length() > (*found)->length();
    if (!is_longer || !(*each)->begins(text)) continue;
    if (session == nullptr || session->may_reuse((*each)->tokens(), (*each)->delegated())) found = each;
  }
  if (found == kept_.end()) return nullptr;
  kept_.splice(kept_.end(), kept_, found);
  const Kept used = kept_.back();
  if (on_use_ != nullptr) on_use_(used);
  return used;
}

void PrefixCache::add(Kept checkpoint) {
  if (checkpoint == nullptr || checkpoint->bytes() + checkpoint->shared_bytes() > budget_) return;
  const auto text = checkpoint->tokens();
  const auto is_same = [&](const Kept& each) { return each->length() == text.size() && each->begins(text); };
  if (const auto same = std::find_if(kept_.begin(), kept_.end(), is_same); same != kept_.end()) forget(same);
  use(*checkpoint);
  kept_.push_back(checkpoint);
  size_ = kept_.size();
  while (bytes_ > budget_) forget(kept_.begin());
  if (on_use_ != nullptr) on_use_(checkpoint);
}

void PrefixCache::clear() {
  while (!kept_.empty()) forget(kept_.begin());
}

void PrefixCache::use(const Checkpoint& checkpoint) {
  bytes_ += checkpoint.bounded_bytes();
  for (const RowSegment* each = checkpoint.segment.get(); each != nullptr && ++uses_[each] == 1;
       each = each->parent.get()) {
    bytes_ += each->bytes();
  }
}

void PrefixCache::forget(std::list<Kept>::iterator place) {
  const Kept gone = *place;
  kept_.erase(place);
  size_ = kept_.size();
  bytes_ -= gone->bounded_bytes();
  for (const RowSegment* each = gone->segment.get(); each != nullptr && --uses_[each] == 0; each = each->parent.get()) {
    uses_.erase(each);
    bytes_ -= each->bytes();
  }
}

Result<int64_t> resume_prefix(Session& session, Tokens text, PrefixCache& cache) {
  const Tokens now = session.tokens();
  const bool goes_on = !session.is_broken() && text.size() >= now.size() &&
                       std::equal(now.begin(), now.end(), text.begin()) && session.may_reuse(now, session.delegated());
  const auto found = cache.find(text, &session);
  if (found != nullptr && (!goes_on || found->length() > now.size())) HYBRIDGE_TRY(session.resume(*found));
  else if (!goes_on) HYBRIDGE_TRY(session.reset());
  session.expect(text.size());
  return session.length();
}

void keep_checkpoint(Session& session, PrefixCache& cache) {
  if (cache.budget() == 0 || session.length() == 0) return;
  const auto found = cache.find(session.tokens(), &session);
  if (found != nullptr && found->length() >= session.tokens().size()) return;
  if (auto made = session.checkpoint(); made.ok()) cache.add(std::move(*made));
}

Result<int64_t> bring_to(
    Session& session, Tokens text, PrefixCache& cache, const std::atomic<bool>* cancelled, const OnRead& on_read,
    size_t mark, const std::function<void()>& at_mark
) {
  const auto check_mark = [&] {
    if (at_mark != nullptr && mark > 0 && static_cast<size_t>(session.length()) == mark) at_mark();
  };
  const int64_t cached = HYBRIDGE_TRY(resume_prefix(session, text, cache));
  check_mark();
  for (auto at = static_cast<size_t>(cached); at < text.size(); at = static_cast<size_t>(session.length())) {
    const size_t stop = std::min({at + CHECKPOINT_EVERY, text.size(), mark > at ? mark : text.size()});
    const size_t end = after_picture(text, stop), before = at - static_cast<size_t>(cached);
    const auto tell = [&](size_t count) {
      if (on_read != nullptr) on_read(before + count);
    };
    HYBRIDGE_TRY(session.prefill(text.subspan(at, end - at), cancelled, tell));
    cache.add(HYBRIDGE_TRY(session.checkpoint()));
    check_mark();
    tell(end - at);
  }
  return cached;
}

}  // namespace hybridge
