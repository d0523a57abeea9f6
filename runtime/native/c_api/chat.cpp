// The functions of hybridge.h about chats, over engine/conversation.h.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "engine/conversation.h"
#include "engine/open_file.h"

#include "text/chat_templates.h"
#include "text/json.h"
#include "text/unicode.h"

#include "c_api/calls.h"
#include "c_api/constraint.h"
#include "c_api/generation.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/open_template.h"
#include "c_api/options.h"

namespace {

using namespace hybridge::c;
using hybridge::ChatAnswer;
using hybridge::Conversation;
using hybridge::Result;
using hybridge::Status;
using hybridge::text::ChatTemplates;
using hybridge::text::Message;
using hybridge::text::ModelTemplate;
using hybridge::text::TextError;
using hybridge::text::Thinking;
using hybridge::text::Tokenizer;
using hybridge::text::ToolCall;
using hybridge::text::UnsupportedError;
using hybridge::text::valid_utf8;

constexpr size_t LARGEST_MANIFEST = size_t(8) << 20;

struct OpenArtifact {
  using Handle = hybridge_artifact;

  hybridge_model model = {};
  hybridge_tokenizer tokenizer = {};  // none without one
  std::shared_ptr<const Tokenizer> read;
  hybridge_template chat_template = {};
  hybridge_sampling sampling = hybridge_sampling_defaults();

  ~OpenArtifact() {
    if (chat_template.id != 0) handles<OpenTemplate>().remove(chat_template);
    if (model.id != 0) handles<OpenModel>().remove(model);
    if (tokenizer.id != 0) handles<const Tokenizer>().remove(tokenizer);
  }
};

struct OpenChat {
  using Handle = hybridge_chat;

  hybridge_session session = {};
  bool owns_session = false;
  std::shared_ptr<OpenModel> model;
  std::shared_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<ModelTemplate> chat_template;
  std::unique_ptr<Conversation> conversation;
  hybridge_sampling sampling = hybridge_sampling_defaults();  // of answers that are asked for without one
  std::vector<std::vector<hybridge_call>> calls;              // of the messages that were asked for last
  std::mutex reading;
  std::map<std::string, hybridge_grammar> grammars;  // of calls, by the choice of tools

  ~OpenChat() {
    for (const auto& [_, each] : grammars) handles<OpenGrammar>().remove(each);
    close();
  }

