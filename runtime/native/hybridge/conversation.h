// A conversation over one session: words in, words out. The state stays between turns, and going back resumes a checkpoint.
//
//   hybridge::Conversation conversation(session, tokenizer, format, {.system = "Be brief."});
//   hybridge::Generator generator(session, {.max_new_tokens = 256}, &drafter);        // for each answer
//   conversation.send("Hello", generator, [](const auto& piece) { return show(piece.content); });
//   conversation.undo();
//
// An answer that fits a JSON schema: hybridge/grammar.h, with a follower that waits for `reasoning_end`.
//
// The tokenizer and the chat format are those of the artifact (../text). What was read or generated is never encoded again as long
// as the chat format goes on from it; where it rewrites the past, such as by dropping earlier reasoning, only what changed is read
// again. Special tokens in the words of messages are text.
//
// Nothing throws, as in hybridge/session.h, but for memory that is used up; `failure` says in words why a message was refused.
#ifndef HYBRIDGE_NATIVE_CONVERSATION_H
#define HYBRIDGE_NATIVE_CONVERSATION_H

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include <hybridge/prefix_cache.h>
#include <hybridge/speculative.h>

#include "../text/answer.h"
#include "../text/chat_format.h"
#include "../text/chat_log.h"
#include "../text/stop_strings.h"
#include "../text/tokenizer.h"
#include "../text/unicode.h"

namespace hybridge {

// system: the first message, if it is not empty. checkpoint_bytes: most memory for states to go back to; a state that had to go is
// read again.
struct ChatOptions {
  std::string system = {};
  text::Thinking thinking = text::Thinking::AS_USUAL;
  size_t checkpoint_bytes = size_t(256) << 20;
};

// How an answer ended, and what it took. prompt_tokens were read for it, cached_tokens were known.
enum class AnswerEnd { BY_MODEL, BY_STOP, BY_LENGTH, BY_CALLER };

struct ChatAnswer {
  AnswerEnd end = AnswerEnd::BY_LENGTH;
  size_t prompt_tokens = 0, cached_tokens = 0;
  Generated generated = {};
};

// Called with what each token adds to the answer, which may be nothing; answers false to end it.
using OnPiece = std::function<bool(const text::Parts&)>;

class Conversation {
 public:
  // All three must outlive the conversation. The session's text is replaced by the conversation's.
  Conversation(Session& session, const text::Tokenizer& tokenizer, const text::ChatFormat& format, ChatOptions options = {})
      : session_(session), tokenizer_(tokenizer), format_(format), options_(std::move(options)), cache_(options_.checkpoint_bytes) {
    find_hidden();
    begin();
  }

  const std::vector<text::Message>& messages() const { return log_.messages; }
  const std::string& failure() const { return failure_; }

  // The text that ends the reasoning with which an answer begins; empty if it begins with none. A grammar waits for it.
  std::string reasoning_end() const { return text::AnswerSplitter(format_, format_.opening(options_.thinking)).reasoning_end(); }

  // Answers a message. generator: over this conversation's session, and new. stops: texts before the first of which the answer
  // ends. cancelled: another thread may set it. Where it fails or is cancelled before the answer's first token (InvalidState), the
  // conversation is as it was; behind that, what was said stays. InvalidArgument for what the chat format refuses, and
  // OutOfResources for a message that leaves no room for an answer.
  Result<ChatAnswer> send(
      std::string_view message, Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops = {},
      const std::atomic<bool>* cancelled = nullptr) {
    return or_as_before([&]() -> Result<ChatAnswer> {
      auto asked = log_.messages;
      asked.push_back({"user", text::valid_utf8(message)});
      ET_CHECK_OK_OR_RETURN_ERROR(ask(std::move(asked)));
      return answer(generator, on_piece, std::move(stops), cancelled);
    });
  }

  // Another answer to the last message; InvalidState without one.
  Result<ChatAnswer> retry(
      Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops = {}, const std::atomic<bool>* cancelled = nullptr) {
    return or_as_before([&]() -> Result<ChatAnswer> {
      if (log_.turns.empty()) return refused(Error::InvalidState, NOTHING_SAID);
      forget_answer();
      log_.tokens.resize(log_.turns.back().answer);
      return answer(generator, on_piece, std::move(stops), cancelled);
    });
  }

