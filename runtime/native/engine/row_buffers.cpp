#include "engine/row_buffers.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace hybridge {

namespace {

constexpr std::string_view DRAFTED = ".drafted_length";
constexpr size_t BLOCK = 64, LANES = 16, QUAD = 4;  // of 8-bit rows

// Returns the offset of every index of the axes, in order.
std::vector<size_t> offsets(const std::vector<Axis>& axes) {
  std::vector<size_t> all = {0};
  for (const Axis& axis : axes) {
    std::vector<size_t> finer;
    for (const size_t offset : all)
      for (size_t i = 0; i < axis.size; ++i) finer.push_back(offset + i * axis.stride);
    all = std::move(finer);
  }
  return all;
}

// [1, heads, rows, width]
std::optional<RowBuffer> by_head(const Array& array) {
  if (array.shape.size() != 4) return std::nullopt;
  const size_t rows = array.extent(2), bytes = array.extent(3) * array.element();
  return RowBuffer({{rows, bytes}}, {{array.extent(1), rows * bytes}}, bytes);
}

// Rows that lie in blocks of 64, as hybridge.cache.operations.quantized_rows of Python describes them.
std::optional<RowBuffer> quantized(const std::string& ending, const Array& array) {
  const size_t dims = array.shape.size();
  if (dims < 4 || array.extent(dims - 1) != BLOCK) return std::nullopt;
  const size_t blocks = array.extent(1), heads = array.extent(2);
  if (ending.ends_with("_scales")) {
    const size_t head = BLOCK * sizeof(float);
    return RowBuffer({{blocks, heads * head}, {BLOCK, sizeof(float)}}, {{heads, head}}, sizeof(float));
  }
  if (dims != 5) return std::nullopt;
  const size_t columns = array.extent(3), head = columns * BLOCK;
  if (ending == "keys") {
    const std::vector<Axis> places = {{blocks, heads * head}, {BLOCK / LANES, columns * LANES}, {LANES, QUAD}};
    return RowBuffer(places, {{heads, head}, {columns / QUAD, BLOCK}}, QUAD);
  }
  const std::vector<Axis> places = {{blocks, heads * head}, {LANES, BLOCK}, {QUAD, 1}};
  return RowBuffer(places, {{heads, head}, {columns / LANES, LANES * BLOCK}, {LANES, QUAD}}, 1);
}

// The number in layers.3.keys; -1 without one.
int layer(std::string_view name) {
  constexpr std::string_view LAYERS = "layers.";
  return name.starts_with(LAYERS) ? std::atoi(name.data() + LAYERS.size()) : -1;
}

}  // namespace

template <typename Move>
void RowBuffer::each(Bytes memory, size_t start, size_t stop, Move move) const {
  for (size_t row = start; row < stop; ++row) {
    uint8_t* begin = memory.data() + place(row);
    for (const size_t offset : pieces_) move(begin + offset);
  }
}

RowBuffer::RowBuffer(std::vector<Axis> places, const std::vector<Axis>& parts, size_t piece, size_t positions)
    : places_(std::move(places)), pieces_(offsets(parts)), piece_(piece), positions_(positions) {}

bool RowBuffer::fits(size_t bytes) const {
  if (piece_ == 0 || positions_ == 0 || pieces_.empty()) return false;
  size_t last = pieces_.back() + piece_;
  for (const Axis& axis : places_) {
    if (axis.size == 0) return false;
    last += (axis.size - 1) * axis.stride;
  }
  return last <= bytes;
}

size_t RowBuffer::filled(size_t length) const {
  size_t rows = 1;
  for (const Axis& axis : places_) rows *= axis.size;
  return std::min(length / positions_, rows);
}

std::vector<Bytes> RowBuffer::from(Bytes memory, size_t first) const {
  size_t inner = 1;
  for (size_t axis = 1; axis < places_.size(); ++axis) inner *= places_[axis].size;
  const Axis& outer = places_.front();
  const size_t whole = outer.size * outer.stride, begin = (first + inner - 1) / inner * outer.stride;
  std::vector<Bytes> parts;
  // Rows of a head follow each other, or those of all heads do: then there is one part.
  for (size_t place = 0; begin < whole && place < pieces_.size() && pieces_[place] % whole == 0; ++place) {
    parts.push_back(memory.subspan(pieces_[place] + begin, whole - begin));
  }
  return parts;
}

std::vector<uint8_t> RowBuffer::read(Bytes memory, size_t start, size_t stop) const {
  std::vector<uint8_t> rows((stop - start) * row_bytes());
  uint8_t* out = rows.data();
  each(memory, start, stop, [&](const uint8_t* piece) { std::memcpy(out, piece, piece_), out += piece_; });
  return rows;
}

