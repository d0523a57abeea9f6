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

// Parts of a kind that a file may have: more than any published one has several times.
inline constexpr size_t MOST_PARTS = 100;

// Adds the parts of a Sequence, and of the Sequences in it, which are as one list of them. key: of the list; read: what
// reads a part, null for none. Throws TextError for more than MOST_PARTS.
template <typename Part, typename Read>
void read_parts(const Json& json, const char* key, Read&& read, std::vector<std::unique_ptr<Part>>& into) {
  json[key].each([&](const Json& each) {
    if (each && each["type"].string() == "Sequence") return read_parts(each, key, read, into);
    auto part = read(each);
    if (part == nullptr) return;
    if (into.size() == MOST_PARTS) json.fail(("a list of " + std::to_string(MOST_PARTS) + " parts at most").c_str());
    into.push_back(std::move(part));
  });
}

// The pattern of `{"String": …}` or `{"Regex": …}`.
Pattern read_pattern(const Json& json);

// Characters that stand for bytes in byte-level vocabularies, by byte (GPT-2's encoder.py).
const std::u32string& byte_characters();

// Each byte of the text as its character.
void to_byte_level(NormalizedText& text);

}  // namespace hybridge::text

#endif
