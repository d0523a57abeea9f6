// The forms in which families of models write reasoning and calls of tools: one table, of which a model's form is a
// row.
#ifndef HYBRIDGE_NATIVE_TEXT_ANSWERS_FORM_H
#define HYBRIDGE_NATIVE_TEXT_ANSWERS_FORM_H

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hybridge::text {

using Marks = std::vector<std::string>;

// How the text between the marks of calls is read.
enum class CallSyntax : uint8_t {
  JSON,    // {"name": …, "arguments": {…}}, one or more of them, or a list
  NAMED,   // a name, marks, and the arguments in JSON
  TAGS,    // a tag with the name, and a tag for each argument with its value as text
  PAIRS,   // a name, and for each argument a tag with its name and one with its value as text
  PYTHON,  // [name(argument=value, …), …]
  GEMMA,   // call:name{argument:value, …}
};

// A call in JSON, as most forms write it.
inline const std::string JSON_CALL = R"({"name": "$name", "arguments": $arguments})";

// The marks around and inside calls. A form without `open` has no calls. The last ones are for grammars alone
// (grammar/calls.h).
struct CallForm {
  CallSyntax syntax = CallSyntax::JSON;
  Marks open = {}, close = {};                  // without a close, the end of the JSON ends the calls
  std::string item_open = {}, item_close = {};  // around one of several calls; empty if nothing is
  std::string name_after = {};                  // the name comes after this, if it is there
  Marks name_end = {};                          // the name ends before any of these
  std::string key_open = {}, key_end = {};      // around an argument's name
  std::string tag_end = {};                     // ends a tag: what is between key_end and it, are the tag's attributes
  std::string value_open = {}, value_end = {};  // around an argument's value
  bool has_own_lines = false;                   // a value has a line end before and after it
  std::string lead = {};                        // what comes before `open` in an answer that begins with a call
  Marks written = {}, listed = {};   // how a call is written, alone or in a list: $name, $arguments, $id or $count
  std::string name_attributes = {};  // of a tag with the name, which may be left out
  Marks string_attributes = {}, attributes = {};  // of a tag with a value: of strings, and of others
};

struct AnswerForm {
  std::string name = {};            // empty for a model of which nothing is known
  std::vector<Marks> markers = {};  // the chat template or the vocabulary has all of one of these
  Marks reasoning_open = {"<think>"}, reasoning_close = {"</think>"};
  CallForm calls = {};
  std::string content_lead = {};  // what comes before content
  Marks dropped = {};             // marks around content
  bool begins_reasoning = false;  // also if neither the prompt nor the answer has a mark that opens it
  bool has_channels = false;      // gpt-oss' messages with headers, in place of the marks above
  bool tells_tools = false;       // the prompt tells the model its tools in words (told_tools.h)
  // What may begin the assistant's turn in a prompt: what comes after the last one is a part of the answer.
  Marks turn_open = {"<|im_start|>assistant", "<|start_of_role|>assistant<|end_of_role|>", "<|start|>assistant"};
};

// The table, in the order in which forms are looked for.
std::span<const AnswerForm> answer_forms();

// The form in which all of an answer is its content.
AnswerForm plain_form();

// Returns the form of a model: the first one with calls whose markers are in the chat template, or else are tokens, or
// else one for reasoning alone, or else the plain form. A turn begins as the template writes it.
AnswerForm find_answer_form(std::string_view chat_template, const std::function<bool(const std::string&)>& is_token);
const AnswerForm* answer_form(std::string_view name);

// Returns the form for a model that knows no calls: JSON in tags, as the prompt tells it, and reasoning as in `form`.
AnswerForm with_general_calls(AnswerForm form);

// Returns a text that has all special tokens in it that the form's parser looks for.
std::string looked_for(const AnswerForm& form);

}  // namespace hybridge::text

#endif