void RowBuffer::write(Bytes memory, size_t start, std::span<const uint8_t> rows) const {
  const uint8_t* source = rows.data();
  each(memory, start, start + rows.size() / row_bytes(), [&](uint8_t* piece) {
    std::memcpy(piece, source, piece_), source += piece_;
  });
}

size_t RowBuffer::place(size_t row) const {
  size_t offset = 0;
  for (auto axis = places_.rbegin(); axis != places_.rend(); ++axis) {
    offset += row % axis->size * axis->stride;
    row /= axis->size;
  }
  return offset;
}

Result<RowBuffers> RowBuffers::find(Program& program, const ModelInfo& info) {
  RowBuffers found(program, info);
  for (const std::string& name : program.names()) {
    if (found.has_rows(name)) HYBRIDGE_TRY(found.add(name));
  }
  return found;
}

bool RowBuffers::is_staged(std::string_view name) {
  return name == "staged" || name.substr(name.rfind('.') + 1).starts_with("staged_");
}

std::vector<size_t> RowBuffers::filled(size_t length, size_t drafted) const {
  std::vector<size_t> counts;
  for (size_t i = 0; i < size(); ++i) counts.push_back(buffers_[i].filled(is_drafters_[i] ? drafted : length));
  return counts;
}

size_t RowBuffers::position_bytes() const {
  size_t bytes = 0;
  for (const RowBuffer& buffer : buffers_) bytes += buffer.position_bytes();
  return bytes;
}

void RowBuffers::give_back(size_t length) const {
  for (size_t i = 0; i < size(); ++i) {
    const size_t used = buffers_[i].filled(length) + 1;  // a pool that is not whole yet
    for (const Bytes part : buffers_[i].from(memory(i), used)) program_->give_back(part);
  }
}

size_t RowBuffers::drafted(size_t length) const {
  if (drafter_.empty()) return length;
  const auto counter = program_->buffer(drafter_);
  const float* read = counter.ok() ? counter->real() : nullptr;
  return read != nullptr && *read > 0 ? static_cast<size_t>(std::min(*read, static_cast<float>(length))) : 0;
}

RowBuffers::RowBuffers(Program& program, const ModelInfo& info) : program_(&program), row_axis_(info.row_axis) {
  rows_ = static_cast<size_t>(info.max_seq_len + info.longest_block());
  const auto& bounded = program.bounded();
  const auto drafter = std::find_if(bounded.begin(), bounded.end(), [](const auto& name) {
    return name.ends_with(DRAFTED);
  });
  if (drafter != bounded.end()) drafter_ = *drafter;
}

bool RowBuffers::has_rows(const std::string& name) const {
  const auto& bounded = program_->bounded();
  if (std::find(bounded.begin(), bounded.end(), name) != bounded.end()) return false;
  const std::string_view ending = std::string_view(name).substr(name.rfind('.') + 1);
  const bool is_bookkeeping = name == "length" || name == "slot_length" || name == "operations";
  return !is_bookkeeping && !is_staged(name) && !name.starts_with("slots.") && !ending.ends_with("_slots");
}

Status RowBuffers::add(const std::string& name) {
  const Array array = HYBRIDGE_TRY(program_->buffer(name));
  auto buffer = describe(name, array);
  if (!buffer || !buffer->fits(array.bytes().size())) {
    return Status(HYBRIDGE_INVALID_ARTIFACT, "the program's buffer " + name + " has rows of a shape that is not known");
  }
  buffers_.push_back(std::move(*buffer));
  names_.push_back(name);
  is_drafters_.push_back(!drafter_.empty() && layer(name) > layer(drafter_));
  return Status();
}

std::optional<RowBuffer> RowBuffers::describe(const std::string& name, const Array& array) const {
  const size_t element = array.element();
  if (array.shape.size() == 1) return RowBuffer({{array.extent(0), element}}, {}, element);
  if (array.shape.size() < 2) return std::nullopt;
  if (row_axis_ == 2) return by_head(array);
  const std::string layer = name.substr(0, name.rfind('.') + 1);
  if (program_->buffer(layer + "key_scales").ok()) return quantized(name.substr(layer.size()), array);
  const size_t count = array.extent(1), bytes = count > 0 ? array.bytes().size() / count : 0;
  if (count == rows_) return RowBuffer({{count, bytes}}, {}, bytes);
  // Fewer rows than positions are those of pools, each made with the help of a window over the positions before its
  // last.
  const auto window = program_->buffer(layer + "conv_state");
  if (!window.ok() || window->shape.size() < 2) return std::nullopt;
  return RowBuffer({{count, bytes}}, {}, bytes, window->extent(1) + 1);
}

}  // namespace hybridge