  // Takes the last message and its answer back; InvalidState without one.
  Error undo() {
    if (log_.turns.empty()) return refused(Error::InvalidState, NOTHING_SAID);
    forget_answer();
    log_.messages.pop_back();
    log_.tokens.resize(log_.turns.back().start);
    log_.turns.pop_back();
    return resume_prefix(session_, log_.tokens, cache_).error();
  }

  // Begins anew, behind the message of the system.
  Error reset() {
    begin();
    return session_.reset().error();
  }

  // Writes the state and the conversation to one file, and goes on with one; a file that holds no conversation is
  // InvalidExternalData, and the conversation begins anew then.
  Error save(const std::string& path) const { return session_.save(path, log_.to_json()); }

  Error load(const std::string& path) {
    ET_UNWRAP(session_.load(path));
    try {
      log_ = text::ChatLog::from_json(session_.note());
    } catch (const text::TextError& error) {
      (void)reset();
      return refused(Error::InvalidExternalData, error.what());
    }
    if (!std::ranges::all_of(log_.tokens, [&](int64_t token) { return token < session_.facts().vocab_size; })) {
      (void)reset();
      return refused(Error::InvalidExternalData, "its tokens are not of this model's vocabulary");
    }
    return keep_slots();
  }

 private:
  static constexpr const char* NOTHING_SAID = "there is no message yet: send one first";

  Error refused(Error error, std::string why) {
    failure_ = std::move(why);
    return error;
  }

  void begin() {
    log_ = {};
    if (!options_.system.empty()) log_.messages.push_back({"system", text::valid_utf8(options_.system)});
  }

  // Special tokens are not shown, but for those that mark sections.
  void find_hidden() {
    for (const uint32_t id : tokenizer_.added(true)) {
      const std::string token = tokenizer_.token(id);
      const auto has = [&](const std::string& mark) { return !token.empty() && mark.find(token) != std::string::npos; };
      const bool is_mark = std::ranges::any_of(format_.sections(), [&](const text::Section& each) {
        return std::ranges::any_of(each.open, has) || std::ranges::any_of(each.close, has);
      });
      if (!is_mark) hidden_.insert(id);
    }
  }

  // Runs a step, and undoes it if it fails before the answer's first token.
  template <typename Step>
  Result<ChatAnswer> or_as_before(Step&& step) {
    failure_.clear();
    const text::ChatLog before = log_;
    has_answered_ = false;
    auto done = step();
    if (!done.ok() && !has_answered_) log_ = before;
    return done;
  }

  // Makes a conversation whose last message is to be answered this one: its tokens are those that are known and what is new.
  Error ask(std::vector<text::Message> messages) {
    try {
      text::Rendered rendered = format_.render(messages, options_.thinking);
      const size_t known = known_bytes(rendered.text);
      std::vector<int64_t> tokens = known > 0 ? log_.tokens : std::vector<int64_t>();
      const size_t start = tokens.size();
      add_tokens(rendered, known, tokens);
      const auto most = static_cast<size_t>(session_.facts().max_seq_len);
      if (tokens.size() >= most) {
        return refused(
            Error::OutOfResources, "the conversation makes " + std::to_string(tokens.size()) + " tokens with this message, which leaves no room for an answer in " +
                std::to_string(most) + ": shorten it, start anew, or export with a larger --max-seq-len");
      }
      keep(2 * log_.turns.size());
      log_.turns.push_back({start, tokens.size(), std::move(rendered.text), {}});
      log_.messages = std::move(messages);
      log_.tokens = std::move(tokens);
      return Error::Ok;
    } catch (const text::TextError& error) {
      return refused(Error::InvalidArgument, error.what());
    }
  }

  // The beginning of a text, in bytes, that the tokens at hand stand for: none where the past is written in another way now.
  size_t known_bytes(std::string_view text) const {
    if (log_.turns.empty()) return 0;
    const text::Turn& last = log_.turns.back();
    const std::string known = last.rendered + last.said.value_or("");
    return text.starts_with(known) ? known.size() : 0;
  }

  void add_tokens(const text::Rendered& rendered, size_t from, std::vector<int64_t>& tokens) const {
    std::vector<text::TextPart> words;
    for (const auto& [begin, end] : rendered.words) {
      if (end > from) words.push_back({std::max(begin, from) - from, end - from});
    }
    for (const text::TextToken& each : tokenizer_.encode(std::string_view(rendered.text).substr(from), false, words)) tokens.push_back(each.id);
  }

  void forget_answer() {
    if (log_.messages.back().role == "assistant") log_.messages.pop_back();
    log_.turns.back().said.reset();
  }

