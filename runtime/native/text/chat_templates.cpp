#include "chat_templates.h"

#include <ctime>
#include <utility>

#include "answers/answer_parser.h"
#include "answers/value.h"
#include "jinja/lexer.h"
#include "json.h"
#include "told_tools.h"

namespace hybridge::text {
namespace {

constexpr std::string_view PREFIX = "chat_template", SUFFIX = ".jinja";
constexpr std::string_view TOKENIZER_CONFIG = "tokenizer_config.json", SPECIAL_TOKENS_MAP = "special_tokens_map.json";
constexpr std::string_view PROCESSORS = "chat_template.json";

// Qwen, GLM, SmolLM and Nemotron read the first; Granite, DeepSeek and Kimi the second.
constexpr std::string_view SWITCHES[] = {"enable_thinking", "thinking"};

// What a conversation sets itself.
constexpr std::string_view RESERVED[] = {
    "messages",
    "conversations",
    "tools",
    "chat_template",
    "add_generation_prompt",
    "continue_final_message",
    "return_assistant_tokens_mask"
};

// The name of the template in a file: chat_template.jinja is the default one, chat_template.rag.jinja the one for rag.
std::optional<std::string_view> template_in(std::string_view file) {
  if (!file.starts_with(PREFIX) || !file.ends_with(SUFFIX)) return std::nullopt;
  if (file.size() == PREFIX.size() + SUFFIX.size()) return "default";
  const std::string_view middle = file.substr(PREFIX.size(), file.size() - PREFIX.size() - SUFFIX.size());
  return middle.starts_with('.') && middle.size() > 1 ? std::optional(middle.substr(1)) : std::nullopt;
}

std::string replaced(std::string_view text, std::string_view old, std::string_view with) {
  std::string found;
  size_t last = 0;
  for (size_t at = text.find(old); !old.empty() && at != text.npos; at = text.find(old, last)) {
    found += text.substr(last, at - last);
    found += with;
    last = at + old.size();
  }
  return found += text.substr(last);
}

// The text of a special token: a string, or an object with `content`; none for switches such as add_bos_token.
std::optional<std::string> text_of(const Json& token) {
  const Json text = token.is_object() ? token["content"] : token;
  return text.is_string() ? std::optional<std::string>(text.string()) : std::nullopt;
}

void add_special(const Json& config, std::map<std::string, std::string>& found) {
  const auto add = [&](std::string_view name, const Json& token) {
    if (auto text = text_of(token)) found.insert_or_assign(std::string(name), std::move(*text));
  };
  if (!config.is_object()) return;
  config.each_entry([&](std::string_view name, const Json& token) {
    if (name.ends_with("_token")) add(name, token);
  });
  if (const Json extra = config["extra_special_tokens"]; extra.is_object()) extra.each_entry(add);
}

std::tm local_time() {
  std::tm time{};
  const std::time_t seconds = std::time(nullptr);
  if (::localtime_r(&seconds, &time) == nullptr) throw TextError("the system has no local time");
  return time;
}

std::string member(std::string_view name, std::string_view json) {
  return to_json(name) + ": " + std::string(json) + ", ";
}

// A message as chat templates expect it, with the reasoning under both names that they read.
std::string written(const Message& message) {
  std::string content = to_json(message.content);
  if (message.pictures > 0) {
    std::string parts = "[";
    for (size_t i = 0; i < message.pictures; ++i) parts += R"({"type": "image"}, )";
    content = parts + R"({"type": "text", "text": )" + content + "}]";
  }
  std::string reasoning;
  if (!message.reasoning.empty()) {
    const std::string text = to_json(message.reasoning);
    reasoning = member("thinking", text) + member("reasoning_content", text);
  }
  std::string calls;
  for (const ToolCall& each : message.calls) {
    const std::string function = "{" + member("name", to_json(each.name)) + to_json("arguments") + ": " +
                                 each.arguments + "}";
    calls += (calls.empty() ? "{" : ", {") + member("id", to_json(each.id)) + member("type", to_json("function")) +
             to_json("function") + ": " + function + "}";
  }
  if (!calls.empty()) calls = member("tool_calls", "[" + calls + "]");
  std::string call;
  if (message.role == "tool")
    call = member("name", to_json(message.call.name)) + member("tool_call_id", to_json(message.call.id));
  return "{" + member("role", to_json(message.role)) + reasoning + calls + call + to_json("content") + ": " + content +
         "}";
}

// Keeps the parts of an answer apart.
class ParsedAnswer final : public Splitter {
 public:
  ParsedAnswer(const AnswerForm& form, std::string_view prompt, std::shared_ptr<const ToolSchemas> tools)
      : parser_(form, prompt, std::move(tools)) {}

