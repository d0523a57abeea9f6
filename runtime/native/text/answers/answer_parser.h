// An answer while it comes, split into reasoning, content and calls of tools by the form of its model.
#ifndef HYBRIDGE_NATIVE_TEXT_ANSWERS_ANSWER_PARSER_H
#define HYBRIDGE_NATIVE_TEXT_ANSWERS_ANSWER_PARSER_H

#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "call.h"
#include "form.h"
#include "../stop_strings.h"
#include "tool_schema.h"

namespace hybridge::text {

// A piece of an answer. text: of reasoning or content, or the name of the tool that is called. arguments: of a call, in
// JSON.
struct AnswerEvent {
  enum class Kind : uint8_t { REASONING, CONTENT, CALL };

  Kind kind;
  std::string text;
  std::string arguments = {};
};

// Reads an answer in time linear in its length. White space between reasoning and content is dropped; that around calls
// stays, but not at the end. A call comes when it is complete. Text that looks like a call and cannot be read as one is
// content, and so is a call that is cut off; a mark in which the answer was cut is dropped.
class AnswerParser {
 public:
  // Begins the answer to a rendered prompt, which may have begun its reasoning. tools: those that are offered; without
  // any, text that looks like a call is content. The form must outlive this.
  AnswerParser(const AnswerForm& form, std::string_view prompt, std::shared_ptr<const ToolSchemas> tools);

  // Lets the content end before a string, which is not empty: before the first of such strings that is complete. What
  // comes then is left out, calls too. Reasoning may have it.
  void stop_at(std::string_view string) { stopping_.add(string); }

  // The content from a stop string on, which was left out; empty if none was complete.
  std::string_view cut() const { return stopping_.is_complete() ? stopping_.held() : std::string_view(); }

  // Return what a piece of the answer adds, and what its end does.
  std::vector<AnswerEvent> push(std::string_view piece);
  std::vector<AnswerEvent> finish();

  // The text that ends the reasoning which the prompt has begun; empty if it has begun none. Asked before the first
  // piece.
  std::string reasoning_end() const;

 private:
  // CALLS: the text between the marks of calls. HEADER: what precedes <|message|>. BETWEEN: after a message with a
  // header.
  enum class Part : uint8_t { CONTENT, REASONING, CALLS, HEADER, BETWEEN };
  enum class Fit : uint8_t { NONE, WHOLE, PENDING };

  // A mark in the text. is_pending: more text may make it one, or a longer one.
  struct Found {
    size_t begin, end;
    const Marks* of = nullptr;
    bool is_pending = false;
  };

  void begin_prompt(std::string_view prompt);
  void advance(bool has_ended);
  bool step(bool has_ended);
  bool step_header();
  bool step_calls(bool has_ended);
  size_t end_of_calls(bool has_ended, size_t& mark_size);
  void take_calls(std::string_view text, bool has_ended);

  Fit fit(size_t place, const std::string& mark, bool has_ended) const;
  Found next_mark(bool has_ended) const;
  bool is_half_mark() const;
  void enter(Part part);
  void drop_space();
  void read_header(std::string_view header);
  void say(std::string_view text);
  void add(AnswerEvent::Kind kind, std::string_view text);
  std::vector<AnswerEvent> take_events();

  const AnswerForm& form_;
  std::shared_ptr<const ToolSchemas> tools_;
  bool is_plain_;  // all of the answer is content, as it is
  Part part_ = Part::CONTENT;
  std::string text_;  // what is held back, from at_ on
  size_t at_ = 0;

  std::vector<const Marks*> looked_for_ = {};  // in this part
  std::array<bool, 256> begins_ = {};          // the bytes that begin one of them

  // Of the calls that are being read: the place before which they do not end, and the state there.
  size_t scanned_ = 0, depth_ = 0;
  bool in_string_ = false;
  std::string recipient_ = {};  // of a message with a header
  std::string opening_ = {};    // what opened them, if it is a part of their JSON

  bool is_first_ = true;      // nothing was said in this part
  bool drops_space_ = false;  // there is no content yet, but another part
  bool has_reasoning_ = false, has_content_ = false;
  std::string spaces_ = {}, content_spaces_ = {};  // which may be the last of their part
  size_t marks_ = 0;
  std::vector<AnswerEvent> events_ = {};
  StopStrings stopping_;
};

}  // namespace hybridge::text

#endif
