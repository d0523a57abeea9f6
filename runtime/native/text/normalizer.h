// What changes a text before it is split: `normalizer` in tokenizer.json.
#ifndef HYBRIDGE_NATIVE_TEXT_NORMALIZER_H
#define HYBRIDGE_NATIVE_TEXT_NORMALIZER_H

#include <memory>

#include "json.h"
#include "normalized_text.h"

namespace hybridge::text {

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalizedText& text) const = 0;
};

// The normalizer of a description; null for null. Throws TextError.
std::unique_ptr<Normalizer> read_normalizer(const Json& json);

// The pattern of `{"String": …}` or `{"Regex": …}`.
Pattern read_pattern(const Json& json);

// Characters that stand for bytes in byte-level vocabularies, by byte (GPT-2's encoder.py).
const std::u32string& byte_characters();

// Each byte of the text as its character.
void to_byte_level(NormalizedText& text);

}  // namespace hybridge::text

#endif
