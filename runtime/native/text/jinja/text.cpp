#include "text.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "../../third_party/utf8proc/utf8proc.h"
#include "../error.h"
#include "../unicode.h"
#include "special_casing.h"

namespace hybridge::text::jinja {

namespace {

utf8proc_category_t category(char32_t c) { return utf8proc_category(static_cast<utf8proc_int32_t>(c)); }

// Whether a text has letters of a case, and none of the other case or of titles.
bool has_only(std::string_view text, utf8proc_category_t wanted, utf8proc_category_t other) {
  bool found = false;
  for (size_t at = 0; at < text.size(); at += length_of(text[at])) {
    const auto of = category(character_at(text, at));
    if (of == other || of == UTF8PROC_CATEGORY_LT) return false;
    found = found || of == wanted;
  }
  return found;
}

bool is_cased(char32_t c) {
  const auto of = category(c);
  return of == UTF8PROC_CATEGORY_LU || of == UTF8PROC_CATEGORY_LL || of == UTF8PROC_CATEGORY_LT;
}

const SpecialCasing* special(char32_t c) {
  const auto* found = std::lower_bound(
      std::begin(SPECIAL_CASING), std::end(SPECIAL_CASING), c,
      [](const SpecialCasing& each, char32_t wanted) { return each.character < wanted; }
  );
  return found != std::end(SPECIAL_CASING) && found->character == c ? found : nullptr;
}

void append_upper(std::string& out, char32_t c) {
  if (const auto* found = special(c)) out += found->upper;
  else append(out, static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(c))));
}

void append_title(std::string& out, char32_t c) {
  if (const auto* found = special(c)) out += found->title;
  else append(out, static_cast<char32_t>(utf8proc_totitle(static_cast<utf8proc_int32_t>(c))));
}

// Characters that case mapping does not see: those of `Case_Ignorable`, as far as the final sigma needs them.
bool is_case_ignorable(char32_t c) {
  const auto of = category(c);
  return of == UTF8PROC_CATEGORY_MN || of == UTF8PROC_CATEGORY_ME || of == UTF8PROC_CATEGORY_CF ||
         of == UTF8PROC_CATEGORY_LM || of == UTF8PROC_CATEGORY_SK || c == '\'' || c == '.' || c == ':' || c == 0xB7 ||
         c == 0x2018 || c == 0x2019;
}

// A sigma at the end of a word has a form of its own.
bool is_final(std::string_view text, size_t at) {
  size_t before = at;
  bool has_cased_before = false;
  while (before > 0) {
    before = last_character(text.substr(0, before));
    const char32_t c = character_at(text, before);
    if (is_case_ignorable(c)) continue;
    has_cased_before = is_cased(c);
    break;
  }
  if (!has_cased_before) return false;
  for (size_t after = at + length_of(text[at]); after < text.size(); after += length_of(text[after])) {
    const char32_t c = character_at(text, after);
    if (!is_case_ignorable(c)) return !is_cased(c);
  }
  return true;
}

void append_lower(std::string& out, std::string_view text, size_t at) {
  const char32_t c = character_at(text, at);
  if (c == 0x3A3) append(out, is_final(text, at) ? U'\u03C2' : U'\u03C3');
  else
    for (const char32_t each : to_lower(c)) append(out, each);
}

// Writes each character of a text by `write(out, at)`; what people wrote stays theirs.
template <typename Write>
Text each_character(const Text& text, Write&& write) {
  Text result;
  result.is_markup = text.is_markup;
  result.bytes.reserve(text.size());
  size_t span = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = at + length_of(text.bytes[at]);
    while (span < text.input.size() && text.input[span].end <= at) ++span;
    std::string piece;
    write(piece, at);
    result.append(piece, span < text.input.size() && text.input[span].begin < end);
    at = end;
  }
  return result;
}

bool is_one_of(char32_t c, const std::string* characters) {
  if (characters == nullptr) return is_python_space(c);
  return characters->find(to_utf8(c)) != std::string::npos;
}

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

void Text::append(const Text& other, size_t begin, size_t end) {
  const size_t shift = bytes.size();
  for (auto at = std::ranges::upper_bound(other.input, begin, {}, &Span::end);
       at != other.input.end() && at->begin < end; ++at) {
    const size_t from = std::max(at->begin, begin), to = std::min(at->end, end);
    if (!input.empty() && input.back().end == from - begin + shift) input.back().end = to - begin + shift;
    else input.push_back({from - begin + shift, to - begin + shift});
  }
  bytes.append(other.bytes, begin, end - begin);
}

void Text::append(std::string_view more, bool is_input) {
  if (is_input && !more.empty()) {
    if (!input.empty() && input.back().end == bytes.size()) input.back().end += more.size();
    else input.push_back({bytes.size(), bytes.size() + more.size()});
  }
  bytes += more;
}

Text Text::part(size_t begin, size_t end) const {
  Text result;
  result.is_markup = is_markup;
  result.append(*this, begin, end);
  return result;
}

