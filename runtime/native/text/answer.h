// An answer while it comes, split into content and reasoning by a chat format, and the template that such a format is.
#ifndef HYBRIDGE_NATIVE_TEXT_ANSWER_H
#define HYBRIDGE_NATIVE_TEXT_ANSWER_H

#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "chat_format.h"

namespace hybridge::text {

// Splits an answer by the sections of its model's chat format. White space between one part and the next is dropped.
class AnswerSplitter final : public Splitter {
 public:
  // opening: the end of the prompt, which may begin a section. The format must outlive this.
  AnswerSplitter(const ChatFormat& format, std::string_view opening);

  // The text that ends the reasoning which the opening has begun; empty if it has begun none. Asked before the answer's first piece.
  std::string reasoning_end() const {
    return section_ != nullptr && section_->is_reasoning && !section_->close.empty() ? section_->close.front() : "";
  }

  Parts push(std::string_view piece) override;
  Parts finish() override;

 private:
  // A text that opens or closes a section. is_pending: more text may make it one, or a longer one.
  struct Mark {
    size_t begin, end;
    const Section* section;
    bool is_pending;
  };

  Parts split(bool has_ended);
  std::optional<Mark> next_mark(bool has_ended) const;
  void say(std::string_view text, Parts& parts);
  void enter(const Section* section);

  const ChatFormat& format_;
  const Section* section_ = nullptr;  // null outside of all
  bool has_begun_ = true;             // this part has text that is no white space, or keeps it
  bool is_open_ = false;              // the text outside of sections has begun
  size_t parts_ = 0;
  std::string text_, spaces_;  // what is held back: of a mark, and white space that may be the last of its part
};

// A chat format with one setting of its template's switch for thinking.
class FormatTemplate final : public ChatTemplate {
 public:
  FormatTemplate(std::shared_ptr<const ChatFormat> format, Thinking thinking) : format_(std::move(format)), thinking_(thinking) {}

  Rendered render(std::span<const Message> messages) const override { return format_->render(messages, thinking_); }
  std::unique_ptr<Splitter> answer(std::string_view) const override {
    return std::make_unique<AnswerSplitter>(*format_, format_->opening(thinking_));
  }
  std::string reasoning_end() const override { return AnswerSplitter(*format_, format_->opening(thinking_)).reasoning_end(); }

  // The marks of sections.
  std::string shown() const override {
    std::string marks;
    for (const Section& section : format_->sections()) {
      for (const auto& each : {section.open, section.close}) {
        for (const std::string& mark : each) marks += mark + '\0';
      }
    }
    return marks;
  }

 private:
  std::shared_ptr<const ChatFormat> format_;
  Thinking thinking_;
};

}  // namespace hybridge::text

#endif
