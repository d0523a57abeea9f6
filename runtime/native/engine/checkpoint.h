// Checkpoints: states in memory that a session goes on from, each with no more than what its text added.
//
//   auto kept = session.checkpoint();          // bounded states, and rows by position since the checkpoint before
//   session.prefill(one_way), session.resume(**kept), session.prefill(another);
//
// engine/prefix_cache.h keeps them by their texts. All sessions that use a checkpoint, and all that let go of one, do
// so in turn, as one thread or under one lock.
#ifndef HYBRIDGE_ENGINE_CHECKPOINT_H
#define HYBRIDGE_ENGINE_CHECKPOINT_H

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/hidden_states.h"
#include "engine/program.h"
#include "engine/row_buffers.h"
#include "engine/state_file.h"
#include "engine/state_layout.h"

namespace hybridge {

// A number that tells a thing in memory from all others of this process.
inline uint64_t next_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// Rows by position of the tokens behind those of `parent`; parts of one text, which is never changed.
// counts: rows of each buffer up to the segment's end; rows: the bytes of those that the parent does not have.
struct RowSegment {
  const uint64_t id = next_id();
  std::shared_ptr<RowSegment> parent;
  std::vector<int64_t> tokens;
  size_t length;
  std::vector<size_t> counts;
  std::vector<std::vector<uint8_t>> rows;

  RowSegment(
      std::shared_ptr<RowSegment> before, std::vector<int64_t> own, std::vector<size_t> filled,
      std::vector<std::vector<uint8_t>> copies
  )
      : parent(std::move(before)),
        tokens(std::move(own)),
        length((parent ? parent->length : 0) + tokens.size()),
        counts(std::move(filled)),
        rows(std::move(copies)) {}
  RowSegment(const RowSegment&) = delete;
  RowSegment& operator=(const RowSegment&) = delete;

  // One after the other: a long text has more segments than a stack has frames.
  ~RowSegment() {
    for (auto next = std::move(parent); next != nullptr && next.use_count() == 1;) next = std::move(next->parent);
  }

  size_t bytes() const {
    size_t sum = tokens.size() * sizeof(int64_t);
    for (const auto& each : rows) sum += each.size();
    return sum;
  }
};

// The segments of a text in order, `last` last.
inline std::vector<std::shared_ptr<RowSegment>> chain(std::shared_ptr<RowSegment> last) {
  std::vector<std::shared_ptr<RowSegment>> segments;
  for (; last != nullptr; last = last->parent) segments.push_back(last);
  std::ranges::reverse(segments);
  return segments;
}

// A state of a session; every session over the same artifact can resume it. model: its fingerprint. unread: hidden
// states that the drafter in the program has yet to read.
struct Checkpoint {
  uint64_t model;
  std::vector<std::vector<uint8_t>> bounded;
  std::shared_ptr<RowSegment> segment;
  HiddenRows unread = {};
  const uint64_t id = next_id();

  size_t length() const { return segment->length; }

  std::vector<int64_t> tokens() const {
    std::vector<int64_t> all;
    for (const auto& each : chain(segment)) all.insert(all.end(), each->tokens.begin(), each->tokens.end());
    return all;
  }

  // Returns whether `text` begins with its tokens.
  bool begins(std::span<const int64_t> text) const {
    if (text.size() < length()) return false;
    for (const RowSegment* each = segment.get(); each != nullptr; each = each->parent.get()) {
      const auto there = text.subspan(each->length - each->tokens.size(), each->tokens.size());
      if (!std::ranges::equal(each->tokens, there)) return false;
    }
    return true;
  }

  size_t bounded_bytes() const {
    size_t sum = unread.floats.size() * sizeof(float);
    for (const auto& each : bounded) sum += each.size();
    return sum;
  }

