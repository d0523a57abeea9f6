#include "tool_schema.h"

#include <cmath>
#include <cstdlib>
#include <optional>

#include "value.h"

namespace hybridge::text {
namespace {

constexpr size_t DEEPEST = 32, MOST_STEPS = 5000;

enum class Type : uint8_t { NOTHING, BOOLEAN, INTEGER, NUMBER, STRING, ARRAY, OBJECT };

Type type_of(std::string_view json) {
  switch (json[0]) {
    case 'n': return Type::NOTHING;
    case 't':
    case 'f': return Type::BOOLEAN;
    case '"': return Type::STRING;
    case '[': return Type::ARRAY;
    case '{': return Type::OBJECT;
    default: break;
  }
  const double number = std::strtod(std::string(json).c_str(), nullptr);
  return std::floor(number) == number ? Type::INTEGER : Type::NUMBER;
}

bool is_named(std::string_view name, Type type) {
  switch (type) {
    case Type::NOTHING: return name == "null";
    case Type::BOOLEAN: return name == "boolean";
    case Type::INTEGER: return name == "integer" || name == "number";
    case Type::NUMBER: return name == "number";
    case Type::STRING: return name == "string";
    case Type::ARRAY: return name == "array";
    default: return name == "object";
  }
}

// A value as JSON: its type, and of a string its text.
struct Value {
  std::string json;
  Type type;
  std::string text = {};

  explicit Value(std::string written) : json(std::move(written)), type(type_of(json)) {
    if (type == Type::STRING) text = string_of(json).value_or("");
  }

  bool equals(const Json& other) const {
    if (type == Type::STRING) return other.is_string() && other.string() == text;
    if (type == Type::INTEGER || type == Type::NUMBER) {
      return other.is_number() && other.number() == std::strtod(json.c_str(), nullptr);
    }
    if (type == Type::BOOLEAN) return other.is_boolean() && other.boolean() == (json == "true");
    if (type == Type::NOTHING) return !other && !other.is_missing();
    return (type == Type::ARRAY && other.is_array()) || (type == Type::OBJECT && other.is_object());
  }
};

// Reads one schema of parameters. What is not understood, or is nested too deeply, allows everything.
class SchemaReader {
 public:
  explicit SchemaReader(const Json& root) : root_(root) {}

  // Appends the schemas of a property, each of which an argument may follow.
  void find(const Json& schema, std::string_view name, std::vector<Json>& found, size_t depth = 0) {
    if (!schema.is_object() || depth > DEEPEST || ++steps_ > MOST_STEPS) return;
    if (const Json property = schema["properties"].is_object() ? schema["properties"][name] : Json();
        !property.is_missing()) {
      found.push_back(property);
      return;
    }
    const size_t before = found.size();
    if (schema["$ref"].is_string()) find(resolve(schema["$ref"].string()), name, found, depth + 1);
    for (const char* key : {"allOf", "anyOf", "oneOf"}) {
      const Json choices = schema[key];
      if (choices.is_array()) choices.each([&](const Json& each) { find(each, name, found, depth + 1); });
    }
    for (const char* key : {"then", "else"}) find(schema[key], name, found, depth + 1);
    if (found.size() > before) return;
    if (schema["patternProperties"].is_object()) {
      schema["patternProperties"].each_entry([&](std::string_view, const Json& each) { found.push_back(each); });
    }
    if (schema["additionalProperties"].is_object()) found.push_back(schema["additionalProperties"]);
  }

  bool allows(const std::vector<Json>& schemas, const Value& value) {
    steps_ = 0;
    if (schemas.empty()) return true;
    for (const Json& each : schemas) {
      if (allows(each, value, 0)) return true;
    }
    return false;
  }

  // The types that are named, in whatever part of the schemas: a text without any type is any value.
  bool allows_only_strings(const std::vector<Json>& schemas) {
    if (schemas.empty()) return false;
    for (const char* other : {"null", "true", "0", "0.5", "[]", "{}"}) {
      if (allows_type(schemas, Value(other))) return false;
    }
    return allows_type(schemas, Value("\"\""));
  }

  bool allows_type(const std::vector<Json>& schemas, const Value& value) {
    only_types_ = true;
    const bool found = allows(schemas, value);
    only_types_ = false;
    return found;
  }

 private:
  bool allows(const Json& schema, const Value& value, size_t depth) {
    if (schema.is_boolean()) return schema.boolean();
    if (!schema.is_object() || depth > DEEPEST || ++steps_ > MOST_STEPS) return true;
    if (const Json type = schema["type"]; type.is_string() || type.is_array()) {
      bool fits = type.is_string() && is_named(type.string(), value.type);
      if (type.is_array())
        type.each([&](const Json& each) { fits |= each.is_string() && is_named(each.string(), value.type); });
      if (!fits && !(value.type == Type::NOTHING && is_nullable(schema))) return false;
    }
    if (value.type == Type::NOTHING && is_nullable(schema)) return true;
    const auto equals = [&](const Json& literal) {
      return only_types_ ? same_type(literal, value) : value.equals(literal);
    };
    if (const Json literal = schema["const"]; !literal.is_missing() && !equals(literal)) return false;
    if (const Json literals = schema["enum"]; literals.is_array()) {
      bool fits = false;
      literals.each([&](const Json& each) { fits = fits || equals(each); });
      if (!fits) return false;
    }
    if (schema["$ref"].is_string() && !allows(resolve(schema["$ref"].string()), value, depth + 1)) return false;
    if (schema["allOf"].is_array()) {
      bool fits = true;
      schema["allOf"].each([&](const Json& each) { fits = fits && allows(each, value, depth + 1); });
      if (!fits) return false;
    }
    for (const char* key : {"anyOf", "oneOf"}) {
      if (!schema[key].is_array()) continue;
      bool fits = false;
      schema[key].each([&](const Json& each) { fits = fits || allows(each, value, depth + 1); });
      if (!fits) return false;
    }
    return true;
  }

