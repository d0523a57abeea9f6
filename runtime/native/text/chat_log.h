// What a conversation is, apart from its model's state: messages, where their tokens begin, and the tokens. It is saved
// as the note beside a state.
#ifndef HYBRIDGE_NATIVE_TEXT_CHAT_LOG_H
#define HYBRIDGE_NATIVE_TEXT_CHAT_LOG_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "chat_template.h"

namespace hybridge::text {

// A message of the user, or the results of the tools that the answer before called, and its answer. start, answer: the
// number of tokens before the message, and before its answer; a start of 0 after other turns: all that came before was
// written in another way for this one. lasting: where a template may do that, the number of tokens that stay once the
// message is answered; or 0. rendered: the conversation's text up to the answer. said: the answer as it was generated,
// with its reasoning; none before there is one. spelled: the parts of `rendered` in which words of messages spell
// special tokens. pictures: of the message.
struct Turn {
  size_t start, answer, lasting = 0;
  std::string rendered;
  std::optional<std::string> said = {};
  std::vector<TextPart> spelled = {};
  Pictures pictures = {};
};

struct ChatLog {
  std::vector<Message> messages;
  std::vector<Turn> turns;
  std::vector<int64_t> tokens;

  std::string to_json() const;

  // Reads a note, whose pictures are yet to be opened. Throws TextError for one that is no conversation's.
  static ChatLog from_json(std::string_view json);
};

}  // namespace hybridge::text

#endif
