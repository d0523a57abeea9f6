// The buffers of a state that have a row for each position, and where a row lies in them: docs/artifact.md has their
// shapes.
#ifndef HYBRIDGE_ENGINE_ROW_BUFFERS_H
#define HYBRIDGE_ENGINE_ROW_BUFFERS_H

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/model_info.h"
#include "engine/program.h"
#include "engine/status.h"

namespace hybridge {

// stride: bytes from one index to the next.
struct Axis {
  size_t size, stride;
};

// Reads and writes rows of a buffer. The row with number r begins at the r-th place of the first axes, and lies in
// pieces.
class RowBuffer {
 public:
  // parts: the axes of a row outside of its contiguous pieces; positions: how many positions share a row.
  RowBuffer(std::vector<Axis> places, const std::vector<Axis>& parts, size_t piece, size_t positions = 1);

  // Returns whether all of it lies within this number of bytes.
  bool fits(size_t bytes) const;

  size_t row_bytes() const { return pieces_.size() * piece_; }
  size_t position_bytes() const { return row_bytes() / positions_; }

  // Returns the number of rows that a number of positions fills, at most all.
  size_t filled(size_t length) const;

  // Returns the parts of its memory that have rows from `first` on and no others, as far as whole blocks of rows go.
  std::vector<Bytes> from(Bytes memory, size_t first) const;

  std::vector<uint8_t> read(Bytes memory, size_t start, size_t stop) const;

  // Puts rows into the places from `start` on.
  void write(Bytes memory, size_t start, std::span<const uint8_t> rows) const;

 private:
  size_t place(size_t row) const;

  template <typename Move>
  void each(Bytes memory, size_t start, size_t stop, Move move) const;

  std::vector<Axis> places_;
  std::vector<size_t> pieces_;
  size_t piece_, positions_;
};

// All of them of one program, in its order.
class RowBuffers {
 public:
  // INVALID_ARTIFACT where one has a shape that is not known.
  static Result<RowBuffers> find(Program& program, const ModelInfo& info);

  size_t size() const { return buffers_.size(); }
  const RowBuffer& operator[](size_t i) const { return buffers_[i]; }
  Bytes memory(size_t i) const { return program_->bytes(names_[i]); }
  const Names& names() const { return names_; }

  // Returns whether a buffer is for a block that waits for its commit.
  static bool is_staged(std::string_view name);

  // Rows of each that a text of so many tokens has filled, of which a drafter has read `drafted`: those of its layers
  // go by that.
  std::vector<size_t> filled(size_t length, size_t drafted) const;

  // Returns the bytes that a position takes.
  size_t position_bytes() const;

  // Gives the memory of rows back that no text of so many tokens has filled.
  void give_back(size_t length) const;

  // Returns the number of tokens that the drafter has read of a text; all of them without a drafter.
  size_t drafted(size_t length) const;

  // The buffer that counts what a drafter has read; empty without a drafter.
  const std::string& drafter() const { return drafter_; }

 private:
  RowBuffers(Program& program, const ModelInfo& info);

  // Returns whether a buffer has rows by position: it is not bounded, of slots or staged.
  bool has_rows(const std::string& name) const;

  Status add(const std::string& name);

  std::optional<RowBuffer> describe(const std::string& name, const Array& array) const;

  Program* program_;
  size_t row_axis_, rows_ = 0;
  std::string drafter_;
  std::vector<RowBuffer> buffers_;
  Names names_;
  std::vector<bool> is_drafters_;
};

}  // namespace hybridge

#endif
