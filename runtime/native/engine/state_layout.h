// The layout of a saved state: texts, buffers, the rows by position that these texts have filled, and the note. Also
// which numbers are possible, because methods go by them without looking again.
#ifndef HYBRIDGE_ENGINE_STATE_LAYOUT_H
#define HYBRIDGE_ENGINE_STATE_LAYOUT_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/delegated.h"
#include "engine/model_info.h"
#include "engine/hidden_states.h"
#include "engine/program.h"
#include "engine/row_buffers.h"
#include "engine/state_file.h"
#include "engine/status.h"

namespace hybridge {

// Tokens, hidden states of the last ones that the drafter in the program has yet to read, and the runs of tokens that a
// delegate has read.
struct KeptText {
  std::vector<int64_t> tokens;
  HiddenRows unread = {};
  Delegated delegated = {};
};

// texts: the committed one, then those of each snapshot slot. buffers: those that are neither rows by position nor
// staged, where they lie in the program or in `memory`.
struct SavedState {
  std::vector<KeptText> texts;
  std::map<std::string, Bytes, std::less<>> buffers = {};
  std::string note = {};
  std::vector<uint8_t> memory = {};
  size_t rows_place = 0;  // in the file that it was read from
};

class StateLayout {
 public:
  StateLayout(Program& program, const ModelInfo& info, const RowBuffers& rows);

  // Returns whether the program has the buffers that a saved state is checked by.
  bool is_whole() const;

  // Gives the state a length, and empties its slots.
  void set_length(int64_t length) const;

  // Empties the slots for whose numbers `is_gone` is true.
  void empty_slots(const std::function<bool(int64_t)>& is_gone) const;

  // The program's state as it is now, with these texts.
  SavedState now(std::vector<KeptText> texts, std::string note) const;

  void write(StateWriter& out, const SavedState& state) const;

  // Reads a file to its end, but leaves the rows there, for `restore`. UNREADABLE_FILE if it cannot be read;
  // INVALID_SAVED_STATE if it is damaged, or no program could have left this state.
  Result<SavedState> read(StateReader& reader, size_t slots) const;

  // Gives the program a state that was read, and its rows. Fails if these can no longer be read: some of them are there
  // then.
  Status restore(StateReader& reader, const SavedState& state) const;

  // Returns whether a program could have left this state. Other numbers index nothing: wrong ones give wrong logits.
  bool allows(const SavedState& state) const;

  // Returns whether a drafter can have read this number of tokens, stored as float32, of a text of at most `longest`.
  static bool is_drafted(float value, size_t longest);

  // Returns whether the buffer of this name counts how far rope positions are behind the length.
  static bool is_rope_delta(std::string_view name) { return name.ends_with(".rope_delta"); }

 private:
  // A part of a buffer that is saved by itself: of a snapshot slot, or all of it and slot -1.
  struct Piece {
    std::string name;
    size_t offset, size;
    int64_t slot = -1;
  };

  // A slot's buffers are slots.N.layers.…, or all slots' in one, layers.…_slots [1, slots, …].
  std::vector<Piece> pieces_of(const std::string& name, size_t size) const;

  // Calls visit(piece, its buffer) until it is false, for all pieces but those of slots that keep nothing. The numbers
  // come first: they say which slots follow.
  template <typename Visit>
  void each_piece(const SavedState& state, Visit visit) const;

  // Calls visit(buffer, start, stop) until it is false, for all rows in use, in chunks.
  template <typename Visit>
  void each_chunk(const SavedState& state, Visit visit) const;

  // Returns the rows of each buffer that the text, or that of a slot, has filled.
  std::vector<size_t> rows_in_use(const SavedState& state) const;

  // The buffers that have the slots' lengths: one for all of them, or one for each; none without slots.
  Names slot_names() const;

  std::vector<int64_t> slot_lengths(const SavedState& state) const;

  // A slot of length -1 keeps nothing; the others keep their texts, which stand after the state's own.
  bool allows_slots(const SavedState& state) const;

  // In a slot that keeps nothing it may be anything.
  bool allows_drafted(const SavedState& state) const;

  // Rope positions are behind the length, and never before the text.
  bool allows_rope_deltas(const SavedState& state) const;

  template <typename T>
  std::vector<T> numbers(const SavedState& state, const std::string& name) const;

  Program* program_;
  const ModelInfo& info_;
  const RowBuffers* rows_;
  std::map<std::string, size_t, std::less<>> sizes_;
  std::vector<Piece> numbers_, pieces_;
};

}  // namespace hybridge

#endif
