// Arrays of numbers, and what a session must know of its program.
#ifndef HYBRIDGE_ENGINE_FACTS_H
#define HYBRIDGE_ENGINE_FACTS_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace hybridge {

enum class Type { uint8, int8, int64, float32, boolean, float16 };

// Bytes of a number.
inline size_t size_of(Type type) {
  switch (type) {
    case Type::int64: return 8;
    case Type::float32: return 4;
    case Type::float16: return 2;
    default: return 1;
  }
}

using Shape = std::vector<int64_t>;
using Bytes = std::span<uint8_t>;
using Names = std::vector<std::string>;

// Numbers in memory that somebody else keeps.
struct Array {
  Type type = Type::uint8;
  Shape shape;
  void* data = nullptr;

  size_t count() const {
    return std::accumulate(shape.begin(), shape.end(), size_t(1), [](size_t all, int64_t n) {
      return all * static_cast<size_t>(n);
    });
  }
  size_t element() const { return size_of(type); }
  Bytes bytes() const { return {static_cast<uint8_t*>(data), count() * element()}; }
  size_t extent(size_t axis) const { return static_cast<size_t>(shape[axis]); }

  // Its first number; null where it has none of this type.
  int64_t* integer() const { return type == Type::int64 && count() > 0 ? static_cast<int64_t*>(data) : nullptr; }
  float* real() const { return type == Type::float32 && count() > 0 ? static_cast<float*>(data) : nullptr; }
};

using Numbers = std::vector<int64_t>;
using Floats = std::vector<float>;
using Tokens = std::span<const int64_t>;

// Runs a method of a program by its name; its outputs last until the next call.
using CallMethod = std::function<Result<std::span<const Array>>(const std::string&, std::initializer_list<Array>)>;

// Views of a method's inputs, for the time of the call.
inline Array input(const Numbers& values, Shape shape) {
  return {Type::int64, std::move(shape), const_cast<int64_t*>(values.data())};
}
inline Array input(const Floats& values, Shape shape) {
  return {Type::float32, std::move(shape), const_cast<float*>(values.data())};
}
inline Array number(const int64_t& value) { return {Type::int64, {1}, const_cast<int64_t*>(&value)}; }

// The encoder of pictures in a program: pixels along a side of a patch, patches along a side of the square that becomes
// one token, learned positions along a side, the token that stands for a row of a picture, and the most tokens of each
// of its methods, ascending. axes: of the rope positions of a picture's rows in the text, 1 as of tokens, or 3: time,
// row and column. has_corners: learned positions are interpolated with the outermost ones on a picture's corners.
// has_rope: it takes row and column of each patch. has_table: it looks up learned positions by these, `side` of each at
// most, and none is interpolated outside of it. is_bidirectional: rows of a picture see each other, so one call reads
// all of them. is_square: each picture is a square of as many tokens as the encoder takes.
struct Encoder {
  int64_t patch, merge, side, placeholder;
  std::vector<int64_t> budgets;
  int64_t axes = 1;
  bool has_corners = false, has_rope = false, has_table = false, is_bidirectional = false, is_square = false;

  // The numbers of a program's `hybridge_vision`, and of its `hybridge_vision_form` if it has one; none without any.
  static std::optional<Encoder> of(const std::vector<int64_t>& numbers, const std::vector<int64_t>& form = {}) {
    if (numbers.size() < 5 || (!form.empty() && form.size() != 3 && form.size() != 5 && form.size() != 6))
      return std::nullopt;
    Encoder encoder{numbers[0], numbers[1], numbers[2], numbers[3], {numbers.begin() + 4, numbers.end()}};
    if (!form.empty())
      std::tie(encoder.axes, encoder.has_corners, encoder.has_rope) = std::tuple(form[0], form[1] != 0, form[2] != 0);
    if (form.size() > 3) std::tie(encoder.has_table, encoder.is_bidirectional) = std::tuple(form[3] != 0, form[4] != 0);
    encoder.is_square = form.size() > 5 && form[5] != 0;
    return encoder;
  }

  // Rows of one call of `prefill_embeddings`.
  int64_t rows(int64_t prefill_chunk) const { return is_bidirectional ? budgets.back() : prefill_chunk; }

  // Pixels along a side of a token's square.
  int64_t unit() const { return patch * merge; }

  bool is_sane(int64_t vocab_size) const {
    const auto within = [](int64_t value, int64_t highest) { return 1 <= value && value <= highest; };
    return (axes == 1 || axes == 3) && within(patch, 64) && within(merge, 8) &&
           within(side, has_table ? 4096 * 8 : 256) && 0 <= placeholder && placeholder < vocab_size &&
           !budgets.empty() && std::is_sorted(budgets.begin(), budgets.end()) && within(budgets.front(), 4096) &&
           within(budgets.back(), 4096) &&
           (!has_table ||
            (has_rope && (is_square ? budgets.back() * merge * merge <= side * side : budgets.back() * merge <= side)));
  }
};

// docs/artifact.md; lengths in tokens.
struct Facts {
  int64_t max_seq_len, vocab_size, prefill_chunk, snapshot_slots;
  std::vector<int64_t> verify_lens;  // of each verify method, ascending
  std::vector<int64_t> eos_ids;
  std::vector<int64_t> draft_blocks =
      {};            // of the drafter in the program, the text's last token included, ascending; none
  int64_t taps = 0;  // hidden states of each token that are put out
  std::vector<int64_t> draft_taps = {};  // places of the hidden states that it reads, among those that are put out
  bool draft_samples = false;            // whether it takes noise and a temperature, too
  bool fixed_shapes = true;              // whether methods take blocks of the exported sizes alone, padded
  size_t row_axis = 1;                   // of the buffers that have a row for each position
  std::optional<Encoder> encoder = {};   // of pictures

  int64_t verify_len() const { return verify_lens.back(); }

  // Most tokens of a call that commits them, and so the rows behind `max_seq_len` that a refused one writes to.
  int64_t longest_block() const {
    return std::max({prefill_chunk, verify_len(), encoder ? encoder->rows(prefill_chunk) : 0});
  }
  bool has_drafter() const { return !draft_blocks.empty(); }

  // Returns whether a text may have this id: a token of the vocabulary, or a row of a picture (engine/picture.h).
  bool is_id(int64_t id) const { return id < 0 ? encoder.has_value() : id < vocab_size; }

  // Returns whether sizes and places are possible.
  bool are_sane() const {
    const auto within = [](int64_t value, int64_t lowest, int64_t highest) {
      return lowest <= value && value <= highest;
    };
    const auto is_tapped = [&](int64_t place) { return 0 <= place && place < taps; };
    const auto ascends = [](const auto& numbers) { return std::is_sorted(numbers.begin(), numbers.end()); };
    const bool has_sizes = within(max_seq_len, 1, 1 << 20) && within(vocab_size, 1, int64_t(1) << 31) &&
                           within(prefill_chunk, 1, 4096) && within(snapshot_slots, 0, 1024) && !verify_lens.empty() &&
                           within(verify_lens.front(), 1, 512) && within(verify_lens.back(), 1, 512) &&
                           ascends(verify_lens);
    const bool drafts = draft_blocks.empty() || (2 <= draft_blocks.front() && draft_blocks.back() <= 512);
    return has_sizes && drafts && (!encoder || encoder->is_sane(vocab_size)) && ascends(draft_blocks) &&
           draft_blocks.empty() == draft_taps.empty() && within(taps, 0, 512) && draft_taps.size() <= 512 &&
           std::all_of(draft_taps.begin(), draft_taps.end(), is_tapped);
  }
};

}  // namespace hybridge

#endif
