#include "chat_format.h"

#include <algorithm>
#include <ctime>

#include "json.h"
#include "unicode.h"

namespace hybridge::text {
namespace {

constexpr size_t MOST = 256;  // sections, and reserved words

Trimmed read_trimmed(const Json& value) {
  const std::string_view name = value.string_or("nothing");
  if (name == "nothing") return Trimmed::NOTHING;
  if (name == "whitespace") return Trimmed::WHITESPACE;
  if (name == "newlines") return Trimmed::NEWLINES;
  value.fail("nothing, whitespace or newlines");
}

Trim read_trim(const Json& value) { return value ? Trim{read_trimmed(value["left"]), read_trimmed(value["right"])} : Trim{}; }

std::vector<std::string> read_strings(const Json& value) {
  std::vector<std::string> found;
  if (!value) return found;
  value.each([&](const Json& each) {
    if (found.size() == MOST) value.fail("a list of at most 256 texts");
    found.emplace_back(each.string());
  });
  return found;
}

RoleFormat read_role(const Json& value) {
  RoleFormat read{
      .before = std::string(value["before"].string()), .after = std::string(value["after"].string_or("")), .empty = {},
      .refuses_empty = value["refuses_empty"].boolean_or(false), .trim = read_trim(value["trim"]), .trim_last = read_trim(value["trim_last"]),
      .last_of = std::string(value["last_of"].string_or("")), .reserved = read_strings(value["reserved"])};
  if (value["empty"]) read.empty = value["empty"].string();
  return read;
}

AnswerFormat read_answer(const Json& value) {
  AnswerFormat read{.plain = read_role(value["plain"]), .reasoned = {}};
  const Json reasoned = value["reasoned"];
  if (!reasoned) return read;
  read.reasoned = {.answer = read_role(reasoned), .between = {}, .trim_reasoning = read_trim(reasoned["trim_reasoning"])};
  if (reasoned["between"]) read.reasoned->between = reasoned["between"].string();
  return read;
}

Rendering read_rendering(const Json& value) {
  Rendering read;
  if (value["system"]) read.system = read_role(value["system"]);
  read.user = read_role(value["user"]);
  read.earlier = read_answer(value["earlier"]);
  read.last = read_answer(value["last"]);
  read.answer = value["answer"].string();
  read.dates = read_strings(value["dates"]);
  if (const Json pictures = value["pictures"]) read.pictures = {std::string(pictures["each"].string()), read_role(pictures["words"])};
  return read;
}

Section read_section(const Json& value) {
  const std::string_view kind = value["kind"].string();
  if (kind != "reasoning" && kind != "content") value["kind"].fail("reasoning or content");
  Section read{kind == "reasoning", read_strings(value["open"]), read_strings(value["close"])};
  const auto is_empty = [](const std::string& each) { return each.empty(); };
  if (read.open.empty() || std::ranges::any_of(read.open, is_empty) || std::ranges::any_of(read.close, is_empty)) {
    value.fail("a section with texts that open and close it");
  }
  return read;
}

bool is_trimmed(char32_t character, Trimmed what) {
  switch (what) {
    case Trimmed::NOTHING: return false;
    case Trimmed::WHITESPACE: return is_python_space(character);
    case Trimmed::NEWLINES: return character == '\n';
  }
  return false;
}

std::string_view trimmed(std::string_view text, Trim trim) {
  while (!text.empty() && is_trimmed(character_at(text, 0), trim.left)) text.remove_prefix(length_of(text[0]));
  while (!text.empty()) {
    const size_t last = last_character(text);
    if (!is_trimmed(character_at(text, last), trim.right)) break;
    text = text.substr(0, last);
  }
  return text;
}

std::string_view written(const RoleFormat& format, std::string_view content) {
  const size_t at = format.last_of.empty() ? std::string_view::npos : content.rfind(format.last_of);
  if (at == std::string_view::npos) return trimmed(content, format.trim);
  return trimmed(content.substr(at + format.last_of.size()), format.trim_last);
}

// The text of a date, in the process's time and language.
std::string dated(const std::string& format, std::time_t now) {
  std::tm parts{};
  if (::localtime_r(&now, &parts) == nullptr) return {};
  std::string text(256, '\0');
  text.resize(std::strftime(text.data(), text.size(), format.c_str(), &parts));
  return text;
}

// Puts a conversation together.
class Writer {
 public:
  Writer(Rendered& rendered, const Rendering& how) : rendered_(rendered), how_(how), now_(std::time(nullptr)) {}

  void add(std::string_view text) {
    for (const std::string& format : how_.dates) {
      const std::string place = "{{ strftime_now('" + format + "') }}";
      const size_t at = text.find(place);
      if (at == std::string_view::npos) continue;
      add(text.substr(0, at));
      rendered_.text += dated(format, now_);
      return add(text.substr(at + place.size()));
    }
    rendered_.text += text;
  }

