// An answer of a chat on the terminal, as it comes.
#ifndef HYBRIDGE_NATIVE_CLI_SHOWN_ANSWER_H
#define HYBRIDGE_NATIVE_CLI_SHOWN_ANSWER_H

#include <cstdio>
#include <span>
#include <string>

#include <unistd.h>

#include <hybridge/hybridge.h>

#include "output.h"

namespace hybridge::cli {

// Shows an answer's pieces: reasoning and calls of tools dim and on stderr, so that only answers go to stdout.
class ShownAnswer {
 public:
  static int show(const hybridge_piece* piece, void* shown) {
    static_cast<ShownAnswer*>(shown)->add(*piece);
    return 1;
  }

  void end() {
    end_reasoning();
    write_out("\n");
  }

 private:
  void add(const hybridge_piece& piece) {
    if (piece.reasoning_size > 0) {
      if (!reasons_) std::fputs(dim(), stderr);
      reasons_ = true;
      std::fwrite(piece.reasoning, 1, piece.reasoning_size, stderr);
    }
    if (piece.content_size > 0) {
      end_reasoning();
      write_out({piece.content, piece.content_size});
    }
    for (const hybridge_call& each : std::span(piece.calls, piece.call_count)) {
      const std::string name(each.name, each.name_size), arguments(each.arguments, each.arguments_size);
      std::fprintf(stderr, "%s[%s %s]\n%s", dim(), printable(name).c_str(), printable(arguments).c_str(), bright());
    }
  }

  void end_reasoning() {
    if (!reasons_) return;
    std::fprintf(stderr, "%s\n\n", bright());
    reasons_ = false;
  }

  static bool is_terminal() { return ::isatty(2) == 1; }
  static const char* dim() { return is_terminal() ? "\x1b[2m" : ""; }
  static const char* bright() { return is_terminal() ? "\x1b[22m" : ""; }

  bool reasons_ = false;
};

}  // namespace hybridge::cli

#endif
