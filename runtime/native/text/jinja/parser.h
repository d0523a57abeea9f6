// Reads a template.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_PARSER_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_PARSER_H

#include <string_view>

#include "nodes.h"

namespace hybridge::text::jinja {

// Throws TextError with the line of what is wrong. budget: outlives the tree, whose constants it pays for.
Block parse(std::string_view source, Budget& budget);

}  // namespace hybridge::text::jinja

#endif
