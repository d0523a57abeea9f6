#include "call.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "../error.h"
#include "value.h"

namespace hybridge::text {
namespace {

constexpr std::string_view SPACE = " \t\n\r";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(SPACE);
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(SPACE) - begin + 1);
}

[[noreturn]] void fail(const char* what) { throw TextError(std::string("a call has ") + what); }

// The name without what forms add to it: the namespace of functions, and Kimi's count of calls.
std::string clean_name(std::string_view name) {
  name = trimmed(name);
  if (name.starts_with("functions.")) name.remove_prefix(10);
  if (const size_t colon = name.rfind(':');
      colon != name.npos && colon + 1 < name.size() && name.find_first_not_of("0123456789", colon + 1) == name.npos) {
    name = name.substr(0, colon);
  }
  if (name.empty()) fail("no name");
  return std::string(name);
}

// The JSON of arguments, which must be an object; some models write it as a string, and none for a function without
// parameters.
std::string object_of(const std::string* json) {
  if (json == nullptr || *json == "null" || *json == "\"\"") return "{}";
  if (const auto text = string_of(*json)) {
    ValueReader reader(*text, Notation::JSON);
    std::string object = reader.object().json();
    if (!reader.ended()) fail("more than its arguments");
    return object;
  }
  if (!json->starts_with('{')) fail("arguments that are no object");
  return *json;
}

ToolCall call_of(const Members& members, const ToolSchemas& tools, bool is_nested = false) {
  if (members.size() == 1) {  // {"weather": {…}}
    const auto& [tool, arguments] = members.entries()[0];
    if (tools.has(tool) && arguments.starts_with('{')) return {tool, arguments};
  }
  if (const std::string* function = members.find("function");
      function != nullptr && function->starts_with('{') && !is_nested) {
    ValueReader reader(*function, Notation::JSON);
    return call_of(reader.object(), tools, true);
  }
  const std::string* name = nullptr;
  for (const char* key : {"name", "tool_name"}) name = name != nullptr ? name : members.find(key);
  const auto text = name != nullptr ? string_of(*name) : std::nullopt;
  if (!text) fail("no name");
  const std::string* arguments = nullptr;
  for (const char* key : {"arguments", "parameters", "args"})
    arguments = arguments != nullptr ? arguments : members.find(key);
  return {clean_name(*text), object_of(arguments)};
}

// Calls in a text, one after the other.
class CallReader {
 public:
  CallReader(const CallForm& form, std::string_view text, const ToolSchemas& tools)
      : form_(form), text_(text), tools_(tools) {}

  ReadCalls read() {
    ReadCalls found;
    size_t count = 0;
    try {
      while (!ended()) {
        next(found.calls);
        found.end = at_;
        count = found.calls.size();
      }
      found.is_whole = !found.calls.empty() || !trimmed(text_).empty();
    } catch (const TextError&) {  // a list of calls is read as a whole
      found.calls.resize(count);
    }
    return found;
  }

 private:
  bool ended() {
    skip_space();
    return at_ == text_.size();
  }

  void skip_space() { at_ = std::min(text_.find_first_not_of(SPACE, at_), text_.size()); }

  bool take(std::string_view mark) {
    if (mark.empty() || !text_.substr(at_).starts_with(mark)) return false;
    at_ += mark.size();
    return true;
  }

  void expect(std::string_view mark) {
    skip_space();
    if (!mark.empty() && !take(mark)) fail("something else than its marks");
  }

  // The text up to a mark, and the mark is passed.
  std::string_view until(std::string_view mark) {
    const size_t end = text_.find(mark, at_);
    if (end == text_.npos) fail("no end");
    const std::string_view found = text_.substr(at_, end - at_);
    at_ = end + mark.size();
    return found;
  }

  // Adds the next calls. Those of a list come together.
  void next(std::vector<ToolCall>& calls) {
    switch (form_.syntax) {
      case CallSyntax::JSON: return json(calls);
      case CallSyntax::NAMED: return calls.push_back(named(calls));
      case CallSyntax::TAGS: return calls.push_back(tags());
      case CallSyntax::PAIRS: return calls.push_back(pairs());
      case CallSyntax::PYTHON: return python(calls);
      case CallSyntax::GEMMA: return calls.push_back(gemma());
    }
  }

  void json(std::vector<ToolCall>& calls) {
    ValueReader reader(text_.substr(at_), Notation::JSON);
    if (reader.take("[")) {
      for (bool is_first = true; !reader.take("]"); is_first = false) {
        if (!is_first) reader.expect(",");
        calls.push_back(call_of(reader.object(), tools_));
      }
    } else {
      if (!calls.empty()) (void)(reader.take(",") || reader.take(";"));
      calls.push_back(call_of(reader.object(), tools_));
    }
    at_ += reader.at();
  }

