// Calls of tools as a form of answers writes them, as an expression: whatever it allows, the form's parser
// (answers/call.h) turns into arguments that fit the tool's schema.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_CALLS_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_CALLS_H

#include <string>
#include <string_view>

#include "../answers/form.h"
#include "automaton.h"

namespace hybridge::text {

// Which tools an answer must call, or may.
struct ToolChoice {
  bool is_required = false;  // the answer is calls, and nothing else
  std::string name = {};     // of the only tool that may be called; empty for any
  bool is_single = false;    // there is one call

  // choice: "auto", "required" or the name of a tool.
  static ToolChoice of(std::string_view choice, bool is_single = false);
};

// Returns the grammar of an answer that must call tools; or, if it may, of what comes after the mark that opens calls,
// up to the end of the calls. tools: a list as in OpenAI's API. Throws TextError for parameters that cannot be
// followed, with the tool's name; a tool that is not strict may be called with any arguments then.
GrammarExpressions read_calls(
    const AnswerForm& form, std::string_view tools, const ToolChoice& choice, const TokenBytes& tokens
);

}  // namespace hybridge::text

#endif
