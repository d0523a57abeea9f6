// A JSON schema as an expression of the JSON that fits it: on one line, with ", " and ": ", properties in the order of
// the schema.
//
// What is read is the part of JSON Schema 2020-12 in docs/structured.md: a keyword that would be
// followed wrongly is refused by its name. Keywords that JSON Schema does not know are ignored, but for OpenAPI's
// "nullable".
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_JSON_SCHEMA_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_JSON_SCHEMA_H

#include <functional>
#include <span>
#include <string_view>

#include "../json.h"
#include "automaton.h"
#include "schema_expression.h"

namespace hybridge::text {

// Throws TextError for what is no schema, has what is not supported, or fits nothing.
GrammarExpressions read_json_schema(std::string_view json);

// Reads several schemas, whose references start from their own roots, into one grammar. write: gives the texts for a
// schema by its place; not the empty text. join: gives the grammar's texts.
GrammarExpressions read_json_schemas(
    std::span<const Json> schemas,
    const std::function<Expression(Expressions& in, SchemaExpressions& made, size_t place, const Schema& schema)>&
        write,
    const std::function<Expression(Expressions& in, std::span<const Expression> written)>& join
);

}  // namespace hybridge::text

#endif
