// A prefix cache: checkpoints by their texts. A prompt that begins with such a text resumes its checkpoint.
//
//   hybridge::PrefixCache cache(256 << 20);
//   hybridge::bring_to(session, prompt, cache);    // reads what neither the session nor a checkpoint has
#ifndef HYBRIDGE_ENGINE_PREFIX_CACHE_H
#define HYBRIDGE_ENGINE_PREFIX_CACHE_H

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "engine/checkpoint.h"
#include "engine/session.h"

namespace hybridge {

// At most `budget` bytes together; what was used least recently goes first. Rows by position that longer texts need
// stay as long as one of these does, and are counted once. One thread at a time, but for the numbers, which any thread
// may read meanwhile.
class PrefixCache {
 public:
  using Kept = std::shared_ptr<const Checkpoint>;

  explicit PrefixCache(size_t budget) : budget_(budget) {}

  // Calls `on_use` with each checkpoint that is kept or found from now on; null: no more.
  void watch(std::function<void(const Kept&)> on_use) { on_use_ = std::move(on_use); }

  size_t budget() const { return budget_; }
  size_t size() const { return size_; }
  size_t bytes() const { return bytes_; }

  // The checkpoint of the longest beginning of `text`, all of it included; null if there is none.
  Kept find(Tokens text) {
    auto found = kept_.end();
    for (auto each = kept_.begin(); each != kept_.end(); ++each) {
      const bool is_longer = found == kept_.end() || (*each)->length() > (*found)->length();
      if (is_longer && (*each)->begins(text)) found = each;
    }
    if (found == kept_.end()) return nullptr;
    kept_.splice(kept_.end(), kept_, found);
    const Kept used = kept_.back();
    if (on_use_ != nullptr) on_use_(used);
    return used;
  }

  // Keeps a checkpoint in the place of another one of its text, as far as the budget goes.
  void add(Kept checkpoint) {
    if (checkpoint == nullptr) return;
    const auto text = checkpoint->tokens();
    const auto is_same = [&](const Kept& each) { return each->length() == text.size() && each->begins(text); };
    if (const auto same = std::find_if(kept_.begin(), kept_.end(), is_same); same != kept_.end()) forget(same);
    use(*checkpoint);
    kept_.push_back(checkpoint);
    size_ = kept_.size();
    while (bytes_ > budget_) forget(kept_.begin());
    if (on_use_ != nullptr) on_use_(checkpoint);
  }

  void clear() {
    while (!kept_.empty()) forget(kept_.begin());
  }

 private:
  void use(const Checkpoint& checkpoint) {
    bytes_ += checkpoint.bounded_bytes();
    for (const RowSegment* each = checkpoint.segment.get(); each != nullptr && ++uses_[each] == 1;
         each = each->parent.get()) {
      bytes_ += each->bytes();
    }
  }

  void forget(std::list<Kept>::iterator place) {
    const Kept gone = *place;
    kept_.erase(place);
    size_ = kept_.size();
    bytes_ -= gone->bounded_bytes();
    for (const RowSegment* each = gone->segment.get(); each != nullptr && --uses_[each] == 0;
         each = each->parent.get()) {
      uses_.erase(each);
      bytes_ -= each->bytes();
    }
  }

  const size_t budget_;
  std::atomic<size_t> bytes_ = 0, size_ = 0;
  std::list<Kept> kept_;  // what was used last comes last
  std::map<const RowSegment*, size_t> uses_;
  std::function<void(const Kept&)> on_use_;
};

// Tokens of a long text from one checkpoint to the next.
constexpr size_t CHECKPOINT_EVERY = 512;

// Brings the session to the longest beginning of `text` that its own state or a checkpoint has; the length.
inline Result<int64_t> resume_prefix(Session& session, Tokens text, PrefixCache& cache) {
  const Tokens now = session.tokens();
  const bool goes_on = !session.is_broken() && text.size() >= now.size() &&
                       std::equal(now.begin(), now.end(), text.begin());
  const auto found = cache.find(text);
  if (found != nullptr && (!goes_on || found->length() > now.size())) return session.resume(*found);
  return goes_on ? Result<int64_t>(session.length()) : session.reset();
}

// Adds a checkpoint of the session's text, unless there is one, the text is empty or its state is broken.
inline void keep_checkpoint(Session& session, PrefixCache& cache) {
  if (cache.budget() == 0 || session.length() == 0) return;
  const auto found = cache.find(session.tokens());
  if (found != nullptr && found->length() >= session.tokens().size()) return;
  if (auto made = session.checkpoint(); made.ok()) cache.add(std::move(*made));
}

// Brings the session to `text`; returns the number of tokens that were not read, because the session or a checkpoint
// has them. Checkpoints go into the cache at the end, at `mark`, a length at which other texts may branch off, and
// every CHECKPOINT_EVERY tokens. on_read: called with the number of tokens that are read, at each of these and between
// two chunks. at_mark: called where the session has just `mark` tokens. Fails as `prefill` does; what was read stays.
inline Result<int64_t> bring_to(
    Session& session, Tokens text, PrefixCache& cache, const std::atomic<bool>* cancelled = nullptr,
    const OnRead& on_read = nullptr, size_t mark = 0, const std::function<void()>& at_mark = nullptr
) {
  const auto check_mark = [&] {
    if (at_mark != nullptr && mark > 0 && static_cast<size_t>(session.length()) == mark) at_mark();
  };
  const int64_t cached = HYBRIDGE_TRY(resume_prefix(session, text, cache));
  check_mark();
  for (auto at = static_cast<size_t>(cached); at < text.size(); at = static_cast<size_t>(session.length())) {
    const size_t stop = std::min({at + CHECKPOINT_EVERY, text.size(), mark > at ? mark : text.size()});
    const size_t end = behind_picture(text, stop), before = at - static_cast<size_t>(cached);
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

#endif
