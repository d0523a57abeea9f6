#include "call_arguments.h"

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "../answers/value.h"
#include "characters.h"
#include "regex.h"

namespace hybridge::text {
namespace {

using Type = Choice::Type;

constexpr const char* NUMBER = "-?(0|[1-9][0-9]*)(\\.[0-9]+)?([eE][+-]?[0-9]+)?";
constexpr const char* SPACES = "[ \\t\\n\\r\\v\\f]*";
constexpr std::array CONSTANTS = {"null", "true", "false", "None", "True", "False"};
constexpr std::string_view CDATA = "<![CDATA[", CDATA_END = "]]>";
const std::string UNNAMED = "\x1f";  // a name that no schema has

[[noreturn]] void refuse(const std::string& name) {
  throw TextError("the parameter \"" + escaped(name) + "\" cannot stand in this model's calls: give it another name");
}

// The arguments of one tool, each between tags with its value as text. tool_schema.h has the rule by which the parser
// reads such a text, and is asked where it decides.
class TagWriter {
 public:
  TagWriter(
      const CallForm& marked, const CallForm& plain, const ToolSchemas& tools, std::string_view tool, Expressions& in,
      SchemaExpressions& made
  )
      : form_(marked),
        value_end_(plain.value_end),
        tools_(tools),
        tool_(tool),
        in_(in),
        made_(made),
        any_(regex("(?s:.)")),
        plain_(regex("[^\"\\\\\\x00-\\x1f]")) {
    made.leave_out(value_end_);
  }

  Expression arguments(const Schema& schema) {
    const ObjectWriting tags{
        .open = Expressions::EMPTY,
        .close = Expressions::EMPTY,
        .comma = Expressions::EMPTY,
        .key = [this](const std::string& name) { return key(name); },
        .other_key =
            [this](Expression names) { return around_name(in_.both({names, regex("[^\"\\\\\\x00-\\x1f<>]+")})); },
        .value =
            [this](const std::string* name, const SharedSchema& schema) {
              const Expression end = in_.literal((form_.has_own_lines ? "\n" : "") + form_.value_end);
              return in_.concat(value(name == nullptr ? UNNAMED : *name, schema), in_.concat(end, line()));
            },
        .has_free = false
    };
    return made_.objects(schema, tags);
  }

 private:
  Expression regex(const std::string& pattern) { return read_regex(pattern, in_); }
  Expression line() { return form_.has_own_lines ? in_.literal("\n") : in_.optional(in_.literal("\n")); }

  // All texts that do not contain one.
  Expression without(std::string_view text) {
    const Expression anything = in_.repeat(any_, 0, Expressions::UNLIMITED);
    return in_.complement(in_.concat(anything, in_.concat(in_.literal(text), anything)));
  }

  Expression around_name(Expression name) {
    return in_.concat(in_.literal(form_.key_open), in_.concat(name, in_.literal(form_.key_end)));
  }

  Expression key(const std::string& name) {
    if (name.empty() || name.find_first_of("<>\n\"") != name.npos) refuse(name);
    return around_name(in_.literal(name));
  }

  bool may_be(const std::string& name, const char* example) const { return tools_.may_be(tool_, name, example); }
  std::string read(const std::string& name, std::string_view text) const { return tools_.argument(tool_, name, text); }

  // What is between an argument's name and its value. attributes: of its tag, one of which is there unless there are
  // none.
  Expression begin(const Marks& attributes) {
    if (!form_.value_open.empty()) return in_.concat(line(), in_.literal(form_.value_open));
    std::vector<Expression> tags;
    for (const std::string& each : attributes) tags.push_back(in_.literal(each));
    const std::string end = (form_.tag_end == form_.key_end ? "" : form_.tag_end) + (form_.has_own_lines ? "\n" : "");
    return in_.concat(tags.empty() ? Expressions::EMPTY : in_.either(std::move(tags)), in_.literal(end));
  }

  Expression value(const std::string& name, const SharedSchema& schema) {
    const bool is_typed = !form_.string_attributes.empty();
    std::vector<Expression> strings, others;
    for (const Choice& each : made_.resolved(schema)) {
      std::vector<Expression>& ways = each.type == Type::STRING ? strings : others;
      if (each.literals) {
        for (const std::string& literal : *each.literals) {
          if (is_typed) add_typed_literal(literal, ways);
          else add_literal(name, literal, ways);
        }
      } else if (each.type != Type::STRING) {
        ways.push_back(made_.of(each));
      } else if (is_typed) {
        add_alive(in_.both(raw_strings(each)), ways);
      } else {
        add_strings(name, each, ways);
      }
    }
    return in_.either(
        in_.concat(begin(form_.string_attributes), in_.either(std::move(strings))),
        in_.concat(begin(form_.attributes), in_.either(std::move(others)))
    );
  }

