// Reading the calls of tools that stand between a form's marks.
#ifndef HYBRIDGE_NATIVE_TEXT_ANSWERS_CALL_H
#define HYBRIDGE_NATIVE_TEXT_ANSWERS_CALL_H

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "form.h"
#include "tool_schema.h"

namespace hybridge::text {

// arguments: the JSON of an object. id: of a call in a conversation.
struct ToolCall {
  std::string name, arguments, id = {};
};

// Calls that were read, and how many bytes of the text they took.
struct ReadCalls {
  std::vector<ToolCall> calls;
  size_t end = 0;
  bool is_whole = false;  // the text has nothing but calls
};

// Reads calls up to the end of a text, or to where there is none.
ReadCalls read_calls(const CallForm& form, std::string_view text, const ToolSchemas& tools);

// Reads a call whose name is known, and whose arguments are the text.
ReadCalls read_arguments(std::string name, std::string_view text);

}  // namespace hybridge::text

#endif