size_t next_line(std::string_view text, size_t begin, size_t& end) {
  for (size_t at = begin; at < text.size();) {
    const char32_t c = character_at(text, at);
    const size_t after = at + length_of(text[at]);
    if (is_line_end(c)) {
      end = at;
      return c == '\r' && after < text.size() && text[after] == '\n' ? after + 1 : after;
    }
    at = after;
  }
  end = text.size();
  return text.size();
}

Text stripped(const Text& text, bool left, bool right, const std::string* characters) {
  if (characters != nullptr && characters->size() > 1000) throw TextError("strip: too many characters to strip");
  size_t begin = 0, end = text.size();
  while (left && begin < end && is_one_of(character_at(text.bytes, begin), characters))
    begin += length_of(text.bytes[begin]);
  while (right && begin < end) {
    const size_t last = last_character(std::string_view(text.bytes).substr(0, end));
    if (!is_one_of(character_at(text.bytes, last), characters)) break;
    end = last;
  }
  return text.part(begin, end);
}

Text replaced(const Text& text, std::string_view old, const Text& with, int64_t most) {
  Text result;
  result.is_markup = text.is_markup;
  size_t from = 0;
  if (old.empty()) {  // between all characters
    while (most-- != 0) {
      result.append(with);
      if (from == text.size()) return result;
      const size_t next = from + length_of(text.bytes[from]);
      result.append(text, from, next);
      from = next;
    }
  } else {
    for (size_t at; most != 0 && (at = text.bytes.find(old, from)) != std::string::npos; --most) {
      result.append(text, from, at);
      result.append(with);
      from = at + old.size();
    }
  }
  result.append(text, from, text.size());
  return result;
}

Text upper(const Text& text) {
  return each_character(text, [&](std::string& out, size_t at) { append_upper(out, character_at(text.bytes, at)); });
}

Text lower(const Text& text) {
  return each_character(text, [&](std::string& out, size_t at) { append_lower(out, text.bytes, at); });
}

Text capitalized(const Text& text) {
  return each_character(text, [&](std::string& out, size_t at) {
    if (at == 0) append_title(out, character_at(text.bytes, 0));
    else append_lower(out, text.bytes, at);
  });
}

Text titled(const Text& text) {
  bool in_word = false;
  return each_character(text, [&](std::string& out, size_t at) {
    const char32_t c = character_at(text.bytes, at);
    if (in_word) append_lower(out, text.bytes, at);
    else append_title(out, c);
    in_word = is_cased(c);
  });
}

Text titled_by_filter(const Text& text) {
  bool begins = true;
  size_t rest = 0;  // where the word's characters after its first begin: the filter makes them lower case apart
  return each_character(text, [&](std::string& out, size_t at) {
    const char32_t c = character_at(text.bytes, at);
    if (begins) {
      append_upper(out, c);
      rest = at + length_of(text.bytes[at]);
    } else {
      append_lower(out, std::string_view(text.bytes).substr(rest), at - rest);
    }
    begins = is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  });
}

Text escaped(const Text& text) {
  Text result = each_character(text, [&](std::string& out, size_t at) {
    switch (text.bytes[at]) {
      case '&': out = "&amp;"; break;
      case '<': out = "&lt;"; break;
      case '>': out = "&gt;"; break;
      case '\'': out = "&#39;"; break;
      case '"': out = "&#34;"; break;
      default: out.assign(text.bytes, at, length_of(text.bytes[at]));
    }
  });
  result.is_markup = true;
  return result;
}

bool is_lower(std::string_view text) { return has_only(text, UTF8PROC_CATEGORY_LL, UTF8PROC_CATEGORY_LU); }
bool is_upper(std::string_view text) { return has_only(text, UTF8PROC_CATEGORY_LU, UTF8PROC_CATEGORY_LL); }

bool is_alphabetic(char32_t c) {
  const auto of = category(c);
  return of >= UTF8PROC_CATEGORY_LU && of <= UTF8PROC_CATEGORY_LO;
}

bool is_printable(char32_t c) {
  switch (category(c)) {
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP: return false;
    case UTF8PROC_CATEGORY_ZS: return c == ' ';
    default: return true;
  }
}

Text quoted(const Text& text) {
  const bool has_single = text.bytes.find('\'') != std::string::npos,
             has_double = text.bytes.find('"') != std::string::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  const auto hex = [](std::string& out, char32_t c, int digits) {
    while (digits-- > 0) out += "0123456789abcdef"[c >> (4 * digits) & 15];
  };
  Text result(std::string(1, quote));
  result.append(each_character(text, [&](std::string& out, size_t at) {
    const char32_t c = character_at(text.bytes, at);
    if (c == static_cast<char32_t>(quote) || c == '\\') (out = '\\') += static_cast<char>(c);
    else if (c == '\n') out = "\\n";
    else if (c == '\r') out = "\\r";
    else if (c == '\t') out = "\\t";
    else if (is_printable(c)) append(out, c);
    else if (c < 0x100) hex(out = "\\x", c, 2);
    else if (c < 0x10000) hex(out = "\\u", c, 4);
    else hex(out = "\\U", c, 8);
  }));
  result.append(std::string_view(&quote, 1));
  return result;
}

}  // namespace hybridge::text::jinja
