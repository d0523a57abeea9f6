// Tools for a chat template that knows none: they are told in words, and calls and their results are texts of messages.
#ifndef HYBRIDGE_NATIVE_TEXT_TOLD_TOOLS_H
#define HYBRIDGE_NATIVE_TEXT_TOLD_TOOLS_H

#include <string>
#include <string_view>
#include <vector>

#include "json.h"

namespace hybridge::text {

// The variables of a chat template, with messages and perhaps tools, for a template that reads neither tools, calls nor
// results.
class ToldTools {
 public:
  enum class Teller { SYSTEM, USER };

  // variables: a JSON object. Throws TextError for variables that are none, and for tools beside a message with
  // pictures.
  explicit ToldTools(std::string_view variables);

  // Whether the messages change: there are tools, calls or results.
  bool changes() const { return changes_; }

  // The tools in JSON, a line for each; empty without any.
  const std::string& functions() const { return functions_; }

  // The variables without tools. The message of the system tells the functions, before which there may be none; or the
  // first one of the user does, for a template that refuses or drops the system's.
  std::string variables(Teller teller) const;

 private:
  // members: the others in JSON, each with a comma after it. text, parts: the content, whose parts in JSON come after
  // its text.
  struct Plain {
    std::string role, members, text, parts;

    std::string json() const;
  };

  void add_result(const Json& message);
  void add(const Json& message);

  std::string functions_, others_;
  std::vector<Plain> messages_;
  bool changes_ = false, ends_with_result_ = false;
};

}  // namespace hybridge::text

#endif
