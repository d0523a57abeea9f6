// An artifact that is opened to continue texts: its tokenizer, its model with a session, and a drafter.
#ifndef HYBRIDGE_NATIVE_CLI_TEXT_MODEL_H
#define HYBRIDGE_NATIVE_CLI_TEXT_MODEL_H

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "arguments.h"
#include "folder.h"

namespace hybridge::cli {

// Owns a handle of hybridge.h, which `Close` closes.
template <typename Value, auto Close>
class Handle {
 public:
  Handle() = default;
  Handle(Handle&& other) noexcept : value_(std::exchange(other.value_, {})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(value_, other.value_);
    return *this;
  }
  ~Handle() {
    if (value_.id != 0) Close(value_);
  }

  Value* out() { return &value_; }
  operator Value() const { return value_; }

 private:
  Value value_ = {};
};

using ModelHandle = Handle<hybridge_model, hybridge_model_close>;
using SessionHandle = Handle<hybridge_session, hybridge_session_close>;
using TokenizerHandle = Handle<hybridge_tokenizer, hybridge_tokenizer_close>;
using TextHandle = Handle<hybridge_text, hybridge_text_close>;
using GrammarHandle = Handle<hybridge_grammar, hybridge_grammar_close>;
using TemplateHandle = Handle<hybridge_template, hybridge_template_close>;
using PictureHandle = Handle<hybridge_picture, hybridge_picture_close>;
using ChatHandle = Handle<hybridge_chat, hybridge_chat_close>;

// Opens model.pte of a folder. Throws Failure.
ModelHandle open_model(const ArtifactFolder& folder);

// The chat templates of a folder, and what hybridge_template_describe says of them. Throw Failure.
TemplateHandle open_templates(const ArtifactFolder& folder);
std::string description(const TemplateHandle& templates);

// The same for a chat: says on stderr why the tokenizer's own response template is not followed, if it is not.
TemplateHandle open_templates_of_chat(const ArtifactFolder& folder);

// How the model of a folder is meant to be sampled; greedy if its generation_config.json does not say. Throws Failure.
hybridge_sampling model_sampling(const ArtifactFolder& folder);

// The options of an opened model: its drafter and its threads.
struct ModelOptions {
  std::optional<std::string> draft;
  bool lookup = false, own = false, plain = false;
  size_t threads = 0;
  size_t context = 0;         // the artifact's own
  bool strict_reuse = false;  // of kept texts, which --strict-reuse of a chat asks for

  void declare(Arguments& arguments);
};

// The option --threads.
void declare_threads(Arguments& arguments, size_t& threads);

// The options of a text. Those of the sampling that were given are changes of the model's own one.
struct TextOptions {
  using Change = std::function<void(hybridge_sampling& sampling)>;

  size_t max_new_tokens = SIZE_MAX;
  bool greedy = false;
  std::vector<Change> changes;
  std::vector<hybridge_bias> logit_bias;
  std::vector<std::string> stop;
  bool stop_after_reasoning = false;
  std::optional<std::string> json_schema, regex;  // a file, an expression

  void declare(Arguments& arguments);

  // Declare an option that changes a number of the sampling.
  void number(
      Arguments& arguments, std::string name, std::string help, double hybridge_sampling::* field,
      std::function<bool(double)> fits, std::string expected
  );
  template <typename Number>
  Arguments::Take whole(std::string name, Number hybridge_sampling::* field);
};

// What a generation took. ended: by an end of sequence or a stop string, not by its length.
struct GeneratedText {
  hybridge_generated counts;
  size_t prompt_tokens;
  bool ended;
};

class TextModel {
 public:
  // Throws Misuse and Failure.
  TextModel(const ArtifactFolder& folder, const ModelOptions& options);

  hybridge_session session() const { return session_; }
  hybridge_tokenizer tokenizer() const { return tokenizer_; }

  // Reads the schema or the expression of the options, if there is one. Throws Misuse for what cannot be followed.
  GrammarHandle grammar(const TextOptions& options) const;

  // The model's own sampling with the changes of the options, which must last as long as it does.
  hybridge_sampling sampling(const TextOptions& options);

  // The options for hybridge.h, which are used with `sampling`, of the same options. Throws Misuse for an empty stop
  // string.
  hybridge_generation generation(const TextOptions& options, const hybridge_sampling& sampling) const;

  // Opens a picture's file for the session's texts. Throws Failure, for a model that takes no pictures as well.
  PictureHandle picture(const std::string& path) const;

  // The tokens of a text, with what the tokenizer puts around every text, such as bos.
  std::vector<int64_t> encode(std::string_view text) const;

  // Continues tokens and calls `show` with each piece of text that is complete, the first time once the first token is
  // there. Throws Failure.
  GeneratedText generate(
      const std::vector<int64_t>& prompt, const TextOptions& options,
      const std::function<void(std::string_view piece)>& show
  );

  // Answers the first message of a chat over the session, with pictures before it, and calls `show` as
  // hybridge_chat_send does. Throws Failure.
  GeneratedText answer(
      hybridge_chat chat, const std::string& message, const std::vector<PictureHandle>& pictures,
      const TextOptions& options, hybridge_on_piece show, void* shown
  );

 private:
  void choose_drafter(const ArtifactFolder& folder, const ModelOptions& options);
  void check_vocabulary(const ArtifactFolder& draft) const;

  TokenizerHandle tokenizer_;
  ModelHandle model_, draft_;
  SessionHandle session_;
  hybridge_info info_ = {};
  std::vector<int64_t> eos_ids_, dry_breakers_;
  hybridge_sampling sampling_ = hybridge_sampling_defaults();  // the model's own
  hybridge_drafter drafter_ = HYBRIDGE_NO_DRAFTER;
};

}  // namespace hybridge::cli

#endif
