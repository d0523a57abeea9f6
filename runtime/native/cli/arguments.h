// The arguments of a command: each is declared once, which makes how it is read and what --help says.
#ifndef HYBRIDGE_NATIVE_CLI_ARGUMENTS_H
#define HYBRIDGE_NATIVE_CLI_ARGUMENTS_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hybridge::cli {

class Arguments {
 public:
  // Takes the text that an option is given. Throws Misuse for one that it cannot be.
  using Take = std::function<void(const std::string& text)>;

  Arguments(std::string command, std::string summary) : command_(std::move(command)), summary_(std::move(summary)) {}

  // An option with a value, which `take` gets each time that it is given.
  void option(std::string name, std::string value, std::string help, Take take);

  // An argument without a name, which must be given.
  void word(std::string name, std::string help, std::string& target);

  void flag(std::string name, std::string help, bool& target);
  void text(std::string name, std::string value, std::string help, std::optional<std::string>& target);

  // May be given several times.
  void texts(std::string name, std::string value, std::string help, std::vector<std::string>& target);

  // A whole number from `least` to `most`, whose default is what `target` has.
  void whole(std::string name, std::string help, size_t& target, size_t least, size_t most);
  void seed(std::string name, std::string help, std::function<void(uint64_t)> take);

  // A number in an interval, whose ends `expected` names.
  void number(
      std::string name, std::string help, std::function<void(double)> take, std::function<bool(double)> fits,
      std::string expected
  );

  // Reads what the command was given; returns false if that is --help, which is then printed. Throws Misuse.
  bool read(std::span<const char* const> given) const;

  std::string help() const;

 private:
  struct Argument {
    std::string name, value, help;
    Take take;
  };

  const Argument& named(const std::string& name) const;

  std::string command_, summary_;
  std::vector<Argument> words_, options_;
};

}  // namespace hybridge::cli

#endif
