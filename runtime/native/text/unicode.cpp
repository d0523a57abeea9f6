#include "unicode.h"

#include <algorithm>
#include <array>

#include "../third_party/utf8proc/utf8proc.h"
#include "younger.h"

namespace hybridge::text {
namespace {

utf8proc_category_t category(char32_t character) { return utf8proc_category(static_cast<utf8proc_int32_t>(character)); }

int combining_class(char32_t character) {
  if (character < 0x300) return 0;
  const int found = utf8proc_get_property(static_cast<utf8proc_int32_t>(character))->combining_class;
  return found != 0 && is_in(YOUNGER_FORMS, character) ? 0 : found;
}

// How many of the bytes at `place` are the beginning of a valid character, and whether they are all of it.
std::pair<size_t, bool> valid_part(std::string_view bytes, size_t place) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[place + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return {1, true};
  if (first < 0xC2 || first > 0xF4) return {1, false};
  const size_t length = length_of(bytes[place]);
  for (size_t i = 1; i < length; i++) {
    const uint8_t lowest = i > 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t highest = i > 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (place + i >= bytes.size() || byte(i) < lowest || byte(i) > highest) return {i, false};
  }
  return {length, true};
}

// The one character that two make, or 0.
char32_t composed(char32_t first, char32_t second) {
  utf8proc_int32_t both[] = {static_cast<utf8proc_int32_t>(first), static_cast<utf8proc_int32_t>(second)};
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE);
  return utf8proc_normalize_utf32(both, 2, options) == 1 ? static_cast<char32_t>(both[0]) : 0;
}

std::vector<Change> decomposed(std::string_view text, bool compatibility) {
  const auto options = static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | (compatibility ? UTF8PROC_COMPAT : 0));
  std::vector<Change> all;
  std::array<utf8proc_int32_t, 32> parts;
  size_t starter = 0;  // after it, marks are put into the order of their classes
  const auto order = [&] {
    std::stable_sort(all.begin() + starter, all.end(), [](const Change& left, const Change& right) {
      return combining_class(left.first) < combining_class(right.first);
    });
    starter = all.size();
  };
  for (size_t place = 0; place < text.size(); place += length_of(text[place])) {
    int boundary = 0;
    const auto character = static_cast<utf8proc_int32_t>(character_at(text, place));
    auto count = utf8proc_decompose_char(character, parts.data(), parts.size(), options, &boundary);
    if ((count != 1 || parts[0] != character) && is_in(YOUNGER_FORMS, static_cast<char32_t>(character)))
      parts[0] = character, count = 1;
    for (ptrdiff_t i = 0; i < count; i++) {
      const auto part = static_cast<char32_t>(parts[i]);
      if (combining_class(part) == 0) order();
      all.emplace_back(part, i > 0);
      if (combining_class(part) == 0) starter = all.size();
    }
  }
  order();
  return all;
}

// Puts composed characters in the place of decomposed ones (Unicode Standard Annex 15).
std::vector<Change> recomposed(const std::vector<Change>& parts) {
  std::vector<Change> all;
  ptrdiff_t starter = -1;
  int last_class = -1;  // of what lies between the starter and here; -1: nothing
  for (const auto& [character, change] : parts) {
    const int own_class = combining_class(character);
    if (starter >= 0 && last_class < own_class && character >= 0x300) {  // below it nothing composes
      if (const char32_t both = composed(all[starter].first, character)) {
        all[starter] = {both, all[starter].second + change - 1};
        continue;
      }
    }
    if (own_class == 0) {
      starter = static_cast<ptrdiff_t>(all.size());
      last_class = -1;
    } else {
      last_class = own_class;
    }
    all.emplace_back(character, change);
  }
  return all;
}

}  // namespace

void append(std::string& text, char32_t character) {
  std::array<utf8proc_uint8_t, 4> bytes;
  const auto count = utf8proc_encode_char(static_cast<utf8proc_int32_t>(character), bytes.data());
  text.append(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(count));
}

