// Checkpoints: states in memory that a session goes on from, each with no more than what its text added.
//
//   auto kept = session.checkpoint();          // bounded states, and rows by position since the checkpoint before
//   session.prefill(one_way), session.resume(**kept), session.prefill(another);
//
// engine/prefix_cache.h keeps them by their texts. All sessions that use a checkpoint, and all that let go of one, do
// so in turn, as one thread or under one lock.
#ifndef HYBRIDGE_ENGINE_CHECKPOINT_H
#define HYBRIDGE_ENGINE_CHECKPOINT_H

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/delegated.h"
#include "engine/model_info.h"
#include "engine/hidden_states.h"
#include "engine/program.h"
#include "engine/row_buffers.h"
#include "engine/status.h"

namespace hybridge {

// A number that tells a thing in memory from all others of this process.
uint64_t next_id();

// Rows by position of the tokens after those of `parent`; parts of one text, which is never changed.
// counts: rows of each buffer up to the segment's end; rows: the bytes of those that the parent does not have.
// delegated: the runs of its tokens that a delegate has read, by their places in the text.
struct RowSegment {
  const uint64_t id = next_id();
  std::shared_ptr<RowSegment> parent;
  std::vector<int64_t> tokens;
  size_t length;
  std::vector<size_t> counts;
  std::vector<std::vector<uint8_t>> rows;
  Delegated delegated;

  RowSegment(
      std::shared_ptr<RowSegment> before, std::vector<int64_t> added, std::vector<size_t> filled,
      std::vector<std::vector<uint8_t>> copies, Delegated runs
  );
  RowSegment(const RowSegment&) = delete;
  RowSegment& operator=(const RowSegment&) = delete;

  // One after the other: a long text has more segments than a stack has frames.
  ~RowSegment();

  size_t bytes() const;
};

// The segments of a text in order, `last` last.
std::vector<std::shared_ptr<RowSegment>> chain(std::shared_ptr<RowSegment> last);

// A state of a session; every session over the same artifact can resume it. model: its fingerprint. unread: hidden
// states that the drafter in the program has yet to read.
struct Checkpoint {
  uint64_t model;
  std::vector<std::vector<uint8_t>> bounded;
  std::shared_ptr<RowSegment> segment;
  HiddenRows unread = {};
  const uint64_t id = next_id();

  size_t length() const { return segment->length; }

  std::vector<int64_t> tokens() const;

  // The runs of its text that a delegate has read.
  Delegated delegated() const;

  // Returns whether `text` begins with its tokens.
  bool begins(std::span<const int64_t> text) const;

  size_t bounded_bytes() const;

  // Bytes of its own, and bytes that it shares with checkpoints of shorter texts.
  size_t bytes() const { return bounded_bytes() + segment->bytes(); }
  size_t shared_bytes() const;
};

using Part = std::span<const uint8_t>;

// A segment as bytes, for `Checkpoints::read`: its tokens after their number, each buffer's rows after their number so
// far, and what a delegate has read.
std::vector<uint8_t> encode(const RowSegment& segment);

// The bounded states of a checkpoint, likewise, and its hidden states after their width, if it has any.
std::vector<uint8_t> encode(const Checkpoint& checkpoint);

// Makes checkpoints of one state and restores them. It remembers which segments' rows the state has, without keeping
// the segments alive: checkpoints do that.
class Checkpoints {
 public:
  Checkpoints(Program& program, const RowBuffers& buffers);

  std::shared_ptr<const Checkpoint> make(
      uint64_t model, std::span<const int64_t> text, const Delegated& delegated, HiddenRows unread
  );

  // Restores what the state does not have yet, all but the length and the slots.
  void restore(const Checkpoint& checkpoint);

  // A checkpoint of parts as `encode` made them: the first `shared` segments of another, further segments, and what is
  // bounded. INVALID_SAVED_STATE where the state could not have come to it: anybody can write such parts.
  Result<std::shared_ptr<const Checkpoint>> read(
      uint64_t model, const ModelInfo& info, std::shared_ptr<RowSegment> parent, std::span<const Part> parts
  ) const;

  // Notes a rollback of the state's text, which leaves the rows of the first `length` tokens unchanged, and those of
  // the drafter as far as it has read now.
  void go_back(size_t length);

 private:
  // The longest segment that somebody still keeps.
  std::shared_ptr<RowSegment> last() const;

  void remember(const std::shared_ptr<RowSegment>& segment);

  std::shared_ptr<RowSegment> segment_of(std::span<const int64_t> text, const Delegated& delegated) const;

  Result<std::shared_ptr<RowSegment>> segment_of(
      Part part, const ModelInfo& info, std::shared_ptr<RowSegment> parent
  ) const;

  // Returns whether it has as many rows as its text, and the part that its drafter has read, fill, and rope positions
  // of its text.
  bool fits(const Checkpoint& checkpoint) const;

  Program* program_;
  const RowBuffers& buffers_;
  Names bounded_;
  std::vector<std::weak_ptr<RowSegment>> known_;
};

}  // namespace hybridge

#endif
