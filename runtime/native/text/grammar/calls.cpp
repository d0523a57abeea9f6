#include "calls.h"

#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "../answers/answer_parser.h"
#include "../answers/tool_schema.h"
#include "call_arguments.h"
#include "characters.h"
#include "json_schema.h"
#include "regex.h"

namespace hybridge::text {
namespace {

constexpr const char* ID = "[A-Za-z0-9_-]{1,40}";
constexpr const char* COUNT = "0|[1-9][0-9]{0,2}";
const std::string HEADER = "<|start|>assistant";

// The form with its special tokens marked.
CallForm marked(const CallForm& form, const TokenBytes& tokens) {
  CallForm found = form;
  const auto mark = [&](std::string& text) { text = tokens.marked(text); };
  for (std::string* each :
       {&found.item_open, &found.item_close, &found.key_open, &found.key_end, &found.tag_end, &found.value_open,
        &found.value_end, &found.lead, &found.name_attributes}) {
    mark(*each);
  }
  for (Marks* all :
       {&found.open, &found.close, &found.name_end, &found.written, &found.listed, &found.string_attributes,
        &found.attributes}) {
    for (std::string& each : *all) mark(each);
  }
  return found;
}

// How a call is written outside of a list in JSON, first as the form's models do it: with $name and $arguments, and
// what may be left out: $line, an end of a line, and $attributes of the name.
Marks ways_of(const CallForm& form) {
  const std::string line = form.has_own_lines ? "\n" : "$line";
  const auto enclosed = [&](const std::string& call) { return form.item_open + call + form.item_close; };
  switch (form.syntax) {
    case CallSyntax::TAGS: {
      const std::string& end = form.name_end.front();
      return {
          enclosed("$name" + end + (end == form.tag_end ? "" : "$attributes" + form.tag_end) + line + "$arguments")
      };
    }
    case CallSyntax::PAIRS:
      return {enclosed("$name" + (form.item_open.empty() ? "" : form.name_end.front()) + line + "$arguments")};
    case CallSyntax::PYTHON: return {"$name($arguments)"};
    case CallSyntax::GEMMA: return {"call:$name$arguments"};
    default: break;
  }
  Marks ways;
  for (const std::string& each : form.written) ways.push_back(enclosed(each));
  return ways;
}

// Calls `text` and `name` with the parts of a way.
template <typename Text, typename Name>
void split(std::string_view way, Text&& text, Name&& name) {
  while (!way.empty()) {
    const size_t begin = std::min(way.find('$'), way.size());
    text(way.substr(0, begin));
    way.remove_prefix(begin);
    if (way.empty()) return;
    const size_t end = std::min(way.find_first_not_of("abcdefghijklmnopqrstuvwxyz", 1), way.size());
    name(way.substr(1, end - 1));
    way.remove_prefix(end);
  }
}

// The expressions of calls in one form.
class CallWriter {
 public:
  CallWriter(const AnswerForm& form, const TokenBytes& tokens, const ToolChoice& choice, Expressions& in)
      : form_(form), calls_(marked(form.calls, tokens)), tokens_(tokens), choice_(choice), in_(in) {}

  // One call, alone or in a list.
  Expression call(const std::string& name, Expression arguments, const Marks& ways) {
    std::vector<Expression> all;
    for (const std::string& each : ways) {
      Expression way = Expressions::EMPTY;
      const auto add = [&](Expression part) { way = in_.concat(way, part); };
      split(
          each, [&](std::string_view text) { add(in_.literal(text)); },
          [&](std::string_view what) {
            if (what == "name") add(in_.literal(form_.calls.syntax == CallSyntax::JSON ? escaped(name) : name));
            else if (what == "arguments") add(arguments);
            else if (what == "id") add(read_regex(ID, in_));
            else if (what == "count") add(read_regex(COUNT, in_));
            else if (what == "line") add(line());
            else if (what == "attributes") add(in_.optional(call(name, arguments, {calls_.name_attributes})));
          }
      );
      all.push_back(way);
    }
    return in_.either(std::move(all));
  }

  const CallForm& calls() const { return calls_; }

  // What comes after the mark that opens calls. alone, listed: any call.
  Expression after_open(Expression alone, Expression listed) {
    const Expression gap = in_.either(line(), read_regex("\\n {1,8}", in_));
    const bool is_python = form_.calls.syntax == CallSyntax::PYTHON;
    const Expression comma = in_.concat(
        in_.literal(","), is_python ? in_.literal(" ") : in_.either(in_.literal(" "), gap)
    );
    const Expression list = in_.concat(
        std::vector{in_.literal("["), gap, several(listed, comma), gap, in_.literal("]")}
    );
    const bool is_json = form_.calls.syntax == CallSyntax::JSON;
    const bool has_several = is_json ? !form_.calls.close.empty() && !has_messages() : !form_.calls.item_open.empty();
    Expression calls = in_.either(has_several ? several(alone, is_json ? in_.literal("\n") : line()) : alone, list);
    if (form_.calls.close.empty()) return calls;
    if (!has_messages()) calls = in_.concat(in_.concat(line(), calls), line());
    return in_.concat(calls, in_.literal(calls_.close.front()));
  }

  // An answer that is calls, and nothing else.
  Expression answer(Expression after_open) {
    const Expression begin = has_messages() ? in_.literal(tokens_.marked(HEADER)) : line();
    const Expression calls = in_.concat(
        in_.literal(tokens_.marked(form_.calls.lead + form_.calls.open.front())), after_open
    );
    return in_.concat(has_messages() ? in_.optional(begin) : Expressions::EMPTY, several(calls, begin));
  }

 private:
  bool has_messages() const { return form_.has_channels && form_.calls.syntax == CallSyntax::JSON; }
  Expression line() { return in_.optional(in_.literal("\n")); }

