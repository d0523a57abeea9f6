#include "answer.h"

#include <utility>

#include "unicode.h"

namespace hybridge::text {
namespace {

size_t leading_space(std::string_view text) {
  size_t at = 0;
  while (at < text.size() && is_python_space(character_at(text, at))) at += length_of(text[at]);
  return at;
}

// Where the white space at the end of a text begins.
size_t trailing_space(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    const size_t last = last_character(text.substr(0, end));
    if (!is_python_space(character_at(text, last))) break;
    end = last;
  }
  return end;
}

}  // namespace

AnswerSplitter::AnswerSplitter(const ChatFormat& format, std::string_view opening) : format_(format) {
  text_ = opening;
  (void)split(false);
  const bool has_section = section_ != nullptr || parts_ > static_cast<size_t>(is_open_);
  text_.clear();
  spaces_.clear();
  if (section_ == nullptr && !has_section) parts_ = 0;
  has_begun_ = !has_section;
  is_open_ = is_open_ && has_section;
}

Parts AnswerSplitter::push(std::string_view piece) {
  text_ += piece;
  return split(false);
}

Parts AnswerSplitter::finish() { return split(true); }

Parts AnswerSplitter::split(bool has_ended) {
  Parts parts;
  if (format_.sections().empty()) {
    parts.content = std::exchange(text_, {});
    return parts;
  }
  while (true) {
    const auto mark = next_mark(has_ended);
    const size_t end = mark ? mark->begin : text_.size();
    say(std::string_view(text_).substr(0, end), parts);
    if (!mark || mark->is_pending) {
      text_.erase(0, end);
      return parts;
    }
    text_.erase(0, mark->end);
    if (section_ == nullptr) {
      enter(mark->section);
    } else {
      section_ = nullptr;
      is_open_ = false;
    }
  }
}

std::optional<AnswerSplitter::Mark> AnswerSplitter::next_mark(bool has_ended) const {
  const std::string_view text = text_;
  for (size_t at = 0; at < text.size(); ++at) {
    std::optional<Mark> found;
    bool may_grow = false;
    const auto look = [&](const Section& section, const std::vector<std::string>& marks) {
      for (const std::string& mark : marks) {
        const std::string_view rest = text.substr(at);
        if (rest.starts_with(mark)) {
          if (!found || at + mark.size() > found->end) found = Mark{at, at + mark.size(), &section, false};
        } else if (!has_ended && std::string_view(mark).starts_with(rest)) {
          may_grow = true;
        }
      }
    };
    if (section_ != nullptr) {
      look(*section_, section_->close);
    } else {
      for (const Section& each : format_.sections()) look(each, each.open);
    }
    if (may_grow) return Mark{at, at, nullptr, true};
    if (found) return found;
  }
  return std::nullopt;
}

void AnswerSplitter::enter(const Section* section) {
  const bool is_first = parts_++ == 0;
  section_ = section;
  has_begun_ = is_first && (section == nullptr || !section->is_reasoning);
  spaces_.clear();
}

void AnswerSplitter::say(std::string_view piece, Parts& parts) {
  if (piece.empty() || (section_ == nullptr && !format_.rest_is_content())) return;
  if (section_ == nullptr && !is_open_) {
    enter(nullptr);
    is_open_ = true;
  }
  std::string said = spaces_ + std::string(piece);
  if (!has_begun_) said.erase(0, leading_space(said));
  const size_t end = trailing_space(said);
  spaces_ = said.substr(end);
  said.resize(end);
  if (said.empty()) return;
  has_begun_ = true;
  (section_ != nullptr && section_->is_reasoning ? parts.reasoning : parts.content) += said;
}

}  // namespace hybridge::text