  void add_words(std::string_view words) {
    if (words.empty()) return;
    rendered_.words.push_back({rendered_.text.size(), rendered_.text.size() + words.size()});
    rendered_.text += words;
  }

  void add_message(const RoleFormat& format, std::string_view content) {
    const std::string_view words = written(format, content);
    if (words.empty() && format.empty) return add(*format.empty);
    add(format.before);
    add_words(words);
    add(format.after);
  }

  void add_reasoned(const ReasonedFormat& format, const Message& message) {
    if (!format.between) return add_message(format.answer, message.content);
    const std::string_view reasoning = trimmed(message.reasoning, format.trim_reasoning), words = written(format.answer, message.content);
    if (words.empty() && format.answer.empty) return add_around(*format.answer.empty, reasoning);
    add(format.answer.before);
    add_words(reasoning);
    add(*format.between);
    add_words(words);
    add(format.answer.after);
  }

 private:
  void add_around(std::string_view text, std::string_view reasoning) {
    constexpr std::string_view PLACE = "{{ reasoning }}";
    const size_t at = text.find(PLACE);
    add(text.substr(0, at));
    if (at == std::string_view::npos) return;
    add_words(reasoning);
    add(text.substr(at + PLACE.size()));
  }

  Rendered& rendered_;
  const Rendering& how_;
  const std::time_t now_;
};

// Throws for words that the format cannot write.
void check(const RoleFormat& format, std::string_view content, const char* whose) {
  if (format.refuses_empty && written(format, content).empty()) {
    throw TextError(std::string(whose) + " is empty, which the model's chat template does not take");
  }
  for (const std::string& word : format.reserved) {
    if (content.find(word) == std::string_view::npos) continue;
    throw TextError(
        std::string(whose) + " has '" + word + "' in it, which the model's chat template reads as more than words: leave it out");
  }
}

}  // namespace

ChatFormat::ChatFormat(std::string_view json) : ChatFormat(JsonDocument(json).root("chat_format")) {}

ChatFormat::ChatFormat(const Json& value) {
  const Json renderings = value["renderings"];
  usual_ = read_rendering(renderings["default"]);
  if (renderings["thinking"]) on_ = read_rendering(renderings["thinking"]);
  if (renderings["no_thinking"]) off_ = read_rendering(renderings["no_thinking"]);
  if (const Json sections = value["sections"]) {
    sections.each([&](const Json& each) {
      if (sections_.size() == MOST) sections.fail("a list of at most 256 sections");
      sections_.push_back(read_section(each));
    });
  }
  rest_is_content_ = value["rest_is_content"].boolean_or(true);
}

const Rendering& ChatFormat::rendering(Thinking thinking) const {
  if (thinking == Thinking::AS_USUAL) return usual_;
  const auto& found = thinking == Thinking::ON ? on_ : off_;
  if (!found) throw TextError("the model's chat template has no switch for thinking: leave it as usual");
  return *found;
}

Rendered ChatFormat::render(std::span<const Message> messages, Thinking thinking) const {
  const Rendering& how = rendering(thinking);
  Rendered rendered;
  Writer writer(rendered, how);
  const bool has_system = !messages.empty() && messages[0].role == "system";
  if (messages.size() == static_cast<size_t>(has_system) || messages.back().role != "user") {
    throw TextError("a conversation ends with the user's message that is to be answered");
  }
  if (has_system && !how.system) throw TextError("the model's chat template takes no message of the system: leave it out");
  if (has_system) check(*how.system, messages[0].content, "the message of the system");
  if (has_system) writer.add_message(*how.system, messages[0].content);
  else writer.add(how.user.before);
  for (size_t at = has_system; at < messages.size(); ++at) {
    const Message& message = messages[at];
    const bool is_answer = (at - has_system) % 2 == 1;
    if (message.role != (is_answer ? "assistant" : "user")) {
      throw TextError("a conversation is a user's message, an assistant's, and so on, behind at most one of the system");
    }
    if (message.pictures > 0 && (is_answer || !how.pictures)) throw TextError("the model's chat template has no place for pictures");
    if (!is_answer) {
      const RoleFormat& words = message.pictures > 0 ? how.pictures->words : how.user;
      check(words, message.content, "the message");
      for (size_t i = 0; i < message.pictures; ++i) writer.add(how.pictures->each);
      writer.add_words(written(words, message.content));
      continue;
    }
    const AnswerFormat& format = at + 2 == messages.size() ? how.last : how.earlier;
    const bool is_reasoned = format.reasoned && !message.reasoning.empty();
    check(is_reasoned ? format.reasoned->answer : format.plain, message.content, "an earlier answer");
    if (is_reasoned) writer.add_reasoned(*format.reasoned, message);
    else writer.add_message(format.plain, message.content);
  }
  writer.add(how.answer);
  return rendered;
}

}  // namespace hybridge::text
