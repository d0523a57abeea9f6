// The functions of hybridge.h about chats, over hybridge/conversation.h.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <hybridge/conversation.h>
#include <hybridge/hybridge.h>
#include <hybridge/open_file.h>

#include "../text/json.h"
#include "calls.h"
#include "generation.h"
#include "handles.h"
#include "open_session.h"

namespace {

using namespace hybridge::c;
using hybridge::ChatAnswer;
using hybridge::Conversation;
using hybridge::Error;
using hybridge::text::ChatFormat;
using hybridge::text::Message;
using hybridge::text::Thinking;
using hybridge::text::Tokenizer;
using hybridge::text::TextError;

constexpr size_t LARGEST_MANIFEST = size_t(8) << 20;
constexpr size_t USUAL_TOKENS = 512;

// without_format: why there is no chat format.
struct OpenArtifact {
  hybridge_model model = 0;
  hybridge_tokenizer tokenizer = 0;  // 0 without one
  std::shared_ptr<const Tokenizer> read;
  std::shared_ptr<const ChatFormat> format;
  std::string without_format;

  ~OpenArtifact() {
    if (model != 0) handles<OpenModel>().remove(model);
    if (tokenizer != 0) handles<const Tokenizer>().remove(tokenizer);
  }
};

struct OpenChat {
  hybridge_session session = 0;
  bool owns_session = false;
  std::shared_ptr<OpenModel> of;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::shared_ptr<const ChatFormat> format;
  std::unique_ptr<Conversation> conversation;
};

hybridge_status refused(hybridge_status why, std::string words) {
  logged() = std::move(words);
  return why;
}

// Reads how chats are written. Throws TextError.
void read_format(const std::string& folder, OpenArtifact& artifact) {
  const auto manifest = hybridge::OpenFile::content((folder + "/manifest.json").c_str(), LARGEST_MANIFEST);
  if (!manifest.ok()) throw TextError(folder + "/manifest.json is missing or cannot be read: copy the artifact's whole folder");
  const hybridge::text::JsonDocument document(*manifest);
  const auto root = document.root("manifest.json");
  if (root["chat_format"]) artifact.format = std::make_shared<const ChatFormat>(root["chat_format"]);
  else artifact.without_format = root["without_chat_format"].string_or("the artifact says nothing about chats: export the model again");
}

// Opens a tokenizer, if there is one.
hybridge_status open_tokenizer(const std::string& folder, OpenArtifact& artifact) {
  const std::string path = folder + "/tokenizer.json";
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return HYBRIDGE_OK;
  const hybridge_status opened = hybridge_tokenizer_open(path.c_str(), &artifact.tokenizer);
  if (opened == HYBRIDGE_OK) artifact.read = handles<const Tokenizer>().find(artifact.tokenizer);
  return opened;
}

std::string_view view(const char* text, size_t size) { return text == nullptr ? std::string_view() : std::string_view(text, size); }

// Runs `call` on a chat and its session, in which no other call is then.
template <typename Call>
hybridge_status with(hybridge_chat handle, Call&& call) {
  return guarded([&] {
    const auto chat = handles<OpenChat>().find(handle);
    if (chat == nullptr) return HYBRIDGE_INVALID_HANDLE;
    return change(chat->session, [&](OpenSession& it) {
      return chat->conversation == nullptr ? HYBRIDGE_INVALID_HANDLE : call(*chat, it);
    });
  });
}

// The status of what a conversation did, with its own words for why it did not.
hybridge_status answered(const Conversation& conversation, Error error) {
  if (error != Error::Ok && !conversation.failure().empty()) logged() = conversation.failure();
  return status(error);
}

bool are_texts(const char* const* texts, size_t count) {
  if (texts == nullptr) return count == 0;
  return std::all_of(texts, texts + count, [](const char* each) { return each != nullptr && *each != '\0'; });
}

// Answers by `ask`, which is called with a conversation, a generator, on_piece, stop strings and the mark of a cancelled call.
template <typename Ask>
hybridge_status answer_by(
    hybridge_chat handle, const hybridge_generation* options, const char* const* stops, size_t stop_count, hybridge_on_piece on_piece,
    void* user, hybridge_answer* answer, Ask&& ask
) {
  if (!are_texts(stops, stop_count)) return HYBRIDGE_INVALID_ARGUMENT;
  hybridge_generation chosen = chosen_or_usual(options);
  if (options == nullptr) chosen.max_new_tokens = USUAL_TOKENS;
  const auto chat = handles<OpenChat>().find(handle);
  if (chat == nullptr) return HYBRIDGE_INVALID_HANDLE;
  if (const hybridge_status chose = find_parts(chat->session, chosen); chose != HYBRIDGE_OK) return chose;
  return with(handle, [&](OpenChat& open, OpenSession& it) {
    const auto generator = generator_of(chosen, it, user);
    if (!generator.ok()) return status(generator.error());
    if (it.constraint) it.constraint->wait_for(open.conversation->reasoning_end());
    bool has_begun = false;
    const auto show = [&](const hybridge::text::Parts& parts) {
      has_begun = true;
      const hybridge_piece piece{parts.content.data(), parts.content.size(), parts.reasoning.data(), parts.reasoning.size()};
      return on_piece == nullptr || on_piece(&piece, user) != 0;
    };
    const auto done = ask(*open.conversation, **generator, show, std::vector<std::string>(stops, stops + stop_count), &it.cancelled);
    it.session->keep_hidden(false);
    if (!done.ok()) {
      const bool is_cancelled = done.error() == Error::InvalidState && it.cancelled && !has_begun;
      (void)generated_status(done.error(), it);
      return is_cancelled ? HYBRIDGE_CANCELLED : answered(*open.conversation, done.error());
    }
    if (answer != nullptr) {
      *answer = {static_cast<hybridge_ending>(done->end), done->prompt_tokens, done->cached_tokens, counted(done->generated)};
    }
    return HYBRIDGE_OK;
  });
}

std::optional<Thinking> thinking_of(hybridge_thinking chosen) {
  switch (chosen) {
    case HYBRIDGE_THINKING_AS_USUAL: return Thinking::AS_USUAL;
    case HYBRIDGE_THINKING_ON: return Thinking::ON;
    case HYBRIDGE_THINKING_OFF: return Thinking::OFF;
  }
  return std::nullopt;
}

// Begins a chat that has its session, tokenizer and format.
hybridge_status begin(std::shared_ptr<OpenChat> opened, const hybridge_chat_options* options, hybridge_chat* chat) {
  const hybridge_chat_options chosen = options != nullptr ? *options : hybridge_chat_options{};
  const auto thinking = thinking_of(chosen.thinking);
  if (!thinking) return HYBRIDGE_INVALID_ARGUMENT;
  hybridge::ChatOptions how{.system = chosen.system == nullptr ? "" : chosen.system, .thinking = *thinking};
  if (chosen.checkpoint_bytes != 0) how.checkpoint_bytes = chosen.checkpoint_bytes;
  try {
    std::vector<Message> first;
    if (!how.system.empty()) first.push_back({"system", how.system});
    first.push_back({"user", "a"});
    (void)opened->format->render(first, *thinking);
  } catch (const TextError& error) {
    return refused(HYBRIDGE_INVALID_ARGUMENT, error.what());
  }
  const hybridge_status made = in(opened->session, [&](OpenSession& it) {
    opened->of = it.of;
    opened->conversation = std::make_unique<Conversation>(*it.session, *opened->tokenizer, *opened->format, std::move(how));
    return HYBRIDGE_OK;
  });
  if (made == HYBRIDGE_OK) *chat = handles<OpenChat>().add(std::move(opened));
  return made;
}

// Closes the session of a chat that did not begin; what was logged about that stays.
void close_quietly(hybridge_session session) {
  const std::string why = logged();
  (void)hybridge_session_close(session);
  logged() = why;
}

}  // namespace