  // Leaves the conversation, which has checkpoints, to the model's turn.
  void close() {
    if (conversation != nullptr) model->turn->leave(std::move(conversation));
  }
};

std::string_view view(const char* text, size_t size) {
  return text == nullptr ? std::string_view() : std::string_view(text, size);
}

std::vector<hybridge_call> viewed(std::span<const ToolCall> calls) {
  std::vector<hybridge_call> views;
  for (const ToolCall& each : calls) {
    views.push_back(
        {each.id.c_str(), each.name.data(), each.name.size(), each.arguments.data(), each.arguments.size()}
    );
  }
  return views;
}

hybridge_message viewed(const Message& each, std::span<const hybridge_call> calls) {
  return {each.role.c_str(),     each.content.data(), each.content.size(), each.reasoning.data(),
          each.reasoning.size(), each.pictures,       calls.data(),        calls.size()};
}

// Format of the artifacts that this library reads, as runtime/artifact/manifest.py has it.
constexpr uint64_t FORMAT_VERSION = 5;

// What an artifact's manifest says for its model. pictures: how they are prepared, as JSON; empty without any.
struct Said {
  std::string pictures;
  uint64_t delegate_from = 0;
};

// Throws TextError, also for an artifact of another format.
Said read_manifest(const std::string& folder) {
  const auto manifest = hybridge::OpenFile::content((folder + "/manifest.json").c_str(), LARGEST_MANIFEST);
  if (!manifest.ok())
    throw TextError(folder + "/manifest.json is missing or cannot be read: copy the artifact's whole folder");
  const hybridge::text::JsonDocument document(*manifest);
  const auto root = document.root("manifest.json");
  if (const auto written = root["format_version"]) {
    if (const uint64_t version = written.integer(UINT64_MAX); version != FORMAT_VERSION) {
      throw TextError(
          folder + " has format version " + std::to_string(version) + ", but this hybridge reads " +
          std::to_string(FORMAT_VERSION) + ": export the model again, or use the hybridge that made it"
      );
    }
  }
  Said said{root["pictures"] ? root["pictures"].written() : ""};
  if (const auto from = root["options"]["delegate_from"]) said.delegate_from = from.integer(uint64_t(1) << 30);
  return said;
}

// Opens a tokenizer, if there is one.
hybridge_status open_tokenizer(const std::string& folder, OpenArtifact& artifact) {
  const std::string path = folder + "/tokenizer.json";
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return HYBRIDGE_OK;
  const hybridge_status opened = hybridge_tokenizer_open(path.c_str(), &artifact.tokenizer);
  if (opened == HYBRIDGE_OK) artifact.read = handles<const Tokenizer>().find(artifact.tokenizer);
  return opened;
}

// Reads how the model is meant to be sampled, if its folder says so.
hybridge_status open_sampling(const std::string& folder, OpenArtifact& artifact) {
  const std::string path = folder + "/generation_config.json";
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return HYBRIDGE_OK;
  const auto json = hybridge::OpenFile::content(path.c_str(), LARGEST_MANIFEST);
  if (!json.ok()) return hybridge::c::answer(json.status());
  return hybridge_sampling_read(json->data(), json->size(), &artifact.sampling);
}

// Runs `call` on a chat by `enter`, one of the functions that let a call into a session.
template <typename Call>
hybridge_status with_chat(hybridge_chat handle, auto&& enter, Call&& call) {
  return with_open<OpenChat>(handle, [&](OpenChat& chat) {
    return enter(chat.session, [&](OpenSession& session, auto&&... generator) {
      if (chat.conversation == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
      return call(chat, session, std::forward<decltype(generator)>(generator)...);
    });
  });
}

// Runs `call` on a chat, whose session no other call is in then.
template <typename Call>
hybridge_status with_chat(hybridge_chat handle, Call&& call) {
  return with_chat(handle, [](hybridge_session session, auto&& then) { return with_session(session, then); }, call);
}

// The same for a call that changes the session's text.
template <typename Call>
hybridge_status with_chat_ending_generation(hybridge_chat handle, Call&& call) {
  return with_chat(
      handle, [](hybridge_session session, auto&& then) { return with_session_ending_generation(session, then); }, call
  );
}

bool are_texts(const char* const* texts, size_t count) {
  if (texts == nullptr) return count == 0;
  return std::all_of(texts, texts + count, [](const char* each) { return each != nullptr && *each != '\0'; });
}

// Lets a generation follow the grammar of the calls that it may or must have.
hybridge_status choose_tools(OpenChat& chat, const std::string& choice, GivenOptions& options) {
  const bool has_tools = chat.chat_template->has_tools(), is_optional = choice == "auto";
  const bool has_own = options.chosen.grammar.id != 0 || options.has_constraint();
  if (choice == "none" || (is_optional && (has_own || !has_tools))) return HYBRIDGE_OK;
  if (!has_tools) return refused(HYBRIDGE_UNSUPPORTED, "the chat has no tools that could be chosen");
  if (has_own)
    return refused(
        HYBRIDGE_INVALID_ARGUMENT, "an answer that must call tools follows their schemas, and can have no other grammar"
    );
  const std::lock_guard lock(chat.reading);
  auto found = chat.grammars.find(choice);
  if (found == chat.grammars.end()) {
    try {
      (void)chat.tokenizer->token_bytes();
    } catch (const TextError& error) {
      if (is_optional) return HYBRIDGE_OK;
      return refused(
          HYBRIDGE_UNSUPPORTED, std::string("calls cannot be required with this tokenizer: ") + error.what()
      );
    }
    try {
      auto grammar = chat.chat_template->call_grammar(hybridge::text::ToolChoice::of(choice), chat.tokenizer);
      found = chat.grammars.emplace(choice, handles<OpenGrammar>().add(open_grammar(std::move(grammar)))).first;
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_GRAMMAR, error.what());
    }
  }
  options.chosen.grammar = found->second;
  return HYBRIDGE_OK;
}

// A grammar begins with an answer, and cannot follow one in the middle.
hybridge_status check_continued(const GivenOptions& options, const std::string& choice) {
  if (options.chosen.grammar.id == 0 && !options.has_constraint() && (choice == "auto" || choice == "none"))
    return HYBRIDGE_OK;
  return refused(
      HYBRIDGE_INVALID_ARGUMENT,
      "an answer cannot be continued under a grammar or a choice of tools: leave it out, or "
      "ask again with more tokens"
  );
}

// Answers by `ask`, which is called with a conversation, a generator, on_piece and stop strings.
template <typename Ask>
hybridge_status answer_by(
    hybridge_chat handle, const hybridge_generation* options, const char* const* stops, size_t stop_count,
    hybridge_on_piece on_piece, void* user, hybridge_answer* answer, Ask&& ask, bool is_continued = false
) {
  if (!are_texts(stops, stop_count)) return refused(HYBRIDGE_INVALID_ARGUMENT, "a stop string is empty; leave it out");
  auto read = GivenOptions::read(options);
  if (!read.ok()) return hybridge::c::answer(read.status());
  hybridge_generation& chosen = read->chosen;
  if (options == nullptr) chosen.max_new_tokens = SIZE_MAX;
  const std::string choice = chosen.tool_choice == nullptr ? "auto" : chosen.tool_choice;
  chosen.tool_choice = nullptr;
  const hybridge_status ready = with_open<OpenChat>(handle, [&](OpenChat& chat) {
    if (chosen.sampling == nullptr) read->sampling = chat.sampling;
    return is_continued ? check_continued(*read, choice) : choose_tools(chat, choice, *read);
  });
  if (ready != HYBRIDGE_OK) return ready;
  const auto begin = [&](hybridge_session session, auto&& then) {
    return begin_generation(session, *read, user, then);
  };
  return with_chat(
      handle, begin, [&](OpenChat& open, OpenSession& session, std::unique_ptr<hybridge::Generator> generator) {
        open.chat_template->allow_calls(choice != "none");
        const auto show = [&](const hybridge::text::Parts& parts) {
          const auto calls = viewed(parts.calls);
          const hybridge_piece piece{parts.content.data(),   parts.content.size(), parts.reasoning.data(),
                                     parts.reasoning.size(), calls.data(),         calls.size()};
          return on_piece == nullptr || call_back(on_piece, &piece, user) != 0;
        };
        const auto done = ask(
            *open.conversation, *generator, show, std::vector<std::string>(stops, stops + stop_count)
        );
        session.session->keep_hidden(false);
        if (!done.ok()) return hybridge::c::answer(done.status());
        if (answer != nullptr) {
          *answer = {
              static_cast<hybridge_ending>(done->end), done->prompt_tokens, done->cached_tokens,
              counted(done->generated), done->dropped
          };
        }
        return HYBRIDGE_OK;
      }
  );
}

std::optional<Thinking> thinking_of(hybridge_thinking chosen) {
  switch (chosen) {
    case HYBRIDGE_THINKING_AS_USUAL: return Thinking::AS_USUAL;
    case HYBRIDGE_THINKING_ON: return Thinking::ON;
    case HYBRIDGE_THINKING_OFF: return Thinking::OFF;
  }
  return std::nullopt;
}

// Returns the checkpoints of a chat: those of the caller's cache, if there is one, which is to be of the session's
// model.
Result<std::shared_ptr<hybridge::PrefixCache>> checkpoints_of(
    const hybridge_chat_options& chosen, const OpenSession& session
) {
  if (chosen.cache.id == 0) return std::make_shared<hybridge::PrefixCache>(chosen.checkpoint_bytes);
  const auto cache = handles<OpenCache>().find(chosen.cache);
  if (cache == nullptr)
    return Status(HYBRIDGE_INVALID_HANDLE, "the chat's cache is closed, of another kind, or was never given out");
  if (cache->model->model->fingerprint() != session.model->model->fingerprint())
    return Status(HYBRIDGE_OTHER_MODEL, "the chat's cache is of another model");
  return cache->cache;
}

// Begins a chat that has its session and tokenizer, by the model's chat templates.
hybridge_status begin(
    std::shared_ptr<OpenChat> opened, std::shared_ptr<const ChatTemplates> templates,
    const hybridge_chat_options* options, hybridge_chat* chat
) {
  const auto read = read_options(options);
  if (!read.ok()) return answer(read.status());
  const hybridge_chat_options& chosen = *read;
  const auto thinking = thinking_of(chosen.thinking);
  if (!thinking) return refused(HYBRIDGE_INVALID_ARGUMENT, "there is no choice of thinking of this number");
  std::vector<Message> opening;
  if (chosen.system != nullptr && *chosen.system != '\0') opening.push_back({"system", valid_utf8(chosen.system)});
  try {
    templates->check();
  } catch (const TextError& error) {
    return refused(HYBRIDGE_INVALID_ARTIFACT, error.what());
  }
  try {
    const auto now = chosen.now == nullptr ? std::optional<std::tm>() : time_of(chosen.now);
    const std::string_view variables = chosen.variables == nullptr ? "" : chosen.variables;
    const std::string_view tools = chosen.tools == nullptr ? "" : chosen.tools;
    opened->chat_template = std::make_unique<ModelTemplate>(
        std::move(templates), *opened->tokenizer, *thinking, variables, tools, now
    );
  } catch (const UnsupportedError& error) {
    return refused(HYBRIDGE_UNSUPPORTED, error.what());
  } catch (const TextError& error) {
    return refused(HYBRIDGE_INVALID_ARGUMENT, error.what());
  }
  try {
    auto first = opening;
    first.push_back({"user", "a"});
    (void)opened->chat_template->render(first);
  } catch (const TextError& error) {
    return refused(HYBRIDGE_INVALID_TEMPLATE, error.what());
  }
  const hybridge_status made = with_session(opened->session, [&](OpenSession& session) {
    auto checkpoints = checkpoints_of(chosen, session);
    if (!checkpoints.ok()) return answer(checkpoints.status());
    opened->model = session.model;
    const auto reopen = [model = session.model](std::string_view saved) {
      const auto processor = model->pictures();
      if (processor == nullptr)
        throw TextError("the conversation has pictures, and the model was not told how they are prepared");
      return hybridge::of_message(processor->reopen(saved));
    };
    opened->conversation = std::make_unique<Conversation>(
        *session.session, *opened->tokenizer, *opened->chat_template, std::move(opening), *std::move(checkpoints),
        reopen
    );
    return HYBRIDGE_OK;
  });
  if (made == HYBRIDGE_OK) *chat = handles<OpenChat>().add(std::move(opened));
  return made;
}

// Closes the session of a chat that did not begin; what was logged about that stays.
void close_quietly(hybridge_session session) {
  const Ending why = last_ending();
  (void)hybridge_session_close(session);
  last_ending() = why;
}

}  // namespace