std::string to_utf8(char32_t character) {
  std::string text;
  append(text, character);
  return text;
}

std::u32string to_utf32(std::string_view text) {
  std::u32string characters;
  for (size_t place = 0; place < text.size(); place += length_of(text[place])) characters += character_at(text, place);
  return characters;
}

size_t count_characters(std::string_view text) {
  return static_cast<size_t>(std::ranges::count_if(text, [](char byte) { return (byte & 0xC0) != 0x80; }));
}

bool is_valid_utf8(std::string_view bytes) {
  for (size_t place = 0; place < bytes.size();) {
    const auto [length, whole] = valid_part(bytes, place);
    if (!whole) return false;
    place += length;
  }
  return true;
}

std::string valid_utf8(std::string_view bytes, std::vector<size_t>* places) {
  std::string text;
  for (size_t place = 0; place < bytes.size();) {
    const auto [length, whole] = valid_part(bytes, place);
    if (places != nullptr) places->insert(places->end(), length, text.size());
    text += whole ? bytes.substr(place, length) : "\xEF\xBF\xBD";
    place += length;
  }
  if (places != nullptr) places->push_back(text.size());
  return text;
}

bool is_whitespace(char32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

bool is_python_space(char32_t c) { return is_whitespace(c) || (0x1C <= c && c <= 0x1F); }

bool is_numeric(char32_t character) {
  const auto of = category(character);
  return of == UTF8PROC_CATEGORY_ND || of == UTF8PROC_CATEGORY_NL || of == UTF8PROC_CATEGORY_NO;
}

bool is_punctuation(char32_t c) {
  if (c < 0x80)
    return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
  const auto of = category(c);
  return (of >= UTF8PROC_CATEGORY_PC && of <= UTF8PROC_CATEGORY_PO) != is_in(OTHER_PUNCTUATION, c);
}

bool is_mark(char32_t character) {
  const auto of = category(character);
  return (of >= UTF8PROC_CATEGORY_MN && of <= UTF8PROC_CATEGORY_ME) != is_in(OTHER_MARKS, character);
}

bool is_nonspacing_mark(char32_t character) {
  return (category(character) == UTF8PROC_CATEGORY_MN) != is_in(OTHER_NONSPACING_MARKS, character);
}

bool is_other(char32_t character) {
  const auto of = category(character);
  const bool other = of == UTF8PROC_CATEGORY_CC || of == UTF8PROC_CATEGORY_CF || of == UTF8PROC_CATEGORY_CO ||
                     of == UTF8PROC_CATEGORY_CS;
  return other != is_in(OTHER_CONTROLS, character);
}

std::u32string to_lower(char32_t character) {
  if (character == 0x130) return U"i\u0307";  // the one that has two
  return {static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(character)))};
}

char32_t without_case_of(char32_t character) {
  if (character == 0x130 || character == 0x131) return character;  // those of Turkish
  const auto upper = utf8proc_toupper(static_cast<utf8proc_int32_t>(character));
  return static_cast<char32_t>(utf8proc_tolower(upper));
}

size_t grapheme_length(std::string_view text, size_t place) {
  utf8proc_int32_t state = 0;
  size_t end = place + length_of(text[place]);
  auto last = static_cast<utf8proc_int32_t>(character_at(text, place));
  while (end < text.size()) {
    const auto next = static_cast<utf8proc_int32_t>(character_at(text, end));
    if (utf8proc_grapheme_break_stateful(last, next, &state)) break;
    last = next;
    end += length_of(text[end]);
  }
  return end - place;
}

std::vector<Change> normalize(std::string_view text, NormalForm form) {
  const bool compatibility = form == NormalForm::NFKC || form == NormalForm::NFKD;
  auto parts = decomposed(text, compatibility);
  return form == NormalForm::NFD || form == NormalForm::NFKD ? parts : recomposed(parts);
}

}  // namespace hybridge::text
