// The chat templates of a model: read from its folder, and what a conversation takes of them.
#ifndef HYBRIDGE_NATIVE_TEXT_CHAT_TEMPLATES_H
#define HYBRIDGE_NATIVE_TEXT_CHAT_TEMPLATES_H

#include <ctime>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "answers/form.h"
#include "answers/response_template.h"
#include "answers/tool_schema.h"
#include "chat_template.h"
#include "grammar/grammar.h"
#include "jinja/template.h"

namespace hybridge::text {

enum class Thinking { AS_USUAL, ON, OFF };

// Templates by name, and the model's special tokens, which they see as variables. Threads may share them.
class ChatTemplates {
 public:
  using Files = std::map<std::string, std::string, std::less<>>;

  // One template, and no special tokens.
  explicit ChatTemplates(std::string_view source);

  // The templates of a folder. files: those of its files that `is_read` names, as transformers and exports write them.
  // place: the text that stands for a picture, if the model's processor has empty lines around it. Throws TextError for
  // a file that is no JSON.
  ChatTemplates(const Files& files, std::string_view place);
  static bool is_read(std::string_view file);

  // The text for variables, which are a JSON object, and for the special tokens: by the template for tools if there are
  // some and it exists, or else by the default one. tells_tools: the variables' tools are told in the messages. Throws
  // TextError.
  jinja::Text render(
      std::string_view variables, bool has_tools, bool tells_tools, const jinja::RenderOptions& options
  ) const;

  // Throws TextError with the line of an error in the default template's syntax, or if there is none.
  void check() const;

  // Whether the template reads a variable of this name; one with an error reads nothing.
  bool reads(std::string_view variable, bool has_tools = false) const;

  // The variable of the template that switches thinking; empty without one.
  std::string_view thinking_switch(bool has_tools = false) const;

  bool has_one_for_tools() const { return templates_.contains(FOR_TOOLS); }

  std::vector<std::string> names() const;

  // The text of all templates.
  std::string sources() const;

  // The form of the model's answers: by its tokenizer's own description, or by the templates and the vocabulary. Where
  // the template reads no tools, or the form of the model's calls is not known, tools are told in words, and calls have
  // the general form.
  AnswerForm answer_form(const Tokenizer& tokenizer) const;

  // Why the tokenizer's own description is not followed; empty if it is, or if there is none.
  const std::string& warning() const { return own_.warning; }

 private:
  static constexpr std::string_view DEFAULT = "default", FOR_TOOLS = "tool_use";

  // read: once it is used, so that one with an error is in nobody's way before.
  struct Named {
    std::string source;
    mutable std::optional<jinja::Template> read = {};
  };

  jinja::Text render_as_it_is(std::string_view variables, bool has_tools, jinja::RenderOptions options) const;
  const Named& chosen(bool has_tools) const;
  const jinja::Template& read(bool has_tools) const;  // under the lock
  void add(std::string_view name, std::string_view source);

  std::map<std::string, Named, std::less<>> templates_;
  std::string special_ = "{}";  // the tokens by name, as JSON
  OwnForm own_;
  mutable std::mutex reading_;  // and rendering, of which there is one at a time
};

// The chat template of a model as a conversation uses it.
class ModelTemplate final : public ChatTemplate {
 public:
  // variables: more of them for the template, as a JSON object; empty for none. tools: that the model may call, a list
  // as OpenAI's API has it in JSON; empty for none. now: the local time that the template sees; the system's without.
  // Throws TextError.
  ModelTemplate(
      std::shared_ptr<const ChatTemplates> templates, const Tokenizer& tokenizer,
      Thinking thinking = Thinking::AS_USUAL, std::string_view variables = {}, std::string_view tools = {},
      std::optional<std::tm> now = {}
  );

  Rendered render(std::span<const Message> messages) const override;
  std::unique_ptr<Splitter> answer(std::string_view rendered) const override;
  std::string shown() const override { return looked_for(form_); }

  bool has_tools() const { return tools_ != nullptr; }

  // Tells whether the next answers may have calls; otherwise text that looks like one is content.
  void allow_calls(bool are_allowed) { allows_calls_ = are_allowed; }

  // Returns the grammar of an answer that may or must call the tools, of which there are some. Throws TextError.
  std::shared_ptr<Grammar> call_grammar(const ToolChoice& choice, std::shared_ptr<const Tokenizer> tokenizer) const {
    return Grammar::calls(form_, offered_, choice, std::move(tokenizer));
  }

 private:
  std::shared_ptr<const ChatTemplates> templates_;
  AnswerForm form_;
  std::string offered_;                       // the tools in JSON
  std::shared_ptr<const ToolSchemas> tools_;  // null without any
  std::optional<std::tm> now_;
  bool allows_calls_ = true;
  std::string variables_;  // the members of an object in JSON, each with a comma after it
};

}  // namespace hybridge::text

#endif