  // Bytes of its own, and bytes that it shares with checkpoints of shorter texts.
  size_t bytes() const { return bounded_bytes() + segment->bytes(); }
  size_t shared_bytes() const {
    size_t sum = 0;
    for (const RowSegment* each = segment->parent.get(); each != nullptr; each = each->parent.get())
      sum += each->bytes();
    return sum;
  }
};

using Part = std::span<const uint8_t>;

// A segment as bytes, for `Checkpoints::read`: its tokens behind their number, and each buffer's rows behind their
// number so far.
inline std::vector<uint8_t> encode(const RowSegment& segment) {
  std::vector<uint8_t> out;
  const auto append_number = [&](uint64_t number) { append(out, &number, sizeof(number)); };
  append_number(segment.tokens.size());
  append(out, segment.tokens.data(), segment.tokens.size() * sizeof(int64_t));
  for (size_t i = 0; i < segment.rows.size(); ++i) {
    append_number(segment.counts[i]);
    append(out, segment.rows[i].data(), segment.rows[i].size());
  }
  return out;
}

// The bounded states of a checkpoint, likewise, and its hidden states behind their width, if it has any.
inline std::vector<uint8_t> encode(const Checkpoint& checkpoint) {
  std::vector<uint8_t> out;
  for (const auto& each : checkpoint.bounded) append(out, each.data(), each.size());
  const auto& [floats, width] = checkpoint.unread;
  const uint64_t size = width;
  if (!floats.empty()) append(out, &size, sizeof(size));
  append(out, floats.data(), floats.size() * sizeof(float));
  return out;
}

// Makes checkpoints of one state and restores them. It remembers which segments' rows the state has, without keeping
// the segments alive: checkpoints do that.
class Checkpoints {
 public:
  Checkpoints(Program& program, const RowBuffers& buffers) : program_(&program), buffers_(buffers) {
    std::ranges::copy_if(program.bounded(), std::back_inserter(bounded_), [](const auto& name) {
      return name != "length";
    });
  }

  std::shared_ptr<const Checkpoint> make(uint64_t model, std::span<const int64_t> text, HiddenRows unread) {
    auto made = std::make_shared<Checkpoint>(
        model, std::vector<std::vector<uint8_t>>(), segment_of(text), std::move(unread)
    );
    for (const std::string& name : bounded_) {
      const auto bytes = program_->bytes(name);
      made->bounded.emplace_back(bytes.begin(), bytes.end());
    }
    remember(made->segment);
    return made;
  }

  // Restores what the state does not have yet, all but the length and the slots.
  void restore(const Checkpoint& checkpoint) {
    const auto ours = chain(last()), wanted = chain(checkpoint.segment);
    const auto [mine, missing] = std::ranges::mismatch(ours, wanted);
    known_.clear();  // until all rows are there
    for (const auto& segment : std::ranges::subrange(missing, wanted.end())) {
      for (size_t i = 0; i < buffers_.size(); ++i) {
        const auto& rows = segment->rows[i];
        buffers_[i].write(buffers_.memory(i), segment->counts[i] - rows.size() / buffers_[i].row_bytes(), rows);
      }
    }
    for (size_t i = 0; i < bounded_.size(); ++i)
      std::ranges::copy(checkpoint.bounded[i], program_->bytes(bounded_[i]).begin());
    remember(checkpoint.segment);
  }

  // A checkpoint of parts as `encode` made them: the first `shared` segments of another, further segments, and what is
  // bounded. INVALID_SAVED_STATE where the state could not have come to it: anybody can write such parts.
  Result<std::shared_ptr<const Checkpoint>> read(
      uint64_t model, const Facts& facts, std::shared_ptr<RowSegment> parent, std::span<const Part> parts
  ) const {
    if (parts.empty()) return not_ours();
    for (const Part& part : parts.first(parts.size() - 1))
      parent = HYBRIDGE_TRY(segment_of(part, facts, std::move(parent)));
    auto made = std::make_shared<Checkpoint>(model, std::vector<std::vector<uint8_t>>(), std::move(parent));
    Part rest = parts.back();
    for (const std::string& name : bounded_) {
      auto& own = made->bounded.emplace_back(program_->bytes(name).size());
      if (!read_bytes(rest, own.data(), own.size())) return not_ours();
    }
    if (made->segment == nullptr || !read_unread(rest, *made) || !made->unread.fits(facts, made->length()) ||
        !fits(*made))
      return not_ours();
    return std::shared_ptr<const Checkpoint>(std::move(made));
  }

  // Notes a rollback of the state's text, which leaves the rows of the first `length` tokens unchanged, and those of
  // the drafter as far as it has read now.
  void go_back(size_t length) {
    const auto unchanged = buffers_.filled(length, buffers_.drafted(length));
    std::erase_if(known_, [&](const auto& each) {
      const auto segment = each.lock();
      return segment == nullptr || segment->length >= length ||
             !std::ranges::equal(segment->counts, unchanged, std::less_equal());
    });
  }