  ToolCall named(std::vector<ToolCall>& calls) {
    expect(form_.item_open);
    skip_space();
    if (text_.substr(at_).starts_with('[') && form_.item_open.empty()) {  // Mistral's list
      json(calls);
      if (calls.empty()) fail("no name");
      ToolCall last = std::move(calls.back());
      calls.pop_back();
      return last;
    }
    const size_t begin = std::min(text_.find('{', at_), text_.size());
    std::string_view head = text_.substr(at_, begin - at_);
    if (const size_t after = head.find(form_.name_after); after != head.npos)
      head.remove_prefix(after + form_.name_after.size());
    size_t end = head.size();
    for (const std::string& mark : form_.name_end) end = std::min(end, head.find(mark));
    if (end == head.size() && !form_.name_end.empty()) fail("no end of its name");
    ToolCall call{clean_name(head.substr(0, end)), {}};
    ValueReader reader(text_.substr(begin), Notation::JSON);
    call.arguments = reader.object().json();
    at_ = begin + reader.at();
    skip_space();
    if (head.find("```") != head.npos) take("```");
    expect(form_.item_close);
    return call;
  }

  ToolCall tags() {
    if (!form_.item_open.empty()) expect(form_.item_open);
    ToolCall call{clean_name(until(form_.name_end.front())), {}};
    if (form_.name_end.front() == form_.key_end && form_.key_end != form_.tag_end) (void)until(form_.tag_end);
    Members members;
    while (true) {
      skip_space();
      if (form_.item_close.empty() ? at_ == text_.size() : take(form_.item_close)) break;
      expect(form_.key_open);
      std::string name(until(form_.key_end));
      const std::string_view attributes = form_.key_end == form_.tag_end ? std::string_view() : until(form_.tag_end);
      std::string_view value = until(form_.value_end);
      if (form_.has_own_lines) {
        if (value.starts_with('\n')) value.remove_prefix(1);
        if (value.ends_with('\n')) value.remove_suffix(1);
      }
      std::string json = argument(call.name, name, value, attributes);
      members.set(std::move(name), std::move(json));
    }
    call.arguments = members.json();
    return call;
  }

  std::string argument(
      std::string_view tool, std::string_view name, std::string_view value, std::string_view attributes
  ) const {
    static constexpr std::string_view CDATA = "<![CDATA[", CDATA_END = "]]>";
    const auto says = [&](const char* attribute) { return attributes.find(attribute) != attributes.npos; };
    if (says("string=\"true\"") || says("type=\"string\"")) return to_json(value);
    if (says("string=\"false\"") || says("type=\"")) {
      if (auto json = whole_value(value, Notation::JSON)) return *json;
    }
    if (value.starts_with(CDATA) && value.ends_with(CDATA_END) && value.size() >= CDATA.size() + CDATA_END.size()) {
      return to_json(value.substr(CDATA.size(), value.size() - CDATA.size() - CDATA_END.size()));
    }
    return tools_.argument(tool, name, value);
  }

  ToolCall pairs() {
    if (!form_.item_open.empty()) expect(form_.item_open);
    skip_space();
    const std::string& close = form_.item_close;
    size_t end = close.empty() ? text_.size() : std::min(text_.find(close, at_), text_.size());
    for (const std::string& mark : form_.name_end) end = std::min(end, text_.find(mark, at_));
    ToolCall call{clean_name(text_.substr(at_, end - at_)), {}};
    if (call.name.find_first_of("<>{}[]\"") != call.name.npos) fail("no name");
    at_ = end;
    take(form_.name_end.front());
    Members members;
    while (true) {
      skip_space();
      if (close.empty() ? at_ == text_.size() : take(close)) break;
      expect(form_.key_open);
      std::string name(until(form_.key_end));
      expect(form_.value_open);
      std::string json = tools_.argument(call.name, name, until(form_.value_end));
      members.set(std::move(name), std::move(json));
    }
    call.arguments = members.json();
    return call;
  }

  void python(std::vector<ToolCall>& calls) {
    ValueReader reader(text_.substr(at_), Notation::PYTHON);
    const bool is_list = reader.take("[");
    reader.skip_space();
    if (reader.rest().starts_with('{')) return json(calls);
    for (bool is_first = true; !is_list || !reader.take("]"); is_first = false) {
      if (!is_first && !reader.take(",")) {
        if (is_list) reader.expect(",");
        break;
      }
      if (is_list && !is_first && reader.take("]")) break;
      std::string name = clean_name(reader.identifier(true));
      reader.expect("(");
      calls.push_back({std::move(name), reader.arguments().json()});
    }
    at_ = text_.size() - reader.rest().size();
  }

  ToolCall gemma() {
    expect("call:");
    const size_t brace = text_.find('{', at_);
    if (brace == text_.npos) fail("no arguments");
    ToolCall call{clean_name(text_.substr(at_, brace - at_)), {}};
    ValueReader reader(text_.substr(brace), Notation::GEMMA);
    call.arguments = reader.object().json();
    at_ = brace + reader.at();
    return call;
  }

  const CallForm& form_;
  std::string_view text_;
  const ToolSchemas& tools_;
  size_t at_ = 0;
};

}  // namespace

ReadCalls read_calls(const CallForm& form, std::string_view text, const ToolSchemas& tools) {
  return CallReader(form, text, tools).read();
}

ReadCalls read_arguments(std::string name, std::string_view text) {
  ReadCalls found;
  try {
    ValueReader reader(text, Notation::JSON);
    std::string arguments = reader.ended() ? "{}" : reader.object().json();
    found.is_whole = reader.ended();
    if (found.is_whole) {
      found.calls.push_back({clean_name(name), std::move(arguments)});
      found.end = text.size();
    }
  } catch (const TextError&) {  // no arguments
  }
  return found;
}

}  // namespace hybridge::text
