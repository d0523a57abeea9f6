// Sets of characters, and the expressions of their bytes in UTF-8, in a text or inside the quotation marks of JSON.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_CHARACTERS_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_CHARACTERS_H

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "expression.h"

namespace hybridge::text {

class CharacterSet {
 public:
  CharacterSet() = default;
  CharacterSet(char32_t first, char32_t last) { add(first, last); }

  // All characters: surrogates are none.
  static CharacterSet all();

  // The characters that a class matches by PCRE2, such as [\p{Greek}]. Throws TextError for an unknown one.
  static CharacterSet of_class(const std::string& expression);

  void add(char32_t first, char32_t last);
  void add(const CharacterSet& other);
  CharacterSet inverted() const;
  CharacterSet intersection(const CharacterSet& other) const;

  // With all characters that differ from one of these by their case.
  CharacterSet without_case() const;

  bool is_one_of_ascii() const;
  char32_t first() const { return ranges_.front().first; }
  auto operator<=>(const CharacterSet&) const = default;

  bool has_any(char32_t first, char32_t last) const;
  bool has_all(char32_t first, char32_t last) const;

 private:
  using Range = std::pair<char32_t, char32_t>;
  std::vector<Range>::const_iterator reaching(char32_t first) const;
  std::vector<Range> ranges_;  // in order, with something between each two
};

// How a text is written: as it is, or in JSON, with those escapes alone that a character needs.
enum class Writing { PLAIN, JSON };

// One of these characters.
Expression one_of(const CharacterSet& set, Writing writing, Expressions& in);

// A text as JSON writes it between quotation marks, with the shortest escapes.
std::string escaped(std::string_view text);

// All ways in which JSON writes a text here between quotation marks.
Expression spellings(std::string_view text, Expressions& in);

}  // namespace hybridge::text

#endif