  std::string reasoning_end() const override { return parser_.reasoning_end(); }
  void stop_at(std::string_view string) override { parser_.stop_at(string); }
  std::string_view cut() const override { return parser_.cut(); }
  Parts push(std::string_view piece) override { return parts(parser_.push(piece)); }
  Parts finish() override { return parts(parser_.finish()); }

 private:
  static Parts parts(const std::vector<AnswerEvent>& events) {
    Parts found;
    for (const AnswerEvent& each : events) {
      switch (each.kind) {
        case AnswerEvent::Kind::REASONING: found.reasoning += each.text; break;
        case AnswerEvent::Kind::CONTENT: found.content += each.text; break;
        case AnswerEvent::Kind::CALL: found.calls.push_back({each.text, each.arguments}); break;
      }
    }
    return found;
  }

  AnswerParser parser_;
};

}  // namespace

ChatTemplates::ChatTemplates(std::string_view source) { add(DEFAULT, source); }

ChatTemplates::ChatTemplates(const Files& files, std::string_view place) {
  std::map<std::string, std::string, std::less<>> found;
  for (const auto& [file, content] : files) {
    if (const auto name = template_in(file)) found.emplace(*name, content);
  }
  // transformers reads special_tokens_map.json only beside a tokenizer_config.json that lists no added tokens.
  std::map<std::string, std::string> special;
  bool lists_added = false;
  for (const std::string_view file : {TOKENIZER_CONFIG, PROCESSORS, SPECIAL_TOKENS_MAP}) {
    const auto content = files.find(file);
    if (content == files.end()) continue;
    std::optional<JsonDocument> document;
    try {
      document.emplace(content->second);
    } catch (const TextError& error) {
      throw TextError(std::string(file) + " is " + error.what() + ": export the model again");
    }
    const Json root = document->root(content->first.c_str());
    if (file == TOKENIZER_CONFIG) lists_added = !root["added_tokens_decoder"].is_missing();
    if (file == TOKENIZER_CONFIG || (file == SPECIAL_TOKENS_MAP && !lists_added)) add_special(root, special);
    if (file == TOKENIZER_CONFIG) own_ = read_own_form(root);
    const Json own = root["chat_template"];
    if (!found.empty() || file == SPECIAL_TOKENS_MAP) continue;
    if (own.is_string()) found.emplace(DEFAULT, own.string());
    if (own.is_array()) {
      own.each([&](const Json& each) {
        const Json name = each["name"], source = each["template"];
        if (name.is_string() && source.is_string())
          found.insert_or_assign(std::string(name.string()), std::string(source.string()));
      });
    }
  }
  const std::string with_lines = "\n\n" + std::string(place) + "\n\n";
  for (const auto& [name, source] : found) add(name, replaced(source, place, with_lines));
  std::string json;
  for (const auto& [name, text] : special) {
    json += (json.empty() ? "" : ", ") + to_json(name) + ": " + to_json(replaced(text, place, with_lines));
  }
  special_ = "{" + json + "}";
}

bool ChatTemplates::is_read(std::string_view file) {
  return file == TOKENIZER_CONFIG || file == SPECIAL_TOKENS_MAP || file == PROCESSORS || template_in(file).has_value();
}

void ChatTemplates::add(std::string_view name, std::string_view source) {
  templates_[std::string(name)].source = source;
}

const ChatTemplates::Named& ChatTemplates::chosen(bool has_tools) const {
  if (templates_.empty()) throw TextError("there is no chat template, so the model was not made to chat");
  const auto found = templates_.find(has_tools && has_one_for_tools() ? FOR_TOOLS : DEFAULT);
  if (found != templates_.end()) return found->second;
  std::string all;
  for (const std::string& each : names()) all += (all.empty() ? "" : ", ") + each;
  throw TextError(
      "there are chat templates for " + all + " and no default one: put the one that you mean into the checkpoint as " +
      "chat_template.jinja, and export it again"
  );
}

jinja::Text ChatTemplates::render(
    std::string_view variables, bool has_tools, bool tells_tools, const jinja::RenderOptions& options
) const {
  if (!tells_tools) return render_as_it_is(variables, has_tools, options);
  const ToldTools told(variables);
  if (!told.changes()) return render_as_it_is(variables, false, options);
  if (!told.functions().empty()) {
    try {
      jinja::Text text = render_as_it_is(told.variables(ToldTools::Teller::SYSTEM), false, options);
      if (text.bytes.find(told.functions()) != text.bytes.npos) return text;
    } catch (const TextError&) {  // some templates refuse a message of the system, others leave it out
    }
  }
  return render_as_it_is(told.variables(ToldTools::Teller::USER), false, options);
}

jinja::Text ChatTemplates::render_as_it_is(
    std::string_view variables, bool has_tools, jinja::RenderOptions options
) const {
  if (!options.now) options.now = local_time();
  options.own = special_;
  const std::lock_guard lock(reading_);
  const jinja::Template& chosen = read(has_tools);
  try {
    return chosen.render(variables, options);
  } catch (const TextError& error) {
    const std::string_view why = error.what();
    throw TextError(
        "the model's chat template refuses this conversation: " + std::string(why.empty() ? "it says no reason" : why)
    );
  }
}

void ChatTemplates::check() const {
  const std::lock_guard lock(reading_);
  (void)read(false);
}

const jinja::Template& ChatTemplates::read(bool has_tools) const {
  const Named& named = chosen(has_tools);
  try {
    if (!named.read) named.read.emplace(named.source);
  } catch (const TextError& error) {
    throw TextError(std::string("the model's chat template is no Jinja template: ") + error.what());
  }
  return *named.read;
}

bool ChatTemplates::reads(std::string_view variable, bool has_tools) const {
  try {
    bool is_attribute = false;
    for (const jinja::Token& each : jinja::tokenize(chosen(has_tools).source)) {
      if (!is_attribute && each.is_name(variable)) return true;
      is_attribute = each.is(".");
    }
  } catch (const TextError&) {  // whoever renders by it is told
  }
  return false;
}

std::string_view ChatTemplates::thinking_switch(bool has_tools) const {
  for (const std::string_view each : SWITCHES) {
    if (reads(each, has_tools)) return each;
  }
  return "";
}

std::vector<std::string> ChatTemplates::names() const {
  std::vector<std::string> all;
  for (const auto& [name, _] : templates_) all.push_back(name);
  return all;
}

std::string ChatTemplates::sources() const {
  std::string all;
  for (const auto& [_, each] : templates_) all += each.source + "\n";
  return all;
}

AnswerForm ChatTemplates::answer_form(const Tokenizer& tokenizer) const {
  const auto is_token = [&](const std::string& mark) { return tokenizer.id(mark) >= 0; };
  AnswerForm form = own_.form ? *own_.form : find_answer_form(sources(), is_token);
  return form.calls.open.empty() || !reads("tools", true) ? with_general_calls(std::move(form)) : form;
}

ModelTemplate::ModelTemplate(
    std::shared_ptr<const ChatTemplates> templates, const Tokenizer& tokenizer, Thinking thinking,
    std::string_view variables, std::string_view tools, std::optional<std::tm> now
)
    : templates_(std::move(templates)),
      form_(templates_->answer_form(tokenizer)),
      now_(now),
      variables_(member("documents", "null") + member("tools", tools.empty() ? "null" : tools)) {
  const bool has_tools = !tools.empty();
  if (has_tools) {
    offered_ = tools;
    tools_ = std::make_shared<const ToolSchemas>(tools);
    if (tools_->empty()) throw TextError("the tools are an empty list: leave them out");
  }
  const std::string_view choice = thinking == Thinking::AS_USUAL ? "" : templates_->thinking_switch(has_tools);
  if (thinking != Thinking::AS_USUAL && choice.empty()) {
    throw UnsupportedError("the model's chat template has no switch for thinking: leave it as usual");
  }
  if (!variables.empty()) {
    const JsonDocument document(variables);
    document.root("the variables of the chat template").each_entry([&](std::string_view name, const Json& value) {
      for (const std::string_view each : RESERVED) {
        if (name == each)
          throw TextError("the chat template's variable '" + std::string(name) + "' is the conversation's own");
      }
      if (name == choice)
        throw TextError("thinking is switched, and the chat template's variable '" + std::string(name) + "' is given");
      variables_ += member(name, value.written());
    });
  }
  if (!choice.empty()) variables_ += member(choice, thinking == Thinking::ON ? "true" : "false");
}

Rendered ModelTemplate::render(std::span<const Message> messages) const {
  std::string all;
  for (const Message& each : messages) all += (all.empty() ? "" : ", ") + written(each);
  const std::string variables = "{" + variables_ + member("messages", "[" + all + "]") +
                                to_json("add_generation_prompt") + ": true}";
  jinja::Text text = templates_->render(variables, tools_ != nullptr, form_.tells_tools, {.now = now_});
  Rendered rendered{std::move(text.bytes), {}};
  for (const auto& [begin, end] : text.input) rendered.words.push_back({begin, end});
  return rendered;
}

std::unique_ptr<Splitter> ModelTemplate::answer(std::string_view rendered) const {
  return std::make_unique<ParsedAnswer>(form_, rendered, allows_calls_ ? tools_ : nullptr);
}

}  // namespace hybridge::text