  Result<ChatAnswer> answer(
      Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops, const std::atomic<bool>* cancelled) {
    ChatAnswer done;
    const size_t count = log_.tokens.size();
    const double began = seconds_now();
    done.cached_tokens = static_cast<size_t>(ET_UNWRAP(bring_to(session_, Tokens(log_.tokens).first(count - 1), cache_, cancelled)));
    done.prompt_tokens = count - done.cached_tokens;
    const double read = seconds_now() - began;
    keep(2 * log_.turns.size() - 1);
    const auto said = say(generator, on_piece, std::move(stops), cancelled);
    done.generated = generator.done();
    done.generated.prefill_seconds += read;
    if (!said.ok()) return said.error();
    done.end = *said;
    return done;
  }

  Result<AnswerEnd> say(
      Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops, const std::atomic<bool>* cancelled) {
    text::TextStream stream(tokenizer_, false);
    text::StopStrings stopping(std::move(stops));
    text::AnswerSplitter splitter(format_, format_.opening(options_.thinking));
    const auto& ends = session_.facts().eos_ids;
    const auto is_cancelled = [&] { return cancelled != nullptr && *cancelled; };
    const int64_t last = log_.tokens.back();
    AnswerEnd end = AnswerEnd::BY_LENGTH;
    Tokens given = ET_UNWRAP(generator.begin({&last, 1}));
    has_answered_ = true;
    log_.turns.back().said = "";
    log_.messages.push_back({"assistant", ""});
    while (!given.empty()) {
      size_t taken = 0;
      bool is_wanted = true;
      while (taken < given.size() && is_wanted) {
        const int64_t token = given[taken++];
        const auto id = static_cast<uint32_t>(token);
        const bool is_end = std::ranges::find(ends, token) != ends.end();
        if (!is_end) log_.tokens.push_back(token);  // the chat format writes the end of a turn itself
        const std::string piece = stopping.push(is_end || hidden_.contains(id) ? std::string() : stream.push(id));
        is_wanted = on_piece(add(piece, splitter.push(piece)));
        if (!is_wanted || is_cancelled()) end = AnswerEnd::BY_CALLER;
        if (stopping.is_complete()) end = AnswerEnd::BY_STOP;
        if (is_end) end = AnswerEnd::BY_MODEL;
        is_wanted = end == AnswerEnd::BY_LENGTH;
      }
      if (!is_wanted) {
        ET_CHECK_OK_OR_RETURN_ERROR(generator.end(taken));
        break;
      }
      given = ET_UNWRAP(generator.next());
    }
    if (end == AnswerEnd::BY_LENGTH && is_cancelled()) end = AnswerEnd::BY_CALLER;
    const std::string rest = stopping.push(stream.finish()) + stopping.finish();
    text::Parts parts = splitter.push(rest);
    const text::Parts behind = splitter.finish();
    (void)on_piece(add(rest, {parts.content + behind.content, parts.reasoning + behind.reasoning}));
    return end;
  }

  // Adds a piece to the answer so far.
  text::Parts add(const std::string& piece, text::Parts parts) {
    *log_.turns.back().said += piece;
    log_.messages.back().content += parts.content;
    log_.messages.back().reasoning += parts.reasoning;
    return parts;
  }

  // Keeps the state as a checkpoint, and in the snapshot slot of this number: two of a turn in a ring, which a file keeps too.
  void keep(size_t number) {
    keep_checkpoint(session_, cache_);
    const auto ring = static_cast<size_t>(session_.facts().snapshot_slots) / 2 * 2;
    if (ring > 0) (void)session_.snapshot(static_cast<int64_t>(number % ring));
  }

  // Makes checkpoints of the snapshots in a loaded state.
  Error keep_slots() {
    const auto loaded = session_.checkpoint();
    for (int64_t slot = 0; slot < session_.facts().snapshot_slots; ++slot) {
      if (session_.slot(slot).empty() || !session_.restore(slot).ok()) continue;  // overwritten since
      keep_checkpoint(session_, cache_);
    }
    return session_.resume(*loaded).error();
  }

  Session& session_;
  const text::Tokenizer& tokenizer_;
  const text::ChatFormat& format_;
  const ChatOptions options_;
  PrefixCache cache_;
  std::unordered_set<uint32_t> hidden_;
  text::ChatLog log_;
  std::string failure_;
  bool has_answered_ = false;
};

}  // namespace hybridge

#endif
