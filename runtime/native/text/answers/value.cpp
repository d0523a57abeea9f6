#include "value.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <unordered_map>

#include "../error.h"
#include "../json.h"

namespace hybridge::text {
namespace {

constexpr uint32_t REPLACEMENT = 0xFFFD;

bool is_space(char each) { return each == ' ' || (each >= '\t' && each <= '\r'); }
bool is_digit(char each) { return each >= '0' && each <= '9'; }
bool is_word(char each) {
  return is_digit(each) || (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') || each == '_' ||
         static_cast<unsigned char>(each) >= 0x80;
}
bool is_high(uint32_t unit) { return unit >= 0xD800 && unit < 0xDC00; }
bool is_low(uint32_t unit) { return unit >= 0xDC00 && unit < 0xE000; }

// Unlike append() of unicode.h it takes any number: what is no character becomes U+FFFD.
void append_character(std::string& text, uint32_t character) {
  if (character > 0x10FFFF || is_high(character) || is_low(character)) character = REPLACEMENT;
  const auto add = [&](uint32_t byte) { text += static_cast<char>(byte); };
  if (character < 0x80) return add(character);
  if (character < 0x800) {
    add(0xC0 | character >> 6);
  } else {
    if (character < 0x10000) {
      add(0xE0 | character >> 12);
    } else {
      add(0xF0 | character >> 18);
      add(0x80 | (character >> 12 & 0x3F));
    }
    add(0x80 | (character >> 6 & 0x3F));
  }
  add(0x80 | (character & 0x3F));
}

}  // namespace

void Members::set(std::string name, std::string json) {
  const auto [place, is_new] = places_.emplace(std::move(name), entries_.size());
  if (is_new) {
    entries_.emplace_back(place->first, std::move(json));
  } else {
    entries_[place->second].second = std::move(json);
  }
}

const std::string* Members::find(std::string_view name) const {
  const auto place = places_.find(std::string(name));
  return place == places_.end() ? nullptr : &entries_[place->second].second;
}

std::string Members::json() const {
  std::string text = "{";
  for (const auto& [name, json] : entries_) {
    if (text.size() > 1) text += ", ";
    text += to_json(name) + ": " + json;
  }
  return text + "}";
}

void ValueReader::fail(const char* expected) const {
  throw TextError("byte " + std::to_string(at_) + " of a call is not " + expected);
}

void ValueReader::skip_space() {
  while (at_ < text_.size() && is_space(text_[at_])) at_++;
}

bool ValueReader::ended() {
  skip_space();
  return at_ == text_.size();
}

bool ValueReader::take(std::string_view token) {
  skip_space();
  if (!rest().starts_with(token)) return false;
  at_ += token.size();
  return true;
}

void ValueReader::expect(std::string_view token) {
  if (!take(token)) fail(std::string(token).c_str());
}

std::string ValueReader::value() {
  struct Level {
    size_t& depth;
    ~Level() { depth--; }
  } level{++depth_};
  if (depth_ > MOST_NESTED) throw TextError("the arguments of a call are nested too deeply");
  skip_space();
  const std::string_view left = rest();
  if (left.empty()) fail("a value");
  if (left[0] == '{') return notation_ == Notation::PYTHON ? braces() : object().json();
  if (left[0] == '[') {
    at_++;
    return list(']');
  }
  if (notation_ == Notation::GEMMA && left.starts_with(GEMMA_QUOTE)) return to_json(gemma_string());
  if (left[0] == '"' && notation_ != Notation::PYTHON) return to_json(json_string());
  if (notation_ == Notation::PYTHON) {
    if (left[0] == '(') {
      at_++;
      return list(')');
    }
    const size_t quote = left.substr(0, 3).find_first_of("'\"");
    if (quote <= 2 && left.substr(0, quote).find_first_not_of("bBrRuUfF") == left.npos) return to_json(python_string());
  }
  if (is_digit(left[0]) || left[0] == '-' || (notation_ == Notation::PYTHON && (left[0] == '+' || left[0] == '.')))
    return number();
  const size_t begin = at_;
  while (at_ < text_.size() && is_word(text_[at_])) at_++;
  const std::string_view word = text_.substr(begin, at_ - begin);
  if (word == "true" || word == "false" || word == "null") return std::string(word);
  if (notation_ != Notation::JSON) {
    if (word == "True") return "true";
    if (word == "False") return "false";
    if (word == "None") return "null";
  }
  at_ = begin;
  fail("a value");
}

std::string ValueReader::list(char close) {
  const char closing[] = {close, 0};
  return take(closing) ? "[]" : list_from(value(), close);
}

std::string ValueReader::list_from(std::string first, char close) {
  const char closing[] = {close, 0};
  std::string json = "[" + std::move(first);
  while (!take(closing)) {
    expect(",");
    if (notation_ == Notation::PYTHON && take(closing)) break;
    json += ", ";
    json += value();
  }
  return json + "]";
}

// A dict or, as a list in JSON, a set. The first value says which, and is read once.
std::string ValueReader::braces() {
  expect("{");
  if (take("}")) return "{}";
  std::string first = value();
  if (!take(":")) return list_from(std::move(first), '}');
  return members_from(string_of(first).value_or(first)).json();
}

std::string ValueReader::key() {
  skip_space();
  if (notation_ == Notation::JSON) {
    if (!rest().starts_with('"')) fail("a key");
    return json_string();
  }
  if (notation_ == Notation::PYTHON) {
    const std::string json = value();
    return string_of(json).value_or(json);
  }
  if (rest().starts_with(GEMMA_QUOTE)) return gemma_string();
  if (rest().starts_with('"')) return json_string();
  const size_t end = rest().find_first_of(":{}[],");
  if (end == rest().npos || end == 0 || rest()[end] != ':') fail("a key");
  std::string name(rest().substr(0, end));
  at_ += end;
  return name;
}

Members ValueReader::object() {
  expect("{");
  if (take("}")) return {};
  std::string first = key();
  expect(":");
  return members_from(std::move(first));
}

// Reads an object after its first key and colon.
Members ValueReader::members_from(std::string name) {
  Members members;
  while (true) {
    members.set(std::move(name), value());
    if (take("}")) return members;
    expect(",");
    if (notation_ == Notation::PYTHON && take("}")) return members;
    name = key();
    expect(":");
  }
}

Members ValueReader::arguments() {
  Members members;
  for (bool is_first = true; !take(")"); is_first = false) {
    if (!is_first) {
      expect(",");
      if (take(")")) break;
    }
    std::string name = identifier(false);
    expect("=");
    members.set(std::move(name), value());
  }
  return members;
}

std::string ValueReader::identifier(bool is_dotted) {
  skip_space();
  const size_t begin = at_;
  while (at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '-' || (is_dotted && text_[at_] == '.'))) at_++;
  if (begin == at_) fail("a name");
  return std::string(text_.substr(begin, at_ - begin));
}

// A number keeps its digits. Python's other bases become decimal, and 02139, which is no number of either, a string.
std::string ValueReader::number() {
  const size_t begin = at_;
  const bool is_python = notation_ == Notation::PYTHON;
  while (at_ < text_.size() && (is_word(text_[at_]) || text_[at_] == '.' || text_[at_] == '+' || text_[at_] == '-'))
    at_++;
  const std::string_view written = text_.substr(begin, at_ - begin);
  std::string digits(written);
  bool is_negative = false;
  if (is_python) {
    std::erase(digits, '_');
    while (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
      is_negative ^= digits[0] == '-';
      digits.erase(0, 1);
    }
    const char base = digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '0';
    if (base == 'x' || base == 'o' || base == 'b') {
      char* end;
      errno = 0;
      const uint64_t number = std::strtoull(digits.c_str() + 2, &end, base == 'x' ? 16 : base == 'o' ? 8 : 2);
      if (*end != 0 || errno != 0) fail("a number");
      return (is_negative ? "-" : "") + std::to_string(number);
    }
    const bool is_whole = digits.find_first_not_of("0123456789") == digits.npos;
    if (is_whole && digits.size() > 1 && digits[0] == '0') return to_json(written);
    if (digits.starts_with('.')) digits.insert(0, 1, '0');
    if (const size_t point = digits.find('.');
        point != digits.npos && (point + 1 == digits.size() || !is_digit(digits[point + 1]))) {
      digits.insert(point + 1, 1, '0');
    }
    if (is_negative) digits.insert(0, 1, '-');
  }
  size_t at = digits.starts_with('-');
  const auto digits_from = [&](size_t place) {
    while (place < digits.size() && is_digit(digits[place])) place++;
    return place;
  };
  const size_t whole = digits_from(at);
  bool is_right = whole > at && (digits[at] != '0' || whole == at + 1);
  at = whole;
  if (at < digits.size() && digits[at] == '.') {
    const size_t end = digits_from(at + 1);
    is_right &= end > at + 1;
    at = end;
  }
  if (at < digits.size() && (digits[at] == 'e' || digits[at] == 'E')) {
    at++;
    at += at < digits.size() && (digits[at] == '+' || digits[at] == '-');
    const size_t end = digits_from(at);
    is_right &= end > at;
    at = end;
  }
  // 1e999 is JSON by its grammar, and read as infinity.
  if (!is_right || at != digits.size() || (at < 400 && !std::isfinite(std::strtod(digits.c_str(), nullptr)))) {
    at_ = begin;
    fail("a number");
  }
  return digits;
}

uint32_t ValueReader::hexadecimal(size_t digits) {
  uint32_t number = 0;
  for (size_t i = 0; i < digits; i++, at_++) {
    const char each = at_ < text_.size() ? text_[at_] : '\0';
    const int digit = is_digit(each)               ? each - '0'
                      : each >= 'a' && each <= 'f' ? each - 'a' + 10
                      : each >= 'A' && each <= 'F' ? each - 'A' + 10
                                                   : -1;
    if (digit < 0) fail("a hexadecimal digit");
    number = number << 4 | static_cast<uint32_t>(digit);
  }
  return number;
}

// Reads an escape after its backslash.
void ValueReader::escape(std::string& into, bool is_json) {
  if (at_ == text_.size()) fail("an escape");
  const char each = text_[at_++];
  static constexpr std::string_view NAMES = "\"\\/bfnrt", CHARACTERS = "\"\\/\b\f\n\r\t";
  if (each == 'u') {
    uint32_t character = hexadecimal(4);
    if (is_high(character) && rest().starts_with("\\u")) {
      const size_t before = at_;
      at_ += 2;
      const uint32_t low = hexadecimal(4);
      if (is_low(low)) {
        character = 0x10000 + ((character - 0xD800) << 10) + (low - 0xDC00);
      } else {
        at_ = before;
      }
    }
    return append_character(into, character);
  }
  const size_t place = NAMES.find(each);
  if (place != NAMES.npos && (is_json || each != '/')) {
    into += CHARACTERS[place];
    return;
  }
  if (is_json) fail("an escape of JSON");
  switch (each) {
    case '\n': return;
    case '\'': into += '\''; return;
    case 'a': into += '\a'; return;
    case 'v': into += '\v'; return;
    case 'x': return append_character(into, hexadecimal(2));
    case 'U': return append_character(into, hexadecimal(8));
    default: break;
  }
  if (each >= '0' && each <= '7') {
    uint32_t octal = static_cast<uint32_t>(each - '0');
    for (int i = 0; i < 2 && at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '7'; i++) {
      octal = octal * 8 + static_cast<uint32_t>(text_[at_++] - '0');
    }
    return append_character(into, octal);
  }
  into += '\\';
  into += each;
}

std::string ValueReader::json_string() {
  std::string text;
  for (at_++; at_ < text_.size();) {
    const char each = text_[at_++];
    if (each == '"') return text;
    if (static_cast<unsigned char>(each) < 0x20) break;
    if (each == '\\') {
      escape(text, true);
    } else {
      text += each;
    }
  }
  fail("the end of a string");
}

// Chat templates write strings between quotes without escapes, so a quote ends a string only before what may follow a
// value.
std::string ValueReader::python_string() {
  bool is_raw = false;
  for (; text_[at_] != '"' && text_[at_] != '\''; at_++) is_raw |= (text_[at_] | 0x20) == 'r';
  const char quote = text_[at_];
  const std::string three(3, quote);
  const std::string closing = rest().starts_with(three) ? three : std::string(1, quote);
  at_ += closing.size();
  std::string text;
  size_t follows = 0;  // the first place from here on that is no white space, looked for once
  while (at_ < text_.size()) {
    if (rest().starts_with(closing)) {
      follows = std::max(follows, at_ + closing.size());
      while (follows < text_.size() && is_space(text_[follows])) follows++;
      if (follows == text_.size() || std::string_view(",)]}:").find(text_[follows]) != std::string_view::npos) {
        at_ += closing.size();
        return text;
      }
    }
    const char each = text_[at_++];
    if (each == '\\' && !is_raw) {
      escape(text, false);
    } else {
      text += each;
      if (each == '\\' && at_ < text_.size()) text += text_[at_++];
    }
  }
  fail("the end of a string");
}

std::string ValueReader::gemma_string() {
  at_ += GEMMA_QUOTE.size();
  const size_t end = text_.find(GEMMA_QUOTE, at_);
  if (end == text_.npos) fail("the end of a string");
  std::string text(text_.substr(at_, end - at_));
  at_ = end + GEMMA_QUOTE.size();
  return text;
}

std::string to_json(std::string_view text) {
  static constexpr char DIGITS[] = "0123456789abcdef";
  std::string json = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') {
      json += '\\';
      json += each;
    } else if (each == '\n') {
      json += "\\n";
    } else if (each == '\t') {
      json += "\\t";
    } else if (static_cast<unsigned char>(each) < 0x20) {
      json += "\\u00";
      json += DIGITS[each >> 4 & 15];
      json += DIGITS[each & 15];
    } else {
      json += each;
    }
  }
  return json + '"';
}

std::optional<std::string> whole_value(std::string_view text, Notation notation) {
  try {
    ValueReader reader(text, notation);
    std::string json = reader.value();
    if (reader.ended()) return json;
  } catch (const TextError&) {  // it is none
  }
  return std::nullopt;
}

std::optional<std::string> string_of(std::string_view json) {
  if (!json.starts_with('"')) return std::nullopt;
  const JsonDocument document(json);
  return std::string(document.root().string());
}

}  // namespace hybridge::text
