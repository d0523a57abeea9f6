#include "characters.h"

#include <algorithm>
#include <array>
#include <map>

#include "../error.h"
#include "../pattern.h"
#include "../unicode.h"

namespace hybridge::text {
namespace {

constexpr char32_t LAST = 0x10FFFF, FIRST_SURROGATE = 0xD800, LAST_SURROGATE = 0xDFFF;
constexpr std::string_view SHORT_ESCAPES = "\"\"\\\\\bb\tt\nn\ff\rr";  // characters, each with its letter

bool needs_escape(char32_t character) {
  return character < 0x20 || character == 0x7F || character == '"' || character == '\\';
}

char short_escape(char32_t character) {
  for (size_t i = 0; i < SHORT_ESCAPES.size(); i += 2) {
    if (static_cast<char32_t>(SHORT_ESCAPES[i]) == character) return SHORT_ESCAPES[i + 1];
  }
  return '\0';
}

std::string hexadecimal(char32_t number, size_t digits) {
  std::string text(digits, '0');
  for (size_t i = digits; i > 0; number /= 16) text[--i] = "0123456789abcdef"[number % 16];
  return text;
}

// Makes expressions of characters that have the same number of bytes.
class Utf8 {
 public:
  Utf8(const CharacterSet& set, Expressions& in) : set_(set), in_(in) {}

  // The characters from `first` to `last`, which have `further` bytes after the first one.
  Expression characters(char32_t first, char32_t last, size_t further) {
    const char32_t step = char32_t(1) << 6 * further;
    const uint8_t mark = further == 1 ? 0xC0 : further == 2 ? 0xE0 : 0xF0;
    return split(first, last, first / step * step, step, mark, further - 1);
  }

 private:
  // Bytes from `mark` on, each of which stands for `step` characters from `base` on.
  Expression split(char32_t first, char32_t last, char32_t base, char32_t step, uint8_t mark, size_t further) {
    std::map<Expression, ByteSet> by_rest;
    for (; base <= last; base += step) {
      const auto byte = static_cast<uint8_t>(mark | (base / step & 0x3F));
      const Expression left = rest(
          std::max(base, first), std::min<char32_t>(base + step - 1, last), base, step / 64, further
      );
      if (left != Expressions::NONE) by_rest[left].add(byte, byte);
    }
    std::vector<Expression> choices;
    for (const auto& [left, bytes] : by_rest) choices.push_back(in_.concat(in_.bytes(bytes), left));
    return in_.either(std::move(choices));
  }

  Expression rest(char32_t first, char32_t last, char32_t base, char32_t step, size_t further) {
    if (!set_.has_any(first, last)) return Expressions::NONE;
    const bool is_full = first == base && last == base + step * 64 - 1 && set_.has_all(first, last);
    if (!is_full) return further == 0 ? ends(first, last) : split(first, last, base, step, 0x80, further - 1);
    const Expression all = in_.byte(0x80, 0xBF);
    return in_.repeat(all, static_cast<uint32_t>(further + 1), static_cast<uint32_t>(further + 1));
  }

  // The last bytes of characters that have all others in common.
  Expression ends(char32_t first, char32_t last) {
    ByteSet bytes;
    for (char32_t each = first; each <= last; each++) {
      const auto byte = static_cast<uint8_t>(0x80 | (each & 0x3F));
      if (set_.has_any(each, each)) bytes.add(byte, byte);
    }
    return in_.bytes(bytes);
  }

  const CharacterSet& set_;
  Expressions& in_;
};

Expression escapes(char32_t character, Expressions& in) {
  std::vector<Expression> parts = {in.literal("\\u")};
  for (const char digit : hexadecimal(character, 4)) {
    const auto byte = static_cast<uint8_t>(digit);
    ByteSet either(byte, byte);
    if (digit >= 'a') either.add(byte & 0xDF, byte & 0xDF);  // in upper case
    parts.push_back(in.bytes(either));
  }
  const Expression by_number = character < 0x20 || character == 0x7F ? in.concat(parts) : Expressions::NONE;
  const char letter = short_escape(character);
  return letter == '\0' ? by_number : in.either(by_number, in.literal(std::string{'\\', letter}));
}

}  // namespace

CharacterSet CharacterSet::all() {
  CharacterSet set(0, FIRST_SURROGATE - 1);
  set.add(LAST_SURROGATE + 1, LAST);
  return set;
}

CharacterSet CharacterSet::of_class(const std::string& expression) {
  const Pattern pattern = Pattern::regex(expression + "+");
  CharacterSet found;
  const auto look = [&](char32_t begin, char32_t end) {  // none of them a surrogate
    std::string text;
    for (char32_t each = begin; each < end; each++) append(text, each);
    Work work(text.size());
    for (const Found& part : pattern.parts(text, work)) {
      const std::string_view until = std::string_view(text).substr(0, part.end);
      if (part.match) found.add(character_at(text, part.begin), character_at(text, last_character(until)));
    }
  };
  look(0, FIRST_SURROGATE);
  look(LAST_SURROGATE + 1, 0x40000);
  look(0xE0000, 0xF0000);
  for (char32_t plane = 0x40000; plane <= LAST; plane += 0x10000) {  // all alike, but for the last two
    if (plane == 0xE0000) continue;
    CharacterSet alike;
    std::swap(alike, found);
    look(plane, plane + 1);
    const bool is_in = found.has_any(plane, plane);
    std::swap(alike, found);
    if (is_in) found.add(plane, plane + 0xFFFD);
    look(plane + 0xFFFE, plane + 0x10000);
  }
  return found;
}

void CharacterSet::add(char32_t first, char32_t last) {
  if (first > last) return;
  // Ranges that touch the new one become one with it.
  auto begin = std::ranges::lower_bound(ranges_, first, {}, [](const Range& each) { return each.second + 1; });
  auto end = begin;
  for (; end != ranges_.end() && end->first <= last + 1; end++) {
    first = std::min(first, end->first);
    last = std::max(last, end->second);
  }
  if (begin == end) {
    ranges_.insert(begin, {first, last});
  } else {
    *begin = {first, last};
    ranges_.erase(begin + 1, end);
  }
}

void CharacterSet::add(const CharacterSet& other) {
  for (const auto& [first, last] : other.ranges_) add(first, last);
}

CharacterSet CharacterSet::inverted() const {
  CharacterSet rest;
  char32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) rest.add(next, first - 1);
    next = last + 1;
  }
  rest.add(next, LAST);
  return rest.intersection(all());
}

