// What is thrown inside this folder, and caught at its door (tokenizer.h says which functions throw).
#ifndef HYBRIDGE_NATIVE_TEXT_ERROR_H
#define HYBRIDGE_NATIVE_TEXT_ERROR_H

#include <stdexcept>
#include <string>

namespace hybridge::text {

// The file is damaged, or asks for a part that this tokenizer does not have; the message names it.
struct TokenizerError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace hybridge::text

#endif
