// What makes tokens of a word: `model` in tokenizer.json.
#ifndef HYBRIDGE_NATIVE_TEXT_MODEL_H
#define HYBRIDGE_NATIVE_TEXT_MODEL_H

#include <memory>
#include <vector>

#include "json.h"
#include "vocabulary.h"
#include "work.h"

namespace hybridge::text {

// A token, and the part of a word that it stands for, in bytes.
struct Token {
  uint32_t id;
  size_t begin, end;
};

class Model {
 public:
  virtual ~Model() = default;
  // Adds the tokens of a word, which is not empty: each is inside the word. Throws TextError if the word has none, or
  // takes more work than is left.
  virtual void tokenize(std::string_view word, Work& work, std::vector<Token>& into) const = 0;

  const Vocabulary& vocabulary() const { return vocabulary_; }

  // The id of the first added token that the vocabulary does not have.
  virtual size_t next_id() const { return vocabulary_.size(); }

 protected:
  Vocabulary vocabulary_;
};

// The model of a description: BPE, Unigram, WordPiece or WordLevel. Throws TextError.
std::unique_ptr<Model> read_model(const Json& json);

}  // namespace hybridge::text

#endif
