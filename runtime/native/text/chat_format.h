// How a model's chat template writes a conversation, without the template: the strings around the contents of messages.
//
// An export finds them by what the template makes of conversations, and writes them into the manifest if they say the same as the
// template for hundreds of others (export/write/chat_format.py). Conversations here have at most one message of the system, which
// is the first; then a user's message and an assistant's follow each other.
#ifndef HYBRIDGE_NATIVE_TEXT_CHAT_FORMAT_H
#define HYBRIDGE_NATIVE_TEXT_CHAT_FORMAT_H

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template.h"

namespace hybridge::text {

class Json;

enum class Thinking { AS_USUAL, ON, OFF };

// What may be said of one end of a content: all of it stays, or its whitespace or its line ends go.
enum class Trimmed { NOTHING, WHITESPACE, NEWLINES };

struct Trim {
  Trimmed left = Trimmed::NOTHING, right = Trimmed::NOTHING;
};

// The strings around the messages of a role, and what becomes of their content. empty: what is written in place of a message whose
// content is empty once it is trimmed, with {{ reasoning }} in place of that. last_of: of a content that has this in it, only what is behind the last one is written, trimmed
// by trim_last. reserved: words that the template reads as something else than text.
struct RoleFormat {
  std::string before, after;
  std::optional<std::string> empty;
  bool refuses_empty = false;
  Trim trim, trim_last;
  std::string last_of;
  std::vector<std::string> reserved;
};

// An answer that had reasoning. between: what is written between the reasoning and the content; none where reasoning is dropped.
struct ReasonedFormat {
  RoleFormat answer;
  std::optional<std::string> between;
  Trim trim_reasoning;
};

struct AnswerFormat {
  RoleFormat plain;
  std::optional<ReasonedFormat> reasoned;  // none where reasoning changes nothing
};

// The pictures of a user's message, which come before its words. each: what is written for one; words: what becomes of words behind
// pictures.
struct PictureFormat {
  std::string each;
  RoleFormat words;
};

// What a conversation is written with, with one setting of the template's switch for thinking. earlier, last: answers, and the last
// one of these. answer: what opens the answer that is asked for. dates: formats of strftime, which stand in the strings as
// {{ strftime_now('%Y') }}. pictures: none without a place for them.
struct Rendering {
  std::optional<RoleFormat> system;
  RoleFormat user;
  AnswerFormat earlier, last;
  std::string answer;
  std::vector<std::string> dates;
  std::optional<PictureFormat> pictures;
};

// A part of an answer that is marked by texts around it, such as <think> and </think>, whichever of several comes first.
struct Section {
  bool is_reasoning;
  std::vector<std::string> open, close;  // without a close it lasts to the end
};

class ChatFormat {
 public:
  // Reads the manifest's `chat_format`. Throws TextError.
  explicit ChatFormat(std::string_view json);
  explicit ChatFormat(const Json& value);

  // The text of a conversation in UTF-8 that ends with a user's message, up to where the assistant is to speak. Throws TextError for
  // a conversation that the model's template does not have, or that this format cannot write, such as one with pictures if it has
  // no place for them.
  Rendered render(std::span<const Message> messages, Thinking thinking = Thinking::AS_USUAL) const;

  // What opens the answer; it may begin a section. Throws like `render`.
  const std::string& opening(Thinking thinking) const { return rendering(thinking).answer; }

  // Text outside of sections is content, or nothing.
  const std::vector<Section>& sections() const { return sections_; }
  bool rest_is_content() const { return rest_is_content_; }

  bool has_thinking_switch() const { return on_.has_value() && off_.has_value(); }

 private:
  const Rendering& rendering(Thinking thinking) const;

  Rendering usual_;
  std::optional<Rendering> on_, off_;
  std::vector<Section> sections_;
  bool rest_is_content_ = true;
};

}  // namespace hybridge::text

#endif