 private:
  static Status not_ours() {
    return Status(
        HYBRIDGE_INVALID_SAVED_STATE, "this is no checkpoint of this artifact: it is damaged, or of another one"
    );
  }

  // The longest segment that somebody still keeps.
  std::shared_ptr<RowSegment> last() const {
    for (const auto& each : std::views::reverse(known_)) {
      if (auto segment = each.lock()) return segment;
    }
    return nullptr;
  }

  void remember(const std::shared_ptr<RowSegment>& segment) {
    const auto all = chain(segment);
    known_.assign(all.begin(), all.end());
  }

  std::shared_ptr<RowSegment> segment_of(std::span<const int64_t> text) const {
    auto parent = last();
    auto counts = buffers_.filled(text.size(), buffers_.drafted(text.size()));
    if (parent != nullptr && parent->length == text.size() && parent->counts == counts) return parent;
    std::vector<std::vector<uint8_t>> rows;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const size_t start = parent != nullptr ? std::min(parent->counts[i], counts[i]) : 0;
      rows.push_back(buffers_[i].read(buffers_.memory(i), start, counts[i]));
    }
    const auto added = text.subspan(parent != nullptr ? parent->length : 0);
    std::vector<int64_t> tokens(added.begin(), added.end());
    return std::make_shared<RowSegment>(std::move(parent), std::move(tokens), std::move(counts), std::move(rows));
  }

  Result<std::shared_ptr<RowSegment>> segment_of(
      Part part, const Facts& facts, std::shared_ptr<RowSegment> parent
  ) const {
    const size_t known = parent ? parent->length : 0, longest = static_cast<size_t>(facts.max_seq_len);
    uint64_t added = 0;
    if (!read_bytes(part, &added, sizeof(added)) || added > longest - known) return not_ours();
    std::vector<int64_t> tokens(added);
    bool is_whole = read_bytes(part, tokens.data(), added * sizeof(int64_t));
    for (const int64_t token : tokens) is_whole = is_whole && facts.is_id(token);
    const auto most = buffers_.filled(longest, longest);
    std::vector<size_t> counts;
    std::vector<std::vector<uint8_t>> rows;
    for (size_t i = 0; is_whole && i < buffers_.size(); ++i) {
      const uint64_t before = parent ? parent->counts[i] : 0;
      uint64_t count = 0;
      is_whole = read_bytes(part, &count, sizeof(count)) && before <= count && count <= most[i] &&
                 (count - before) * buffers_[i].row_bytes() <= part.size();
      if (!is_whole) break;
      counts.push_back(count);
      rows.emplace_back((count - before) * buffers_[i].row_bytes());
      is_whole = read_bytes(part, rows.back().data(), rows.back().size());
    }
    if (!is_whole || !part.empty()) return not_ours();
    return std::make_shared<RowSegment>(std::move(parent), std::move(tokens), std::move(counts), std::move(rows));
  }

  // Reads hidden states up to the end of a part, if it has any.
  static bool read_unread(Part part, Checkpoint& checkpoint) {
    uint64_t width = 0;
    if (part.empty()) return true;
    if (!read_bytes(part, &width, sizeof(width)) || part.empty() || part.size() % sizeof(float) != 0) return false;
    checkpoint.unread = {Floats(part.size() / sizeof(float)), width};
    return read_bytes(part, checkpoint.unread.floats.data(), part.size());
  }

  // Returns whether it has as many rows as its text, and the part that its drafter has read, fill, and rope positions
  // of its text.
  bool fits(const Checkpoint& checkpoint) const {
    size_t drafted = checkpoint.length();
    for (size_t i = 0; i < bounded_.size(); ++i) {
      const bool is_drafter = bounded_[i] == buffers_.drafter(), is_behind = StateLayout::is_rope_delta(bounded_[i]);
      if (!is_drafter && !is_behind) continue;
      float read = is_drafter ? -1 : 1;
      if (checkpoint.bounded[i].size() == sizeof(read)) std::memcpy(&read, checkpoint.bounded[i].data(), sizeof(read));
      if (!StateLayout::is_drafted(is_drafter ? read : -read, checkpoint.length())) return false;
      if (is_drafter) drafted = static_cast<size_t>(read);
    }
    return checkpoint.segment->counts == buffers_.filled(checkpoint.length(), drafted);
  }

  Program* program_;
  const RowBuffers& buffers_;
  Names bounded_;
  std::vector<std::weak_ptr<RowSegment>> known_;
};

}  // namespace hybridge

#endif
