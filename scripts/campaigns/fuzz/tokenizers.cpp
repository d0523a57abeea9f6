// Reads tokenizers and texts, or with the argument `chats` chat formats and what is said, each pair behind its length, and answers
// each with a line; see driver.py. A pair is the length of the file (uint32), the file and the text.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "text/answer.h"
#include "text/chat_format.h"
#include "text/chat_log.h"
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

// Writes a conversation of parts of the text, splits the text as an answer, and keeps both as a log.
std::string answer_chat(std::string_view json, std::string_view text) {
  try {
    const ChatFormat format(json);
    const auto part = [&](size_t number) { return std::string(text.substr(text.size() * number / 5, text.size() / 5)); };
    const std::vector<Message> messages = {
        {"system", part(0)}, {"user", part(1)}, {"assistant", part(2), part(3)}, {"user", part(4)}};
    for (const Thinking thinking : {Thinking::AS_USUAL, Thinking::ON, Thinking::OFF}) {
      try {
        const Rendered rendered = format.render(messages, thinking);
        size_t end = 0;
        for (const TextPart& words : rendered.words) {
          if (words.begin < end || words.end <= words.begin || words.end > rendered.text.size()) return "wrong: words out of place";
          end = words.end;
        }
      } catch (const TextError&) {
      }
    }
    const std::string said = valid_utf8(text);
    AnswerSplitter splitter(format, format.opening(Thinking::AS_USUAL));
    StopStrings stops({part(2).empty() ? "a" : part(2), "</"});
    size_t shown = 0;
    for (size_t at = 0; at < said.size(); at += length_of(said[at])) {
      const std::string piece = stops.push(std::string_view(said).substr(at, length_of(said[at])));
      const Parts parts = splitter.push(piece);
      shown += parts.content.size() + parts.reasoning.size();
    }
    splitter.push(stops.finish());
    const Parts last = splitter.finish();
    if (shown > said.size() || last.content.size() > said.size()) return "wrong: an answer has more than was said";
    const ChatLog log{{{"user", valid_utf8(part(1))}, {"assistant", said, said}}, {{0, 2, said, said}}, {1, 2, 3}};
    if (ChatLog::from_json(log.to_json()).to_json() != log.to_json()) return "wrong: a log is another one when it is read";
    return "accepted";
  } catch (const TextError& error) {
    try {
      (void)ChatLog::from_json(json);
    } catch (const TextError&) {
    }
    return refused(error);
  }
}

std::string answer(std::string_view json, std::string_view text) {
  try {
    const Tokenizer tokenizer(json);
    const TextPart people[] = {{0, text.size() / 4}, {text.size() / 2, text.size()}};
    for (const bool flag : {true, false}) {
      std::vector<uint32_t> ids;
      for (const TextToken& token : tokenizer.encode(text, flag, flag ? std::span<const TextPart>() : people)) {
        if (token.begin > token.end) return "wrong: a token ends before it begins";
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

int main(int argc, char**) {
  const auto& asked = argc > 1 ? answer_chat : answer;
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
