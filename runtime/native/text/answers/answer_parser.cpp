#include "answer_parser.h"

#include <algorithm>
#include <utility>

namespace hybridge::text {
namespace {

using Kind = AnswerEvent::Kind;

constexpr size_t LONGEST_CALL = size_t{1} << 20, LONGEST_HEADER = 1024;
constexpr std::string_view SPACE = " \t\n\r\v\f";
const std::string GEMMA_QUOTE = "<|\"|>";

const Marks HEADER_BEGINS = {"<|start|>", "<|channel|>"};
const Marks MESSAGE_ENDS = {"<|end|>", "<|call|>", "<|return|>", "<|eom|>", "<|eot|>"};
const Marks CALL_ENDS = {"<|call|>", "<|end|>", "<|return|>", "<|start|>"};
constexpr std::string_view MESSAGE = "<|message|>", CHANNEL = "<|channel|>";

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(SPACE);
  return begin == text.npos ? std::string_view() : text.substr(begin, text.find_last_not_of(SPACE) - begin + 1);
}

// Where the last of some marks begins and ends in a text.
std::pair<size_t, size_t> last_of(const Marks& marks, std::string_view text) {
  std::pair<size_t, size_t> last{text.npos, 0};
  for (const std::string& mark : marks) {
    const size_t place = text.rfind(mark);
    if (place != text.npos && place + mark.size() > last.second) last = {place, place + mark.size()};
  }
  return last;
}

// The size of the beginning of a mark that a text ends with; zero without one.
size_t half_mark(const Marks& marks, std::string_view text) {
  size_t longest = 0;
  for (const std::string& mark : marks) {
    for (size_t size = std::min(mark.size() - std::min<size_t>(mark.size(), 1), text.size()); size > longest; --size) {
      if (text.ends_with(std::string_view(mark).substr(0, size))) longest = size;
    }
  }
  return longest;
}

}  // namespace

AnswerParser::AnswerParser(const AnswerForm& form, std::string_view prompt, std::shared_ptr<const ToolSchemas> tools)
    : form_(form), tools_(std::move(tools)) {
  if (tools_ != nullptr && tools_->empty()) tools_ = nullptr;
  is_plain_ = tools_ == nullptr && !form.has_channels && form.reasoning_open.empty() && form.dropped.empty();
  if (!is_plain_) begin_prompt(prompt);
}

void AnswerParser::begin_prompt(std::string_view prompt) {
  enter(Part::CONTENT);
  const auto [_, answer] = last_of(form_.turn_open, prompt);
  if (answer > 0) {
    text_ = prompt.substr(answer);
    if (form_.has_channels) enter(Part::HEADER);
  } else if (
      const auto [thought, after] = last_of(form_.reasoning_open, prompt); trimmed(prompt.substr(after)).empty()
  ) {
    text_ = prompt.substr(std::min(thought, prompt.size()));  // earlier ones are in what people wrote
  }
  advance(false);
  const auto [close, end] = last_of(form_.reasoning_close, prompt);
  const bool has_closed = close != prompt.npos && trimmed(prompt.substr(end)).empty();
  if (form_.begins_reasoning && part_ == Part::CONTENT && marks_ == 0) enter(Part::REASONING);
  drops_space_ = (marks_ > 0 || has_closed) && !has_content_;
  has_reasoning_ = has_content_ = false;
  is_first_ = true;
  spaces_.clear();
  content_spaces_.clear();
  events_.clear();
  if (part_ != Part::CALLS && part_ != Part::HEADER) text_.clear();
}

std::string AnswerParser::reasoning_end() const {
  return part_ == Part::REASONING && !form_.reasoning_close.empty() ? form_.reasoning_close.front() : "";
}

std::vector<AnswerEvent> AnswerParser::push(std::string_view piece) {
  if (is_plain_) {
    add(Kind::CONTENT, piece);
  } else {
    text_ += piece;
    advance(false);
  }
  return take_events();
}

std::vector<AnswerEvent> AnswerParser::finish() {
  if (!is_plain_) advance(true);
  std::vector<AnswerEvent> events = take_events();
  if (std::string rest = stopping_.finish(); !rest.empty()) events.push_back({Kind::CONTENT, std::move(rest)});
  return events;
}

