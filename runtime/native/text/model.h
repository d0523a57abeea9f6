// What makes tokens of a word: `model` in tokenizer.json.
#ifndef HYBRIDGE_NATIVE_TEXT_MODEL_H
#define HYBRIDGE_NATIVE_TEXT_MODEL_H

#include <memory>
#include <vector>

#include "json.h"
#include "vocabulary.h"

namespace hybridge::text {

// A token, and the part of a word that it stands for, in bytes.
struct Token {
  uint32_t id;
  size_t begin, end;
};

class Model {
 public:
  virtual ~Model() = default;
  // Adds the tokens of a word, which is not empty. Throws TextError if the word has none.
  virtual void tokenize(std::string_view word, std::vector<Token>& into) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 protected:
  Vocabulary vocabulary_;
};

// The model of a description: BPE, Unigram, WordPiece or WordLevel. Throws TextError.
std::unique_ptr<Model> read_model(const Json& json);

}  // namespace hybridge::text

#endif
