// UTF-8, and what Unicode says of a character; over utf8proc.
#ifndef HYBRIDGE_NATIVE_TEXT_UNICODE_H
#define HYBRIDGE_NATIVE_TEXT_UNICODE_H

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hybridge::text {

// How many bytes the character that begins with this byte has. The text must be valid.
inline size_t length_of(char first) {
  const auto byte = static_cast<uint8_t>(first);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character at a place of a valid text.
inline char32_t character_at(std::string_view text, size_t place) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[place + i]); };
  switch (length_of(text[place])) {
    case 1: return byte(0);
    case 2: return (byte(0) & 0x1Fu) << 6 | (byte(1) & 0x3Fu);
    case 3: return (byte(0) & 0x0Fu) << 12 | (byte(1) & 0x3Fu) << 6 | (byte(2) & 0x3Fu);
    default: return (byte(0) & 0x07u) << 18 | (byte(1) & 0x3Fu) << 12 | (byte(2) & 0x3Fu) << 6 | (byte(3) & 0x3Fu);
  }
}

// Where the last character of a valid text that is not empty begins.
inline size_t last_character(std::string_view text) {
  size_t at = text.size() - 1;
  while (at > 0 && (static_cast<uint8_t>(text[at]) & 0xC0) == 0x80) --at;
  return at;
}

void append(std::string& text, char32_t character);
std::string to_utf8(char32_t character);
std::u32string to_utf32(std::string_view text);
size_t count_characters(std::string_view text);

// The text with U+FFFD for each longest part of a character that never ends, as Rust and browsers read it. places:
// takes where each byte went, and where the text ends.
std::string valid_utf8(std::string_view bytes, std::vector<size_t>* places = nullptr);
bool is_valid_utf8(std::string_view bytes);

bool is_whitespace(char32_t character);    // the property White_Space
bool is_python_space(char32_t character);  // what Python's strip, and so Jinja's trim, takes off
bool is_numeric(char32_t character);       // Nd, Nl or No
bool is_punctuation(char32_t character);   // P*, or punctuation of ASCII
bool is_mark(char32_t character);          // M*
bool is_nonspacing_mark(char32_t character);
bool is_other(char32_t character);  // C* but for what is not assigned
std::u32string to_lower(char32_t character);
char32_t without_case_of(
    char32_t character
);  // the same for all that differ by their case alone, as simple case folding has it

// The length in bytes of the grapheme cluster at a place of a valid text.
size_t grapheme_length(std::string_view text, size_t place);

enum class NormalForm { NFC, NFD, NFKC, NFKD };

// A character of a transformed text, and how it came about: 0 stands for one of before, 1 was added after the last, -n
// stands for one and the n after it.
using Change = std::pair<char32_t, int>;

std::vector<Change> normalize(std::string_view text, NormalForm form);

}  // namespace hybridge::text

#endif
