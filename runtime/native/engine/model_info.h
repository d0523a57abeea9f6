// Arrays of numbers, and what a session must know of its program.
#ifndef HYBRIDGE_ENGINE_MODEL_INFO_H
#define HYBRIDGE_ENGINE_MODEL_INFO_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/status.h"

namespace hybridge {

enum class Type { uint8, int8, int64, float32, boolean, float16 };

// Bytes of a number.
size_t size_of(Type type);

using Shape = std::vector<int64_t>;
using Bytes = std::span<uint8_t>;
using Names = std::vector<std::string>;

// Numbers in memory that somebody else keeps.
struct Array {
  Type type = Type::uint8;
  Shape shape;
  void* data = nullptr;

  size_t count() const;
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
Array input(const Numbers& values, Shape shape);
Array input(const Floats& values, Shape shape);
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
  static std::optional<Encoder> read(const std::vector<int64_t>& numbers, const std::vector<int64_t>& form = {});

  // Rows of one call of `prefill_embeddings`.
  int64_t rows(int64_t prefill_chunk) const { return is_bidirectional ? budgets.back() : prefill_chunk; }

  // Pixels along a side of a token's square.
  int64_t unit() const { return patch * merge; }

  // Most tokens of its methods but the longest; 0 if there is no other.
  int64_t second_budget() const { return budgets.size() > 1 ? budgets[budgets.size() - 2] : 0; }

  bool is_sane(int64_t vocab_size) const;
};

// docs/artifact.md; lengths in tokens.
struct ModelInfo {
  int64_t max_seq_len, vocab_size, prefill_chunk, snapshot_slots;
  std::vector<int64_t> verify_lens;  // of each verify method, ascending
  std::vector<int64_t> eos_ids;
  std::vector<int64_t> draft_blocks =
      {};            // of the drafter in the program, the text's last token included, ascending; none
  int64_t taps = 0;  // hidden states of each token that are put out
  std::vector<int64_t> draft_taps = {};  // places of the hidden states that it reads, among those that are put out
  bool draft_samples = false;            // whether it takes noise (engine/noise.h) and a temperature, too
  bool fixed_shapes = true;              // whether methods take blocks of the exported sizes alone, padded
  size_t row_axis = 1;                   // of the buffers that have a row for each position
  std::optional<Encoder> encoder = {};   // of pictures
  int64_t delegate_from = 0;  // tokens of a shortest prompt that a delegate's `delegate_prefill` reads; 0 without one
  bool delegate_encodes = false;  // whether a delegate's `delegate_vision_encoder` encodes the largest pictures

  int64_t verify_len() const { return verify_lens.back(); }

  // Most tokens of a call that commits them, and so the rows after `max_seq_len` that a refused one writes to.
  int64_t longest_block() const;
  bool has_drafter() const { return !draft_blocks.empty(); }
  bool has_delegate() const { return delegate_from > 0 || delegate_encodes; }

  // Returns whether a text may have this id: a token of the vocabulary, or a row of a picture (engine/picture.h).
  bool is_id(int64_t id) const { return id < 0 ? encoder.has_value() : id < vocab_size; }

  // Returns whether sizes and places are possible.
  bool are_sane() const;
};

// Returns the end of an error that says how a text of more than `max_seq_len` tokens gets room.
std::string longer_context(const ModelInfo& info, int64_t max_seq_len);

}  // namespace hybridge

#endif
