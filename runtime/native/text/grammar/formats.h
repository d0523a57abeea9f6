// Formats of strings in a JSON schema, as regular expressions.
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_FORMATS_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_FORMATS_H

#include <optional>
#include <string>
#include <string_view>

namespace hybridge::text {

// Returns the expression of times with a leap second: it is the last one of a day of UTC. Offsets are whole quarters of
// an hour.
inline std::string leap_seconds() {
  const auto two = [](int number) {
    return std::string{static_cast<char>('0' + number / 10), static_cast<char>('0' + number % 10)};
  };
  std::string all = "23:59:60(\\.[0-9]+)?[zZ]";
  for (int minutes = 0; minutes < 24 * 60; minutes += 15) {
    for (const int sign : {1, -1}) {
      const int local = (24 * 60 + 23 * 60 + 59 + sign * minutes) % (24 * 60);
      all += "|" + two(local / 60) + ":" + two(local % 60) + ":60(\\.[0-9]+)?" + (sign > 0 ? "\\+" : "-") +
             two(minutes / 60) + ":" + two(minutes % 60);
    }
  }
  return all;
}

// Returns the expression that all of a string of this format matches; none for an unknown format.
inline std::optional<std::string> format_expression(std::string_view name) {
  const std::string leap_year = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)";
  const std::string day =
      "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|" +
      leap_year + "-02-29)";
  const std::string minute = "([01][0-9]|2[0-3]):[0-5][0-9]", fraction = "(\\.[0-9]+)?";
  const auto time = [&] {  // RFC 3339
    return "(" + minute + ":[0-5][0-9]" + fraction + "([zZ]|[+-]" + minute + ")|" + leap_seconds() + ")";
  };
  const std::string label = "[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?";
  const std::string short_label = "[a-zA-Z0-9]([a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?";
  const std::string byte = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  const std::string ipv4 = "((" + byte + "\\.){3}" + byte + ")";
  const std::string hex = "[0-9a-fA-F]";
  if (name == "date") return day;
  if (name == "time") return time();
  if (name == "date-time") return day + "[tT]" + time();
  if (name == "duration") {  // appendix A of RFC 3339
    const std::string clock = "(T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S))";
    return "P(([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)" + clock + "?|" + clock + "|[0-9]+W)";
  }
  if (name == "email") {  // the mailbox of RFC 5321, without quoted names
    const std::string atom = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+";
    return atom + "(\\." + atom + ")*@(" + label + "(\\." + label + ")*|\\[" + ipv4 + "\\])";
  }
  if (name == "hostname") return short_label + "(\\." + short_label + ")*";
  if (name == "ipv4") return ipv4;
  if (name == "ipv6") {  // RFC 3986, without an IPv4 address at the end; which may leave out a single zero
    const std::string group = hex + "{1,4}";
    std::string all = "(" + group + ":){7}" + group;
    for (int before = 0; before <= 7; before++) {
      const std::string left = before == 0 ? ""
                                           : "((" + group + ":){0," + std::to_string(before - 1) + "}" + group + ")?";
      all += "|" + left + "::";
      if (before < 7) all += "(" + group + ":){0," + std::to_string(6 - before) + "}" + group;
    }
    return all;
  }
  if (name == "json-pointer" || name == "relative-json-pointer") {  // RFC 6901
    const std::string pointer = "(/([^/~]|~[01])*)*";
    return name == "json-pointer" ? pointer : "(0|[1-9][0-9]*)(#|" + pointer + ")";
  }
  if (name == "uuid") return hex + "{8}-(" + hex + "{4}-){3}" + hex + "{12}";
  if (name == "uri") {  // RFC 3986
    const std::string escape = "%" + hex + "{2}", letters = "-a-zA-Z0-9._~!$&'()*+,;=";
    const std::string part = "([" + letters + ":@]|" + escape + ")", name_part = "([" + letters + "]|" + escape + ")*";
    const std::string path = "(/" + part + "*)*";
    const std::string group = hex + "{1,4}";
    const std::string address = "\\[(" + *format_expression("ipv6") + "|v" + hex + "+\\.[" + letters + ":]+)\\]";
    const std::string authority = "(([" + letters + ":]|" + escape + ")*@)?(" + address + "|" + name_part +
                                  ")(:[0-9]*)?";
    const std::string query = "(" + part + "|[/?])*";
    return "[a-zA-Z][a-zA-Z0-9+.-]*:(//" + authority + path + "|/(" + part + "+" + path + ")?|" + part + "+" + path +
           ")?(\\?" + query + ")?(#" + query + ")?";
  }
  return std::nullopt;
}

}  // namespace hybridge::text

#endif