std::vector<AnswerEvent> AnswerParser::take_events() {
  std::vector<AnswerEvent> taken;
  for (AnswerEvent& each : std::exchange(events_, {})) {
    if (stopping_.is_complete()) break;
    if (each.kind == Kind::CONTENT) {
      each.text = stopping_.push(each.text);
      if (each.text.empty()) continue;
    } else if (std::string rest = stopping_.finish(); !rest.empty()) {
      taken.push_back({Kind::CONTENT, std::move(rest)});  // no stop string goes across a call
    }
    taken.push_back(std::move(each));
  }
  return taken;
}

void AnswerParser::advance(bool has_ended) {
  while (step(has_ended)) {}
  text_.erase(0, at_);
  scanned_ -= std::min(scanned_, at_);
  at_ = 0;
}

// Passes the next mark. Returns whether there was one.
bool AnswerParser::step(bool has_ended) {
  if (part_ == Part::CALLS) return step_calls(has_ended);
  if (part_ == Part::HEADER && step_header()) return true;
  const Found mark = next_mark(has_ended);
  if (has_ended && mark.of == nullptr && is_half_mark()) at_ = text_.size();
  if (part_ != Part::HEADER || has_ended) {
    if (part_ != Part::HEADER) say(std::string_view(text_).substr(at_, mark.begin - at_));
    at_ = mark.begin;
  }
  if (mark.of == nullptr) return false;
  marks_++;
  if (part_ == Part::HEADER) {
    const std::string header = text_.substr(at_, mark.begin - at_);
    at_ = mark.end;
    read_header(header);
    return true;
  }
  const bool begins_header = mark.of == &HEADER_BEGINS;
  const bool keeps_mark = begins_header && std::string_view(text_).substr(mark.begin).starts_with(CHANNEL);
  at_ = keeps_mark ? mark.begin : mark.end;
  if (begins_header) {
    enter(Part::HEADER);
  } else if (mark.of == &MESSAGE_ENDS) {
    enter(Part::BETWEEN);
  } else if (mark.of == &form_.reasoning_open && part_ != Part::REASONING) {
    enter(Part::REASONING);
  } else if (mark.of == &form_.reasoning_close) {
    enter(Part::CONTENT);
  } else if (mark.of == &form_.calls.open) {
    recipient_.clear();
    opening_ = text_[mark.begin] == '{' ? text_.substr(mark.begin, mark.end - mark.begin) : "";
    enter(Part::CALLS);
  }
  drop_space();
  return true;
}

// Drops white space before content unless there was content already.
void AnswerParser::drop_space() {
  drops_space_ = !has_content_;
  if (drops_space_) content_spaces_.clear();
}

// What follows an answer's beginning may be no header but content. Returns whether it is.
bool AnswerParser::step_header() {
  const std::string_view header = trimmed(std::string_view(text_).substr(at_));
  const auto may_begin = [&](std::string_view word) { return header.starts_with(word) || word.starts_with(header); };
  const bool is_header = may_begin("to=") || may_begin("assistant") || may_begin("<|");
  if (is_header && text_.size() - at_ <= LONGEST_HEADER) return false;
  const std::string_view first = std::string_view(text_).substr(at_, LONGEST_HEADER);
  if (is_header && first.find(MESSAGE) != first.npos) return false;
  enter(Part::CONTENT);
  if (first.starts_with(CHANNEL)) {  // which would begin this header again
    say(CHANNEL);
    at_ += CHANNEL.size();
  }
  return true;
}

void AnswerParser::read_header(std::string_view header) {
  const auto word_after = [&](std::string_view mark) {
    const size_t place = header.find(mark);
    if (place == header.npos) return std::string_view();
    const std::string_view rest = header.substr(place + mark.size());
    return rest.substr(0, rest.find_first_of(" \t\n<"));
  };
  const std::string_view channel = word_after(CHANNEL);
  recipient_ = word_after("to=");
  const bool is_call = !recipient_.empty() && recipient_ != "assistant" && recipient_ != "user" && recipient_ != "all";
  if (is_call && tools_ != nullptr && form_.calls.syntax == CallSyntax::JSON) return enter(Part::CALLS);
  const bool is_thought = recipient_ == "self" || (channel == "analysis" && !is_call);
  enter(is_thought ? Part::REASONING : Part::CONTENT);
  if (part_ == Part::CONTENT && has_content_) content_spaces_ = "\n";
}

