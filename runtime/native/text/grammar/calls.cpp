#include "calls.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "../answers/tool_schema.h"
#include "../answers/value.h"
#include "characters.h"
#include "json_schema.h"
#include "regex.h"

namespace hybridge::text {
namespace {

using Type = Choice::Type;

constexpr const char* NUMBER = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?";
constexpr const char* SPACES = "[ \\t\\n\\r\\v\\f]*";
constexpr std::array CONSTANTS = {"null", "true", "false", "None", "True", "False"};
const std::string UNNAMED = "\x1f";  // a name that no schema has

// The arguments of one tool, each between tags with its value as text. tool_schema.h has the rule by which the parser reads such a
// text, and is asked where it decides.
class TagWriter {
 public:
  TagWriter(const CallForm& form, const ToolSchemas& tools, std::string_view tool, Expressions& in, SchemaExpressions& made)
      : form_(form),
        tools_(tools),
        tool_(tool),
        in_(in),
        made_(made),
        any_(regex("(?s:.)")),
        plain_(regex("[^\"\\\\\\x00-\\x1f]")) {
    made.leave_out(form.value_end);
  }

  Expression arguments(const Schema& schema) {
    const ObjectWriting tags{
        .open = Expressions::EMPTY,
        .close = Expressions::EMPTY,
        .comma = Expressions::EMPTY,
        .key = [this](const std::string& name) { return key(name); },
        .other_key = [this](Expression names) {
          return around_name(in_.both({names, regex("[^\"\\\\\\x00-\\x1f<>]+")}));
        },
        .value = [this](const std::string* name, const SharedSchema& schema) {
          const Expression end = in_.literal((form_.has_own_lines ? "\n" : "") + form_.value_end + "\n");
          return in_.concat(value(name == nullptr ? UNNAMED : *name, schema), end);
        },
        .has_free = false};
    return made_.objects(schema, tags);
  }

 private:
  Expression regex(const std::string& pattern) { return read_regex(pattern, in_); }

  // All texts that do not contain one.
  Expression without(std::string_view text) {
    const Expression anything = in_.repeat(any_, 0, Expressions::UNLIMITED);
    return in_.complement(in_.concat(anything, in_.concat(in_.literal(text), anything)));
  }

  Expression around_name(Expression name) {
    const std::string tag = form_.key_end == form_.tag_end ? form_.key_end : form_.key_end + form_.tag_end;
    const Expression end = in_.literal(tag + (form_.has_own_lines ? "\n" : ""));
    return in_.concat(in_.literal(form_.key_open), in_.concat(name, end));
  }

  Expression key(const std::string& name) {
    if (name.empty() || name.find_first_of("<>\n\"") != name.npos) {
      throw TextError("the parameter \"" + escaped(name) + "\" cannot stand in a tag of this model's calls: give it another name");
    }
    return around_name(in_.literal(name));
  }

  bool may_be(const std::string& name, const char* example) const { return tools_.may_be(tool_, name, example); }
  std::string read(const std::string& name, std::string_view text) const { return tools_.argument(tool_, name, text); }

  Expression value(const std::string& name, const SharedSchema& schema) {
    std::vector<Expression> ways;
    for (const Choice& each : made_.resolved(schema)) {
      if (each.literals) {
        for (const std::string& literal : *each.literals) add_literal(name, literal, ways);
      } else if (each.type == Type::STRING) {
        add_strings(name, each, ways);
      } else {
        ways.push_back(made_.of(each));
      }
    }
    return in_.either(std::move(ways));
  }

  // Adds the first way to write a value that the parser reads as this value.
  void add_literal(const std::string& name, const std::string& json, std::vector<Expression>& ways) {
    const auto text = string_of(json);
    const std::string wanted = text ? to_json(*text) : json;
    for (const std::string& way : {text.value_or(json), json}) {
      if (read(name, way) != wanted || way.find(form_.value_end) != way.npos) continue;
      ways.push_back(in_.literal(way));
      return;
    }
  }