  static bool is_nullable(const Json& schema) {
    return schema["nullable"].is_boolean() && schema["nullable"].boolean();
  }
  static bool same_type(const Json& literal, const Value& value) { return Value(literal.written()).type == value.type; }

  // The schema that a reference names: nothing for one that names none.
  Json resolve(std::string_view reference) const {
    if (const size_t at = reference.find('#'); at != reference.npos) reference.remove_prefix(at + 1);
    Json found = root_;
    while (reference.starts_with('/')) {
      reference.remove_prefix(1);
      const size_t end = std::min(reference.find('/'), reference.size());
      std::string key;
      for (size_t i = 0; i < end; i++) {
        if (reference[i] == '~' && i + 1 < end) {
          key += reference[++i] == '1' ? '/' : '~';
        } else {
          key += reference[i];
        }
      }
      if (found.is_array()) {
        found = key.find_first_not_of("0123456789") == key.npos && key.size() < 9 && !key.empty()
                    ? found.item(std::stoul(key))
                    : Json();
      } else {
        found = found.is_object() ? found[key] : Json();
      }
      reference.remove_prefix(end);
    }
    return found;
  }

  Json root_;
  size_t steps_ = 0;
  bool only_types_ = false;
};

std::string_view trimmed(std::string_view text) {
  static constexpr std::string_view SPACE = " \t\n\r";
  const size_t begin = text.find_first_not_of(SPACE);
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(SPACE) - begin + 1);
}

// The value of a text in another spelling than JSON's that the schemas allow.
std::optional<std::string> other_spelling(
    SchemaReader& reader, const std::vector<Json>& schemas, std::string_view text
) {
  const std::string word(trimmed(text));
  std::vector<std::string> values;
  if (const auto number = whole_value(word, Notation::JSON);
      number && type_of(*number) == Type::INTEGER && word.size() < 32) {
    values.push_back(std::to_string(static_cast<long long>(std::strtod(word.c_str(), nullptr))));  // "3.0"
  }
  std::string lower;
  for (const char each : word) lower += each >= 'A' && each <= 'Z' ? static_cast<char>(each | 0x20) : each;
  if (lower == "true" || lower == "1") values.emplace_back("true");
  if (lower == "false" || lower == "0") values.emplace_back("false");
  if (auto python = whole_value(word, Notation::PYTHON); python && !python->starts_with('"'))
    values.push_back(std::move(*python));
  for (std::string& each : values) {
    if (reader.allows(schemas, Value(each))) return std::move(each);
  }
  return std::nullopt;
}

std::string argument_of(
    SchemaReader& reader, const std::vector<Json>& schemas, std::string_view text, bool only_strings
) {
  const std::string as_text = to_json(text);
  const bool allows_text = reader.allows(schemas, Value(as_text));
  if (only_strings && allows_text) return as_text;
  auto json = text == "None"                      ? std::optional<std::string>("null")
              : text == "True" || text == "False" ? std::optional<std::string>(text == "True" ? "true" : "false")
                                                  : whole_value(text, Notation::JSON);
  const bool is_allowed = json && reader.allows(schemas, Value(*json));
  if (json && !json->starts_with('"')) {
    const bool is_integer = json->find_first_of(".eE") == json->npos || type_of(*json) != Type::INTEGER;
    if (is_allowed && (is_integer || reader.allows(schemas, Value("0.5")))) return *json;
  } else if (is_allowed) {
    // The quotation marks are JSON's unless the string would be itself without them.
    if (!allows_text || argument_of(reader, schemas, *string_of(*json), false) != *json) return *json;
  }
  if (allows_text) return as_text;
  return other_spelling(reader, schemas, text).value_or(is_allowed ? *json : as_text);
}

}  // namespace

ToolSchemas::ToolSchemas(std::string_view tools) : document_(tools) {
  const Json list = document_.root("tools");
  list.each([&](const Json& tool) {
    if (!tool.is_object()) tool.fail("an object");
    const Json function = tool["function"].is_object() ? tool["function"] : tool;
    if (!function["name"].is_string()) return;
    tools_.push_back(
        {std::string(function["name"].string()), function["parameters"], function["strict"].boolean_or(true)}
    );
    parameters_.emplace(tools_.back().name, tools_.back().parameters);
  });
}

std::string ToolSchemas::argument(std::string_view tool, std::string_view name, std::string_view text) const {
  const auto place = parameters_.find(std::string(tool));
  SchemaReader reader(place != parameters_.end() ? place->second : Json());
  std::vector<Json> schemas;
  if (place != parameters_.end()) reader.find(place->second, name, schemas);
  return argument_of(reader, schemas, text, reader.allows_only_strings(schemas));
}

bool ToolSchemas::may_be(std::string_view tool, std::string_view name, std::string_view example) const {
  const auto place = parameters_.find(std::string(tool));
  if (place == parameters_.end()) return true;
  SchemaReader reader(place->second);
  std::vector<Json> schemas;
  reader.find(place->second, name, schemas);
  return reader.allows_type(schemas, Value(std::string(example)));
}

}  // namespace hybridge::text
