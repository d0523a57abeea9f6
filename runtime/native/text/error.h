// What is thrown inside this folder, and caught at its door (each header says which functions throw).
#ifndef HYBRIDGE_NATIVE_TEXT_ERROR_H
#define HYBRIDGE_NATIVE_TEXT_ERROR_H

#include <stdexcept>
#include <string>

namespace hybridge::text {

// A tokenizer.json, a chat format or a log is damaged or asks for what is not here, or a text is none that they can be
// used on; the message names it.
struct TextError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The model's tokenizer or chat template cannot do what is asked of it.
struct UnsupportedError : TextError {
  using TextError::TextError;
};

}  // namespace hybridge::text

#endif