  Expression several(Expression one, Expression between) {
    return choice_.is_single ? one : in_.concat(one, in_.repeat(in_.concat(between, one), 0, Expressions::UNLIMITED));
  }

  const AnswerForm& form_;
  const CallForm calls_;
  const TokenBytes& tokens_;
  const ToolChoice& choice_;
  Expressions& in_;
};

// Throws TextError for a tool with a name that the parser would not read back.
void check_name(const AnswerForm& form, const std::string& name, const std::shared_ptr<const ToolSchemas>& offered) {
  const bool is_list = form.calls.written.empty() && !form.calls.listed.empty();
  const bool is_json = form.calls.syntax == CallSyntax::JSON, is_python = form.calls.syntax == CallSyntax::PYTHON;
  const bool has_braces = is_json || form.calls.syntax == CallSyntax::NAMED || form.calls.syntax == CallSyntax::GEMMA;
  std::string sample;
  split(
      is_list ? form.calls.listed.front() : ways_of(form.calls).front(), [&](std::string_view text) { sample += text; },
      [&](std::string_view what) {
        if (what == "name") sample += is_json ? escaped(name) : name;
        else if (what == "arguments") sample += has_braces ? "{}" : "";
        else if (what == "id" || what == "count") sample += "0";
      }
  );
  if (is_list || is_python) sample = "[" + sample + "]";
  AnswerParser parser(form, "", offered);
  const std::string close = form.calls.close.empty() ? "" : form.calls.close.front();
  std::vector<AnswerEvent> events = parser.push(
      parser.reasoning_end() + form.calls.lead + form.calls.open.front() + sample + close
  );
  for (AnswerEvent& each : parser.finish()) events.push_back(std::move(each));
  const bool is_read = events.size() == 1 && events[0].kind == AnswerEvent::Kind::CALL && events[0].text == name &&
                       events[0].arguments == "{}";
  if (!is_read) throw TextError("the name " + name + " cannot stand in this model's calls: give the tool another one");
}

// loose: tools that may be called with any arguments.
GrammarExpressions read_all(
    const AnswerForm& form, const ToolSchemas& offered, const ToolChoice& choice, const TokenBytes& tokens,
    const std::set<std::string>& loose
) {
  const JsonDocument object(R"({"type": "object"})"), anything(R"({"type": "object", "additionalProperties": {}})");
  std::vector<Json> schemas;
  std::vector<std::string> names;
  for (const OfferedTool& tool : offered.tools()) {
    if (!choice.name.empty() && tool.name != choice.name) continue;
    names.push_back(tool.name);
    const auto& free = loose.contains(tool.name) ? anything : object;
    schemas.push_back(tool.parameters && &free == &object ? tool.parameters.as("the schema") : free.root("the schema"));
  }
  std::vector<Expression> listed(names.size());
  const auto write = [&](Expressions& in, SchemaExpressions& made, size_t place, const Schema& schema) {
    CallWriter writer(form, tokens, choice, in);
    const Expression arguments = write_arguments(
        writer.calls(), form.calls, tokens, offered, names[place], schema, in, made
    );
    const Marks ways = ways_of(writer.calls());
    const bool is_python = form.calls.syntax == CallSyntax::PYTHON;
    listed[place] = writer.call(names[place], arguments, is_python ? ways : writer.calls().listed);
    return ways.empty() ? listed[place] : writer.call(names[place], arguments, ways);
  };
  GrammarExpressions found = read_json_schemas(
      schemas, write, [&](Expressions& in, std::span<const Expression> written) {
        CallWriter writer(form, tokens, choice, in);
        const bool is_alone = form.calls.syntax != CallSyntax::PYTHON && !ways_of(form.calls).empty();
        const Expression after = writer.after_open(
            is_alone ? in.either(written) : Expressions::NONE, in.either(listed)
        );
        return choice.is_required ? writer.answer(after) : after;
      }
  );
  const Expression line = found.all.literal("\n");
  found.after_blank_line = found.all.concat(found.all.repeat(line, 0, 2), found.start);
  return found;
}

}  // namespace

ToolChoice ToolChoice::of(std::string_view choice, bool is_single) {
  if (choice == "auto") return {.is_single = is_single};
  if (choice == "none") throw TextError("there are no calls without a choice of tools");
  return {.is_required = true, .name = choice == "required" ? "" : std::string(choice), .is_single = is_single};
}

GrammarExpressions read_calls(
    const AnswerForm& form, std::string_view tools, const ToolChoice& choice, const TokenBytes& tokens
) {
  if (form.calls.open.empty()) throw TextError("the form " + form.name + " has no calls");
  const auto offered = std::make_shared<const ToolSchemas>(tools);
  if (offered->empty()) throw TextError("there are no tools");
  if (!choice.name.empty() && !offered->has(choice.name))
    throw TextError("there is no tool " + choice.name + " that could be chosen");
  for (const OfferedTool& tool : offered->tools()) check_name(form, tool.name, offered);
  try {
    return read_all(form, *offered, choice, tokens, {});
  } catch (const TextError&) {
    std::set<std::string> loose;
    for (const OfferedTool& tool : offered->tools()) {
      if (!choice.name.empty() && tool.name != choice.name) continue;
      try {
        (void)read_all(form, *offered, {.name = tool.name}, tokens, {});
      } catch (const TextError& error) {
        if (tool.is_strict) {
          throw TextError(
              "in the parameters of " + tool.name + ", " + error.what() +
              "; set \"strict\" of this function to false to have calls of it with any arguments"
          );
        }
        loose.insert(tool.name);
      }
    }
    if (loose.empty()) throw;
    return read_all(form, *offered, choice, tokens, loose);
  }
}

}  // namespace hybridge::text
