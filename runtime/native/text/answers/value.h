// Values as models write them in calls of tools, read into JSON text.
#ifndef HYBRIDGE_NATIVE_TEXT_ANSWERS_VALUE_H
#define HYBRIDGE_NATIVE_TEXT_ANSWERS_VALUE_H

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hybridge::text {

// JSON is strict. PYTHON is the syntax of Python's literals, and JSON's constants. GEMMA is JSON with keys that have no
// quotes and strings between <|"|> marks.
enum class Notation : uint8_t { JSON, PYTHON, GEMMA };

inline constexpr std::string_view GEMMA_QUOTE = "<|\"|>";

// What is written between the brackets of an object or a call: names and values, the values as JSON. A name comes once.
class Members {
 public:
  void set(std::string name, std::string json);
  const std::string* find(std::string_view name) const;
  bool empty() const { return entries_.empty(); }
  size_t size() const { return entries_.size(); }
  const std::vector<std::pair<std::string, std::string>>& entries() const { return entries_; }
  std::string json() const;

 private:
  std::vector<std::pair<std::string, std::string>> entries_;
  std::unordered_map<std::string, size_t> places_;
};

// Reads a text from its beginning. Functions throw TextError if the text is not in the notation, or is nested too
// deeply.
class ValueReader {
 public:
  ValueReader(std::string_view text, Notation notation) : text_(text), notation_(notation) {}

  size_t at() const { return at_; }
  std::string_view rest() const { return text_.substr(at_); }
  void skip_space();
  bool ended();                       // nothing but white space is left
  bool take(std::string_view token);  // after white space
  void expect(std::string_view token);

  std::string value();                     // the next value as JSON
  Members object();                        // the next value, which is an object
  Members arguments();                     // name=value, …, up to and with the closing parenthesis
  std::string identifier(bool is_dotted);  // a name in Python's syntax

 private:
  std::string key();
  std::string list(char close);
  std::string list_from(std::string first, char close);
  std::string braces();
  Members members_from(std::string first_key);
  std::string number();
  std::string json_string();
  std::string python_string();
  std::string gemma_string();
  void escape(std::string& into, bool is_json);
  uint32_t hexadecimal(size_t digits);
  [[noreturn]] void fail(const char* expected) const;

  std::string_view text_;
  Notation notation_;
  size_t at_ = 0, depth_ = 0;
};

// Returns the text as a JSON string.
std::string to_json(std::string_view text);

// Returns the text's value as JSON if all of it is one.
std::optional<std::string> whole_value(std::string_view text, Notation notation);

// Returns the text of a JSON string; none for other JSON.
std::optional<std::string> string_of(std::string_view json);

}  // namespace hybridge::text

#endif
