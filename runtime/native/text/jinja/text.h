// A text that knows which of its parts people wrote.
#ifndef HYBRIDGE_NATIVE_TEXT_JINJA_TEXT_H
#define HYBRIDGE_NATIVE_TEXT_JINJA_TEXT_H

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace hybridge::text::jinja {

// Bytes from `begin` to before `end`.
struct Span {
  size_t begin, end;
};

// Valid UTF-8. input: its parts that come from the caller's variables, in order and apart. is_markup: the filter `safe`
// made it, so
// `+` escapes what is joined to it, as markupsafe does.
struct Text {
  std::string bytes = {};
  std::vector<Span> input = {};
  bool is_markup = false;

  size_t size() const { return bytes.size(); }
  void append(std::string_view more) { bytes += more; }
  void append(const Text& more) { append(more, 0, more.size()); }
  // Appends the bytes from `begin` to before `end` of another text.
  void append(const Text& other, size_t begin, size_t end);
  // Appends bytes of which all come from people if `is_input`.
  void append(std::string_view more, bool is_input);
  Text part(size_t begin, size_t end) const;
  bool has_input() const { return !input.empty(); }
};

// Where the next line of str.splitlines begins after `begin`; `end` is set to where this one ends.
size_t next_line(std::string_view text, size_t begin, size_t& end);

Text stripped(const Text& text, bool left, bool right, const std::string* characters = nullptr);
Text replaced(const Text& text, std::string_view old, const Text& with, int64_t most);
Text upper(const Text& text);
Text lower(const Text& text);
Text capitalized(const Text& text);
Text titled(const Text& text);            // str.title
Text titled_by_filter(const Text& text);  // the filter `title`
Text escaped(const Text& text);           // for HTML

bool is_lower(std::string_view text);
bool is_upper(std::string_view text);
bool is_alphabetic(char32_t character);
bool is_printable(char32_t character);

// The text as Python's repr writes it.
Text quoted(const Text& text);

}  // namespace hybridge::text::jinja

#endif