void AnswerParser::enter(Part part) {
  part_ = part;
  is_first_ = true;
  spaces_.clear();
  scanned_ = at_;
  depth_ = 0;
  in_string_ = false;
  static const Marks MESSAGE_BEGIN = {std::string(MESSAGE)};
  switch (part) {
    case Part::HEADER: looked_for_ = {&MESSAGE_BEGIN}; break;
    case Part::REASONING:
      looked_for_ = {&form_.reasoning_close, &form_.reasoning_open};
      if (form_.has_channels) looked_for_ = {&HEADER_BEGINS, &MESSAGE_ENDS};
      break;
    default:
      looked_for_ = {&form_.reasoning_open, &form_.dropped};
      if (form_.has_channels) looked_for_ = {&HEADER_BEGINS, &MESSAGE_ENDS};
      if (tools_ != nullptr && !(form_.has_channels && form_.calls.syntax == CallSyntax::JSON)) {
        looked_for_.push_back(&form_.calls.open);
      }
  }
  begins_.fill(false);
  for (const Marks* marks : looked_for_) {
    for (const std::string& mark : *marks) begins_[static_cast<unsigned char>(mark[0])] = true;
  }
}

AnswerParser::Fit AnswerParser::fit(size_t place, const std::string& mark, bool has_ended) const {
  const std::string_view rest = std::string_view(text_).substr(place, mark.size());
  if (rest == mark) return Fit::WHOLE;
  return !has_ended && rest.size() < mark.size() && std::string_view(mark).starts_with(rest) ? Fit::PENDING : Fit::NONE;
}

AnswerParser::Found AnswerParser::next_mark(bool has_ended) const {
  for (size_t place = at_; place < text_.size(); ++place) {
    if (!begins_[static_cast<unsigned char>(text_[place])]) continue;
    Found found{place, place};
    for (const Marks* marks : looked_for_) {
      // A model may repeat the mark that its prompt ends with. Elsewhere in reasoning it is text.
      const auto before = std::string_view(text_).substr(at_, place - at_);
      const bool may_repeat = is_first_ && trimmed(before).empty();
      if (part_ == Part::REASONING && marks == &form_.reasoning_open && !may_repeat) continue;
      for (const std::string& mark : *marks) {
        const Fit fits = fit(place, mark, has_ended);
        if (fits == Fit::PENDING) found.is_pending = true;
        if (fits == Fit::WHOLE && place + mark.size() > found.end)
          found = {place, place + mark.size(), marks, found.is_pending};
      }
    }
    if (found.is_pending) return {place, place};
    if (found.of != nullptr) return found;
  }
  return {text_.size(), text_.size()};
}

// Tells whether what is left at the end is at least half of a mark, which the answer was cut in.
bool AnswerParser::is_half_mark() const {
  const std::string_view rest = std::string_view(text_).substr(at_);
  for (const Marks* marks : looked_for_) {
    if (part_ == Part::REASONING && marks == &form_.reasoning_open) continue;
    for (const std::string& mark : *marks) {
      if (rest.size() < mark.size() && 2 * rest.size() >= mark.size() && mark.starts_with(rest)) return true;
    }
  }
  return false;
}

bool AnswerParser::step_calls(bool has_ended) {
  size_t mark_size = 0;
  const size_t end = end_of_calls(has_ended, mark_size);
  const bool is_closed = end != text_.npos;
  if (!is_closed && !has_ended && text_.size() - at_ <= LONGEST_CALL) return false;
  const size_t body_end = is_closed ? end : text_.size();
  const std::string body = text_.substr(at_, body_end - at_);
  at_ = std::min(body_end + mark_size, text_.size());
  const bool was_message = !recipient_.empty();
  take_calls(body, !is_closed);
  enter(was_message && is_closed ? Part::BETWEEN : Part::CONTENT);
  drop_space();
  return is_closed;
}

