// The arguments of a call as a form of calls writes them, as an expression.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_CALL_ARGUMENTS_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_CALL_ARGUMENTS_H

#include <string_view>

#include "../answers/form.h"
#include "../answers/tool_schema.h"
#include "schema_expression.h"
#include "token_bytes.h"

namespace hybridge::text {

// Returns the arguments of a tool: in JSON and Gemma's notation with their brackets, otherwise what stands between the
// form's own. form: its texts are `marked`, as TokenBytes does; `plain` is the same without. Throws TextError for the
// name of a parameter that the form cannot write.
Expression write_arguments(
    const CallForm& marked, const CallForm& plain, const TokenBytes& tokens, const ToolSchemas& tools,
    std::string_view tool, const Schema& schema, Expressions& in, SchemaExpressions& made
);

}  // namespace hybridge::text

#endif
