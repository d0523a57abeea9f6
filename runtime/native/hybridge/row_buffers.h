// The buffers of a state that have a row for each position, and where a row lies in them: docs/artifact.md has their shapes.
#ifndef HYBRIDGE_NATIVE_ROW_BUFFERS_H
#define HYBRIDGE_NATIVE_ROW_BUFFERS_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hybridge/methods.h>
#include <hybridge/model.h>

namespace hybridge {

// stride: bytes from one index to the next.
struct Axis {
  size_t size, stride;
};

// Reads and writes rows of a buffer. The row with number r begins at the r-th place of the first axes, and lies in pieces.
class RowBuffer {
 public:
  // parts: the axes of a row outside of its pieces of so many bytes; positions: how many positions share a row.
  RowBuffer(uint8_t* memory, std::vector<Axis> places, const std::vector<Axis>& parts, size_t piece, size_t positions = 1)
      : memory_(memory), places_(std::move(places)), pieces_(offsets(parts)), piece_(piece), positions_(positions) {}

  // Whether all of it lies in so many bytes.
  bool fits(size_t bytes) const {
    if (piece_ == 0 || positions_ == 0 || pieces_.empty()) return false;
    size_t last = pieces_.back() + piece_;
    for (const Axis& axis : places_) {
      if (axis.size == 0) return false;
      last += (axis.size - 1) * axis.stride;
    }
    return last <= bytes;
  }

  size_t row_bytes() const { return pieces_.size() * piece_; }

  // How many rows so many positions fill; no more than there are.
  size_t filled(size_t length) const {
    size_t rows = 1;
    for (const Axis& axis : places_) rows *= axis.size;
    return std::min(length / positions_, rows);
  }

  std::vector<uint8_t> read(size_t start, size_t stop) const {
    std::vector<uint8_t> rows((stop - start) * row_bytes());
    uint8_t* out = rows.data();
    each(start, stop, [&](const uint8_t* piece) { std::memcpy(out, piece, piece_), out += piece_; });
    return rows;
  }

  // Puts rows into the places from `start` on.
  void write(size_t start, std::span<const uint8_t> rows) const {
    const uint8_t* in = rows.data();
    each(start, start + rows.size() / row_bytes(), [&](uint8_t* piece) { std::memcpy(piece, in, piece_), in += piece_; });
  }

 private:
  // Of every index of the axes, in order.
  static std::vector<size_t> offsets(const std::vector<Axis>& axes) {
    std::vector<size_t> all = {0};
    for (const Axis& axis : axes) {
      std::vector<size_t> finer;
      for (const size_t offset : all)
        for (size_t i = 0; i < axis.size; ++i) finer.push_back(offset + i * axis.stride);
      all = std::move(finer);
    }
    return all;
  }

  size_t place(size_t row) const {
    size_t offset = 0;
    for (auto axis = places_.rbegin(); axis != places_.rend(); ++axis) {
      offset += row % axis->size * axis->stride;
      row /= axis->size;
    }
    return offset;
  }

  template <typename Move>
  void each(size_t start, size_t stop, Move move) const {
    for (size_t row = start; row < stop; ++row) {
      uint8_t* begin = memory_ + place(row);
      for (const size_t offset : pieces_) move(begin + offset);
    }
  }

  uint8_t* memory_;
  std::vector<Axis> places_;
  std::vector<size_t> pieces_;
  size_t piece_, positions_;
};

// All of them in one program's memory, in its order.
class RowBuffers {
 public:
  static Result<RowBuffers> find(Methods& methods, const Facts& facts) {
    RowBuffers found(methods, facts);
    for (const std::string& name : found.names_) {
      if (found.has_rows(name)) ET_CHECK_OK_OR_RETURN_ERROR(found.add(name));
    }
    return found;
  }

  size_t size() const { return buffers_.size(); }
  const RowBuffer& operator[](size_t i) const { return buffers_[i]; }

  // Rows of each that a text of so many tokens has filled; those of a drafter's layers go by what it has read.
  std::vector<size_t> filled(size_t length) const {
    const float read = drafted_ == nullptr ? 0.0f : *drafted_;
    const auto drafted = read > 0 ? static_cast<size_t>(std::min(read, static_cast<float>(length))) : 0;
    std::vector<size_t> counts;
    for (size_t i = 0; i < size(); ++i) counts.push_back(buffers_[i].filled(is_drafters_[i] ? drafted : length));
    return counts;
  }

 private:
  using Tensor = executorch::aten::Tensor;

  static constexpr std::string_view STATE = "state.cache.", DRAFTED = ".drafted_length";
  static constexpr size_t BLOCK = 64, LANES = 16, QUAD = 4;  // of 8-bit rows

