// A JSON schema as an expression of the JSON that fits it: on one line, with ", " and ": ", properties in the order of the schema.
//
// What is read is the part of JSON Schema 2020-12 that Python's grammars have (docs/structured.md): a keyword that would be
// followed wrongly is refused by its name. Keywords that JSON Schema does not know are ignored, but for OpenAPI's "nullable".
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_JSON_SCHEMA_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_JSON_SCHEMA_H

#include <string_view>

#include "automaton.h"

namespace hybridge::text {

// Throws TextError for what is no schema, has what is not supported, or fits nothing.
GrammarExpressions read_json_schema(std::string_view json);

}  // namespace hybridge::text

#endif
