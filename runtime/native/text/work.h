// How much a call may do for a text, whatever the file asks for.
#ifndef HYBRIDGE_NATIVE_TEXT_WORK_H
#define HYBRIDGE_NATIVE_TEXT_WORK_H

#include <cstddef>
#include <cstdint>

#include "error.h"

namespace hybridge::text {

// Steps that are left: of matching, of searching tokens, of comparing bytes. Published tokenizers take a few hundred
// for a byte of text at most; a file that takes more is refused for this text, because nothing can interrupt a call.
class Work {
 public:
  // bytes: of the text.
  explicit Work(size_t bytes) : left_(LEAST + FOR_A_BYTE * static_cast<uint64_t>(bytes)) {}

  uint64_t left() const { return left_; }

  // Throws TextError if fewer steps are left.
  void spend(uint64_t steps) {
    if (steps > left_) throw TextError("the tokenizer takes too long for this text");
    left_ -= steps;
  }

 private:
  static constexpr uint64_t LEAST = 10'000'000, FOR_A_BYTE = 1024;
  uint64_t left_;
};

}  // namespace hybridge::text

#endif
