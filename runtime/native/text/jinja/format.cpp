#include <cmath>
#include <cstdio>

#include "operators.h"

#include "../unicode.h"

namespace hybridge::text::jinja {

namespace {

struct Conversion {
  bool is_left = false, has_zeros = false, has_sign = false, has_space = false;
  size_t width = 0;
  int precision = -1;
  char letter = 's';
};

// What snprintf writes of a number, with a point whatever the locale.
std::string float_digits(const Conversion& how, double value) {
  std::string format = std::string("%.*") + how.letter;
  std::string text(400, '\0');
  const int precision = std::min(how.precision < 0 ? 6 : how.precision, 60);
  text.resize(static_cast<size_t>(std::snprintf(text.data(), text.size(), format.c_str(), precision, value)));
  for (char& c : text) c = c == ',' ? '.' : c;
  return text;
}

Text converted(Budget& budget, const Conversion& how, const Value& value) {
  if (how.letter == 's' || how.letter == 'r') {
    Text text;
    if (how.letter == 's') text = to_text(budget, value);
    else write_repr(budget, value, text);
    if (how.precision < 0) return text;
    size_t end = 0;
    for (int left = how.precision; left > 0 && end < text.size(); --left) end += length_of(text.bytes[end]);
    return text.part(0, end);
  }
  if (!value.is_number())
    throw TextError(std::string("%") + how.letter + " format: a real number is required, not " + value.type());
  std::string digits;
  switch (how.letter) {
    case 'd':
    case 'i':
    case 'u':
      if (std::abs(value.number()) > 9e18) throw TextError("the chat template computes a number beyond 64 bits");
      digits = std::to_string(value.is(Kind::FLOAT) ? static_cast<int64_t>(value.number()) : value.integer());
      break;
    case 'x':
    case 'X':
    case 'o': {
      if (!value.is_integer()) throw TextError("%x format: an integer is required");
      char text[40];
      const auto size = static_cast<unsigned long long>(value.integer() < 0 ? -value.integer() : value.integer());
      std::snprintf(text, sizeof text, how.letter == 'x' ? "%llx" : how.letter == 'X' ? "%llX" : "%llo", size);
      digits = (value.integer() < 0 ? "-" : "") + std::string(text);
      break;
    }
    default: digits = float_digits(how, value.number());
  }
  if (digits[0] != '-') digits.insert(0, how.has_sign ? "+" : how.has_space ? " " : "");
  if (how.has_zeros && !how.is_left && digits.size() < how.width) {
    digits.insert(digits[0] == '-' || digits[0] == '+' || digits[0] == ' ' ? 1 : 0, how.width - digits.size(), '0');
  }
  return {digits};
}

size_t read_count(Budget& budget, std::string_view format, size_t& at) {
  size_t count = 0;
  while (at < format.size() && format[at] >= '0' && format[at] <= '9') {
    count = count * 10 + static_cast<size_t>(format[at++] - '0');
    if (count > 1'000'000) throw TextError("the chat template asks for too wide a field");
  }
  budget.spend(count / 16);
  return count;
}

}  // namespace

Text percent_format(Budget& budget, const Text& format, const Value& values) {
  Text out;
  out.is_markup = format.is_markup;
  const bool are_several = values.is(Kind::TUPLE);
  size_t used = 0;
  const auto next = [&]() -> const Value& {
    const size_t given = are_several ? values.sequence().items.size() : 1;
    if (used == given) throw TextError("not enough arguments for format string");
    return are_several ? values.sequence().items[used++] : (++used, values);
  };
  const std::string_view text = format.bytes;
  for (size_t at = 0; at < text.size();) {
    const size_t sign = std::min(text.find('%', at), text.size());
    out.append(format, at, sign);
    if (sign == text.size()) break;
    at = sign + 1;
    Conversion how;
    std::string key;
    bool has_key = false;
    if (at < text.size() && text[at] == '(') {
      const size_t end = text.find(')', at);
      if (end == std::string_view::npos) throw TextError("incomplete format key");
      key = text.substr(at + 1, end - at - 1);
      has_key = true;
      at = end + 1;
    }
    for (; at < text.size(); ++at) {
      if (text[at] == '-') how.is_left = true;
      else if (text[at] == '0') how.has_zeros = true;
      else if (text[at] == '+') how.has_sign = true;
      else if (text[at] == ' ') how.has_space = true;
      else break;
    }
    how.width = read_count(budget, text, at);
    if (at < text.size() && text[at] == '.') how.precision = static_cast<int>(read_count(budget, text, ++at));
    if (at == text.size()) throw TextError("incomplete format");
    how.letter = text[at++];
    if (how.letter == '%') {
      out.append("%");
      continue;
    }
    if (std::string_view("sdiufFeEgGxXor").find(how.letter) == std::string_view::npos) {
      throw TextError(std::string("unsupported format character '") + how.letter + "'");
    }
    Value keyed;
    if (has_key) {
      if (!values.is_dict()) throw TextError("format requires a mapping");
      const Value* found = values.dict().find(key);
      if (found == nullptr) throw TextError("'" + key + "'");
      keyed = *found;
      used = 1;
    }
    const Text piece = converted(budget, how, has_key ? keyed : next());
    const size_t length = count_characters(piece.bytes), padding = how.width > length ? how.width - length : 0;
    if (!how.is_left) out.append(std::string(padding, ' '));
    out.append(piece);
    if (how.is_left) out.append(std::string(padding, ' '));
    budget.spend(1 + piece.size() / 16);
  }
  if (are_several ? used < values.sequence().items.size() : used == 0 && !values.is_dict() && !values.is(Kind::LIST)) {
    throw TextError("not all arguments converted during string formatting");
  }
  return out;
}

Text brace_format(Budget& budget, const Text& format, const Arguments& given) {
  Text out;
  const std::string_view text = format.bytes;
  size_t automatic = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", at), text.size());
    out.append(format, at, brace);
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      out.append(format, brace, brace + 1);
      at = brace + 2;
      continue;
    }
    const size_t end = text.find('}', brace);
    if (text[brace] == '}' || end == std::string_view::npos)
      throw TextError("Single '{' or '}' encountered in format string");
    const std::string field(text.substr(brace + 1, end - brace - 1));
    if (field.find_first_of(":!.[{") != std::string::npos)
      throw TextError("str.format is supported with plain fields, not with '{" + field + "}'");
    const Value* value = nullptr;
    const bool is_number = !field.empty() && field.size() < 6 &&
                           field.find_first_not_of("0123456789") == std::string::npos;
    if (field.empty() || is_number) {
      const size_t index = field.empty() ? automatic++ : std::stoul(field);
      if (index < given.positional.size()) value = &given.positional[index];
    } else {
      for (const auto& [name, each] : given.named) value = name == field ? &each : value;
    }
    if (value == nullptr) throw TextError("Replacement index or name '" + field + "' was not given");
    out.append(to_text(budget, *value));
    budget.spend(1 + out.size() / 1024);
    at = end + 1;
  }
  return out;
}

