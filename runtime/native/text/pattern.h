// Regular expressions as the tokenizers library reads them (Oniguruma's Ruby syntax, or Rust's), over PCRE2.
#ifndef HYBRIDGE_NATIVE_TEXT_PATTERN_H
#define HYBRIDGE_NATIVE_TEXT_PATTERN_H

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "work.h"

namespace hybridge::text {

// A part of a text, in bytes, and whether the pattern matches it.
struct Found {
  size_t begin, end;
  bool match;
};

// What Rust's regular expressions know as \w, inside brackets; Oniguruma's has ², ³, ¹, ¼, ½ and ¾ besides, and no
// joiners.
inline constexpr char RUST_WORD[] = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200c}\x{200d})";

class Pattern {
 public:
  // Throws TextError for an expression that is damaged, or that PCRE2 would read in another way.
  static Pattern regex(std::string_view expression);
  static Pattern literal(std::string_view text);

  // The parts of a text, those between matches included, one after the other. Throws TextError if the work that is left
  // is not enough to match.
  std::vector<Found> parts(std::string_view text, Work& work) const;

  // Whether a text matches as a whole.
  bool matches(std::string_view text) const;

 private:
  Pattern() = default;
  Pattern(const std::string& translated, std::string_view original);

  std::shared_ptr<void> code_;
  std::string literal_;  // what a literal looks for; its code is null
};

}  // namespace hybridge::text

#endif
