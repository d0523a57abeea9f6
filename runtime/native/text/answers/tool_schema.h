// The tools that a request offers, and the values of arguments that a model writes as plain text.
//
// Some forms of calls write an argument as the text between two tags, and do not say its type. `argument` is the rule
// for such a text, which a grammar for these calls must share:
//   1. The schema allows strings only: the text as it is.
//   2. The text is a JSON value that the schema allows and no string: this value.
//   3. The schema allows the text as a string: the text. A string for which the first two rules have another value, is written as a
//      JSON string.
//   4. The text is a JSON string whose string the schema allows: that string.
//   5. The text is a value in Python's notation, or a number or boolean in another spelling, that the schema allows: this value.
//   6. Otherwise JSON if it is some, or the text.
#ifndef HYBRIDGE_NATIVE_TEXT_ANSWERS_TOOL_SCHEMA_H
#define HYBRIDGE_NATIVE_TEXT_ANSWERS_TOOL_SCHEMA_H

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "../json.h"

namespace hybridge::text {

// is_strict: calls of it that do not fit its parameters are not wanted.
struct OfferedTool {
  std::string name;
  Json parameters;  // may be missing
  bool is_strict;
};

class ToolSchemas {
 public:
  // tools: a list as OpenAI's API has it. Throws TextError.
  explicit ToolSchemas(std::string_view tools);

  bool empty() const { return parameters_.empty(); }
  std::span<const OfferedTool> tools() const { return tools_; }
  bool has(std::string_view tool) const { return parameters_.contains(std::string(tool)); }

  // Returns the JSON of an argument that a model wrote as `text`.
  std::string argument(std::string_view tool, std::string_view name, std::string_view text) const;

  // Tells whether an argument may have the type of an example in JSON, as far as `argument` looks.
  bool may_be(std::string_view tool, std::string_view name, std::string_view example) const;

 private:
  JsonDocument document_;
  std::vector<OfferedTool> tools_;
  std::unordered_map<std::string, Json> parameters_;
};

}  // namespace hybridge::text

#endif