  RowBuffers(Methods& methods, const Facts& facts)
      : methods_(&methods), names_(methods.buffer_names("decode")), bounded_(bounded_names(names_, facts)) {
    rows_ = static_cast<size_t>(facts.max_seq_len + std::max(facts.prefill_chunk, facts.verify_len()));
    const auto drafter = std::find_if(bounded_.begin(), bounded_.end(), [](const auto& name) { return name.ends_with(DRAFTED); });
    if (drafter == bounded_.end()) return;
    const auto counter = methods.buffer("decode", *drafter);
    if (counter.size() == sizeof(float)) drafted_ = reinterpret_cast<const float*>(counter.data());
    drafter_layer_ = layer(*drafter);
  }

  static std::vector<std::string> bounded_names(const std::vector<std::string>& names, const Facts& facts) {
    std::vector<std::string> bounded;
    for (const int64_t place : facts.bounded) {
      if (0 <= place && place < static_cast<int64_t>(names.size())) bounded.push_back(names[static_cast<size_t>(place)]);
    }
    return bounded;
  }

  // Whether it is neither bounded, nor of slots, nor staged.
  bool has_rows(const std::string& name) const {
    if (!name.starts_with(STATE) || std::find(bounded_.begin(), bounded_.end(), name) != bounded_.end()) return false;
    const std::string_view in_state = std::string_view(name).substr(STATE.size());
    const std::string_view own = in_state.substr(in_state.rfind('.') + 1);
    const bool is_own = in_state == "length" || in_state == "staged" || in_state == "slot_length" || in_state == "operations";
    return !is_own && !in_state.starts_with("slots.") && !own.ends_with("_slots") && !own.starts_with("staged_");
  }

  Error add(const std::string& name) {
    const Tensor tensor = ET_UNWRAP(methods_->tensor("decode", name));
    auto buffer = of(name, tensor);
    if (!buffer || !buffer->fits(tensor.nbytes())) return Error::InvalidProgram;
    buffers_.push_back(std::move(*buffer));
    is_drafters_.push_back(drafted_ != nullptr && layer(name) > drafter_layer_);
    return Error::Ok;
  }

  std::optional<RowBuffer> of(const std::string& name, const Tensor& tensor) const {
    auto* memory = tensor.mutable_data_ptr<uint8_t>();
    const auto element = static_cast<size_t>(tensor.element_size());
    if (tensor.dim() == 1) return RowBuffer(memory, {{extent(tensor, 0), element}}, {}, element);
    const std::string layer = name.substr(0, name.rfind('.') + 1);
    if (methods_->tensor("decode", layer + "key_scales").ok()) return quantized(name.substr(layer.size()), memory, tensor);
    const size_t count = extent(tensor, 1), bytes = count > 0 ? tensor.nbytes() / count : 0;
    if (count == rows_) return RowBuffer(memory, {{count, bytes}}, {}, bytes);
    // Fewer rows than positions are those of pools, each made with the help of a window over the positions before its last.
    const auto window = methods_->tensor("decode", layer + "conv_state");
    if (!window.ok() || window->dim() < 2) return std::nullopt;
    return RowBuffer(memory, {{count, bytes}}, {}, bytes, extent(*window, 1) + 1);
  }

  // Rows that lie in blocks of 64, as hybridge.cache.operations.quantized_rows of Python describes them.
  static std::optional<RowBuffer> quantized(const std::string& own, uint8_t* memory, const Tensor& tensor) {
    if (tensor.dim() < 4 || extent(tensor, tensor.dim() - 1) != BLOCK) return std::nullopt;
    const size_t blocks = extent(tensor, 1), heads = extent(tensor, 2);
    if (own.ends_with("_scales")) {
      const size_t head = BLOCK * sizeof(float);
      return RowBuffer(memory, {{blocks, heads * head}, {BLOCK, sizeof(float)}}, {{heads, head}}, sizeof(float));
    }
    if (tensor.dim() != 5) return std::nullopt;
    const size_t columns = extent(tensor, 3), head = columns * BLOCK;
    if (own == "keys") {
      const std::vector<Axis> places = {{blocks, heads * head}, {BLOCK / LANES, columns * LANES}, {LANES, QUAD}};
      return RowBuffer(memory, places, {{heads, head}, {columns / QUAD, BLOCK}}, QUAD);
    }
    const std::vector<Axis> places = {{blocks, heads * head}, {LANES, BLOCK}, {QUAD, 1}};
    return RowBuffer(memory, places, {{heads, head}, {columns / LANES, LANES * BLOCK}, {LANES, QUAD}}, 1);
  }

  static size_t extent(const Tensor& tensor, ssize_t axis) { return static_cast<size_t>(tensor.size(axis)); }

  // The number in state.cache.layers.3.keys; -1 without one.
  static int layer(std::string_view name) {
    constexpr std::string_view LAYERS = "state.cache.layers.";
    return name.starts_with(LAYERS) ? std::atoi(name.data() + LAYERS.size()) : -1;
  }

  Methods* methods_;
  std::vector<std::string> names_, bounded_;
  size_t rows_ = 0;
  const float* drafted_ = nullptr;
  int drafter_layer_ = 0;
  std::vector<RowBuffer> buffers_;
  std::vector<bool> is_drafters_;
};

}  // namespace hybridge

#endif
