// Reads tokenizers and texts, or with the argument `chats` files of chat templates and what is said, with `grammars`
// schemas and regular expressions and what is chosen, with `calls` tools and what is chosen, with `templates` chat
// templates and their variables, each pair after its length, and answers each with a line; see driver.py. A pair is the
// length of the file (uint32), the file and the text.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "text/answers/answer_parser.h"
#include "text/chat_log.h"
#include "text/chat_templates.h"
#include "text/grammar/grammar.h"
#include "text/jinja/template.h"
#include "text/json.h"
#include "text/stop_strings.h"
#include "text/tokenizer.h"
#include "text/unicode.h"

namespace {

using namespace hybridge::text;

std::string refused(const TextError& error) {
  std::string reason = error.what();
  for (char& each : reason) each = each < ' ' ? ' ' : each;
  return "refused: " + reason.substr(0, 200);
}

constexpr std::string_view TOOLS =
    R"([{"type": "function", "function": {"name": "act", "parameters": {"properties": {"x": {"type": "integer"}}}}}])";

// Writes a conversation of parts of the text, splits the text as an answer with calls, and keeps both as a log. file: a
// template, or a tokenizer_config.json, whose own description of answers is then followed.
std::string answer_chat(std::string_view file, std::string_view text) {
  static const Tokenizer tokenizer(R"({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "a"}})");
  try {
    const auto templates = file.starts_with("{\"")
                               ? std::make_shared<const ChatTemplates>(
                                     ChatTemplates::Files{{"tokenizer_config.json", std::string(file)}}, "<image>"
                                 )
                               : std::make_shared<const ChatTemplates>(file);
    const auto part = [&](size_t number) { return valid_utf8(text.substr(text.size() * number / 5, text.size() / 5)); };
    const std::vector<Message> messages = {
        {"system", part(0)},
        {"user", part(1)},
        {"assistant", part(2), part(3), 0, {{"act", R"({"x": [1.50, "a"]})", "a1"}}},
        {"tool", part(4)},
        {"user", part(1), "", text.size() % 2}
    };
    std::string prompt = part(0);
    for (const Thinking thinking : {Thinking::AS_USUAL, Thinking::ON, Thinking::OFF}) {
      try {
        const auto tools = thinking == Thinking::AS_USUAL ? TOOLS : std::string_view();
        const Rendered rendered = ModelTemplate(templates, tokenizer, thinking, R"({"x": [1]})", tools)
                                      .render(messages);
        size_t end = 0;
        for (const TextPart& words : rendered.words) {
          if (words.begin < end || words.end <= words.begin || words.end > rendered.text.size())
            return "wrong: words out of place";
          end = words.end;
        }
        prompt = rendered.text;
      } catch (const TextError&) {}
    }
    const std::string said = valid_utf8(text);
    const ModelTemplate chat_template(templates, tokenizer, Thinking::AS_USUAL, {}, TOOLS);
    const auto splitter = chat_template.answer(prompt);
    StopStrings stops({part(2).empty() ? "a" : part(2), "</"});
    size_t shown = 0;
    for (size_t at = 0; at < said.size(); at += length_of(said[at])) {
      const std::string piece = stops.push(std::string_view(said).substr(at, length_of(said[at])));
      const Parts parts = splitter->push(piece);
      shown += parts.content.size() + parts.reasoning.size();
      for (const ToolCall& call : parts.calls) const JsonDocument arguments(call.arguments);  // are always JSON
    }
    splitter->push(stops.finish());
    const Parts last = splitter->finish();
    for (const ToolCall& call : last.calls) const JsonDocument arguments(call.arguments);
    if (shown > said.size() || last.content.size() > said.size()) return "wrong: an answer has more than was said";
    const auto picture = std::make_shared<const MessagePicture>(MessagePicture{{-5}, [saved = std::string(part(0))] {
                                                                                 return saved;
                                                                               }});
    const ChatLog log{
        {{"user", part(1), "", 1}, {"assistant", said, said}}, {{0, 2, 1, said, said, {{0, 1}}, {picture}}}, {1, -5, 3}
    };
    if (ChatLog::from_json(log.to_json()).to_json() != log.to_json())
      return "wrong: a log is another one when it is read";
    return "accepted";
  } catch (const TextError& error) {
    try {
      (void)ChatLog::from_json(file);
    } catch (const TextError&) {}
    return refused(error);
  }
}

// A token for each byte, one for each pair of letters, and the end of a text.
constexpr size_t SIZE = 933;
constexpr int64_t END = 932, ENDS[] = {END};

std::shared_ptr<const Tokenizer> bytes_and_pairs() {
  static const auto tokenizer = std::make_shared<const Tokenizer>([] {
    std::string vocabulary, characters;
    for (int byte = 0; byte < 256; byte++)
      vocabulary += "\"<0x" + std::string{"0123456789ABCDEF"[byte / 16], "0123456789ABCDEF"[byte % 16]} +
                    ">\":" + std::to_string(byte) + ",";
    for (int pair = 0; pair < 26 * 26; pair++) {
      vocabulary += "\"" + std::string{static_cast<char>('a' + pair / 26), static_cast<char>('a' + pair % 26)} +
                    "\":" + std::to_string(256 + pair) + ",";
    }
    return R"({"added_tokens":[],"decoder":{"type":"ByteFallback"},"model":{"type":"BPE","byte_fallback":true,"unk_token":null,"merges":[],"vocab":{)" +
           vocabulary + R"("\u00e9":932}}})";
  }());
  return tokenizer;
}

// What was chosen, without the end. wrong: what the grammar did that it must not, or why it cannot go on; empty
// otherwise.
struct Chosen {
  std::string text = {};
  bool has_ended = false;
  std::string wrong = {};
};

// Follows a grammar by bytes as choices: each token that is chosen is allowed, and what is forced and fits is, too.
Chosen follow(const std::shared_ptr<Grammar>& grammar, std::string_view choices) {
  GrammarFollower follower(grammar, ENDS, 0);
  std::vector<int64_t> said;
  for (const char each : choices) {
    std::vector<float> logits(SIZE);
    follower.mask(said, logits);
    if (!follower.failure().empty()) return {.wrong = "refused: " + follower.failure()};
    std::vector<int64_t> allowed;
    for (size_t id = 0; id < SIZE; id++) {
      if (logits[id] == 0) allowed.push_back(static_cast<int64_t>(id));
    }
    if (allowed.empty()) return {.wrong = "wrong: nothing may come, and there is no failure"};
    const auto forced = follower.forced(said, 8);
    if (!forced.empty() && (allowed.size() != 1 || allowed[0] != forced[0])) {
      return {.wrong = "wrong: what is forced is not all that is allowed"};
    }
    if (follower.fitting(said, forced) != forced.size()) return {.wrong = "wrong: what is forced does not fit"};
    said.push_back(
        allowed.back() == END && each % 2 == 0 ? END : allowed[static_cast<uint8_t>(each) * allowed.size() / 256]
    );
    if (said.back() == END) break;
  }
  if (follower.fitting({}, said) != said.size() && follower.failure().empty())
    return {.wrong = "wrong: what was chosen does not fit"};
  Chosen chosen{.has_ended = !said.empty() && said.back() == END};
  if (chosen.has_ended) said.pop_back();
  for (const int64_t token : said) chosen.text += bytes_and_pairs()->bytes(static_cast<uint32_t>(token));
  return chosen;
}

// The first byte of a grammar says what it is: r for a regular expression.
std::string follow_grammar(std::string_view given, std::string_view choices) {
  try {
    const bool is_regex = given.starts_with('r');
    const std::string_view rules = given.substr(std::min<size_t>(1, given.size()));
    const auto& make = is_regex ? Grammar::regex : Grammar::json_schema;
    const Chosen chosen = follow(make(rules, bytes_and_pairs()), choices);
    if (!chosen.wrong.empty()) return chosen.wrong;
    if (chosen.has_ended && !is_regex) const JsonDocument document(chosen.text);  // what fits a schema is JSON
    return "accepted";
  } catch (const TextError& error) {
    return refused(error);
  }
}

std::vector<AnswerEvent> split(const AnswerForm& form, std::string_view said, std::string_view tools, size_t most) {
  AnswerParser parser(form, form.has_channels ? "<|start|>assistant" : "", std::make_shared<const ToolSchemas>(tools));
  std::vector<AnswerEvent> events;
  for (size_t at = 0, length; at < said.size(); at += length) {
    for (length = 0; at + length < said.size() && (length < most || length == 0);)
      length += length_of(said[at + length]);
    std::ranges::copy(parser.push(said.substr(at, length)), std::back_inserter(events));
  }
  std::ranges::copy(parser.finish(), std::back_inserter(events));
  return events;
}

// Follows the grammar of calls, and reads what was chosen, and a text, by the same form. given: the name of a form, a
// line end, tools. text: a number of bytes, so many choices, and the text.
std::string follow_calls(std::string_view given, std::string_view text) {
  try {
    const size_t line = std::min(given.find('\n'), given.size());
    const AnswerForm* form = answer_form(given.substr(0, line));
    const std::string_view tools = given.substr(std::min(line + 1, given.size()));
    if (form == nullptr) return "wrong: no form has this name";
    const size_t count = text.empty() ? 0 : std::min<size_t>(static_cast<uint8_t>(text[0]) * 4, text.size() - 1);
    const std::string said = valid_utf8(text.substr(std::min(1 + count, text.size())));
    const auto contents = [](const std::vector<AnswerEvent>& events) {
      std::string all[2];
      for (const AnswerEvent& each : events) {
        if (each.kind == AnswerEvent::Kind::CALL) const JsonDocument arguments(each.arguments);  // are always JSON
        all[each.kind == AnswerEvent::Kind::REASONING] += each.kind == AnswerEvent::Kind::CALL
                                                              ? each.text + each.arguments
                                                              : each.text;
      }
      return all[0] + '\0' + all[1];
    };
    if (contents(split(*form, said, tools, 1)) != contents(split(*form, said, tools, said.size() + 1))) {
      return "wrong: an answer in pieces is another one";
    }
    const auto grammar = Grammar::calls(*form, tools, ToolChoice::of("required"), bytes_and_pairs());
    const Chosen chosen = follow(grammar, text.substr(std::min<size_t>(1, text.size()), count));
    if (!chosen.wrong.empty()) return chosen.wrong;
    if (!chosen.has_ended) return "accepted";
    size_t calls = 0;
    for (const AnswerEvent& each : split(*form, chosen.text, tools, 1)) {
      if (each.kind == AnswerEvent::Kind::CONTENT) return "wrong: required calls have content";
      if (each.kind == AnswerEvent::Kind::CALL && !JsonDocument(each.arguments).root().is_object()) {
        return "wrong: arguments are no object";
      }
      calls += each.kind == AnswerEvent::Kind::CALL;
    }
    return calls > 0 ? "accepted" : "wrong: required calls are none";
  } catch (const TextError& error) {
    return refused(error);
  }
}

// Renders a template; one of seven is interrupted at a question that the lengths choose.
std::string render_template(std::string_view source, std::string_view variables) {
  try {
    const jinja::Template made(source);
    const size_t end = variables.size() % 7 == 0 ? source.size() % 20 : SIZE_MAX;
    size_t asked = 0;
    const jinja::Text text = made.render(variables, {.now = std::tm{}, .interrupted = [&] { return asked++ == end; }});
    if (end != SIZE_MAX && asked > end) return "wrong: an interrupted template has a text";
    if (!is_valid_utf8(text.bytes)) return "wrong: the text is no UTF-8";
    size_t at = 0;
    for (const jinja::Span& each : text.input) {
      if (each.begin < at || each.end <= each.begin || each.end > text.size()) return "wrong: input out of place";
      at = each.end;
    }
    return "accepted";
  } catch (const TextError& error) {
    return refused(error);
  }
}

std::string answer(std::string_view json, std::string_view text) {
  try {
    const Tokenizer tokenizer(json);
    const size_t readable = valid_utf8(text).size();
    const TextPart people[] = {{0, text.size() / 4}, {text.size() / 2, text.size()}};
    for (const bool flag : {true, false}) {
      std::vector<uint32_t> ids;
      for (const TextToken& token : tokenizer.encode(text, flag, flag ? std::span<const TextPart>() : people)) {
        if (token.begin > token.end || token.end > readable) return "wrong: a token is outside the text";
        ids.push_back(token.id);
      }
      tokenizer.decode(ids, flag);
      TextStream stream(tokenizer, flag);
      for (const uint32_t id : ids) stream.push(id);
      stream.finish();
    }
    return "accepted";
  } catch (const TextError& error) {
    return refused(error);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view kind = argc > 1 ? argv[1] : "";
  const auto& asked = kind == "chats"       ? answer_chat
                      : kind == "grammars"  ? follow_grammar
                      : kind == "calls"     ? follow_calls
                      : kind == "templates" ? render_template
                                            : answer;
  uint32_t length;
  std::string data;
  while (std::fread(&length, sizeof length, 1, stdin) == 1) {
    data.resize(length);
    if (length < 4 || std::fread(data.data(), 1, length, stdin) != length) return 3;
    uint32_t file;
    std::memcpy(&file, data.data(), 4);
    const std::string_view all = std::string_view(data).substr(4);
    std::puts(asked(all.substr(0, file), all.substr(file)).c_str());
    std::fflush(stdout);
  }
}
