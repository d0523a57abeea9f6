// Checkpoints: states in memory that a session goes on from, each with no more than what its text added.
//
//   auto kept = session.checkpoint();          // bounded states, and rows by position since the checkpoint before
//   session.prefill(one_way), session.resume(**kept), session.prefill(another);
//
// hybridge/prefix_cache.h keeps them by their texts. All sessions that use a checkpoint, and all that let go of one, do so in
// turn, as one thread or under one lock.
#ifndef HYBRIDGE_NATIVE_CHECKPOINT_H
#define HYBRIDGE_NATIVE_CHECKPOINT_H

#include <algorithm>
#include <cstdint>
#include <memory>
#include <ranges>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <hybridge/row_buffers.h>

namespace hybridge {

// Rows by position of the tokens behind those of `parent`; parts of one text, which is never changed.
// counts: rows of each buffer up to the segment's end; rows: the bytes of those that the parent does not have.
struct RowSegment {
  std::shared_ptr<RowSegment> parent;
  std::vector<int64_t> tokens;
  size_t length;
  std::vector<size_t> counts;
  std::vector<std::vector<uint8_t>> rows;

  RowSegment(
      std::shared_ptr<RowSegment> before, std::vector<int64_t> own, std::vector<size_t> filled,
      std::vector<std::vector<uint8_t>> copies)
      : parent(std::move(before)), tokens(std::move(own)), length((parent ? parent->length : 0) + tokens.size()),
        counts(std::move(filled)), rows(std::move(copies)) {}
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

// A state of a session; every session over the same artifact can resume it. model: its fingerprint.
struct Checkpoint {
  uint64_t model;
  std::vector<std::vector<uint8_t>> bounded;
  std::shared_ptr<RowSegment> segment;

  size_t length() const { return segment->length; }

  std::vector<int64_t> tokens() const {
    std::vector<int64_t> all;
    for (const auto& each : chain(segment)) all.insert(all.end(), each->tokens.begin(), each->tokens.end());
    return all;
  }

  // Whether `text` begins with its tokens.
  bool begins(std::span<const int64_t> text) const {
    if (text.size() < length()) return false;
    for (const RowSegment* each = segment.get(); each != nullptr; each = each->parent.get()) {
      const auto there = text.subspan(each->length - each->tokens.size(), each->tokens.size());
      if (!std::ranges::equal(each->tokens, there)) return false;
    }
    return true;
  }

  size_t bounded_bytes() const {
    size_t sum = 0;
    for (const auto& each : bounded) sum += each.size();
    return sum;
  }

  // Those that it does not share with checkpoints of shorter texts, and those that it does.
  size_t bytes() const { return bounded_bytes() + segment->bytes(); }
  size_t shared_bytes() const {
    size_t sum = 0;
    for (const RowSegment* each = segment->parent.get(); each != nullptr; each = each->parent.get()) sum += each->bytes();
    return sum;
  }
};

// Makes checkpoints of one state and puts them back. It knows which rows the state has as segments have them, and does not keep
// these alive: that is for the checkpoints of those who may resume them.
class Checkpoints {
 public:
  // bounded: what a checkpoint copies whole, but for what lies at `length`, which its tokens say.
  Checkpoints(RowBuffers buffers, const std::vector<executorch::runtime::Span<uint8_t>>& bounded, const uint8_t* length)
      : buffers_(std::move(buffers)) {
    for (const auto& each : bounded) {
      if (each.data() != length) bounded_.emplace_back(each.data(), each.size());
    }
  }

  std::shared_ptr<const Checkpoint> make(uint64_t model, std::span<const int64_t> text) {
    auto made = std::make_shared<Checkpoint>(model, std::vector<std::vector<uint8_t>>(), segment_of(text));
    for (const auto& buffer : bounded_) made->bounded.emplace_back(buffer.begin(), buffer.end());
    remember(made->segment);
    return made;
  }

  // Puts back what the state does not have yet, all but the length and the slots.
  void put_back(const Checkpoint& checkpoint) {
    const auto ours = chain(last()), wanted = chain(checkpoint.segment);
    const auto [mine, missing] = std::ranges::mismatch(ours, wanted);
    for (const auto& segment : std::ranges::subrange(missing, wanted.end())) {
      for (size_t i = 0; i < buffers_.size(); ++i) {
        const auto& rows = segment->rows[i];
        buffers_[i].write(segment->counts[i] - rows.size() / buffers_[i].row_bytes(), rows);
      }
    }
    for (size_t i = 0; i < bounded_.size(); ++i) std::ranges::copy(checkpoint.bounded[i], bounded_[i].begin());
    remember(checkpoint.segment);
  }

  // The state's text goes back; rows of so many tokens are as they were.
  void go_back(size_t length) {
    std::erase_if(known_, [&](const auto& each) {
      const auto segment = each.lock();
      return segment == nullptr || segment->length >= length;
    });
  }

 private:
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
    auto counts = buffers_.filled(text.size());
    if (parent != nullptr && parent->length == text.size() && parent->counts == counts) return parent;
    std::vector<std::vector<uint8_t>> rows;
    for (size_t i = 0; i < buffers_.size(); ++i) {
      const size_t start = parent != nullptr ? std::min(parent->counts[i], counts[i]) : 0;
      rows.push_back(buffers_[i].read(start, counts[i]));
    }
    const auto added = text.subspan(parent != nullptr ? parent->length : 0);
    std::vector<int64_t> tokens(added.begin(), added.end());
    return std::make_shared<RowSegment>(std::move(parent), std::move(tokens), std::move(counts), std::move(rows));
  }

  RowBuffers buffers_;
  std::vector<std::span<uint8_t>> bounded_;
  std::vector<std::weak_ptr<RowSegment>> known_;
};

}  // namespace hybridge

#endif
