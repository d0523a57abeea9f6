#include "chat_options.h"

#include <algorithm>
#include <cctype>

#include "../text/json.h"
#include "failure.h"
#include "output.h"

namespace hybridge::cli {

namespace {

bool is_identifier(std::string_view name) {
  const auto is_letter = [](unsigned char each) { return std::isalnum(each) != 0 || each == '_'; };
  return !name.empty() && std::ranges::all_of(name, is_letter) &&
         std::isdigit(static_cast<unsigned char>(name[0])) == 0;
}

// Returns a value of the command line as JSON; a value that is no JSON is a text.
std::string value_of(const std::string& text) {
  try {
    return text::JsonDocument(text).root().written();
  } catch (const text::TextError&) {
    return quoted(text);
  }
}

}  // namespace

void ChatOptions::declare(Arguments& arguments) {
  arguments.texts(
      "--system", "TEXT", "Instructions for the model before the conversation; may be given several times.", system
  );
  const auto take = [this](const std::string& given) {
    const size_t equals = given.find('=');
    const std::string name = given.substr(0, equals);
    if (equals == given.npos || !is_identifier(name)) {
      throw Misuse(
          "--template-arg takes a name, an equals sign and a value, such as enable_thinking=false, not '" + given + "'."
      );
    }
    if (!variables.emplace(name, value_of(given.substr(equals + 1))).second) {
      throw Misuse("--template-arg " + name + " is given twice; give it one value.");
    }
  };
  arguments.option(
      "--template-arg", "NAME=VALUE",
      "A variable of the chat template, such as enable_thinking=false or tools=[…]; VALUE is JSON, or a text. May be given "
      "several times.",
      take
  );
  arguments.flag(
      "--thinking", "Switch thinking on, if the chat template can; the template's default if left out.", thinks
  );
  arguments.flag("--no-thinking", "Switch thinking off, if the chat template can.", thinks_not);
}

void ChatOptions::check() const {
  if (thinks && thinks_not) throw Misuse("--thinking and --no-thinking exclude each other; give one of them.");
}

ChatHandle ChatOptions::open(const ArtifactFolder& folder, const TextModel& model, size_t checkpoint_bytes) const {
  const auto tools = variables.find("tools");  // an option of its own in hybridge.h
  JsonObject others;
  for (const auto& [name, value] : variables) {
    if (name != "tools") others.put(name, value);
  }
  const std::string more = others.text();
  std::string told;  // one message: many chat templates refuse or drop a second
  for (const std::string& each : system) told += (told.empty() ? "" : "\n\n") + each;

  const TemplateHandle chat_template = open_templates_of_chat(folder);
  hybridge_chat_options options = hybridge_chat_options_defaults();
  options.system = told.c_str();
  options.thinking = thinks ? HYBRIDGE_THINKING_ON : thinks_not ? HYBRIDGE_THINKING_OFF : HYBRIDGE_THINKING_AS_USUAL;
  if (checkpoint_bytes != 0) options.checkpoint_bytes = checkpoint_bytes;
  options.variables = more.c_str();
  options.tools = tools == variables.end() ? nullptr : tools->second.c_str();
  ChatHandle chat;
  const hybridge_status begun = hybridge_chat_over(
      model.session(), model.tokenizer(), chat_template, &options, chat.out()
  );
  const bool is_misuse = begun == HYBRIDGE_INVALID_ARGUMENT || begun == HYBRIDGE_UNSUPPORTED ||
                         begun == HYBRIDGE_INVALID_TEMPLATE;
  if (is_misuse) {
    throw Misuse("the chat cannot begin: " + std::string(hybridge_failure()) + ".");
  }
  cli::check(begun, "the chat cannot begin");
  return chat;
}

}  // namespace hybridge::cli
