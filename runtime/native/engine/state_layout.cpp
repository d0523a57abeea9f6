#include "engine/state_layout.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <limits>
#include <span>
#include <utility>

namespace hybridge {

namespace {

constexpr const char* LENGTH = "length";
constexpr const char* SLOT_LENGTHS = "slot_length";
constexpr const char* OPERATIONS = "operations";
constexpr const char* DRAFTED = ".drafted_length";
constexpr std::string_view SLOT = "slots.";
constexpr int64_t MOST_OPERATIONS = int64_t(1) << 62;
constexpr size_t LONGEST_NOTE = 64 << 20, CHUNK = 64 << 10;

int64_t length_of(const std::vector<int64_t>& text) { return static_cast<int64_t>(text.size()); }

bool is_number(std::string_view name) {
  return name == LENGTH || name == OPERATIONS || name == SLOT_LENGTHS ||
         (name.starts_with(SLOT) && name.ends_with(".length"));
}

void write_unread(StateWriter& out, const HiddenRows& rows) {
  const uint64_t width = rows.width;
  out.write({reinterpret_cast<const uint8_t*>(&width), sizeof(width)});
  out.write_counted(std::span(rows.floats));
}

void read_unread(StateReader& reader, HiddenRows& rows) {
  uint64_t width = 0;
  reader.read(&width, sizeof(width));
  reader.read_counted(rows.floats, std::numeric_limits<size_t>::max());
  rows.width = width;
}

bool keeps(const std::vector<int64_t>& lengths, size_t slot) { return slot < lengths.size() && lengths[slot] != -1; }

}  // namespace

template <typename Visit>
void StateLayout::each_piece(const SavedState& state, Visit visit) const {
  for (const Piece& piece : numbers_) {
    if (!visit(piece, state.buffers.at(piece.name))) return;
  }
  const auto lengths = slot_lengths(state);
  for (const Piece& piece : pieces_) {
    if (piece.slot >= 0 && !keeps(lengths, static_cast<size_t>(piece.slot))) continue;
    if (!visit(piece, state.buffers.at(piece.name))) return;
  }
}

template <typename Visit>
void StateLayout::each_chunk(const SavedState& state, Visit visit) const {
  const auto counts = rows_in_use(state);
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t most = std::max(size_t(1), CHUNK / (*rows_)[i].row_bytes());
    for (size_t start = 0; start < counts[i]; start += most) {
      if (!visit(i, start, std::min(start + most, counts[i]))) return;
    }
  }
}

template <typename T>
std::vector<T> StateLayout::numbers(const SavedState& state, const std::string& name) const {
  const auto found = state.buffers.find(name);
  if (found == state.buffers.end()) return {};
  std::vector<T> values(found->second.size() / sizeof(T));
  std::memcpy(values.data(), found->second.data(), values.size() * sizeof(T));
  return values;
}

StateLayout::StateLayout(Program& program, const ModelInfo& info, const RowBuffers& rows)
    : program_(&program), info_(info), rows_(&rows) {
  for (const std::string& name : program.names()) {
    const size_t size = program.bytes(name).size();
    const bool has_rows = std::ranges::find(rows.names(), name) != rows.names().end();
    if (has_rows || RowBuffers::is_staged(name) || size == 0 || !sizes_.emplace(name, size).second) continue;
    if (is_number(name)) numbers_.push_back({name, 0, size});
    else std::ranges::move(pieces_of(name, size), std::back_inserter(pieces_));
  }
}

bool StateLayout::is_whole() const {
  const auto slots = slot_names();
  const auto has = [this](const std::string& name) { return sizes_.contains(name); };
  return has(LENGTH) && has(OPERATIONS) && std::all_of(slots.begin(), slots.end(), has);
}

void StateLayout::set_length(int64_t length) const {
  if (int64_t* current = program_->number(LENGTH)) *current = length;
  empty_slots([](int64_t) { return true; });
}

void StateLayout::empty_slots(const std::function<bool(int64_t)>& is_gone) const {
  int64_t slot = 0;
  for (const std::string& name : slot_names()) {
    const auto lengths = program_->bytes(name);
    for (size_t at = 0; at < lengths.size(); at += sizeof(int64_t), ++slot) {
      if (is_gone(slot)) std::memset(lengths.data() + at, -1, sizeof(int64_t));
    }
  }
}