  void add_typed_literal(const std::string& json, std::vector<Expression>& ways) {
    const std::string text = string_of(json).value_or(json);
    if (text.find(value_end_) == text.npos) ways.push_back(in_.literal(text));
  }

  // Adds the first way to write a value that the parser reads as this value.
  void add_literal(const std::string& name, const std::string& json, std::vector<Expression>& ways) {
    const auto text = string_of(json);
    const std::string wanted = text ? to_json(*text) : json;
    for (const std::string& way : {text.value_or(json), json}) {
      if (read(name, way) != wanted || (form_.value_open.empty() && way.starts_with(CDATA)) ||
          way.find(value_end_) != way.npos)
        continue;
      ways.push_back(in_.literal(way));
      return;
    }
  }

  // The expressions that all hold for the strings of a schema as they are.
  std::vector<Expression> raw_strings(const Choice& choice) {
    const auto [least, most] = choice.count;
    if (least > most) return {Expressions::NONE};
    std::vector<Expression> raw = choice.patterns;  // of JSON strings; texts without escapes are the same
    raw.push_back(in_.repeat(choice.patterns.empty() ? any_ : plain_, least, most));
    raw.push_back(without(value_end_));
    return raw;
  }

  // Adds the strings of a schema. Where other values are allowed too, texts that the parser might read as one of them
  // are left out, and those that it does read as a number or a constant are written as JSON strings.
  void add_strings(const std::string& name, const Choice& choice, std::vector<Expression>& ways) {
    std::vector<Expression> raw = raw_strings(choice);
    if (form_.value_open.empty()) {  // a tag, whose value may be between marks
      std::vector<Expression> in_cdata = raw;
      in_cdata.push_back(without(CDATA_END));
      add_alive(
          in_.concat(in_.literal(CDATA), in_.concat(in_.both(std::move(in_cdata)), in_.literal(CDATA_END))), ways
      );
      raw.push_back(in_.complement(in_.concat(in_.literal(CDATA), in_.repeat(any_, 0, Expressions::UNLIMITED))));
    }
    const bool has_null = may_be(name, "null"), has_boolean = may_be(name, "true"),
               has_number = may_be(name, "0") || may_be(name, "0.5");
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
  const std::string& value_end_;
  const ToolSchemas& tools_;
  const std::string_view tool_;
  Expressions& in_;
  SchemaExpressions& made_;
  const Expression any_, plain_;
};

// name=value, …
Expression in_python(const Schema& schema, std::string_view close, Expressions& in, SchemaExpressions& made) {
  const Expression equals = in.literal("="), names = read_regex(R"([^\x00-,./:-@\[-^`{-\x7f]+)", in);
  made.write_in(Notation::PYTHON);
  made.leave_out(std::string(close));
  const auto key = [&](const std::string& name) {
    const Expression written = in.literal(name);
    if (!in.is_alive(in.both({written, names}))) refuse(name);
    return in.concat(written, equals);
  };
  return made.objects(
      schema, {.open = Expressions::EMPTY,
               .close = Expressions::EMPTY,
               .comma = in.literal(", "),
               .key = key,
               .other_key = [&](Expression other) { return in.concat(in.both({other, names}), equals); },
               .value = [&](const std::string*, const SharedSchema& of) { return made.of(of); }}
  );
}

}  // namespace

Expression write_arguments(
    const CallForm& marked, const CallForm& plain, const TokenBytes& tokens, const ToolSchemas& tools,
    std::string_view tool, const Schema& schema, Expressions& in, SchemaExpressions& made
) {
  made.keep_numbers_finite();
  switch (plain.syntax) {
    case CallSyntax::TAGS:
    case CallSyntax::PAIRS: return TagWriter(marked, plain, tools, tool, in, made).arguments(schema);
    case CallSyntax::PYTHON: return in_python(schema, plain.close.front(), in, made);
    case CallSyntax::GEMMA:
      made.write_in(Notation::GEMMA, tokens.marked(GEMMA_QUOTE));
      made.leave_out(std::string(GEMMA_QUOTE));
      return made.objects(schema);
    default: return made.objects(schema);
  }
}

}  // namespace hybridge::text
