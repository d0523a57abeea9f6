// A tokenizer.json of Hugging Face's tokenizers library (0.23), and what it makes of texts: the same tokens, offsets
// and texts.
//
// The parts, in the order in which a text goes through them: added tokens are cut out (tokenizer.cpp), the rest is
// changed by the normalizer, split by the pre-tokenizer, made tokens of by the model; the post-processor adds what
// begins and ends a text. The decoder goes back. Truncation and padding, which training leaves in the file, are
// ignored.
#ifndef HYBRIDGE_NATIVE_TEXT_TOKENIZER_H
#define HYBRIDGE_NATIVE_TEXT_TOKENIZER_H

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "error.h"

namespace hybridge::text {

class TokenBytes;

// A token of a text, and the part of the text that it stands for, in bytes: an empty part for what was put around it.
struct TextToken {
  uint32_t id;
  uint32_t begin, end;
};

// A part of a text, in bytes.
struct TextPart {
  size_t begin, end;

  bool operator==(const TextPart&) const = default;
};

// Does not change once it is read: any number of threads may use one.
class Tokenizer {
 public:
  // Reads the text of a tokenizer.json. Throws TextError for one that is damaged, or asks for parts that are not here.
  explicit Tokenizer(std::string_view json);
  ~Tokenizer();

  // The tokens of a text. Invalid UTF-8 is read as U+FFFD. special: with what begins and ends a text. plain: the parts
  // that people wrote, in any order: no special token takes anything of them, however they spell it. Only one of a
  // single character, which the vocabulary has no other token for, is said by that token still. Throws TextError for a
  // text that the vocabulary has no tokens for.
  std::vector<TextToken> encode(std::string_view text, bool special = true, std::span<const TextPart> plain = {}) const;

  // The text of tokens; ids that nothing has are left out.
  std::string decode(std::span<const uint32_t> ids, bool skip_special = true) const;

  // The bytes that a token adds to a text after others, such as a part of a character: those that `decode` makes
  // characters of. Empty for special tokens and ids that nothing has. Throws TextError for a tokenizer that has no
  // tokens for single bytes.
  std::string bytes(uint32_t id) const;

  // The bytes of all tokens, put in order when they are first asked for. Throws like `bytes`.
  const TokenBytes& token_bytes() const;

  // Whether decode leaves out a token.
  bool leaves_out(uint32_t id, bool skip_special = true) const;

  // The id of a token by its text, or -1.
  int64_t id(std::string_view token) const;

  // The text of a token as the vocabulary has it; empty for an id that nothing has.
  std::string token(uint32_t id) const;

  // The ids of added tokens in ascending order: of all, or of those that are special.
  std::vector<uint32_t> added(bool special) const;

  // One more than the largest id.
  size_t vocab_size() const;

  // The bytes of the longest token, as the vocabulary has it.
  size_t longest() const;

 private:
  struct Parts;
  std::unique_ptr<const Parts> parts_;
};

// The text of tokens that come one after the other, in pieces that never change: a character is held back until it is
// whole. Only a few tokens are decoded at a time, however long the text is: those since the last piece and the ones
// before them, because some tokenizers decode a token by what precedes it.
class TextStream {
 public:
  // The tokenizer must outlive it.
  explicit TextStream(const Tokenizer& tokenizer, bool skip_special = true)
      : tokenizer_(tokenizer), skip_special_(skip_special) {}

  // What a token adds to the text.
  std::string push(uint32_t id);

  // What is still held back, as the end of the text.
  std::string finish();

 private:
  const Tokenizer& tokenizer_;
  bool skip_special_;
  std::string decoded(size_t begin, size_t end) const;

  // The text of the tokens here, and how much of it was given before.
  std::pair<std::string, size_t> window() const;

  std::string settle(size_t count, std::string piece);

  // Tokens that make no text are held back no longer: each further one would have all of them decoded again.
  static constexpr size_t MOST_HELD = 64;

  std::vector<uint32_t> ids_;  // of the last piece, and those after it that are held back
  size_t settled_ = 0;         // how many are of the last piece
  std::string given_;          // the last piece, as it is decoded by itself
};

}  // namespace hybridge::text

#endif