SavedState StateLayout::now(std::vector<KeptText> texts, std::string note) const {
  SavedState state{.texts = std::move(texts), .note = std::move(note)};
  for (const auto& [name, size] : sizes_) state.buffers.emplace(name, program_->bytes(name));
  return state;
}

void StateLayout::write(StateWriter& out, const SavedState& state) const {
  for (const KeptText& text : state.texts) out.write_counted(std::span(text.tokens));
  if (info_.has_drafter()) {
    for (const KeptText& text : state.texts) write_unread(out, text.unread);
  }
  if (info_.has_delegate()) {
    for (const KeptText& text : state.texts) out.write_counted(std::span(text.delegated));
  }
  each_piece(state, [&](const Piece& piece, Bytes bytes) {
    out.write(bytes.subspan(piece.offset, piece.size));
    return true;
  });
  each_chunk(state, [&](size_t i, size_t start, size_t stop) {
    out.write((*rows_)[i].read(rows_->memory(i), start, stop));
    return true;
  });
  out.write_counted(std::span(state.note));
}

Result<SavedState> StateLayout::read(StateReader& reader, size_t slots) const {
  SavedState state{.texts = std::vector<KeptText>(1 + slots)};
  for (KeptText& text : state.texts) reader.read_counted(text.tokens, static_cast<size_t>(info_.max_seq_len));
  if (info_.has_drafter()) {
    for (KeptText& text : state.texts) read_unread(reader, text.unread);
  }
  if (info_.has_delegate()) {
    for (KeptText& text : state.texts) reader.read_counted(text.delegated, 2 * text.tokens.size());
  }
  size_t size = 0;
  for (const auto& each : sizes_) size += each.second;
  state.memory.resize(size);
  uint8_t* next = state.memory.data();
  for (const auto& each : sizes_) {
    state.buffers.emplace(each.first, Bytes(next, each.second));
    next += each.second;
  }
  each_piece(state, [&](const Piece& piece, Bytes bytes) {
    return reader.read(bytes.data() + piece.offset, piece.size);
  });
  if (!reader.status().ok()) return reader.status();
  if (!allows(state)) return reader.invalid("has a state that no session of this model can have; save it again");
  state.rows_place = reader.place();
  each_chunk(state, [&](size_t i, size_t start, size_t stop) {
    return reader.skip((stop - start) * (*rows_)[i].row_bytes());
  });
  reader.read_counted(state.note, LONGEST_NOTE);
  return reader.finish() ? Result<SavedState>(std::move(state)) : reader.status();
}

Status StateLayout::restore(StateReader& reader, const SavedState& state) const {
  reader.go_back(state.rows_place);
  std::vector<uint8_t> chunk;
  each_chunk(state, [&](size_t i, size_t start, size_t stop) {
    chunk.resize((stop - start) * (*rows_)[i].row_bytes());
    if (!reader.read(chunk.data(), chunk.size())) return false;
    (*rows_)[i].write(rows_->memory(i), start, chunk);
    return true;
  });
  if (!reader.status().ok()) return reader.status();
  each_piece(state, [&](const Piece& piece, Bytes bytes) {
    std::ranges::copy(
        bytes.subspan(piece.offset, piece.size),
        program_->bytes(piece.name).begin() + static_cast<ptrdiff_t>(piece.offset)
    );
    return true;
  });
  return Status();
}

bool StateLayout::allows(const SavedState& state) const {
  const auto is_text = [&](const KeptText& text) {
    const auto known = [&](int64_t id) { return info_.is_id(id); };
    const size_t length = text.tokens.size();
    return length <= static_cast<size_t>(info_.max_seq_len) && std::ranges::all_of(text.tokens, known) &&
           text.unread.fits(info_, length) && are_runs(text.delegated, 0, length_of(text.tokens));
  };
  const std::vector<int64_t> operations = numbers<int64_t>(state, OPERATIONS);
  return std::all_of(state.texts.begin(), state.texts.end(), is_text) &&
         numbers<int64_t>(state, LENGTH) == std::vector{length_of(state.texts.front().tokens)} && allows_slots(state) &&
         operations.size() == 1 && 0 <= operations[0] && operations[0] < MOST_OPERATIONS && allows_drafted(state) &&
         allows_rope_deltas(state);
}

