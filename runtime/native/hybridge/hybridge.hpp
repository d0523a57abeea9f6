// hybridge for C++20: a header over hybridge.h. Handles close themselves, and a call returns a Status or a Result.
//
//   auto artifact = hybridge::Artifact::open("OUT");
//   auto chat = hybridge::Chat::open(artifact.value());
//   auto answer = chat->send("Hello", [](const hybridge::Piece& piece) { return show(piece.content); });
//   if (!answer.ok()) std::fprintf(stderr, "%s\n", answer.status().words().c_str());
//
// And in tokens:
//
//   auto model = hybridge::Model::open("OUT/model.pte");
//   auto session = hybridge::Session::open(model.value());
//   auto done = session->generate(prompt, {.max_new_tokens = 64}, [](int64_t token) { return show(token); });
//
// hybridge.h says what each function does, which statuses it returns, and which threads may call what. A callback that
// throws ends its call with HYBRIDGE_CALLBACK_FAILED. Nothing here throws by itself, but for memory that is used up.
#ifndef HYBRIDGE_HPP
#define HYBRIDGE_HPP

#include <hybridge/hybridge.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hybridge {
inline namespace app {  // the library behind hybridge.h has classes of the same names

using Tokens = std::span<const int64_t>;

// How a call ended: a code for programs, and words for people, which are empty for success.
class [[nodiscard]] Status {
 public:
  Status() = default;
  explicit Status(hybridge_status code) : code_(code), words_(code == HYBRIDGE_OK ? "" : hybridge_failure()) {}

  bool ok() const { return code_ == HYBRIDGE_OK; }
  hybridge_status code() const { return code_; }
  const std::string& words() const { return words_; }

 private:
  hybridge_status code_ = HYBRIDGE_OK;
  std::string words_;
};

// A value, or why there is none. The value may be looked at where ok().
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status failure) : status_(std::move(failure)) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }
  T& value() { return *value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }
  T* operator->() { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// An open object, which closes when it goes out of scope.
template <typename Id, hybridge_status (*close)(Id)>
class Handle {
 public:
  Handle() = default;
  explicit Handle(Id id) : id_(id) {}
  Handle(Handle&& other) noexcept : id_(std::exchange(other.id_, Id{})) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Handle() {
    if (id_.id != 0) (void)close(id_);
  }

  // For functions of hybridge.h.
  Id id() const { return id_; }

 protected:
  // Returns a T over the handle that `open(Id*)` gives.
  template <typename T, typename Open>
  static Result<T> opened(const Open& open) {
    Id id{};
    if (Status status(open(&id)); !status.ok()) return status;
    return T(id);
  }

 private:
  Id id_{};
};

// Returns the T that `fill(T*)` fills.
template <typename T, typename Fill>
Result<T> filled(const Fill& fill) {
  T value{};
  if (Status status(fill(&value)); !status.ok()) return status;
  return value;
}

// Returns all elements that `copy(array, capacity, count)` has.
template <typename Element, typename Copy>
Result<std::vector<Element>> copied(const Copy& copy) {
  std::vector<Element> all;
  for (size_t count = 0;; all.resize(count)) {
    if (Status status(copy(all.data(), all.size(), &count)); !status.ok()) return status;
    if (count <= all.size()) return all.resize(count), all;
  }
}

class Model : public Handle<hybridge_model, hybridge_model_close> {
 public:
  using Handle::Handle;

  // path: of a model.pte.
  static Result<Model> open(const std::string& path) {
    return opened<Model>([&](auto* id) { return hybridge_model_open(path.c_str(), id); });
  }

  Status limit(int64_t max_seq_len) { return Status(hybridge_model_limit(id(), max_seq_len)); }

  Status delegate_from(int64_t tokens) { return Status(hybridge_model_delegate_from(id(), tokens)); }
  Status strict_reuse(bool wanted) { return Status(hybridge_model_strict_reuse(id(), wanted)); }

  Result<hybridge_info> info() const {
    return filled<hybridge_info>([&](auto* info) { return hybridge_model_info(id(), info); });
  }

  // path: of an artifact's golden.json.
  Result<hybridge_validation> validate(const std::string& path) const {
    return filled<hybridge_validation>([&](auto* found) { return hybridge_validate(id(), path.c_str(), found); });
  }

  Result<std::vector<int64_t>> eos_ids() const {
    return copied<int64_t>([&](auto... to) { return hybridge_model_eos_ids(id(), to...); });
  }
};

class Tokenizer : public Handle<hybridge_tokenizer, hybridge_tokenizer_close> {
 public:
  using Handle::Handle;

  // path: of a tokenizer.json.
  static Result<Tokenizer> open(const std::string& path) {
    return opened<Tokenizer>([&](auto* id) { return hybridge_tokenizer_open(path.c_str(), id); });
  }

  // reading: of hybridge_reading, or 0.
  Result<std::vector<int64_t>> encode(std::string_view text, int reading = HYBRIDGE_AROUND) const {
    return copied<int64_t>([&](int64_t* tokens, size_t capacity, size_t* count) {
      return hybridge_tokenizer_encode(
          id(), text.data(), text.size(), reading, nullptr, 0, tokens, nullptr, capacity, count
      );
    });
  }

  Result<std::string> decode(Tokens tokens, bool skip_special = true) const {
    auto text = copied<char>([&](auto... to) {
      return hybridge_tokenizer_decode(id(), tokens.data(), tokens.size(), skip_special, to...);
    });
    if (!text.ok()) return text.status();
    return std::string(text->begin(), text->end());
  }
};

// Makes text of tokens one after another. A piece is valid until the next call.
class TextStream : public Handle<hybridge_text, hybridge_text_close> {
 public:
  using Handle::Handle;

  static Result<TextStream> open(const Tokenizer& tokenizer, bool skip_special = true) {
    return opened<TextStream>([&](auto* id) { return hybridge_text_open(tokenizer.id(), skip_special, id); });
  }

  Result<std::string_view> push(int64_t token) {
    return piece([&](auto... to) { return hybridge_text_push(id(), token, to...); });
  }

  Result<std::string_view> finish() {
    return piece([&](auto... to) { return hybridge_text_finish(id(), to...); });
  }

 private:
  template <typename Call>
  static Result<std::string_view> piece(const Call& call) {
    const char* text = nullptr;
    size_t size = 0;
    if (Status status(call(&text, &size)); !status.ok()) return status;
    return std::string_view(text, size);
  }
};

class Grammar : public Handle<hybridge_grammar, hybridge_grammar_close> {
 public:
  using Handle::Handle;

  // kind: HYBRIDGE_JSON_SCHEMA or HYBRIDGE_REGEX.
  static Result<Grammar> open(const Tokenizer& tokenizer, hybridge_grammar_kind kind, std::string_view text) {
    return opened<Grammar>([&](auto* id) {
      return hybridge_grammar_open(tokenizer.id(), kind, text.data(), text.size(), id);
    });
  }
};

class Picture : public Handle<hybridge_picture, hybridge_picture_close> {
 public:
  using Handle::Handle;

  // rgb: [height, width, 3]. model: of hybridge_artifact_model.
  static Result<Picture> open(hybridge_model model, std::span<const uint8_t> rgb, size_t width, size_t height) {
    if (rgb.size() != width * height * 3) rgb = {};  // refused
    return opened<Picture>([&](auto* id) { return hybridge_picture_open(model, rgb.data(), width, height, id); });
  }

  // The ids that stand for the picture in a prompt.
  Result<std::vector<int64_t>> ids() const {
    return copied<int64_t>([&](auto... to) { return hybridge_picture_ids(id(), to..., nullptr); });
  }
};

using Checkpoint = Handle<hybridge_checkpoint, hybridge_checkpoint_close>;

class Cache : public Handle<hybridge_cache, hybridge_cache_close> {
 public:
  using Handle::Handle;

  static Result<Cache> open(const Model& model, size_t bytes) {
    return opened<Cache>([&](auto* id) { return hybridge_cache_open(model.id(), bytes, id); });
  }
};

// What a drafter proposes. confidences: none, or for each token the estimate that it is right if those before it are.
struct Proposal {
  std::vector<int64_t> tokens;
  std::vector<double> confidences = {};
};

// A drafter of the app's own. It proposes at most `limit` tokens that may follow the text, none without an idea; a
// wrong one costs time and never changes the text. is_cheap: a proposal takes next to no time, so it is asked in each
// round. id: by which the session remembers what it measured with it; 0 for none.
struct Drafter {
  std::function<Proposal(Tokens text, size_t limit)> propose;
  bool is_cheap = false;
  uint64_t id = 0;
};

// The options of a generation, as in hybridge_generation. What it points to must last as long as the call.
struct Generation {
  size_t max_new_tokens = 64;
  size_t block_length = 0;
  hybridge_drafter drafter = HYBRIDGE_AUTO_DRAFTER;
  std::optional<hybridge_sampling> sampling = {};  // without one greedy, and in a chat as the model is meant to be
  const Model* draft_model = nullptr;
  const Drafter* own_drafter = nullptr;
  const Grammar* grammar = nullptr;
  std::function<void(Tokens text, std::span<float> logits)> mask = nullptr;
  std::function<void(size_t count)> on_read = nullptr;
  std::string tool_choice = "";       // in a chat with tools
  bool stop_after_reasoning = false;  // a chat's stop strings end its answers, but not the reasoning before them
};

// Calls of an answer's tools; arguments: a JSON object.
struct ToolCall {
  std::string_view id, name, arguments;
};

// What a token adds to an answer.
struct Piece {
  std::string_view content, reasoning;
  std::vector<ToolCall> calls;
};

using OnToken = std::function<bool(int64_t token)>;
using OnPiece = std::function<bool(const Piece& piece)>;

// A generation's options and callbacks as C takes them.
class GenerationCall {
 public:
  GenerationCall(const Generation& options, const OnToken* on_token, const OnPiece* on_piece)
      : options_(options), on_token_(on_token), on_piece_(on_piece), c_(hybridge_generation_defaults()) {
    c_.max_new_tokens = options.max_new_tokens;
    c_.block_length = options.block_length;
    c_.drafter = options.drafter;
    c_.sampling = options_.sampling ? &*options_.sampling : nullptr;
    if (options.draft_model != nullptr) c_.draft = options.draft_model->id();
    if (options.grammar != nullptr) c_.grammar = options.grammar->id();
    c_.stop_after_reasoning = options.stop_after_reasoning;
    if (!options.tool_choice.empty()) c_.tool_choice = options_.tool_choice.c_str();
    if (options.mask) c_.mask = mask;
    if (options.on_read) c_.on_read = on_read;
    if (options.own_drafter != nullptr) {
      c_.propose = propose;
      c_.drafter_id = options.own_drafter->id;
      c_.is_cheap = options.own_drafter->is_cheap;
    }
  }

  const hybridge_generation* options() const { return &c_; }

  static int on_token(int64_t token, void* user) { return (*self(user).on_token_)(token); }

  static int on_piece(const hybridge_piece* piece, void* user) {
    Piece given{{piece->content, piece->content_size}, {piece->reasoning, piece->reasoning_size}, {}};
    for (const hybridge_call& each : std::span(piece->calls, piece->call_count))
      given.calls.push_back({each.id, {each.name, each.name_size}, {each.arguments, each.arguments_size}});
    return (*self(user).on_piece_)(given);
  }

 private:
  static GenerationCall& self(void* user) { return *static_cast<GenerationCall*>(user); }

  static void mask(const int64_t* text, size_t count, float* logits, size_t vocab_size, void* user) {
    self(user).options_.mask({text, count}, {logits, vocab_size});
  }

  static void on_read(size_t count, void* user) { self(user).options_.on_read(count); }

  static size_t propose(const hybridge_context* context, hybridge_proposal* to, size_t limit, void* user) {
    const Drafter& drafter = *self(user).options_.own_drafter;
    const Proposal proposal = drafter.propose({context->text, context->count}, limit);
    const size_t count = std::min(limit, proposal.tokens.size());
    std::copy_n(proposal.tokens.begin(), count, to->tokens);
    to->confidence_count = std::min(drafter.is_cheap ? std::min<size_t>(1, count) : count, proposal.confidences.size());
    std::copy_n(proposal.confidences.begin(), to->confidence_count, to->confidences);
    return count;
  }

  const Generation& options_;
  const OnToken* on_token_;
  const OnPiece* on_piece_;
  hybridge_generation c_;
};

// How a session's prompts were read. reason: why the model's accelerator is not in use; empty while it is.
struct PromptsRead : hybridge_prompts_read {
  std::string reason;
};

class Session : public Handle<hybridge_session, hybridge_session_close> {
 public:
  using Handle::Handle;

  static Result<Session> open(const Model& model) {
    return opened<Session>([&](auto* id) { return hybridge_session_open(model.id(), id); });
  }

  // Continues a prompt until on_token answers false, or as hybridge_generate says.
  Result<hybridge_generated> generate(Tokens prompt, const Generation& options, const OnToken& on_token = nullptr) {
    GenerationCall call(options, &on_token, nullptr);
    return filled<hybridge_generated>([&](auto* done) {
      const hybridge_on_token called = on_token ? GenerationCall::on_token : nullptr;
      return hybridge_generate(id(), prompt.data(), prompt.size(), call.options(), called, &call, done);
    });
  }

  // From any thread, and from callbacks.
  Status cancel() const { return Status(hybridge_cancel(id())); }

  Result<std::vector<int64_t>> tokens() const {
    return copied<int64_t>([&](auto... to) { return hybridge_tokens(id(), to...); });
  }

  // HYBRIDGE_UNSUPPORTED for a model that was exported for no accelerator.
  Result<PromptsRead> prompts_read() const {
    hybridge_prompts_read read{};
    auto reason = copied<char>([&](auto... to) { return hybridge_session_prompts(id(), &read, to...); });
    if (!reason.ok()) return reason.status();
    return PromptsRead{read, {reason->begin(), reason->end()}};
  }

  // The places of the text at which the accelerator began and stopped to read it, in turn.
  Result<std::vector<int64_t>> delegated() const {
    return copied<int64_t>([&](auto... to) { return hybridge_delegated(id(), to...); });
  }

  // logits: float32 [vocab_size] after the last token, [tokens, vocab_size] of verify; null for none.
  Status prefill(Tokens tokens, float* logits = nullptr) {
    return Status(hybridge_prefill(id(), tokens.data(), tokens.size(), logits));
  }
  Status decode(int64_t token, float* logits = nullptr) { return Status(hybridge_decode(id(), token, logits)); }
  Status verify(Tokens tokens, float* logits = nullptr) {
    return Status(hybridge_verify(id(), tokens.data(), tokens.size(), logits));
  }
  Status commit(int64_t count) { return Status(hybridge_commit(id(), count)); }

  Status snapshot(int64_t slot) { return Status(hybridge_snapshot(id(), slot)); }
  Status restore(int64_t slot) { return Status(hybridge_restore(id(), slot)); }
  Status reset() { return Status(hybridge_reset(id())); }
  Status save(const std::string& path) { return Status(hybridge_save(id(), path.c_str(), nullptr)); }
  Status load(const std::string& path) { return Status(hybridge_load(id(), path.c_str())); }

  Result<Checkpoint> checkpoint() {
    const auto made = filled<hybridge_checkpoint>([&](auto* made) { return hybridge_checkpoint_make(id(), made); });
    return made.ok() ? Result(Checkpoint(*made)) : made.status();
  }
  Status resume(const Checkpoint& checkpoint) { return Status(hybridge_resume(id(), checkpoint.id())); }

  // Reads what neither the session nor a checkpoint of the cache has; returns how many tokens these had.
  Result<size_t> bring_to(Tokens text, const Cache& cache) {
    return filled<size_t>([&](auto* cached) {
      return hybridge_bring_to(id(), cache.id(), text.data(), text.size(), cached);
    });
  }
};

class Artifact : public Handle<hybridge_artifact, hybridge_artifact_close> {
 public:
  using Handle::Handle;

  // folder: of an export.
  static Result<Artifact> open(const std::string& folder) {
    return opened<Artifact>([&](auto* id) { return hybridge_artifact_open(folder.c_str(), id); });
  }

  // Its model, which closes with it; for pictures.
  Result<hybridge_model> model() const {
    return filled<hybridge_model>([&](auto* model) { return hybridge_artifact_model(id(), model); });
  }

  // How its model is meant to be sampled.
  Result<hybridge_sampling> sampling() const {
    return filled<hybridge_sampling>([&](auto* sampling) {
      *sampling = hybridge_sampling_defaults();
      return hybridge_artifact_sampling(id(), sampling);
    });
  }
};

class Chat : public Handle<hybridge_chat, hybridge_chat_close> {
 public:
  using Handle::Handle;
  using Stops = std::span<const char* const>;

  static Result<Chat> open(
      const Artifact& artifact, const hybridge_chat_options& options = hybridge_chat_options_defaults()
  ) {
    return opened<Chat>([&](auto* id) { return hybridge_chat_open(artifact.id(), &options, id); });
  }

  // Answers a message until on_piece answers false, or as hybridge_chat_send says. stops: texts before the first of
  // which the answer ends.
  Result<hybridge_answer> send(
      std::string_view message, const OnPiece& on_piece = nullptr,
      const Generation& options = {.max_new_tokens = SIZE_MAX}, Stops stops = {}
  ) {
    return answer(options, on_piece, stops, [&](auto... rest) {
      return hybridge_chat_send(id(), message.data(), message.size(), rest...);
    });
  }

  // Answers the results of the last answer's calls, one for each in their order.
  Result<hybridge_answer> give_results(
      std::span<const std::string> results, const OnPiece& on_piece = nullptr,
      const Generation& options = {.max_new_tokens = SIZE_MAX}, Stops stops = {}
  ) {
    std::vector<hybridge_result> given;
    for (const std::string& each : results) given.push_back({each.data(), each.size()});
    return answer(options, on_piece, stops, [&](auto... rest) {
      return hybridge_chat_give_results(id(), given.data(), given.size(), rest...);
    });
  }

  Result<hybridge_answer> retry(
      const OnPiece& on_piece = nullptr, const Generation& options = {.max_new_tokens = SIZE_MAX}, Stops stops = {}
  ) {
    return answer(options, on_piece, stops, [&](auto... rest) { return hybridge_chat_retry(id(), rest...); });
  }

  // Goes on with the last answer, as if it had not ended.
  Result<hybridge_answer> continue_answer(
      const OnPiece& on_piece = nullptr, const Generation& options = {.max_new_tokens = 512}, Stops stops = {}
  ) {
    return answer(options, on_piece, stops, [&](auto... rest) { return hybridge_chat_continue(id(), rest...); });
  }

  // Tells the model something else before the first message.
  Status set_system(std::string_view text) { return Status(hybridge_chat_set_system(id(), text.data(), text.size())); }

  // Puts pictures before the next message.
  Status show(std::span<const hybridge_picture> pictures) {
    return Status(hybridge_chat_show(id(), pictures.data(), pictures.size()));
  }

  // From any thread, and from on_piece.
  Status cancel() const { return Status(hybridge_chat_cancel(id())); }

  Status undo() { return Status(hybridge_chat_undo(id())); }
  Status reset() { return Status(hybridge_chat_reset(id())); }
  Status save(const std::string& path) { return Status(hybridge_chat_save(id(), path.c_str())); }
  Status load(const std::string& path) { return Status(hybridge_chat_load(id(), path.c_str())); }

 private:
  template <typename Call>
  static Result<hybridge_answer> answer(const Generation& options, const OnPiece& on_piece, Stops stops, Call&& run) {
    GenerationCall call(options, nullptr, &on_piece);
    const hybridge_on_piece called = on_piece ? GenerationCall::on_piece : nullptr;
    return filled<hybridge_answer>([&](auto* done) {
      return run(call.options(), stops.data(), stops.size(), called, &call, done);
    });
  }
};

}  // namespace app
}  // namespace hybridge

#endif
