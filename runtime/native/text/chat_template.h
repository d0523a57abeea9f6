// What a conversation needs of its model's chat template: a text for its messages, and an answer's parts.
//
// The model's own is chat_templates.h.
#ifndef HYBRIDGE_NATIVE_TEXT_CHAT_TEMPLATE_H
#define HYBRIDGE_NATIVE_TEXT_CHAT_TEMPLATE_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "answers/call.h"
#include "error.h"
#include "tokenizer.h"

namespace hybridge::text {

// role: system, user, assistant or tool. reasoning: what an assistant thought before it answered. pictures: the number
// of those before the content. calls: of an assistant. call: of which a tool's message is the result, without its
// arguments.
struct Message {
  std::string role, content, reasoning = {};
  size_t pictures = 0;
  std::vector<ToolCall> calls = {};
  ToolCall call = {};
};

// A picture of a message. ids: what stands in the place of its placeholder, rows of open pictures and tokens around
// them. saved: makes the text by which a saved conversation opens it again, and keeps open what must live as long as
// the message.
struct MessagePicture {
  std::vector<int64_t> ids = {};
  std::function<std::string()> saved = {};
};

using Pictures = std::vector<std::shared_ptr<const MessagePicture>>;

// Opens a saved picture again. Throws TextError.
using Reopen = std::function<std::shared_ptr<const MessagePicture>(std::string_view saved)>;

// A conversation's text, and parts of it that are the words of messages: in them special tokens are text.
struct Rendered {
  std::string text;
  std::vector<TextPart> words;
};

struct Parts {
  std::string content, reasoning;
  std::vector<ToolCall> calls = {};
};

// An answer while it comes.
class Splitter {
 public:
  virtual ~Splitter() = default;

  // The text that ends the reasoning which the prompt has begun; empty if it has begun none, or that is not known
  // beforehand. Asked before the first piece.
  virtual std::string reasoning_end() const { return ""; }

  // Lets the content end before a string, but not the reasoning before it.
  virtual void stop_at(std::string_view string) = 0;

  // The content from a stop string on, which was left out; empty if none was complete.
  virtual std::string_view cut() const = 0;

  // What a piece of the answer adds to its parts, and what its end does.
  virtual Parts push(std::string_view piece) = 0;
  virtual Parts finish() = 0;
};

class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // The text of a conversation that ends with a user's message or the results of tools, up to where the assistant is to
  // speak. Throws TextError for one that the template cannot write.
  virtual Rendered render(std::span<const Message> messages) const = 0;

  // Begins the answer to a text that `render` made, which may have begun its reasoning. Throws TextError.
  virtual std::unique_ptr<Splitter> answer(std::string_view rendered) const = 0;

  // A text that has all special tokens in it that are shown to the splitter.
  virtual std::string shown() const = 0;
};

}  // namespace hybridge::text

#endif
