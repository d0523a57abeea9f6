#include "arguments.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "failure.h"

namespace hybridge::cli {

namespace {

constexpr size_t HELP_COLUMN = 30, WIDTH = 100;

// Appends words to a text whose last line has `column` characters, broken so that lines begin at HELP_COLUMN.
void append_wrapped(std::string& text, std::string_view words, size_t column) {
  while (!words.empty()) {
    const std::string_view word = words.substr(0, words.find(' '));
    if (column + 1 + word.size() > WIDTH) {
      text += "\n" + std::string(HELP_COLUMN - 1, ' ');
      column = HELP_COLUMN - 1;
    }
    text.append(" ").append(word);
    column += 1 + word.size();
    words.remove_prefix(std::min(words.size(), word.size() + 1));
  }
}

template <typename Number>
std::optional<Number> read_number(const std::string& text) {
  Number number;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

}  // namespace

void Arguments::option(std::string name, std::string value, std::string help, Take take) {
  options_.push_back({std::move(name), std::move(value), std::move(help), std::move(take)});
}

void Arguments::word(std::string name, std::string help, std::string& target) {
  words_.push_back({std::move(name), "", std::move(help), [&target](const std::string& text) { target = text; }});
}

void Arguments::flag(std::string name, std::string help, bool& target) {
  options_.push_back({std::move(name), "", std::move(help), [&target](const std::string&) { target = true; }});
}

void Arguments::text(std::string name, std::string value, std::string help, std::optional<std::string>& target) {
  options_.push_back({std::move(name), std::move(value), std::move(help), [&](const std::string& text) {
                        target = text;
                      }});
}

void Arguments::texts(std::string name, std::string value, std::string help, std::vector<std::string>& target) {
  const auto take = [&target](const std::string& text) { target.push_back(text); };
  options_.push_back({std::move(name), std::move(value), std::move(help), take});
}

void Arguments::whole(std::string name, std::string help, size_t& target, size_t least, size_t most) {
  const std::string expected = name + " takes a whole number from " + std::to_string(least) + " to " +
                               std::to_string(most);
  if (0 < target && target < most) help += " (default: " + std::to_string(target) + ")";
  options_.push_back({std::move(name), "N", std::move(help), [=, &target](const std::string& text) {
                        const auto number = read_number<size_t>(text);
                        if (!number || *number < least || *number > most)
                          throw Misuse(expected + ", not '" + text + "'.");
                        target = *number;
                      }});
}

void Arguments::seed(std::string name, std::string help, std::function<void(uint64_t)> take) {
  const std::string expected = name + " takes a whole number of at most 64 bits, not '";
  options_.push_back({std::move(name), "N", std::move(help), [=](const std::string& text) {
                        if (const auto negative = read_number<int64_t>(text)) {
                          take(static_cast<uint64_t>(*negative));
                        } else if (const auto number = read_number<uint64_t>(text)) {
                          take(*number);
                        } else {
                          throw Misuse(expected + text + "'.");
                        }
                      }});
}

void Arguments::number(
    std::string name, std::string help, std::function<void(double)> take, std::function<bool(double)> fits,
    std::string expected
) {
  const std::string wanted = name + " takes " + expected + ", not '";
  options_.push_back({std::move(name), "X", std::move(help), [=](const std::string& text) {
                        const auto number = read_number<double>(text);
                        if (!number || !std::isfinite(*number) || !fits(*number)) throw Misuse(wanted + text + "'.");
                        take(*number);
                      }});
}

bool Arguments::read(std::span<const char* const> given) const {
  size_t words = 0;
  bool options_end = false;
  for (size_t i = 0; i < given.size(); i++) {
    std::string text = given[i];
    if (!options_end && text == "--") {
      options_end = true;
    } else if (!options_end && text.size() > 1 && text[0] == '-') {
      if (text == "--help" || text == "-h") {
        std::fputs(help().c_str(), stdout);
        return false;
      }
      const size_t equals = text.find('=');
      const Argument& option = named(text.substr(0, equals));
      if (option.value.empty() && equals != std::string::npos) {
        throw Misuse(option.name + " takes no value; leave '" + text.substr(equals) + "' out.");
      }
      if (!option.value.empty() && equals == std::string::npos && i + 1 == given.size()) {
        throw Misuse(option.name + " needs a value after it; see hybridge-cli " + command_ + " --help.");
      }
      option.take(option.value.empty() ? "" : equals == std::string::npos ? given[++i] : text.substr(equals + 1));
    } else if (words < words_.size()) {
      words_[words++].take(text);
    } else {
      throw Misuse("'" + text + "' is one argument too many; see hybridge-cli " + command_ + " --help.");
    }
  }
  if (words < words_.size()) {
    throw Misuse("the argument " + words_[words].name + " is missing; see hybridge-cli " + command_ + " --help.");
  }
  return true;
}

const Arguments::Argument& Arguments::named(const std::string& name) const {
  const auto found = std::ranges::find(options_, name, &Argument::name);
  if (found == options_.end())
    throw Misuse("there is no option " + name + "; see hybridge-cli " + command_ + " --help.");
  return *found;
}

std::string Arguments::help() const {
  std::string text = "Usage: hybridge-cli " + command_ + " [OPTIONS]";
  for (const Argument& each : words_) text += " " + each.name;
  text += "\n\n" + summary_ + "\n\n";
  for (const auto* arguments : {&words_, &options_}) {
    for (const Argument& each : *arguments) {
      std::string line = "  " + each.name + (each.value.empty() ? "" : " " + each.value);
      line.resize(std::max(line.size() + 1, HELP_COLUMN - 1), ' ');
      const size_t column = line.size();
      append_wrapped(line, each.help, column);
      text += line + "\n";
    }
  }
  return text;
}

}  // namespace hybridge::cli
