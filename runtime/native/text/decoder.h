// What makes a text of tokens' texts: `decoder` in tokenizer.json.
#ifndef HYBRIDGE_NATIVE_TEXT_DECODER_H
#define HYBRIDGE_NATIVE_TEXT_DECODER_H

#include <memory>
#include <string>
#include <vector>

#include "json.h"

namespace hybridge::text {

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Replaces the tokens' texts by others, which together are the text.
  virtual void apply(std::vector<std::string>& tokens) const = 0;

  // Replaces a token's text by the bytes that it adds after other tokens. bytes: of one of the kinds that can write
  // any bytes. Returns false where decoders after this one in a sequence change nothing any more. Throws TextError if
  // only a whole text says.
  virtual bool spell(std::string& token, bool& bytes) const = 0;
};

// The decoder of a description; null for null. Throws TextError.
std::unique_ptr<Decoder> read_decoder(const Json& json);

}  // namespace hybridge::text

#endif