CharacterSet CharacterSet::intersection(const CharacterSet& other) const {
  CharacterSet common;
  for (const auto& [first, last] : ranges_) {
    for (auto each = other.reaching(first); each != other.ranges_.end() && each->first <= last; each++) {
      common.add(std::max(first, each->first), std::min(last, each->second));
    }
  }
  return common;
}

CharacterSet CharacterSet::without_case() const {
  // Letters by what they have in common with those that differ by their case.
  static const std::vector<std::pair<char32_t, char32_t>> letters = [] {
    std::vector<std::pair<char32_t, char32_t>> all;
    for (char32_t each = 'A'; each < 0x20000; each++) all.emplace_back(without_case_of(each), each);
    std::ranges::sort(all);
    std::vector<std::pair<char32_t, char32_t>> shared;
    for (size_t i = 0; i < all.size(); i++) {
      const bool has_other = (i > 0 && all[i - 1].first == all[i].first) ||
                             (i + 1 < all.size() && all[i + 1].first == all[i].first);
      if (has_other) shared.push_back(all[i]);
    }
    return shared;
  }();
  CharacterSet set = *this;
  for (size_t begin = 0, end = 0; begin < letters.size(); begin = end) {
    bool is_in = false;
    for (; end < letters.size() && letters[end].first == letters[begin].first; end++) {
      is_in = is_in || has_any(letters[end].second, letters[end].second);
    }
    for (size_t i = begin; is_in && i < end; i++) set.add(letters[i].second, letters[i].second);
  }
  return set;
}

std::vector<CharacterSet::Range>::const_iterator CharacterSet::reaching(char32_t first) const {
  return std::ranges::lower_bound(ranges_, first, {}, &Range::second);
}

bool CharacterSet::has_any(char32_t first, char32_t last) const {
  const auto found = reaching(first);
  return found != ranges_.end() && found->first <= last;
}

bool CharacterSet::has_all(char32_t first, char32_t last) const {
  const auto found = reaching(first);
  return found != ranges_.end() && found->first <= first && last <= found->second;
}

bool CharacterSet::is_one_of_ascii() const {
  return ranges_.size() == 1 && ranges_.front().first == ranges_.front().second && ranges_.front().first < 0x80;
}

Expression one_of(const CharacterSet& set, Writing writing, Expressions& in) {
  if (set.is_one_of_ascii()) {  // as most are
    const char32_t character = set.first();
    const auto byte = static_cast<uint8_t>(character);
    return writing == Writing::JSON && needs_escape(character) ? escapes(character, in) : in.byte(byte, byte);
  }
  ByteSet single;
  std::vector<Expression> choices;
  for (char32_t each = 0; each < 0x80; each++) {
    if (!set.has_any(each, each)) continue;
    const auto byte = static_cast<uint8_t>(each);
    if (writing == Writing::PLAIN || !needs_escape(each)) single.add(byte, byte);
    else choices.push_back(escapes(each, in));
  }
  Utf8 longer(set, in);
  choices.push_back(in.bytes(single));
  choices.push_back(longer.characters(0x80, 0x7FF, 1));
  choices.push_back(longer.characters(0x800, 0xFFFF, 2));
  choices.push_back(longer.characters(0x10000, LAST, 3));
  return in.either(std::move(choices));
}

std::string escaped(std::string_view text) {
  std::string all;
  for (const char each : text) {
    const auto character = static_cast<char32_t>(static_cast<uint8_t>(each));
    const char letter = short_escape(character);
    if (!needs_escape(character)) all += each;
    else if (letter != '\0') all += {'\\', letter};
    else all += "\\u" + hexadecimal(character, 4);
  }
  return all;
}

Expression spellings(std::string_view text, Expressions& in) {
  Expression all = Expressions::EMPTY;
  for (size_t end = text.size(); end > 0;) {
    const size_t begin = last_character(text.substr(0, end));
    const char32_t character = character_at(text, begin);
    all = in.concat(one_of(CharacterSet(character, character), Writing::JSON, in), all);
    end = begin;
  }
  return all;
}

}  // namespace hybridge::text
