// Calls of tools as a form of answers writes them, as an expression: whatever it allows, the form's parser (answers/call.h) turns
// into arguments that fit the tool's schema.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_CALLS_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_CALLS_H

#include <string_view>

#include "../answers/form.h"
#include "automaton.h"

namespace hybridge::text {

// Returns the grammar of what comes after the mark that opens calls, up to the end of the calls; form null: of a text that is one
// call, {"name": …, "arguments": {…}}. tools: a list as in OpenAI's API. Throws TextError for parameters that cannot be followed.
GrammarExpressions read_calls(const CallForm* form, std::string_view tools);

}  // namespace hybridge::text

#endif