// Returns the end of the text of calls, npos as long as it is not there.
size_t AnswerParser::end_of_calls(bool has_ended, size_t& mark_size) {
  const CallForm& calls = form_.calls;
  const Marks& closes = recipient_.empty() ? calls.close : CALL_ENDS;
  const bool is_json = !recipient_.empty() || calls.syntax == CallSyntax::JSON || calls.syntax == CallSyntax::NAMED;
  const bool is_gemma = calls.syntax == CallSyntax::GEMMA;
  const std::string& quote = is_gemma                            ? GEMMA_QUOTE
                             : calls.syntax == CallSyntax::PAIRS ? calls.value_open
                                                                 : calls.key_open;
  const std::string& quote_end = is_gemma ? GEMMA_QUOTE : calls.value_end;
  while (scanned_ < text_.size()) {
    const char each = text_[scanned_];
    if (is_json && in_string_) {  // a string that a line ends is none, and what follows may close the calls
      if (each == '\\' && scanned_ + 1 == text_.size()) return text_.npos;
      in_string_ = each != '"' && each != '\n';
      scanned_ += each == '\\' ? 2 : 1;
      continue;
    }
    if (!is_json && !quote.empty()) {
      const Fit fits = fit(scanned_, in_string_ ? quote_end : quote, has_ended);
      if (fits == Fit::WHOLE) {
        scanned_ += in_string_ ? quote_end.size() : quote.size();
        in_string_ = !in_string_;
        continue;
      }
      if (fits == Fit::PENDING) return text_.npos;
      if (in_string_) {
        scanned_++;
        continue;
      }
    }
    for (const std::string& mark : closes) {
      const Fit fits = fit(scanned_, mark, has_ended);
      if (fits == Fit::PENDING) return text_.npos;
      if (fits == Fit::WHOLE) {
        mark_size = mark == "<|start|>" ? 0 : mark.size();
        return scanned_;
      }
    }
    scanned_++;
    if (!is_json) continue;
    in_string_ = each == '"' && depth_ > 0;
    depth_ += each == '{' || each == '[';
    if ((each == '}' || each == ']') && depth_ > 0 && --depth_ == 0 && closes.empty()) {
      // Mistral's [ARGS] are brackets as well.
      if (calls.syntax == CallSyntax::JSON || each == '}' || text_.find('{', at_) < scanned_) return scanned_;
    }
  }
  return text_.npos;
}

void AnswerParser::take_calls(std::string_view text, bool has_ended) {
  const CallForm& form = form_.calls;
  // Without a mark at the end of each call, it may have had more arguments.
  const bool is_marked = form.syntax != CallSyntax::PAIRS &&
                         (form.syntax != CallSyntax::TAGS || !form.item_close.empty());
  const std::string_view all = text;
  if (has_ended) {
    Marks marks = recipient_.empty() ? form.close : CALL_ENDS;
    marks.insert(marks.end(), {form.item_open, form.item_close});
    text.remove_suffix(half_mark(marks, text));
  }
  ReadCalls found;
  if (!recipient_.empty()) {
    if (!has_ended || !trimmed(text).empty()) found = read_arguments(recipient_, text);
  } else if (!has_ended || is_marked || !form.item_close.empty()) {
    found = read_calls(form, text, *tools_);
  }
  for (ToolCall& call : found.calls) {
    events_.push_back({Kind::CALL, std::move(call.name), std::move(call.arguments)});
  }
  part_ = Part::CONTENT;
  const bool keeps_all = found.calls.empty() && !opening_.empty();
  say(keeps_all ? opening_ + std::string(all) : std::string(trimmed(text.substr(found.end))));
}

void AnswerParser::say(std::string_view text) {
  const bool is_reasoning = part_ == Part::REASONING;
  std::string& spaces = is_reasoning ? spaces_ : content_spaces_;
  const size_t begin = text.find_first_not_of(SPACE);
  const bool drops = is_reasoning ? is_first_ : drops_space_ && !has_content_;
  if (begin == text.npos) {
    if (!drops) spaces += text;
    return;
  }
  const size_t end = text.find_last_not_of(SPACE) + 1;
  const Kind kind = is_reasoning ? Kind::REASONING : Kind::CONTENT;
  if (is_reasoning && is_first_ && has_reasoning_) add(kind, "\n");
  if (drops) text.remove_prefix(begin);
  if (!drops || !spaces.empty()) add(kind, std::exchange(spaces, {}));
  add(kind, text.substr(0, end - (drops ? begin : 0)));
  spaces = text.substr(end - (drops ? begin : 0));
  is_first_ = false;
  (is_reasoning ? has_reasoning_ : has_content_) = true;
}

void AnswerParser::add(Kind kind, std::string_view text) {
  if (text.empty()) return;
  if (events_.empty() || events_.back().kind != kind) events_.push_back({kind, {}});
  events_.back().text += text;
}

}  // namespace hybridge::text