std::string format_time(std::string_view format, const std::tm& time) {
  static constexpr const char* DAYS[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
  static constexpr const char* MONTHS[] = {"January", "February", "March",     "April",   "May",      "June",
                                           "July",    "August",   "September", "October", "November", "December"};
  std::string out;
  for (size_t at = 0; at < format.size(); ++at) {
    if (format[at] != '%' || at + 1 == format.size()) {
      out += format[at];
      continue;
    }
    char c = format[++at];
    const bool is_bare = c == '-' && at + 1 < format.size();
    if (is_bare) c = format[++at];
    const auto number = [&](int value, size_t digits, char filler = '0') {
      const std::string text = std::to_string(value);
      if (!is_bare && text.size() < digits) out.append(digits - text.size(), filler);
      out += text;
    };
    const int hour = time.tm_hour % 12 == 0 ? 12 : time.tm_hour % 12;
    const char* const day = DAYS[time.tm_wday % 7];
    const char* const month = MONTHS[time.tm_mon % 12];
    switch (c) {
      case 'a': out.append(day, 3); break;
      case 'A': out += day; break;
      case 'b':
      case 'h': out.append(month, 3); break;
      case 'B': out += month; break;
      case 'd': number(time.tm_mday, 2); break;
      case 'e': number(time.tm_mday, 2, ' '); break;
      case 'm': number(time.tm_mon + 1, 2); break;
      case 'y': number((time.tm_year + 1900) % 100, 2); break;
      case 'Y': number(time.tm_year + 1900, 1); break;
      case 'H': number(time.tm_hour, 2); break;
      case 'I': number(hour, 2); break;
      case 'k': number(time.tm_hour, 2, ' '); break;
      case 'l': number(hour, 2, ' '); break;
      case 'M': number(time.tm_min, 2); break;
      case 'S': number(time.tm_sec, 2); break;
      case 'j': number(time.tm_yday + 1, 3); break;
      case 'w': number(time.tm_wday, 1); break;
      case 'u': number(time.tm_wday == 0 ? 7 : time.tm_wday, 1); break;
      case 'U': number((time.tm_yday + 7 - time.tm_wday) / 7, 2); break;
      case 'W': number((time.tm_yday + 7 - (time.tm_wday + 6) % 7) / 7, 2); break;
      case 'p': out += time.tm_hour < 12 ? "AM" : "PM"; break;
      case 'F': out += format_time("%Y-%m-%d", time); break;
      case 'T':
      case 'X': out += format_time("%H:%M:%S", time); break;
      case 'D':
      case 'x': out += format_time("%m/%d/%y", time); break;
      case 'R': out += format_time("%H:%M", time); break;
      case 'c': out += format_time("%a %b %e %H:%M:%S %Y", time); break;
      case 'n': out += '\n'; break;
      case 't': out += '\t'; break;
      case 'Z':
      case 'z': break;  // a local time has none
      case '%': out += '%'; break;
      default: throw TextError(std::string("strftime_now does not support %") + c);
    }
  }
  return out;
}

}  // namespace hybridge::text::jinja
