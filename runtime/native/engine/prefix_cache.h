// A prefix cache: checkpoints by their texts. A prompt that begins with such a text resumes its checkpoint.
//
//   hybridge::PrefixCache cache(256 << 20);
//   hybridge::bring_to(session, prompt, cache);    // reads what neither the session nor a checkpoint has
#ifndef HYBRIDGE_ENGINE_PREFIX_CACHE_H
#define HYBRIDGE_ENGINE_PREFIX_CACHE_H

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "engine/checkpoint.h"
#include "engine/model_info.h"
#include "engine/session.h"
#include "engine/status.h"

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

  // The checkpoint of the longest beginning of `text`, all of it included, that the session may reuse; null if there is
  // none. session: null for any.
  Kept find(Tokens text, const Session* session = nullptr);

  // Keeps a checkpoint in the place of another one of its text, unless it is larger than the whole budget.
  void add(Kept checkpoint);

  void clear();

 private:
  void use(const Checkpoint& checkpoint);

  void forget(std::list<Kept>::iterator place);

  const size_t budget_;
  std::atomic<size_t> bytes_ = 0, size_ = 0;
  std::list<Kept> kept_;  // what was used last comes last
  std::map<const RowSegment*, size_t> uses_;
  std::function<void(const Kept&)> on_use_;
};

// Tokens of a long text from one checkpoint to the next.
constexpr size_t CHECKPOINT_EVERY = 512;

// Brings the session to the longest beginning of `text` that its own state or a checkpoint has; the length.
Result<int64_t> resume_prefix(Session& session, Tokens text, PrefixCache& cache);

// Adds a checkpoint of the session's text, unless there is one, the text is empty or its state is broken.
void keep_checkpoint(Session& session, PrefixCache& cache);

// Brings the session to `text`; returns the number of tokens that were not read, because the session or a checkpoint
// has them. Checkpoints go into the cache at the end, at `mark`, a length at which other texts may branch off, and
// every CHECKPOINT_EVERY tokens. on_read: called with the number of tokens that are read, at each of these and between
// two chunks. at_mark: called where the session has just `mark` tokens. Fails as `prefill` does; what was read stays.
Result<int64_t> bring_to(
    Session& session, Tokens text, PrefixCache& cache, const std::atomic<bool>* cancelled = nullptr,
    const OnRead& on_read = nullptr, size_t mark = 0, const std::function<void()>& at_mark = nullptr
);

}  // namespace hybridge

#endif