extern "C" {

hybridge_status hybridge_artifact_open(const char* folder, hybridge_artifact* artifact) {
  if (folder == nullptr || artifact == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    auto opened = std::make_shared<OpenArtifact>();
    Said said;
    try {
      said = read_manifest(folder);
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_ARTIFACT, error.what());
    }
    if (const hybridge_status read = open_tokenizer(folder, *opened); read != HYBRIDGE_OK) return read;
    if (const hybridge_status read = hybridge_template_read(folder, &opened->chat_template); read != HYBRIDGE_OK)
      return read;
    if (const hybridge_status read = open_sampling(folder, *opened); read != HYBRIDGE_OK) return read;
    const std::string program = std::string(folder) + "/model.pte";
    if (const hybridge_status loaded = hybridge_model_open(program.c_str(), &opened->model); loaded != HYBRIDGE_OK)
      return loaded;
    (void)hybridge_model_delegate_from(opened->model, static_cast<int64_t>(said.delegate_from));
    if (const std::string& pictures = said.pictures; !pictures.empty()) {
      const hybridge_status told = hybridge_model_pictures(
          opened->model, opened->tokenizer, pictures.data(), pictures.size()
      );
      if (told != HYBRIDGE_OK && opened->tokenizer.id != 0)
        return refused(HYBRIDGE_INVALID_ARTIFACT, last_ending().words);
    }
    *artifact = handles<OpenArtifact>().add(std::move(opened));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_artifact_close(hybridge_artifact artifact) {
  return guarded([&] { return handles<OpenArtifact>().remove(artifact) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_artifact_model(hybridge_artifact artifact, hybridge_model* model) {
  if (model == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto found = handles<OpenArtifact>().find(artifact);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    *model = found->model;
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_artifact_tokenizer(hybridge_artifact artifact, hybridge_tokenizer* tokenizer) {
  if (tokenizer == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto found = handles<OpenArtifact>().find(artifact);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    if (found->tokenizer.id == 0) return refused(HYBRIDGE_INVALID_ARTIFACT, "the artifact has no tokenizer.json");
    *tokenizer = found->tokenizer;
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_artifact_sampling(hybridge_artifact artifact, hybridge_sampling* sampling) {
  if (sampling == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto found = handles<OpenArtifact>().find(artifact);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    const size_t size = sampling->struct_size;
    if (const Status known = write_defaults(sampling, size); !known.ok()) return hybridge::c::answer(known);
    std::memcpy(sampling, &found->sampling, std::min(size, sizeof found->sampling));
    sampling->struct_size = size;
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_chat_options_init(hybridge_chat_options* options, size_t struct_size) {
  if (options == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] { return answer(write_defaults(options, struct_size)); });
}

hybridge_status hybridge_chat_open(
    hybridge_artifact artifact, const hybridge_chat_options* options, hybridge_chat* chat
) {
  if (chat == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened_artifact = handles<OpenArtifact>().find(artifact);
    if (opened_artifact == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    if (opened_artifact->read == nullptr)
      return refused(
          HYBRIDGE_INVALID_ARTIFACT, "the artifact has no tokenizer.json, so words cannot be made tokens of"
      );
    const auto written = handles<OpenTemplate>().find(opened_artifact->chat_template);
    auto opened = std::make_shared<OpenChat>();
    opened->tokenizer = opened_artifact->read;
    opened->sampling = opened_artifact->sampling;
    if (const hybridge_status made = hybridge_session_open(opened_artifact->model, &opened->session);
        made != HYBRIDGE_OK)
      return made;
    opened->owns_session = true;
    const hybridge_session session = opened->session;
    const hybridge_status begun = begin(std::move(opened), written->read, options, chat);
    if (begun != HYBRIDGE_OK) close_quietly(session);
    return begun;
  });
}

hybridge_status hybridge_chat_over(
    hybridge_session session, hybridge_tokenizer tokenizer, hybridge_template chat_template,
    const hybridge_chat_options* options, hybridge_chat* chat
) {
  if (chat == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    auto opened = std::make_shared<OpenChat>();
    opened->session = session;
    opened->tokenizer = handles<const Tokenizer>().find(tokenizer);
    const auto written = handles<OpenTemplate>().find(chat_template);
    if (opened->tokenizer == nullptr || written == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    return begin(std::move(opened), written->read, options, chat);
  });
}

hybridge_status hybridge_chat_close(hybridge_chat chat) {
  const auto remove = [&] { return handles<OpenChat>().remove(chat) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; };
  return with_open<OpenChat>(chat, [&](OpenChat& open) {
    const auto close = [&](OpenSession& session) {
      if (remove() != HYBRIDGE_OK) return HYBRIDGE_INVALID_HANDLE;
      open.close();
      if (open.owns_session) {
        session.close();
        (void)handles<OpenSession>().remove(open.session);
      }
      return HYBRIDGE_OK;
    };
    const hybridge_status closed = with_session(open.session, close, true);
    return closed == HYBRIDGE_INVALID_HANDLE ? remove() : closed;  // its session may have been closed before
  });
}

hybridge_status hybridge_chat_send(
    hybridge_chat chat, const char* message, size_t size, const hybridge_generation* options, const char* const* stops,
    size_t stop_count, hybridge_on_piece on_piece, void* user, hybridge_answer* answer
) {
  if (message == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  const auto ask = [&](Conversation& conversation, auto& generator, const auto& show, auto given) {
    return conversation.send(view(message, size), generator, show, std::move(given));
  };
  return guarded([&] { return answer_by(chat, options, stops, stop_count, on_piece, user, answer, ask); });
}

hybridge_status hybridge_chat_retry(
    hybridge_chat chat, const hybridge_generation* options, const char* const* stops, size_t stop_count,
    hybridge_on_piece on_piece, void* user, hybridge_answer* answer
) {
  const auto ask = [](Conversation& conversation, auto& generator, const auto& show, auto given) {
    return conversation.retry(generator, show, std::move(given));
  };
  return guarded([&] { return answer_by(chat, options, stops, stop_count, on_piece, user, answer, ask); });
}

hybridge_status hybridge_chat_continue(
    hybridge_chat chat, const hybridge_generation* options, const char* const* stops, size_t stop_count,
    hybridge_on_piece on_piece, void* user, hybridge_answer* answer
) {
  const auto ask = [](Conversation& conversation, auto& generator, const auto& show, auto given) {
    return conversation.continue_answer(generator, show, std::move(given));
  };
  return guarded([&] { return answer_by(chat, options, stops, stop_count, on_piece, user, answer, ask, true); });
}

hybridge_status hybridge_chat_give_results(
    hybridge_chat chat, const hybridge_result* results, size_t count, const hybridge_generation* options,
    const char* const* stops, size_t stop_count, hybridge_on_piece on_piece, void* user, hybridge_answer* answer
) {
  if (results == nullptr && count > 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    std::vector<std::string> given;
    for (const hybridge_result& each : std::span(results, count)) given.emplace_back(view(each.content, each.size));
    const auto ask = [&](Conversation& conversation, auto& generator, const auto& show, auto ends) {
      return conversation.give_results(given, generator, show, std::move(ends));
    };
    return answer_by(chat, options, stops, stop_count, on_piece, user, answer, ask);
  });
}

hybridge_status hybridge_chat_show(hybridge_chat chat, const hybridge_picture* pictures, size_t count) {
  if (pictures == nullptr && count > 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_chat(chat, [&](OpenChat& open, OpenSession& session) {
    hybridge::text::Pictures shown;
    for (const hybridge_picture each : std::span(pictures, count)) {
      const auto found = handles<OpenPicture>().find(each);
      if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
      if (found->model != session.model) return refused(HYBRIDGE_OTHER_MODEL, "a picture was opened for another model");
      shown.push_back(hybridge::of_message(found->picture));
    }
    open.conversation->show(std::move(shown));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_chat_undo(hybridge_chat chat) {
  return with_chat_ending_generation(chat, [](OpenChat& open, OpenSession&) {
    return answer(open.conversation->undo());
  });
}

hybridge_status hybridge_chat_reset(hybridge_chat chat) {
  return with_chat_ending_generation(chat, [](OpenChat& open, OpenSession&) {
    return answer(open.conversation->reset());
  });
}

hybridge_status hybridge_chat_set_system(hybridge_chat chat, const char* text, size_t size) {
  if (text == nullptr && size > 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_chat_ending_generation(chat, [&](OpenChat& open, OpenSession&) {
    return answer(open.conversation->set_system(view(text, size)));
  });
}

hybridge_status hybridge_chat_cancel(hybridge_chat chat) {
  return with_open<OpenChat>(chat, [](const OpenChat& open) { return hybridge_cancel(open.session); });
}

hybridge_status hybridge_chat_save(hybridge_chat chat, const char* path) {
  if (path == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_chat_ending_generation(chat, [&](OpenChat& open, OpenSession&) {
    return answer(open.conversation->save(path));
  });
}

hybridge_status hybridge_chat_load(hybridge_chat chat, const char* path) {
  if (path == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_chat_ending_generation(chat, [&](OpenChat& open, OpenSession&) {
    return answer(open.conversation->load(path));
  });
}

hybridge_status hybridge_chat_restore(hybridge_chat chat, const char* note, size_t size) {
  if (note == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_chat_ending_generation(chat, [&](OpenChat& open, OpenSession&) {
    return answer(open.conversation->restore(std::string(view(note, size))));
  });
}

hybridge_status hybridge_chat_note(hybridge_chat chat, char* note, size_t capacity, size_t* size) {
  if (size == nullptr || (note == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_chat(chat, [&](OpenChat& open, OpenSession&) {
    const std::string written = open.conversation->note();
    *size = written.size();
    std::copy_n(written.data(), std::min(capacity, written.size()), note);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_chat_messages(
    hybridge_chat chat, hybridge_message* messages, size_t capacity, size_t* count, int64_t* room
) {
  if (count == nullptr || (messages == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_chat(chat, [&](OpenChat& open, OpenSession& session) {
    const auto& all = open.conversation->messages();
    *count = all.size();
    open.calls.clear();
    for (size_t i = 0; i < std::min(capacity, all.size()); ++i) {
      const Message& each = all[i];
      const bool is_result = each.role == "tool";
      open.calls.push_back(viewed(is_result ? std::span(&each.call, 1) : std::span(each.calls)));
      messages[i] = viewed(each, open.calls.back());
    }
    if (room != nullptr) *room = session.session->room();
    return HYBRIDGE_OK;
  });
}

}  // extern "C"
