// What ends a command: a sentence that says what is wrong, what was expected and what to do.
#ifndef HYBRIDGE_NATIVE_CLI_FAILURE_H
#define HYBRIDGE_NATIVE_CLI_FAILURE_H

#include <stdexcept>
#include <string>
#include <string_view>

#include <hybridge/hybridge.h>

namespace hybridge::cli {

// Returns a text with control characters written out, such as \x1b: a file's own words must not command a terminal.
inline std::string printable(std::string_view text) {
  std::string made;
  for (const char each : text) {
    const auto byte = static_cast<unsigned char>(each);
    if (byte < 0x20 || byte == 0x7f) {
      made += std::string("\\x") + "0123456789abcdef"[byte >> 4] + "0123456789abcdef"[byte & 15];
    } else {
      made += each;
    }
  }
  return made;
}

// The work failed: the process ends with 1.
struct Failure : std::runtime_error {
  explicit Failure(std::string_view message) : std::runtime_error(printable(message)) {}
};

// The command was used wrongly: it ends with 2.
struct Misuse : Failure {
  using Failure::Failure;
};

// Throws Failure for a status that is not OK. doing: what was tried, such as "the prompt cannot be read".
inline void check(hybridge_status status, std::string_view doing) {
  if (status == HYBRIDGE_OK) return;
  throw Failure(std::string(doing) + ": " + hybridge_failure() + ".");
}

}  // namespace hybridge::cli

#endif