bool StateLayout::is_drafted(float value, size_t longest) {
  return value >= 0 && value <= static_cast<float>(longest) && std::floor(value) == value;
}

std::vector<StateLayout::Piece> StateLayout::pieces_of(const std::string& name, size_t size) const {
  const auto slots = static_cast<size_t>(info_.snapshot_slots);
  if (name.starts_with(SLOT) && !is_number(name)) return {{name, 0, size, std::atoll(name.c_str() + SLOT.size())}};
  if (!name.ends_with("_slots") || slots == 0 || size % slots != 0) return {{name, 0, size}};
  std::vector<Piece> pieces;
  for (size_t slot = 0; slot < slots; ++slot)
    pieces.push_back({name, slot * (size / slots), size / slots, static_cast<int64_t>(slot)});
  return pieces;
}

std::vector<size_t> StateLayout::rows_in_use(const SavedState& state) const {
  const std::string& drafter = rows_->drafter();
  const auto filled = [&](const std::vector<int64_t>& text, const std::vector<float>& drafted, size_t place) {
    return rows_->filled(
        text.size(), drafter.empty() || place >= drafted.size() ? text.size() : static_cast<size_t>(drafted[place])
    );
  };
  auto counts = filled(state.texts.front().tokens, numbers<float>(state, drafter), 0);
  const auto drafted = numbers<float>(state, drafter + "_slots");
  const auto lengths = slot_lengths(state);
  for (size_t slot = 0; slot + 1 < state.texts.size(); ++slot) {
    if (!keeps(lengths, slot)) continue;
    const auto in_slots = filled(state.texts[slot + 1].tokens, drafted, slot);
    for (size_t i = 0; i < counts.size(); ++i) counts[i] = std::max(counts[i], in_slots[i]);
  }
  return counts;
}

Names StateLayout::slot_names() const {
  if (sizes_.contains(SLOT_LENGTHS)) return {SLOT_LENGTHS};
  Names names;
  for (int64_t slot = 0; slot < info_.snapshot_slots; ++slot)
    names.push_back(std::string(SLOT) + std::to_string(slot) + ".length");
  return names;
}

std::vector<int64_t> StateLayout::slot_lengths(const SavedState& state) const {
  std::vector<int64_t> lengths;
  for (const std::string& name : slot_names()) {
    const auto current = numbers<int64_t>(state, name);
    lengths.insert(lengths.end(), current.begin(), current.end());
  }
  return lengths;
}

bool StateLayout::allows_slots(const SavedState& state) const {
  const std::vector<int64_t> lengths = slot_lengths(state);
  for (size_t i = 0; i < lengths.size(); ++i) {
    const bool is_kept = i + 1 < state.texts.size() && lengths[i] == length_of(state.texts[i + 1].tokens);
    if (lengths[i] != -1 && !is_kept) return false;
  }
  return true;
}

bool StateLayout::allows_drafted(const SavedState& state) const {
  const auto is_length = [&](float value) { return is_drafted(value, static_cast<size_t>(info_.max_seq_len)); };
  const std::vector<int64_t> slots = slot_lengths(state);
  for (const auto& [name, buffer] : state.buffers) {
    if (!name.ends_with(DRAFTED)) continue;
    const auto current = numbers<float>(state, name), in_slots = numbers<float>(state, name + "_slots");
    if (!std::all_of(current.begin(), current.end(), is_length)) return false;
    for (size_t i = 0; i < std::min(in_slots.size(), slots.size()); ++i) {
      if (slots[i] != -1 && !is_length(in_slots[i])) return false;
    }
  }
  return true;
}

bool StateLayout::allows_rope_deltas(const SavedState& state) const {
  const std::vector<int64_t> slots = slot_lengths(state);
  for (const auto& [name, buffer] : state.buffers) {
    if (!is_rope_delta(name)) continue;
    const auto current = numbers<float>(state, name), in_slots = numbers<float>(state, name + "_slots");
    if (current.size() != 1 || !is_drafted(-current[0], state.texts.front().tokens.size())) return false;
    for (size_t i = 0; i < std::min(in_slots.size(), slots.size()); ++i) {
      if (slots[i] != -1 && !is_drafted(-in_slots[i], static_cast<size_t>(slots[i]))) return false;
    }
  }
  return true;
}

}  // namespace hybridge
