// What splits a text into words, which are tokenized each by itself: `pre_tokenizer` in tokenizer.json.
#ifndef HYBRIDGE_NATIVE_TEXT_PRE_TOKENIZER_H
#define HYBRIDGE_NATIVE_TEXT_PRE_TOKENIZER_H

#include <memory>
#include <vector>

#include "json.h"
#include "normalized_text.h"

namespace hybridge::text {

using Words = std::vector<NormalizedText>;

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Splits one of the words so far, and may change it.
  virtual void split(NormalizedText word, Words& into) const = 0;
};

// The pre-tokenizer of a description; null for null. Throws TextError.
std::unique_ptr<PreTokenizer> read_pre_tokenizer(const Json& json);

// How Metaspace, a pre-tokenizer and a decoder, writes blanks.
struct Metaspace {
  enum class Prepend { First, Never, Always } prepend = Prepend::Always;
  std::string replacement;
  bool split = true;

  explicit Metaspace(const Json& json);
};

}  // namespace hybridge::text

#endif
