// The commands of hybridge-cli: each reads its own arguments, and throws Misuse or Failure.
#ifndef HYBRIDGE_NATIVE_CLI_COMMANDS_H
#define HYBRIDGE_NATIVE_CLI_COMMANDS_H

#include <span>

namespace hybridge::cli {

using Words = std::span<const char* const>;

void run(Words words);
void chat(Words words);
void inspect(Words words);
void bench(Words words);
void validate(Words words);

}  // namespace hybridge::cli

#endif