extern "C" {

hybridge_status hybridge_artifact_open(const char* folder, hybridge_artifact* artifact) {
  if (folder == nullptr || artifact == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    auto opened = std::make_shared<OpenArtifact>();
    try {
      read_format(folder, *opened);
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_FILE, error.what());
    }
    if (const hybridge_status read = open_tokenizer(folder, *opened); read != HYBRIDGE_OK) return read;
    const std::string program = std::string(folder) + "/model.pte";
    if (const hybridge_status loaded = hybridge_model_open(program.c_str(), &opened->model); loaded != HYBRIDGE_OK) return loaded;
    *artifact = handles<OpenArtifact>().add(std::move(opened));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_artifact_close(hybridge_artifact artifact) {
  return guarded([&] { return handles<OpenArtifact>().remove(artifact) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_artifact_model(hybridge_artifact artifact, hybridge_model* model) {
  if (model == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto found = handles<OpenArtifact>().find(artifact);
    if (found == nullptr) return HYBRIDGE_INVALID_HANDLE;
    *model = found->model;
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_artifact_tokenizer(hybridge_artifact artifact, hybridge_tokenizer* tokenizer) {
  if (tokenizer == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto found = handles<OpenArtifact>().find(artifact);
    if (found == nullptr) return HYBRIDGE_INVALID_HANDLE;
    if (found->tokenizer == 0) return refused(HYBRIDGE_INVALID_FILE, "the artifact has no tokenizer.json");
    *tokenizer = found->tokenizer;
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_chat_open(hybridge_artifact artifact, const hybridge_chat_options* options, hybridge_chat* chat) {
  if (chat == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto of = handles<OpenArtifact>().find(artifact);
    if (of == nullptr) return HYBRIDGE_INVALID_HANDLE;
    if (of->read == nullptr) return refused(HYBRIDGE_INVALID_FILE, "the artifact has no tokenizer.json, so words cannot be made tokens of");
    if (of->format == nullptr) return refused(HYBRIDGE_INVALID_FILE, of->without_format);
    auto opened = std::make_shared<OpenChat>();
    opened->tokenizer = of->read;
    opened->format = of->format;
    if (const hybridge_status made = hybridge_session_open(of->model, &opened->session); made != HYBRIDGE_OK) return made;
    opened->owns_session = true;
    const hybridge_session session = opened->session;
    const hybridge_status begun = begin(std::move(opened), options, chat);
    if (begun != HYBRIDGE_OK) close_quietly(session);
    return begun;
  });
}

hybridge_status hybridge_chat_over(
    hybridge_session session, hybridge_tokenizer tokenizer, const char* chat_format, size_t size,
    const hybridge_chat_options* options, hybridge_chat* chat
) {
  if (chat == nullptr || chat_format == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    auto opened = std::make_shared<OpenChat>();
    opened->session = session;
    opened->tokenizer = handles<const Tokenizer>().find(tokenizer);
    if (opened->tokenizer == nullptr) return HYBRIDGE_INVALID_HANDLE;
    try {
      opened->format = std::make_shared<const ChatFormat>(view(chat_format, size));
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_FILE, error.what());
    }
    return begin(std::move(opened), options, chat);
  });
}

hybridge_status hybridge_chat_close(hybridge_chat chat) {
  return guarded([&] {
    const auto found = handles<OpenChat>().find(chat);
    if (found == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const auto nothing = [](OpenSession&) { return HYBRIDGE_OK; };
    if (in(found->session, nothing) == HYBRIDGE_BUSY) return HYBRIDGE_BUSY;
    const std::lock_guard turn(*found->of->turn);  // in which its checkpoints go
    if (!handles<OpenChat>().remove(chat)) return HYBRIDGE_INVALID_HANDLE;
    found->conversation.reset();
    return found->owns_session ? hybridge_session_close(found->session) : HYBRIDGE_OK;
  });
}

hybridge_status hybridge_chat_send(
    hybridge_chat chat, const char* message, size_t size, const hybridge_generation* options, const char* const* stops,
    size_t stop_count, hybridge_on_piece on_piece, void* user, hybridge_answer* answer
) {
  if (message == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  const auto ask = [&](Conversation& it, auto& generator, const auto& show, auto given, const auto* cancelled) {
    return it.send(view(message, size), generator, show, std::move(given), cancelled);
  };
  return guarded([&] { return answer_by(chat, options, stops, stop_count, on_piece, user, answer, ask); });
}

hybridge_status hybridge_chat_retry(
    hybridge_chat chat, const hybridge_generation* options, const char* const* stops, size_t stop_count,
    hybridge_on_piece on_piece, void* user, hybridge_answer* answer
) {
  const auto ask = [](Conversation& it, auto& generator, const auto& show, auto given, const auto* cancelled) {
    return it.retry(generator, show, std::move(given), cancelled);
  };
  return guarded([&] { return answer_by(chat, options, stops, stop_count, on_piece, user, answer, ask); });
}

hybridge_status hybridge_chat_undo(hybridge_chat chat) {
  return with(chat, [](OpenChat& open, OpenSession&) { return answered(*open.conversation, open.conversation->undo()); });
}

hybridge_status hybridge_chat_reset(hybridge_chat chat) {
  return with(chat, [](OpenChat& open, OpenSession&) { return answered(*open.conversation, open.conversation->reset()); });
}

hybridge_status hybridge_chat_cancel(hybridge_chat chat) {
  return guarded([&] {
    const auto found = handles<OpenChat>().find(chat);
    return found == nullptr ? HYBRIDGE_INVALID_HANDLE : hybridge_cancel(found->session);
  });
}

hybridge_status hybridge_chat_save(hybridge_chat chat, const char* path) {
  if (path == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return with(chat, [&](OpenChat& open, OpenSession&) { return answered(*open.conversation, open.conversation->save(path)); });
}

hybridge_status hybridge_chat_load(hybridge_chat chat, const char* path) {
  if (path == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return with(chat, [&](OpenChat& open, OpenSession&) { return answered(*open.conversation, open.conversation->load(path)); });
}

hybridge_status hybridge_chat_messages(hybridge_chat chat, hybridge_message* messages, size_t capacity, size_t* count, int64_t* room) {
  if (count == nullptr || (messages == nullptr && capacity > 0)) return HYBRIDGE_INVALID_ARGUMENT;
  return with(chat, [&](OpenChat& open, OpenSession& it) {
    const auto& all = open.conversation->messages();
    *count = all.size();
    for (size_t i = 0; i < std::min(capacity, all.size()); ++i) {
      const Message& each = all[i];
      messages[i] = {each.role.c_str(), each.content.data(), each.content.size(), each.reasoning.data(), each.reasoning.size()};
    }
    if (room != nullptr) *room = it.session->room();
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_chat_render(
    const char* json, size_t json_size, hybridge_thinking thinking, const hybridge_message* messages, size_t count, char* text,
    size_t capacity, size_t* size, hybridge_span* words, size_t most_words, size_t* word_count
) {
  const auto how = thinking_of(thinking);
  const bool has_room = size != nullptr && word_count != nullptr && (text != nullptr || capacity == 0) && (words != nullptr || most_words == 0);
  if (json == nullptr || messages == nullptr || !how || !has_room) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    std::optional<ChatFormat> format;
    try {
      format.emplace(view(json, json_size));
      std::vector<Message> given;
      for (const hybridge_message& each : std::span(messages, count)) {
        given.push_back(
            {each.role == nullptr ? "" : each.role, std::string(view(each.content, each.content_size)),
             std::string(view(each.reasoning, each.reasoning_size))});
      }
      const auto rendered = format->render(given, *how);
      *size = rendered.text.size();
      std::copy_n(rendered.text.data(), std::min(capacity, rendered.text.size()), text);
      *word_count = rendered.words.size();
      for (size_t i = 0; i < std::min(most_words, rendered.words.size()); ++i) words[i] = {rendered.words[i].begin, rendered.words[i].end};
      return HYBRIDGE_OK;
    } catch (const TextError& error) {
      return refused(format ? HYBRIDGE_INVALID_ARGUMENT : HYBRIDGE_INVALID_FILE, error.what());
    }
  });
}
}
