// A text while it is changed, with where each of its bytes came from.
#ifndef HYBRIDGE_NATIVE_TEXT_NORMALIZED_TEXT_H
#define HYBRIDGE_NATIVE_TEXT_NORMALIZED_TEXT_H

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "pattern.h"
#include "unicode.h"

namespace hybridge::text {

// A part of the original text, in bytes.
struct Span {
  uint32_t begin, end;
};

// What becomes of the parts that a pattern splits a text at.
enum class Delimiter { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

class NormalizedText {
 public:
  // A part of an original text that begins at `start` there. work: of the call, which outlives this.
  NormalizedText(std::string_view original, Work& work, uint32_t start = 0);

  const std::string& text() const { return text_; }
  uint32_t start() const { return start_; }
  Work& work() const { return *work_; }

  // Where in the original text a part of this one came from, whose end is not before its beginning and inside the text.
  Span original(size_t begin, size_t end) const;

  // Throws TextError for a size in bytes that no published file makes of the text.
  void check_growth(size_t size) const;

  NormalizedText slice(size_t begin, size_t end) const;

  // Replaces the characters; `skipped` of those of before, at the beginning, are left out.
  void transform(const std::vector<Change>& changes, size_t skipped = 0);
  void filter(const std::function<bool(char32_t)>& keep);
  void map(const std::function<char32_t(char32_t)>& change);
  void lower();
  void prepend(std::string_view text);
  void strip(bool left, bool right);
  void replace(const Pattern& pattern, std::string_view content);

  // The parts of the text that match and those between them.
  std::vector<Found> parts(const Pattern& pattern) const { return pattern.parts(text_, *work_); }

  // The parts that are left of it; `inverted`: what does not match is the delimiter.
  void split(
      const std::vector<Found>& parts, Delimiter behavior, bool inverted, std::vector<NormalizedText>& into
  ) const;

 private:
  explicit NormalizedText(Work* work) : work_(work) {}

  Work* work_;
  std::string text_;
  std::vector<Span> spans_;  // of each byte
  uint32_t start_ = 0;
  size_t most_ = 0;  // bytes that it may grow to
};

// The parts of a text, each character of which `is` there alone, or what lies between.
std::vector<Found> parts_where(std::string_view text, const std::function<bool(char32_t)>& is);

}  // namespace hybridge::text

#endif
