// A conversation over one session: words in, words out. The state stays between turns, and going back resumes a
// checkpoint.
//
//   const auto templates = std::make_shared<hybridge::text::ChatTemplates>(chat_template);   // text/chat_templates.h
//   hybridge::text::ModelTemplate chat_template(templates, tokenizer);
//   hybridge::Conversation conversation(session, tokenizer, chat_template, {{"system", "Be brief."}});
//   hybridge::Generator generator(session, {.max_new_tokens = 256}, {&drafter});      // for each answer
//   conversation.send("Hello", generator, [](const auto& piece) { return show(piece.content); });
//   conversation.undo();
//
// An answer that fits a JSON schema: engine/grammar.h.
//
// The tokenizer is the artifact's, and so are the chat templates. What was read or generated
// is never encoded again as long as the template goes on from it; where it rewrites the past, such as by dropping
// earlier reasoning, only what changed is read again. Special tokens in the words of messages are text.
//
// A message that leaves no room for its answer drops the oldest turns, down to half of the context. What is dropped is
// a message of the user with all that followed it, so no call loses its result; the messages of the system stay.
//
// Nothing throws, as in engine/session.h, but for memory that is used up.
#ifndef HYBRIDGE_ENGINE_CONVERSATION_H
#define HYBRIDGE_ENGINE_CONVERSATION_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/prefix_cache.h"
#include "engine/session.h"
#include "engine/speculative.h"
#include "engine/status.h"

#include "text/chat_log.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace hybridge {

// How an answer ended, and what it took. prompt_tokens were read for it, cached_tokens were known. dropped: messages
// that had to go before it.
enum class AnswerEnd { BY_MODEL, BY_STOP, BY_LENGTH, BY_CALLER };

struct ChatAnswer {
  AnswerEnd end = AnswerEnd::BY_LENGTH;
  size_t prompt_tokens = 0, cached_tokens = 0, dropped = 0;
  Generated generated = {};
};

// Called with what each token adds to the answer, which may be nothing; answers false to end it.
using OnPiece = std::function<bool(const text::Parts&)>;

class Conversation {
 public:
  // The first three must outlive the conversation. The session's text is replaced by the conversation's. opening:
  // messages of the system, in UTF-8. cache: states to go back to; one that had to go is read again. reopen: for the
  // pictures of a saved conversation.
  Conversation(
      Session& session, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
      std::vector<text::Message> opening = {},
      std::shared_ptr<PrefixCache> cache = std::make_shared<PrefixCache>(USUAL_CHECKPOINT_BYTES),
      text::Reopen reopen = {}
  );

  static constexpr size_t USUAL_CHECKPOINT_BYTES = size_t(256) << 20;

  const std::vector<text::Message>& messages() const { return log_.messages; }
  std::string note() const { return log_.to_json(); }  // throws TextError

  // Puts pictures before the next message that is answered.
  void show(text::Pictures pictures) { pictures_ = std::move(pictures); }

  // Answers a message. generator: over this conversation's session, and new. stops: texts before the first of which the
  // answer ends. Where it fails or is cancelled before the answer's first token (CANCELLED), the conversation is as it
  // was; after that, what was said stays. INVALID_TEMPLATE for what the template refuses, and NO_ROOM for a message
  // that by itself leaves no room for an answer.
  Result<ChatAnswer> send(
      std::string_view message, Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops = {}
  );

  // Answers the results of the tools that the last answer calls, one for each call in their order; INVALID_STATE where
  // it calls none.
  Result<ChatAnswer> give_results(
      std::span<const std::string> results, Generator& generator, const OnPiece& on_piece,
      std::vector<std::string> stops = {}
  );

  // Another answer to the last message; INVALID_STATE without one.
  Result<ChatAnswer> retry(Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops = {});

  // Goes on with the last answer, as if it had not ended; on_piece gets what is new. INVALID_STATE without an answer,
  // and for one that calls tools or ended at a stop string.
  Result<ChatAnswer> continue_answer(
      Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops = {}
  );

  // Puts another message of the system before the conversation, or none for an empty text. The messages stay, and are
  // read anew with the next answer. INVALID_TEMPLATE for what the template refuses.
  Status set_system(std::string_view text);

  // Takes the user's last message back, and all that came after it; INVALID_STATE without one.
  Status undo();

  // Begins anew, after the messages of the system.
  Status reset();

