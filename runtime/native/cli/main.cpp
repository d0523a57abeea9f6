// hybridge-cli: runs artifacts of hybridge without Python. Its commands are those of `hybridge` that run .pte files,
// and its options have the same names. scripts/cross-cli makes one file of it, with the libraries that it needs.

#include <cstdio>
#include <cstring>
#include <new>
#include <string>

#include <hybridge/hybridge.h>

#include "../text/error.h"
#include "commands.h"
#include "failure.h"

namespace {

using namespace hybridge::cli;

struct Command {
  const char* name;
  const char* summary;
  void (*start)(Words words);
};

constexpr Command COMMANDS[] = {
    {"run", "Continue a text, and show it as it comes.", run},
    {"chat", "Talk with a model.", chat},
    {"inspect", "Show what an artifact is, after checking its hashes.", inspect},
    {"bench", "Measure how fast this device is.", bench},
    {"validate", "Check an artifact, and replay the steps that its export stored.", validate},
};

void print_help() {
  std::printf("Usage: hybridge-cli COMMAND [OPTIONS] ARTIFACT\n\n");
  std::printf("Run an artifact of 'hybridge export', which is a folder, without Python.\n\n");
  for (const Command& each : COMMANDS) std::printf("  %-10s %s\n", each.name, each.summary);
  std::printf("\nhybridge-cli COMMAND --help lists the options of a command; hybridge-cli --version, the version.\n");
}

void start(Words words) {
  const std::string name = words.empty() ? "--help" : words[0];
  if (name == "--help" || name == "-h") return print_help();
  if (name == "--version") {
    std::printf("hybridge-cli %s\n", hybridge_version());
    return;
  }
  for (const Command& each : COMMANDS) {
    if (name == each.name) return each.start(words.subspan(1));
  }
  throw Misuse("there is no command '" + name + "'; see hybridge-cli --help.");
}

int fail(const char* message, int exit_code) {
  std::fflush(stdout);
  std::fprintf(stderr, "Error: %s\n", message);
  return exit_code;
}

}  // namespace

int main(int count, char** words) {
  try {
    start({words + 1, words + (count > 0 ? count : 1)});
    return std::fflush(stdout) == 0 ? 0 : fail("the output cannot be written; is the disk full?", 1);
  } catch (const Misuse& misuse) {
    return fail(misuse.what(), 2);
  } catch (const Failure& failure) {
    return fail(failure.what(), 1);
  } catch (const hybridge::text::TextError& error) {
    const std::string reason = error.what();
    return fail(printable("the manifest is damaged (" + reason + "); copy the whole folder again.").c_str(), 1);
  } catch (const std::bad_alloc&) {
    return fail("there is not enough memory; close other programs, or use a smaller model.", 1);
  } catch (const std::exception& error) {
    return fail(error.what(), 1);
  }
}