  // Adds the strings of a schema. Where other values are allowed too, texts that the parser might read as one of them are left out,
  // and those that it does read as a number or a constant are written as JSON strings.
  void add_strings(const std::string& name, const Choice& choice, std::vector<Expression>& ways) {
    const auto [least, most] = choice.count;
    if (least > most) return;
    std::vector<Expression> raw = choice.patterns;  // of JSON strings; texts without escapes are the same
    raw.push_back(in_.repeat(choice.patterns.empty() ? any_ : plain_, least, most));
    raw.push_back(without(form_.value_end));
    if (!form_.has_own_lines) raw.push_back(in_.complement(in_.concat(in_.literal("<![CDATA["), in_.repeat(any_, 0, Expressions::UNLIMITED))));
    const bool has_null = may_be(name, "null"), has_boolean = may_be(name, "true"), has_number = may_be(name, "0") || may_be(name, "0.5");
    const bool has_list = may_be(name, "[]"), has_object = may_be(name, "{}");
    if (!has_null && !has_boolean && !has_number && !has_list && !has_object) {
      add_alive(in_.both(std::move(raw)), ways);
      return;
    }
    const std::string spaces = SPACES;
    std::vector<Expression> others = {regex(spaces + "\"(?s:.)*\"" + spaces)}, quoted;
    if (has_null) others.push_back(regex(spaces + "(null|None)" + spaces));
    if (has_boolean) others.push_back(regex(spaces + "(true|false|True|False)" + spaces));
    if (has_number) others.push_back(regex(spaces + NUMBER + spaces));
    if (has_list) others.push_back(regex(spaces + "\\[(?s:.)*\\]" + spaces));
    if (has_object) others.push_back(regex(spaces + "\\{(?s:.)*\\}" + spaces));
    raw.push_back(in_.complement(in_.either(std::move(others))));
    add_alive(in_.both(std::move(raw)), ways);
    for (const char* const word : CONSTANTS) {
      if (!read(name, word).starts_with('"')) quoted.push_back(in_.literal(word));
    }
    if (!read(name, "73519").starts_with('"')) quoted.push_back(regex("-?(0|[1-9][0-9]{0,14})"));
    if (!read(name, "0.73519").starts_with('"')) quoted.push_back(regex("-?(0|[1-9][0-9]{0,14})\\.[0-9]{1,15}"));
    const Expression inner = in_.both({made_.strings({choice}), in_.either(std::move(quoted))});
    add_alive(in_.concat(in_.literal("\""), in_.concat(inner, in_.literal("\""))), ways);
  }

  void add_alive(Expression way, std::vector<Expression>& ways) {
    if (in_.is_alive(way)) ways.push_back(way);
  }

  const CallForm& form_;
  const ToolSchemas& tools_;
  const std::string_view tool_;
  Expressions& in_;
  SchemaExpressions& made_;
  const Expression any_, plain_;
};

Expression in_json(const std::string& name, Expressions& in, SchemaExpressions& made, const Schema& schema) {
  const Expression begin = in.literal("{\"name\": \"" + escaped(name) + "\", \"arguments\": ");
  return in.concat(begin, in.concat(made.objects(schema), in.literal("}")));
}

Expression in_tags(const CallForm& form, const std::string& name, Expressions& in, Expression arguments) {
  if (name.find_first_of("<>\n\"") != name.npos) throw TextError("its name cannot stand in a tag of this model's calls");
  const std::string& end = form.name_end.front();
  const std::string begin = form.item_open + name + (end == form.tag_end ? end : end + form.tag_end) + "\n";
  return in.concat(in.literal(begin), in.concat(arguments, in.literal(form.item_close)));
}

}  // namespace

GrammarExpressions read_calls(const CallForm* form, std::string_view tools) {
  const ToolSchemas offered(tools);
  const JsonDocument free("{\"type\": \"object\"}");
  std::vector<Json> schemas;
  for (const auto& [name, parameters] : offered.tools()) {
    schemas.push_back(parameters ? parameters.as("the schema") : free.root("the schema"));
  }
  if (schemas.empty()) throw TextError("there are no tools");
  const auto write = [&](Expressions& in, SchemaExpressions& made, size_t place, const Schema& schema) {
    const std::string& name = offered.tools()[place].first;
    made.keep_numbers_finite();
    if (form == nullptr || form->syntax == CallSyntax::JSON) return in_json(name, in, made, schema);
    return in_tags(*form, name, in, TagWriter(*form, offered, name, in, made).arguments(schema));
  };
  return read_json_schemas(schemas, write, [&](Expressions& in, std::span<const Expression> written) {
    const Expression call = in.either(written);
    if (form == nullptr) return call;
    if (!form->is_list) return in.concat(in.optional(in.literal("\n")), call);
    const Expression others = in.repeat(in.concat(in.literal(", "), call), 0, Expressions::UNLIMITED);
    return in.concat(in.literal("["), in.concat(call, in.concat(others, in.literal("]"))));
  });
}

}  // namespace hybridge::text