  // Writes the state and the conversation to one file, and goes on with one; INVALID_PICTURE for pictures that a file
  // has no room for. A file that holds no conversation is INVALID_SAVED_STATE, and the conversation is as it was then.
  Status save(const std::string& path);

  Status load(const std::string& path);

  // Goes on with the conversation of a note alone; the next answer reads its tokens. Fails as load does.
  Status restore(const std::string& note);

 private:
  // Reads the note of a file, and opens its pictures again.
  Status read(const std::string& note, text::ChatLog& found);

  void begin();

  // Special tokens are not shown, but for those that mark an answer's parts.
  void find_special();

  // The parts of a text up to `end` in which words of messages spell special tokens.
  std::vector<text::TextPart> spelled(const text::Rendered& rendered, size_t end) const;

  // Runs a step, and undoes it if it fails before the answer's first token.
  template <typename Step>
  Result<ChatAnswer> or_as_before(Step&& step);

  // The text of a conversation up to an answer: its tokens, of which the first `start` are known, and how many of them
  // stay if the template writes the answer's beginning in another way later.
  struct Prompt {
    text::Rendered rendered;
    std::vector<int64_t> tokens;
    size_t start = 0, lasting = 0;
  };

  // Returns the prompt of messages; pictures: of the last one. Throws TextError.
  Result<Prompt> prompt_of(const std::vector<text::Message>& messages, const text::Pictures& new_pictures) const;

  // Makes a conversation whose last message is to be answered this one, without its oldest turns if it leaves no room
  // for `wanted` tokens. new_pictures: the pictures of this message.
  Status ask(std::vector<text::Message> messages, const text::Pictures& new_pictures, size_t wanted);

  // Drops the fewest of the oldest turns without which the messages take half of the context, from the messages, too.
  // All but those of the last message of the user may go. Throws TextError.
  Status drop_oldest(std::vector<text::Message>& messages, const text::Pictures& new_pictures);

  // Reads what every text of this conversation begins with, in whole chunks, so that there is a checkpoint after it.
  // Returns the number of tokens that it read.
  Result<size_t> read_beginning(const GenerationOptions& options);

  // The beginning of a text, in bytes, that the tokens at hand stand for: none where the past is written in another way
  // now.
  size_t known_bytes(const text::Rendered& rendered) const;

  // Adds the tokens of a text from a byte on, with pictures in the place of their placeholders. Returns how many there
  // are up to the special token after the last message's words, or its last picture: what follows, such as an opened
  // reasoning, a template may write in another way once the message is answered. INVALID_PICTURE for another number of
  // placeholders. Throws TextError.
  Result<size_t> add_tokens(
      const text::Rendered& rendered, size_t from, const text::Pictures& pictures, std::vector<int64_t>& tokens,
      std::string_view message = {}
  ) const;

  // Encodes the last turn as it was written, where a later one wrote it in another way. Where that fails, the
  // conversation begins anew.
  Status encode_again();

  Status encode_last();

  text::Pictures earlier_pictures() const;

  void forget_answer();

  // continued: the answer so far that this one goes on with; null for a new one.
  Result<ChatAnswer> answer(
      Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops,
      const text::Message* continued = nullptr
  );

  Result<AnswerEnd> say(
      Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops, text::Splitter& splitter,
      const text::Message* continued
  );

  // Adds a piece to the answer so far.
  text::Parts add(const std::string& piece, text::Parts parts);

  // The id of the next call, after those of all messages: nine letters and digits, as Mistral's templates want.
  std::string next_id() const;

  // Keeps the state as a checkpoint and in a slot.
  void keep(size_t number);

  // Keeps the state in the snapshot slot of this number: two of a turn in a ring, which a file keeps too.
  void keep_in_slot(size_t number);

  // Makes checkpoints of the snapshots in a loaded state.
  Status keep_slots();

  Session& session_;
  const text::Tokenizer& tokenizer_;
  const text::ChatTemplate& template_;
  std::vector<text::Message> opening_;
  std::shared_ptr<PrefixCache> cache_;
  text::Reopen reopen_;
  std::unordered_set<uint32_t> special_ids_, hidden_;
  std::vector<std::string> special_;  // texts of special tokens, and what they begin with
  std::string first_bytes_;
  text::Pictures pictures_;  // of the next message
  text::ChatLog log_;
  size_t dropped_ = 0;  // messages, for the answer that is given
  bool has_answered_ = false;
  bool has_new_system_ = false;  // which the last turn was not written with
};

}  // namespace hybridge

#endif
