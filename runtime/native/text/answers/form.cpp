#include "form.h"

namespace hybridge::text {
namespace {

// <tag name="…"> with tags of arguments inside, as Anthropic's models had them first. attributes of an argument may say
// its type.
CallForm invocations(
    std::string open, std::string close, const std::string& prefix, Marks string_attributes = {}, Marks attributes = {}
) {
  return {
      .syntax = CallSyntax::TAGS,
      .open = {std::move(open)},
      .close = {std::move(close)},
      .item_open = "<" + prefix + "invoke name=\"",
      .item_close = "</" + prefix + "invoke>",
      .name_end = {"\""},
      .key_open = "<" + prefix + "parameter name=\"",
      .key_end = "\"",
      .tag_end = ">",
      .value_end = "</" + prefix + "parameter>",
      .string_attributes = std::move(string_attributes),
      .attributes = std::move(attributes)
  };
}

// Qwen's XML. lines: published templates write a value on lines of its own.
CallForm functions(std::string open, std::string close, bool has_own_lines) {
  return {
      .syntax = CallSyntax::TAGS,
      .open = {std::move(open)},
      .close = {std::move(close)},
      .item_open = "<function=",
      .item_close = "</function>",
      .name_end = {">"},
      .key_open = "<parameter=",
      .key_end = ">",
      .tag_end = ">",
      .value_end = "</parameter>",
      .has_own_lines = has_own_lines
  };
}

CallForm json(Marks open, Marks close) {
  return {.syntax = CallSyntax::JSON, .open = std::move(open), .close = std::move(close), .written = {JSON_CALL}};
}

CallForm json_list(Marks open, Marks close, Marks listed = {JSON_CALL}) {
  return {.syntax = CallSyntax::JSON, .open = std::move(open), .close = std::move(close), .listed = std::move(listed)};
}

CallForm named(
    std::string open, Marks close, std::string item_open, std::string item_close, std::string name_after,
    Marks name_end, Marks written
) {
  return {
      .syntax = CallSyntax::NAMED,
      .open = {std::move(open)},
      .close = std::move(close),
      .item_open = std::move(item_open),
      .item_close = std::move(item_close),
      .name_after = std::move(name_after),
      .name_end = std::move(name_end),
      .written = std::move(written)
  };
}

CallForm with_list(CallForm form, Marks listed) {
  form.listed = std::move(listed);
  return form;
}

CallForm pairs(
    const std::string& suffix, std::string open, std::string close, std::string item_open, std::string item_close
) {
  return {
      .syntax = CallSyntax::PAIRS,
      .open = {std::move(open)},
      .close = {std::move(close)},
      .item_open = std::move(item_open),
      .item_close = std::move(item_close),
      .name_end = {"<tool_sep" + suffix + ">", "\n", "<arg_key" + suffix + ">"},
      .key_open = "<arg_key" + suffix + ">",
      .key_end = "</arg_key" + suffix + ">",
      .value_open = "<arg_value" + suffix + ">",
      .value_end = "</arg_value" + suffix + ">"
  };
}

// DeepSeek's attributes of values.
const std::string STRING = " string=\"true\"", OTHER = " string=\"false\"";

const std::vector<AnswerForm>& table() {
  static const std::vector<AnswerForm> FORMS = {
      {.name = "gemma4",
       .markers = {{"<|tool_call>"}, {"<|channel>"}},
       .reasoning_open = {"<|channel>thought\n", "<|channel>thought"},
       .reasoning_close = {"<channel|>"},
       .calls = {.syntax = CallSyntax::GEMMA, .open = {"<|tool_call>"}, .close = {"<tool_call|>"}}},
      {.name = "solar",
       .markers = {{"<|tool_call:begin|>"}},
       .reasoning_open = {"<|think|>"},
       .reasoning_close = {"<|end|><|begin|>assistant", "<|end|>"},
       .calls = named(
           "<|tool_calls|>", {"<|calls|>"}, "<|tool_call:begin|>", "<|tool_call:end|>", "<|tool_call:name|>",
           {"<|tool_call:args|>"}, {"$id<|tool_call:name|>$name<|tool_call:args|>$arguments"}
       ),
       .content_lead = "<|content|>",
       .dropped = {"<|begin|>assistant", "<|content|>", "<|end|>"}},
      {.name = "atem",
       .markers = {{"<atem:invoke"}, {"<atem:function_calls>"}},
       .calls = invocations("<atem:function_calls>", "</atem:function_calls>", "atem:"),
       .has_channels = true},
      {.name = "harmony",
       .markers = {{"<|channel|>"}},
       .reasoning_open = {},
       .reasoning_close = {"<|end|>"},
       .calls =
           {.syntax = CallSyntax::JSON,
            .open = {"to="},
            .close = {"<|call|>"},
            .lead = "<|channel|>commentary ",
            .written =
                {"functions.$name <|constrain|>json<|message|>$arguments",
                 "functions.$name<|channel|>commentary <|constrain|>json<|message|>$arguments",
                 "functions.$name<|channel|>commentary json<|message|>$arguments",
                 "functions.$name<|message|>$arguments"}},
       .content_lead = "<|channel|>final<|message|>",
       .has_channels = true},
      {.name = "kimi-typed",
       .markers = {{"<|open|>", "<|sep|>", "argument"}},
       .reasoning_open = {"<|open|>think<|sep|>"},
       .reasoning_close = {"<|close|>think<|sep|>"},
       .calls =
           {.syntax = CallSyntax::TAGS,
            .open = {"<|open|>tools<|sep|>"},
            .close = {"<|close|>tools<|sep|>"},
            .item_open = "<|open|>call tool=\"",
            .item_close = "<|close|>call<|sep|>",
            .name_end = {"\""},
            .key_open = "<|open|>argument key=\"",
            .key_end = "\"",
            .tag_end = "<|sep|>",
            .value_end = "<|close|>argument<|sep|>",
            .name_attributes = " index=\"$count\"",
            .string_attributes = {" type=\"string\""},
            .attributes =
                {" type=\"number\"", " type=\"integer\"", " type=\"boolean\"", " type=\"null\"", " type=\"array\"",
                 " type=\"object\""}},
       .dropped = {"<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"}},
      {.name = "kimi",
       .markers = {{"<|tool_call_argument_begin|>"}},
       .calls = named(
           "<|tool_calls_section_begin|>", {"<|tool_calls_section_end|>"}, "<|tool_call_begin|>", "<|tool_call_end|>",
           "", {"<|tool_call_argument_begin|>"}, {"functions.$name:$count<|tool_call_argument_begin|>$arguments"}
       )},
      {.name = "deepseek-dsml",
       .markers = {{"｜DSML｜", "function_calls"}},
       .calls = invocations("<｜DSML｜function_calls>", "</｜DSML｜function_calls>", "｜DSML｜", {STRING}, {OTHER})},
      {.name = "deepseek-dsml-calls",
       .markers = {{"｜DSML｜"}},
       .calls = invocations("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>", "｜DSML｜", {STRING}, {OTHER})},
      {.name = "deepseek",
       .markers = {{"<｜tool▁calls▁begin｜>"}},
       .calls = named(
           "<｜tool▁calls▁begin｜>", {"<｜tool▁calls▁end｜>"}, "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>",
           "function<｜tool▁sep｜>", {"<｜tool▁sep｜>", "\n"},
           {"$name<｜tool▁sep｜>$arguments", "function<｜tool▁sep｜>$name\n```json\n$arguments\n```"}
       )},
      {.name = "mistral",
       .markers = {{"[TOOL_CALLS]"}},
       .reasoning_open = {"[THINK]", "<think>"},
       .reasoning_close = {"[/THINK]", "</think>"},
       .calls = with_list(
           named(
               "[TOOL_CALLS]", {}, "", "", "", {"[CALL_ID]", "[ARGS]"},
               {"$name[ARGS]$arguments", "$name[CALL_ID]$id[ARGS]$arguments"}
           ),
           {JSON_CALL, R"({"name": "$name", "arguments": $arguments, "id": "$id"})"}
       )},
      {.name = "minimax",
       .markers = {{"<minimax:tool_call>"}},
       .calls = invocations("<minimax:tool_call>", "</minimax:tool_call>", "")},
      {.name = "seed",
       .markers = {{"<seed:tool_call>"}},
       .reasoning_open = {"<seed:think>"},
       .reasoning_close = {"</seed:think>"},
       .calls = functions("<seed:tool_call>", "</seed:tool_call>", false)},
      {.name = "hunyuan",
       .markers = {{"<arg_key:opensource>"}, {"tool_sep:opensource"}, {"<tool_sep", ":opensource"}},
       .reasoning_open = {"<think:opensource>"},
       .reasoning_close = {"</think:opensource>"},
       .calls = pairs(
           ":opensource", "<tool_calls:opensource>", "</tool_calls:opensource>", "<tool_call:opensource>",
           "</tool_call:opensource>"
       )},
      {.name = "glm", .markers = {{"<arg_key>"}}, .calls = pairs("", "<tool_call>", "</tool_call>", "", "")},
      {.name = "cohere",
       .markers = {{"<|START_ACTION|>"}},
       .reasoning_open = {"<|START_THINKING|>"},
       .reasoning_close = {"<|END_THINKING|>"},
       .calls = json_list(
           {"<|START_ACTION|>"}, {"<|END_ACTION|>"},
           {R"({"tool_call_id": "$id", "tool_name": "$name", "parameters": $arguments})",
            R"({"tool_name": "$name", "parameters": $arguments})"}
       ),
       .dropped = {"<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>"}},
      {.name = "nemotron", .markers = {{"<TOOLCALL>"}}, .calls = json_list({"<TOOLCALL>"}, {"</TOOLCALL>"})},
      {.name = "apriel",
       .markers = {{"<tool_calls>", "[BEGIN FINAL RESPONSE]"}},
       .reasoning_open = {"Here are my reasoning steps:\n"},
       .reasoning_close = {"[BEGIN FINAL RESPONSE]"},
       .calls = json_list({"<tool_calls>"}, {"</tool_calls>"}),
       .dropped = {"[END FINAL RESPONSE]"}},
      {.name = "jamba", .markers = {{"<tool_calls>"}}, .calls = json_list({"<tool_calls>"}, {"</tool_calls>"})},
      {.name = "apertus",
       .markers = {{"<|tools_prefix|>"}},
       .reasoning_open = {"<|inner_prefix|>"},
       .reasoning_close = {"<|inner_suffix|>"},
       .calls = json_list({"<|tools_prefix|>"}, {"<|tools_suffix|>"}, {R"({"$name": $arguments})"})},
      {.name = "minicpm",
       .markers = {{"<function name=", "<param name="}},
       .calls =
           {.syntax = CallSyntax::TAGS,
            .open = {"<function name=\""},
            .close = {"</function>"},
            .name_end = {"\""},
            .key_open = "<param name=\"",
            .key_end = "\"",
            .tag_end = ">",
            .value_end = "</param>"}},
      {.name = "qwen-xml",
       .markers = {{"<tool_call>", "<function="}},
       .calls = functions("<tool_call>", "</tool_call>", true)},
      {.name = "lfm2",
       .markers = {{"<|tool_call_start|>"}},
       .calls = {.syntax = CallSyntax::PYTHON, .open = {"<|tool_call_start|>"}, .close = {"<|tool_call_end|>"}}},
      {.name = "granite",
       .markers = {{"<|tool_call|>"}},
       .calls = json_list({"<|tool_call|>"}, {}),
       .dropped = {"<response>", "</response>"}},
      {.name = "gigachat", .markers = {{"<|function_call|>"}}, .calls = json({"<|function_call|>"}, {})},
      {.name = "gigachat-role",
       .markers = {{"function call", "<|role_sep|>"}},
       .calls = json({"<|message_sep|>\n\nfunction call<|role_sep|>\n", "function call<|role_sep|>\n"}, {})},
      {.name = "functionary",
       .markers = {{"<function="}},
       .calls = named("<function=", {"</function>"}, "", "", "", {">"}, {"$name>$arguments"})},
      {.name = "hermes", .markers = {{"<tool_call>"}}, .calls = json({"<tool_call>"}, {"</tool_call>"})},
      {.name = "thinking", .markers = {{"</think>"}}},
  };
  return FORMS;
}

template <typename Has>
const AnswerForm* first_with(bool has_calls, Has&& has) {
  for (const AnswerForm& form : table()) {
    if (form.calls.open.empty() == has_calls) continue;
    for (const Marks& all : form.markers) {
      bool fits = true;
      for (const std::string& each : all) fits = fits && has(each);
      if (fits) return &form;
    }
  }
  return nullptr;
}

}  // namespace

std::span<const AnswerForm> answer_forms() { return table(); }

AnswerForm plain_form() { return {.reasoning_open = {}, .reasoning_close = {}}; }

AnswerForm find_answer_form(std::string_view chat_template, const std::function<bool(const std::string&)>& is_token) {
  const auto is_written = [&](const std::string& mark) { return chat_template.find(mark) != chat_template.npos; };
  const AnswerForm* found = nullptr;
  for (const bool has_calls : {true, false}) {
    if (found == nullptr) found = first_with(has_calls, is_written);
    if (found == nullptr) found = first_with(has_calls, is_token);
  }
  AnswerForm form = found != nullptr ? *found : plain_form();
  // Templates may write the role apart from the mark. A question may spell what another family's turns begin with.
  std::erase_if(form.turn_open, [&](const std::string& mark) {
    return !is_written(mark.substr(0, mark.find('>') + 1));
  });
  return form;
}

const AnswerForm* answer_form(std::string_view name) {
  for (const AnswerForm& form : table()) {
    if (form.name == name) return &form;
  }
  return nullptr;
}

AnswerForm with_general_calls(AnswerForm form) {
  form.name = "general";
  form.markers.clear();
  form.tells_tools = true;
  if (!form.has_channels) form.calls = json({"<tool_call>"}, {"</tool_call>"});
  return form;
}

std::string looked_for(const AnswerForm& form) {
  std::string marks;
  const auto add = [&](const Marks& some) {
    for (const std::string& each : some) marks += each.empty() ? each : each + '\n';
  };
  for (const Marks& each : form.markers) add(each);
  for (const Marks* each : {&form.reasoning_open, &form.reasoning_close, &form.dropped}) add(*each);
  const CallForm& calls = form.calls;
  for (const Marks* each : {&calls.open, &calls.close, &calls.name_end}) add(*each);
  add(
      {calls.item_open, calls.item_close, calls.name_after, calls.key_open, calls.key_end, calls.tag_end,
       calls.value_open, calls.value_end}
  );
  if (calls.syntax == CallSyntax::GEMMA) add({"<|\"|>"});
  if (form.has_channels) {
    add(
        {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|eom|>",
         "<|eot|>"}
    );
  }
  return marks;
}

}  // namespace hybridge::text
