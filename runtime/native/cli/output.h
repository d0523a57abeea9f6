// What commands print: rows of names and values, and JSON.
#ifndef HYBRIDGE_NATIVE_CLI_OUTPUT_H
#define HYBRIDGE_NATIVE_CLI_OUTPUT_H

#include <cstdarg>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"

namespace hybridge::cli {

#if defined(__GNUC__)
__attribute__((format(printf, 1, 2)))
#endif
inline std::string formatted(const char* format, ...) {
  char text[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(text, sizeof text, format, values);
  va_end(values);
  return text;
}

inline std::string megabytes(double size) { return formatted("%.2f MB", size / 1e6); }

// Writes text to stdout at once.
inline void write_out(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

struct Row {
  std::string name, value;
};

inline void print_rows(std::FILE* to, const std::vector<Row>& rows) {
  for (const auto& [name, value] : rows)
    std::fprintf(to, "%-22s %s\n", printable(name).c_str(), printable(value).c_str());
}

// Returns a text as JSON.
inline std::string quoted(std::string_view text) {
  std::string made = "\"";
  for (const char each : text) {
    if (each == '"' || each == '\\') {
      made += {'\\', each};
    } else if (static_cast<unsigned char>(each) < 0x20) {
      made += formatted("\\u%04x", each);
    } else {
      made += each;
    }
  }
  return made + "\"";
}

// A JSON object, written as it grows.
class JsonObject {
 public:
  void add(std::string_view name, std::string_view text) { put(name, quoted(text)); }
  void add(std::string_view name, const char* text) { put(name, quoted(text)); }
  void add(std::string_view name, size_t number) { put(name, std::to_string(number)); }
  void add(std::string_view name, double number) { put(name, formatted("%.9g", number)); }
  void add(std::string_view name, bool truth) { put(name, truth ? "true" : "false"); }

  // value: JSON.
  void put(std::string_view name, const std::string& value) {
    entries_ += (entries_.empty() ? "\n  " : ",\n  ") + quoted(name) + ": " + value;
  }

  std::string text() const { return "{" + entries_ + "\n}\n"; }

 private:
  std::string entries_;
};

}  // namespace hybridge::cli

#endif
