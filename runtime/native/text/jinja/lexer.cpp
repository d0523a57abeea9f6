#include "lexer.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include "../error.h"
#include "../unicode.h"
#include "text.h"

namespace hybridge::text::jinja {

namespace {

constexpr std::string_view OPERATORS[] = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
                                          "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_word(char32_t c) { return c == '_' || is_alphabetic(c) || is_numeric(c); }

std::string with_line_feeds(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') text += source[i];
    else if (i + 1 == source.size() || source[i + 1] != '\n') text += '\n';
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(with_line_feeds(source)), text_(source_) {}

  std::vector<Token> tokens() {
    while (at_ < text_.size()) read_data();
    add(TokenType::END, "");
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    throw TextError(what + " (line " + std::to_string(line_) + ")");
  }

  void add(TokenType type, std::string text) { tokens_.push_back({type, std::move(text), line_}); }

  bool begins(std::string_view with) const { return text_.substr(at_).starts_with(with); }

  char here(size_t further = 0) const { return at_ + further < text_.size() ? text_[at_ + further] : '\0'; }

  void go(size_t to) {
    line_ += static_cast<size_t>(std::count(
        text_.begin() + static_cast<std::ptrdiff_t>(at_), text_.begin() + static_cast<std::ptrdiff_t>(to), '\n'
    ));
    if (to > at_) line_starts_ = text_[to - 1] == '\n';
    at_ = to;
  }

  size_t after_spaces(size_t at) const {
    while (at < text_.size() && is_python_space(character_at(text_, at))) at += length_of(text_[at]);
    return at;
  }

  // Where a tag ends that may end here, such as -%} or %} with a line's end; 0 for none.
  size_t end_of_tag(size_t at, std::string_view end, bool is_trimmed = true) const {
    const std::string_view rest = text_.substr(at);
    if (rest.starts_with('-') && rest.substr(1).starts_with(end)) return after_spaces(at + 1 + end.size());
    if (is_trimmed && rest.starts_with('+') && rest.substr(1).starts_with(end)) return at + 1 + end.size();
    if (!rest.starts_with(end)) return 0;
    const size_t after = at + end.size();
    return is_trimmed && after < text_.size() && text_[after] == '\n' ? after + 1 : after;
  }

  // Adds what is before a tag, whose whitespace control is `sign`.
  void add_data(size_t end, char sign, bool is_variable) {
    std::string data(text_.substr(at_, end - at_));
    if (sign == '-') {
      data = stripped({data}, false, true).bytes;
    } else if (sign != '+' && !is_variable) {
      const size_t line = data.rfind('\n') + 1;
      if ((line > 0 || line_starts_) && after_spaces(at_ + line) >= end) data.resize(line);
    }
    if (!data.empty()) add(TokenType::DATA, data);
  }

  char sign_at(size_t at) const {
    return at < text_.size() && (text_[at] == '-' || text_[at] == '+') ? text_[at] : '\0';
  }

  void read_data() {
    size_t tag = at_;
    do {
      tag = text_.find('{', tag);
      if (tag == std::string_view::npos || tag + 1 == text_.size()) {
        add(TokenType::DATA, std::string(text_.substr(at_)));
        return go(text_.size());
      }
      const char kind = text_[tag + 1];
      if (kind == '%' || kind == '{' || kind == '#') break;
      ++tag;
    } while (true);
    const char kind = text_[tag + 1], sign = sign_at(tag + 2);
    add_data(tag, sign, kind == '{');
    const size_t inside = tag + 2 + (sign != '\0');
    if (kind == '%') {
      if (const size_t raw = behind_raw(inside)) return read_raw(raw);
    }
    go(inside);
    if (kind == '#') return skip_comment();
    add(kind == '%' ? TokenType::BLOCK_BEGIN : TokenType::VARIABLE_BEGIN, "");
    read_tag(kind == '%');
  }

  // Where a raw block's text begins, or 0.
  size_t behind_raw(size_t at) const {
    at = after_spaces(at);
    if (!text_.substr(at).starts_with("raw")) return 0;
    at = after_spaces(at + 3);
    return end_of_tag(at, "%}", false);
  }

  void read_raw(size_t begin) {
    go(begin);
    for (size_t tag = at_; (tag = text_.find("{%", tag)) != std::string_view::npos; ++tag) {
      const char sign = sign_at(tag + 2);
      const size_t word = after_spaces(tag + 2 + (sign != '\0'));
      if (!text_.substr(word).starts_with("endraw")) continue;
      const size_t end = end_of_tag(after_spaces(word + 6), "%}");
      if (end == 0) continue;
      add_data(tag, sign, false);
      return go(end);
    }
    fail("Missing end of raw directive");
  }

  void skip_comment() {
    for (size_t at = at_; at < text_.size(); ++at) {
      if (const size_t end = end_of_tag(at, "#}")) return go(end);
    }
    fail("Missing end of comment tag");
  }

  void read_tag(bool is_block) {
    std::string open;  // brackets
    while (at_ < text_.size()) {
      if (open.empty()) {
        if (const size_t end = end_of_tag(at_, is_block ? "%}" : "}}", is_block)) {
          add(is_block ? TokenType::BLOCK_END : TokenType::VARIABLE_END, "");
          return go(end);
        }
      }
      const size_t after = after_spaces(at_);
      if (after > at_) go(after);
      else if (is_digit(here())) read_number();
      else if (is_word(character_at(text_, at_))) read_name();
      else if (here() == '\'' || here() == '"') read_string();
      else read_operator(open);
    }
    fail("unexpected end of template");
  }

  void read_operator(std::string& open) {
    const auto* const found = std::ranges::find_if(OPERATORS, [&](std::string_view each) { return begins(each); });
    if (found == std::end(OPERATORS))
      fail("unexpected char '" + std::string(text_.substr(at_, length_of(text_[at_]))) + "'");
    const char c = (*found)[0];
    if (c == '(' || c == '[' || c == '{') open += c == '(' ? ')' : c == '[' ? ']' : '}';
    if (c == ')' || c == ']' || c == '}') {
      if (open.empty() || open.back() != c) fail(std::string("unexpected '") + c + "'");
      open.pop_back();
    }
    add(TokenType::OPERATOR, std::string(*found));
    go(at_ + found->size());
  }

  void read_name() {
    size_t end = at_;
    while (end < text_.size() && is_word(character_at(text_, end))) end += length_of(text_[end]);
    add(TokenType::NAME, std::string(text_.substr(at_, end - at_)));
    go(end);
  }

  // Digits with single underscores between them.
  size_t behind_digits(size_t at) const {
    while (at < text_.size() &&
           (is_digit(text_[at]) || (text_[at] == '_' && at + 1 < text_.size() && is_digit(text_[at + 1]))))
      ++at;
    return at;
  }

  void read_number() {
    size_t end = behind_digits(at_);
    bool is_float = false;
    const bool is_attribute = at_ > 0 && text_[at_ - 1] == '.';
    if (here() == '0' && std::string_view("xXoObB").find(here(1)) != std::string_view::npos && here(1) != '\0') {
      end = at_ + 2;
      while (end < text_.size() && (std::isxdigit(static_cast<unsigned char>(text_[end])) || text_[end] == '_')) ++end;
    } else if (!is_attribute) {
      if (end + 1 < text_.size() && text_[end] == '.' && is_digit(text_[end + 1])) {
        end = behind_digits(end + 1);
        is_float = true;
      }
      if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
        size_t power = end + 1;
        power += power < text_.size() && (text_[power] == '+' || text_[power] == '-');
        if (power < text_.size() && is_digit(text_[power])) {
          end = behind_digits(power);
          is_float = true;
        }
      }
    }
    std::string digits(text_.substr(at_, end - at_));
    std::erase(digits, '_');
    add(is_float ? TokenType::FLOAT : TokenType::INTEGER, digits);
    go(end);
  }

