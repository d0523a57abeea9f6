// Jinja's tests, such as `is defined`.
#include <cmath>

#include "interpreter.h"
#include "operators.h"

namespace hybridge::text::jinja {

namespace {

using Test = bool (*)(Interpreter& in, const Value& value, const Arguments& given);

// The remainder that tells whether one number divides another; -1 for one that is no integer.
int64_t remainder(Interpreter& in, const Value& value, const Value& by) {
  if (value.is(Kind::LARGE) && by.is_integer() && by.integer() > 0 && by.integer() < INT32_MAX) {
    int64_t rest = 0;
    for (const char digit : value.text().bytes) rest = digit == '-' ? 0 : (rest * 10 + (digit - '0')) % by.integer();
    return rest;
  }
  const Value rest = arithmetic(in.budget(), "%", value, by);
  return rest.is_integer()                            ? rest.integer()
         : rest.number() == std::floor(rest.number()) ? static_cast<int64_t>(rest.number())
                                                      : -1;
}

int order(Interpreter& in, const Value& value, const Arguments& given) {
  return compare(in.budget(), value, Bound("test", given, {"other"}, 1)[0]);
}

template <Kind KIND>
bool is_kind(Interpreter&, const Value& value, const Arguments&) {
  return value.is(KIND);
}

bool is_equal(Interpreter& in, const Value& value, const Arguments& given) {
  return equal(in.budget(), value, Bound("eq", given, {"other"}, 1)[0]);
}

const std::unordered_map<std::string_view, Test>& tests() {
  static const std::unordered_map<std::string_view, Test> all = {
      {"defined",
       [](Interpreter&, const Value& value, const Arguments& given) {
         Bound("defined", given, {});
         return !value.is_undefined();
       }},
      {"undefined", is_kind<Kind::UNDEFINED>},
      {"none", is_kind<Kind::NONE>},
      {"boolean", is_kind<Kind::BOOLEAN>},
      {"float", is_kind<Kind::FLOAT>},
      {"string", is_kind<Kind::STRING>},
      {"mapping", is_kind<Kind::DICT>},
      {"callable", is_kind<Kind::FUNCTION>},
      {"true", [](Interpreter&, const Value& value,
                  const Arguments&) { return value.is(Kind::BOOLEAN) && value.integer() != 0; }},
      {"false", [](Interpreter&, const Value& value,
                   const Arguments&) { return value.is(Kind::BOOLEAN) && value.integer() == 0; }},
      {"integer", [](Interpreter&, const Value& value,
                     const Arguments&) { return value.is(Kind::INTEGER) || value.is(Kind::LARGE); }},
      {"number",
       [](Interpreter&, const Value& value, const Arguments&) { return value.is_number() || value.is(Kind::LARGE); }},
      {"sequence",
       [](Interpreter&, const Value& value, const Arguments&) {
         return value.is_string() || value.is_dict() || value.is(Kind::LIST) || value.is(Kind::TUPLE) ||
                value.is(Kind::RANGE);
       }},
      {"iterable",
       [](Interpreter&, const Value& value, const Arguments&) {
         return value.is_string() || value.is_dict() || value.is_sequence() || value.is_undefined() ||
                value.is(Kind::LOOP);
       }},
      {"odd", [](Interpreter& in, const Value& value,
                 const Arguments&) { return remainder(in, value, Value::integer(2)) == 1; }},
      {"even", [](Interpreter& in, const Value& value,
                  const Arguments&) { return remainder(in, value, Value::integer(2)) == 0; }},
      {"divisibleby",
       [](Interpreter& in, const Value& value, const Arguments& given) {
         return remainder(in, value, Bound("divisibleby", given, {"num"}, 1)[0]) == 0;
       }},
      {"lower", [](Interpreter& in, const Value& value,
                   const Arguments&) { return is_lower(to_text(in.budget(), value).bytes); }},
      {"upper", [](Interpreter& in, const Value& value,
                   const Arguments&) { return is_upper(to_text(in.budget(), value).bytes); }},
      {"escaped",
       [](Interpreter&, const Value& value, const Arguments&) { return value.is_string() && value.text().is_markup; }},
      {"in", [](Interpreter& in, const Value& value,
                const Arguments& given) { return contains(in.budget(), Bound("in", given, {"seq"}, 1)[0], value); }},
      {"sameas",
       [](Interpreter& in, const Value& value, const Arguments& given) {
         const Value other = Bound("sameas", given, {"other"}, 1)[0];
         const bool is_single = value.is_none() || value.is_number();  // numbers have no other identity here
         return value.kind() == other.kind() &&
                (is_single ? equal(in.budget(), value, other)
                           : value.identity() != nullptr && value.identity() == other.identity());
       }},
      {"eq", is_equal},
      {"==", is_equal},
      {"equalto", is_equal},
      {"ne", [](Interpreter& in, const Value& value, const Arguments& given) { return !is_equal(in, value, given); }},
      {"!=", [](Interpreter& in, const Value& value, const Arguments& given) { return !is_equal(in, value, given); }},
      {"gt", [](Interpreter& in, const Value& value, const Arguments& given) { return order(in, value, given) > 0; }},
      {"ge", [](Interpreter& in, const Value& value, const Arguments& given) { return order(in, value, given) >= 0; }},
      {"lt", [](Interpreter& in, const Value& value, const Arguments& given) { return order(in, value, given) < 0; }},
      {"le", [](Interpreter& in, const Value& value, const Arguments& given) { return order(in, value, given) <= 0; }},
  };
  return all;
}

std::string_view common_name(std::string_view name) {
  if (name == ">" || name == "greaterthan") return "gt";
  if (name == "<" || name == "lessthan") return "lt";
  return name == ">=" ? "ge" : name == "<=" ? "le" : name;
}

}  // namespace

bool Interpreter::test(const std::string& name, const Value& value, Arguments& given) {
  budget_.spend(1 + (value.is_string() ? value.text().size() / 32 : 0));
  const auto found = tests().find(common_name(name));
  if (found == tests().end()) throw TextError("No test named '" + name + "'.");
  return found->second(*this, value, given);
}

}  // namespace hybridge::text::jinja
