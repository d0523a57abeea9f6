// How a chat begins: what the model is told first, and what its chat template is given.
#ifndef HYBRIDGE_NATIVE_CLI_CHAT_OPTIONS_H
#define HYBRIDGE_NATIVE_CLI_CHAT_OPTIONS_H

#include <map>
#include <string>
#include <vector>

#include "arguments.h"
#include "text_model.h"

namespace hybridge::cli {

struct ChatOptions {
  std::vector<std::string> system;               // parts of one message
  std::map<std::string, std::string> variables;  // of the template by name, each as JSON
  bool thinks = false, thinks_not = false;

  void declare(Arguments& arguments);

  // Throws Misuse for options that exclude each other.
  void check() const;
  bool are_given() const { return !system.empty() || !variables.empty() || thinks || thinks_not; }

  // Begins a chat over the model's session. checkpoint_bytes: 0 for as many as by default. Throws Misuse and Failure.
  ChatHandle open(const ArtifactFolder& folder, const TextModel& model, size_t checkpoint_bytes = 0) const;
};

}  // namespace hybridge::cli

#endif
