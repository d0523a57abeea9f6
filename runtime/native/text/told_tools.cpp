#include "told_tools.h"

#include <algorithm>

#include "answers/value.h"

namespace hybridge::text {
namespace {

constexpr std::string_view BEFORE_FUNCTIONS = "You can call these functions, each described by a line of JSON:\n";
constexpr std::string_view AFTER_FUNCTIONS = R"(

To call one, write its name and its arguments in this form, and nothing after it:
<tool_call>
{"name": "NAME", "arguments": {"PARAMETER": "VALUE"}}
</tool_call>
The result comes in <tool_response> tags. Call a function only where it helps; otherwise answer in words.)";

// A value as JSON with spaces after commas and colons, as chat templates write it.
std::string spaced(const Json& value) {
  std::string all;
  const auto add = [&](const std::string& item) { all += (all.empty() ? "" : ", ") + item; };
  if (value.is_array()) {
    value.each([&](const Json& item) { add(spaced(item)); });
    return "[" + all + "]";
  }
  if (value.is_object()) {
    value.each_entry([&](std::string_view name, const Json& item) { add(to_json(name) + ": " + spaced(item)); });
    return "{" + all + "}";
  }
  return value.written();
}

}  // namespace

ToldTools::ToldTools(std::string_view variables) {
  const JsonDocument document(variables);
  const Json root = document.root("the variables of the chat template"), tools = root["tools"];
  if (tools) {
    tools.each([&](const Json& tool) {
      const Json function = tool["function"];
      functions_ += (functions_.empty() ? "" : "\n") + spaced(function.is_object() ? function : tool);
    });
  }
  changes_ = !functions_.empty();
  root.each_entry([&](std::string_view name, const Json& value) {
    if (name != "tools" && name != "messages") others_ += to_json(name) + ": " + value.written() + ", ";
  });
  root["messages"].each([&](const Json& message) {
    if (message["role"].string_or("") == "tool") add_result(message);
    else add(message);
  });
  const bool has_parts = std::ranges::any_of(messages_, [](const Plain& each) { return !each.parts.empty(); });
  if (!functions_.empty() && has_parts) {
    throw TextError(
        "this model's chat template has no tools of its own, so that they are told in a text: leave out the tools, or the pictures"
    );
  }
}

// Results that are neighbours are one message, and so are results and the user's message after them.
void ToldTools::add_result(const Json& message) {
  const Json content = message["content"];
  const std::string said = content.is_string() ? std::string(content.string()) : spaced(content);
  const std::string result = "<tool_response>\n" + said + "\n</tool_response>";
  if (ends_with_result_) messages_.back().text += "\n" + result;
  else messages_.push_back({"user", "", result, ""});
  changes_ = ends_with_result_ = true;
}

void ToldTools::add(const Json& message) {
  Plain plain{std::string(message["role"].string_or("")), "", "", ""};
  message.each_entry([&](std::string_view name, const Json& value) {
    if (name != "role" && name != "content" && name != "tool_calls")
      plain.members += to_json(name) + ": " + value.written() + ", ";
  });
  const Json content = message["content"], calls = message["tool_calls"];
  if (content.is_string()) plain.text = content.string();
  if (content.is_array()) content.each([&](const Json& part) { plain.parts += ", " + part.written(); });
  if (calls) {
    changes_ = true;
    calls.each([&](const Json& call) {
      plain.text += (plain.text.empty() ? "" : "\n") + ("<tool_call>\n" + spaced(call["function"]) + "\n</tool_call>");
    });
  }
  if (ends_with_result_ && plain.role == "user") {
    plain.text = messages_.back().text + "\n" + plain.text;
    messages_.back() = std::move(plain);
  } else {
    messages_.push_back(std::move(plain));
  }
  ends_with_result_ = false;
}

std::string ToldTools::Plain::json() const {
  const std::string said = to_json(text);
  const std::string with_parts = text.empty() ? "[" + parts.substr(std::min<size_t>(2, parts.size())) + "]"
                                              : R"([{"type": "text", "text": )" + said + "}" + parts + "]";
  return "{" + members + R"("role": )" + to_json(role) + R"(, "content": )" + (parts.empty() ? said : with_parts) + "}";
}

std::string ToldTools::variables(Teller teller) const {
  std::vector<Plain> messages = messages_;
  if (!functions_.empty()) {
    const std::string told = std::string(BEFORE_FUNCTIONS) + functions_ + std::string(AFTER_FUNCTIONS);
    if (teller == Teller::USER) {
      const auto first = std::ranges::find(messages, "user", &Plain::role);
      if (first != messages.end()) first->text = told + "\n\n" + first->text;
    } else if (!messages.empty() && messages.front().role == "system") {
      std::string& said = messages.front().text;
      said += (said.empty() ? "" : "\n\n") + told;
    } else {
      messages.insert(messages.begin(), {"system", "", told, ""});
    }
  }
  std::string all;
  for (const Plain& each : messages) all += (all.empty() ? "" : ", ") + each.json();
  return "{" + others_ + R"("tools": null, "messages": [)" + all + "]}";
}

}  // namespace hybridge::text