  void read_string() {
    const char quote = here();
    size_t end = at_ + 1;
    while (end < text_.size() && text_[end] != quote) end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size()) fail(std::string("unexpected char ") + quote);
    const size_t begin = at_ + 1;
    add(TokenType::STRING, unescaped(text_.substr(begin, end - begin)));
    go(end + 1);
  }

  // As Python's codec unicode-escape reads it.
  std::string unescaped(std::string_view text) const {
    std::string out;
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] != '\\') {
        out += text[i];
        continue;
      }
      constexpr std::string_view LETTERS = "abfnrtv\\'\"\n", MEANT = "\a\b\f\n\r\t\v\\'\"";
      const char c = text[++i];
      if (const size_t known = LETTERS.find(c); known != std::string_view::npos) {
        if (known < MEANT.size()) out += MEANT[known];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        append_character(out, text, i + 1, c == 'x' ? 2 : c == 'u' ? 4 : 8, 16);
        i += c == 'x' ? 2 : c == 'u' ? 4 : 8;
      } else if (c >= '0' && c <= '7') {
        size_t digits = 1;
        while (digits < 3 && i + digits < text.size() && text[i + digits] >= '0' && text[i + digits] <= '7') ++digits;
        append_character(out, text, i, digits, 8);
        i += digits - 1;
      } else if (c == 'N') {
        fail("characters by name are not supported");
      } else {
        (out += '\\') += c;
      }
    }
    return out;
  }

  void append_character(std::string& out, std::string_view text, size_t at, size_t digits, uint32_t base) const {
    uint64_t value = 0;
    for (size_t i = at; i < at + digits; ++i) {
      const int c = i < text.size() ? std::tolower(static_cast<unsigned char>(text[i])) : 0;
      if (!std::isxdigit(c)) fail("truncated \\ escape");
      value = value * base + static_cast<uint64_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    if (value > 0x10FFFF || (value >= 0xD800 && value < 0xE000)) fail("illegal Unicode character");
    append(out, static_cast<char32_t>(value));
  }

  const std::string source_;
  const std::string_view text_;
  std::vector<Token> tokens_;
  size_t at_ = 0, line_ = 1;
  bool line_starts_ = true;
};

}  // namespace

std::vector<Token> tokenize(std::string_view source) { return Lexer(source).tokens(); }

}  // namespace hybridge::text::jinja
