// Regular expressions in Rust's syntax (the regex crate's), as expressions over bytes. Look-around and back-references
// have no place in it; ^ and $ stand for the ends of the whole text.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_REGEX_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_REGEX_H

#include <string_view>

#include "characters.h"
#include "expression.h"

namespace hybridge::text {

// Reads an expression that matches texts as a whole. Throws TextError that says what is wrong, and where.
Expression read_regex(std::string_view pattern, Expressions& in, Writing writing = Writing::PLAIN);

// Reads `pattern` of a JSON schema: it matches anywhere in a string, its \d and \w are those of ASCII, as JavaScript's
// are, and the string is written as in JSON.
Expression read_pattern_of_schema(std::string_view pattern, Expressions& in);

}  // namespace hybridge::text

#endif
