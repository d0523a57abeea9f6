// Python's operators on a template's values. All throw TextError for operands that have none.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_OPERATORS_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_OPERATORS_H

#include <ctime>
#include <string_view>

#include "value.h"

namespace hybridge::text::jinja {

// operation: + - * / // % or **.
Value arithmetic(Budget& budget, std::string_view operation, const Value& a, const Value& b);
Value negative(const Value& value);
bool contains(Budget& budget, const Value& container, const Value& value);

// The element at an index or a key; nullopt-like: false leaves `found` as it was.
bool find_item(Budget& budget, const Value& of, const Value& key, Value& found);
Value slice(Budget& budget, const Value& of, const Value& begin, const Value& end, const Value& step);

// 'text' % values, and 'text'.format(...).
Text percent_format(Budget& budget, const Text& format, const Value& values);
Text brace_format(Budget& budget, const Text& format, const Arguments& given);

// The time in a format of strftime, in English. Throws TextError for a directive that is not supported.
std::string format_time(std::string_view format, const std::tm& time);

}  // namespace hybridge::text::jinja

#endif
