#include "engine/conversation.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>

#include "engine/model_info.h"

#include "text/stop_strings.h"
#include "text/unicode.h"
#include "text/error.h"

namespace hybridge {

namespace {

constexpr const char* NOTHING_SAID = "there is no message yet: send one first";
constexpr const char* ANOTHER = "\u2603";        // a message that no user writes
constexpr size_t MOST_SAVED = size_t(60) << 20;  // of a note, which has at most 64 MB

// Removes what a person has seen from the beginning of a text, and from what they have seen.
void leave_out(std::string& text, std::string_view& seen) {
  const size_t count = std::min(text.size(), seen.size());
  if (text.compare(0, count, seen.substr(0, count)) != 0) seen = {};
  text.erase(0, std::min(count, seen.size()));
  seen.remove_prefix(std::min(count, seen.size()));
}

std::string_view without_end(std::string_view text) { return text.substr(0, text.find_last_not_of(" \t\r\n") + 1); }

}  // namespace

template <typename Step>
Result<ChatAnswer> Conversation::or_as_before(Step&& step) {
  const text::ChatLog before = log_;
  has_answered_ = false;
  dropped_ = 0;
  auto done = step();
  if (!done.ok() && !has_answered_) log_ = before;
  return done;
}

Conversation::Conversation(
    Session& session, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
    std::vector<text::Message> opening, std::shared_ptr<PrefixCache> cache, text::Reopen reopen
)
    : session_(session),
      tokenizer_(tokenizer),
      template_(chat_template),
      opening_(std::move(opening)),
      cache_(std::move(cache)),
      reopen_(std::move(reopen)) {
  find_special();
  begin();
}

Result<ChatAnswer> Conversation::send(
    std::string_view message, Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops
) {
  auto done = or_as_before([&]() -> Result<ChatAnswer> {
    auto asked = log_.messages;
    asked.push_back({"user", text::valid_utf8(message), {}, pictures_.size()});
    HYBRIDGE_TRY(ask(std::move(asked), pictures_, generator.options().max_new_tokens));
    return answer(generator, on_piece, std::move(stops));
  });
  if (has_answered_) pictures_.clear();
  return done;
}

Result<ChatAnswer> Conversation::give_results(
    std::span<const std::string> results, Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops
) {
  return or_as_before([&]() -> Result<ChatAnswer> {
    const auto calls = log_.messages.empty() ? std::vector<text::ToolCall>() : log_.messages.back().calls;
    if (calls.empty()) {
      return Status(HYBRIDGE_INVALID_STATE, "the last answer calls no tool, so there is nothing to give a result of");
    }
    if (calls.size() != results.size()) {
      return Status(
          HYBRIDGE_INVALID_ARGUMENT, "the last answer calls " + std::to_string(calls.size()) +
                                         " tools, and there are " + std::to_string(results.size()) +
                                         " results: give one for each call, in their order"
      );
    }
    auto asked = log_.messages;
    for (size_t i = 0; i < calls.size(); ++i) {
      asked.push_back({"tool", text::valid_utf8(results[i]), {}, 0, {}, {calls[i].name, "", calls[i].id}});
    }
    HYBRIDGE_TRY(ask(std::move(asked), {}, generator.options().max_new_tokens));
    return answer(generator, on_piece, std::move(stops));
  });
}

Result<ChatAnswer> Conversation::retry(Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops) {
  return or_as_before([&]() -> Result<ChatAnswer> {
    if (log_.turns.empty()) return Status(HYBRIDGE_INVALID_STATE, NOTHING_SAID);
    forget_answer();
    if (has_new_system_) {
      const text::Turn last = std::move(log_.turns.back());
      log_.turns.pop_back();
      log_.tokens.resize(std::min(log_.tokens.size(), last.start));
      HYBRIDGE_TRY(ask(log_.messages, last.pictures, generator.options().max_new_tokens));
    } else {
      log_.tokens.resize(log_.turns.back().answer);
    }
    return answer(generator, on_piece, std::move(stops));
  });
}

Result<ChatAnswer> Conversation::continue_answer(
    Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops
) {
  return or_as_before([&]() -> Result<ChatAnswer> {
    if (log_.turns.empty() || log_.messages.back().role != "assistant")
      return Status(HYBRIDGE_INVALID_STATE, "there is no answer to continue: send a message first");
    if (!log_.messages.back().calls.empty())
      return Status(HYBRIDGE_INVALID_STATE, "the last answer calls tools: give their results instead");
    const text::Message so_far = std::move(log_.messages.back());
    log_.messages.pop_back();
    return answer(generator, on_piece, std::move(stops), &so_far);
  });
}

Status Conversation::set_system(std::string_view text) {
  std::vector<text::Message> opening;
  if (!text.empty()) opening.push_back({"system", text::valid_utf8(text)});
  auto messages = opening;
  std::ranges::copy_if(log_.messages, std::back_inserter(messages), [](const auto& each) {
    return each.role != "system";
  });
  try {
    auto tried = messages;
    if (log_.turns.empty() || tried.back().role == "assistant") tried.push_back({"user", "a"});
    (void)template_.render(tried);
  } catch (const text::TextError& error) {
    return Status(HYBRIDGE_INVALID_TEMPLATE, error.what());
  }
  opening_ = std::move(opening);
  log_.messages = std::move(messages);
  has_new_system_ = !log_.turns.empty();
  return Status();
}

Status Conversation::undo() {
  if (log_.turns.empty()) return Status(HYBRIDGE_INVALID_STATE, NOTHING_SAID);
  bool is_rewritten = false, is_users = false;
  while (!is_users) {
    forget_answer();
    is_users = log_.messages.back().role == "user";
    while (log_.messages.back().role == "tool") log_.messages.pop_back();
    if (is_users) log_.messages.pop_back();
    is_rewritten = is_rewritten || log_.turns.back().start == 0;
    log_.tokens.resize(std::min(log_.tokens.size(), log_.turns.back().start));
    log_.turns.pop_back();
  }
  if (is_rewritten && !log_.turns.empty()) HYBRIDGE_TRY(encode_again());
  return resume_prefix(session_, log_.tokens, *cache_).status();
}

Status Conversation::reset() {
  begin();
  return session_.reset().status();
}

Status Conversation::save(const std::string& path) {
  std::string note = log_.to_json();
  const bool has_pictures = std::ranges::any_of(log_.turns, [](const text::Turn& each) {
    return !each.pictures.empty();
  });
  if (note.size() <= MOST_SAVED || !has_pictures) return session_.save(path, std::move(note));
  return Status(
      HYBRIDGE_INVALID_PICTURE, "the pictures of this conversation take " + std::to_string(note.size() >> 20) +
                                    " MB, and a saved one has at most " + std::to_string(MOST_SAVED >> 20) +
                                    ": undo messages with pictures"
  );
}

Status Conversation::load(const std::string& path) {
  text::ChatLog found;
  HYBRIDGE_TRY(session_.load(path, [&](const std::string& note) { return read(note, found); }));
  log_ = std::move(found);
  has_new_system_ = false;
  return keep_slots();
}

Status Conversation::restore(const std::string& note) {
  text::ChatLog found;
  HYBRIDGE_TRY(read(note, found));
  HYBRIDGE_TRY(session_.reset());
  log_ = std::move(found);
  has_new_system_ = false;
  return Status();
}

Status Conversation::read(const std::string& note, text::ChatLog& found) {
  try {
    found = text::ChatLog::from_json(note);
  } catch (const text::TextError& error) {
    return Status(HYBRIDGE_INVALID_SAVED_STATE, std::string("the file holds no conversation: ") + error.what());
  }
  try {
    for (text::Turn& turn : found.turns) {
      if (!turn.pictures.empty() && !reopen_)
        throw text::TextError("the conversation has pictures, which this chat cannot open");
      for (auto& each : turn.pictures) each = reopen_(each->saved());
    }
  } catch (const text::TextError& error) {
    return Status(HYBRIDGE_INVALID_PICTURE, error.what());
  }
  const auto& info = session_.info();
  const bool fits = std::ranges::all_of(found.tokens, [&](int64_t token) {
    return token < info.vocab_size && (token >= 0 || info.encoder);
  });
  return fits ? Status()
              : Status(HYBRIDGE_INVALID_SAVED_STATE, "the conversation's tokens are not of this model's vocabulary");
}

void Conversation::begin() {
  log_ = {};
  log_.messages = opening_;
  has_new_system_ = false;
  pictures_.clear();
}

void Conversation::find_special() {
  const std::string shown = template_.shown();
  for (const uint32_t id : tokenizer_.added(true)) {
    const std::string token = tokenizer_.token(id);
    special_ids_.insert(id);
    if (token.empty() || shown.find(token) == std::string::npos) hidden_.insert(id);
    if (token.empty()) continue;
    special_.push_back(token);
    first_bytes_ += token[0];
  }
}

std::vector<text::TextPart> Conversation::spelled(const text::Rendered& rendered, size_t end) const {
  std::vector<text::TextPart> found;
  for (const auto& [begin, stop] : rendered.words) {
    const std::string_view words = std::string_view(rendered.text).substr(0, stop);
    for (size_t at = words.find_first_of(first_bytes_, begin); at < end; at = words.find_first_of(first_bytes_, at)) {
      size_t longest = 0;
      for (const std::string& each : special_) {
        if (each.size() > longest && words.substr(at).starts_with(each)) longest = each.size();
      }
      if (longest > 0) found.push_back({at, std::min(at + longest, end)});
      at += std::max(longest, size_t(1));
    }
  }
  return found;
}

Result<Conversation::Prompt> Conversation::prompt_of(
    const std::vector<text::Message>& messages, const text::Pictures& new_pictures
) const {
  Prompt prompt{.rendered = template_.render(messages), .tokens = {}};
  const size_t known = known_bytes(prompt.rendered);
  if (known > 0) prompt.tokens = log_.tokens;
  prompt.start = prompt.tokens.size();
  text::Pictures pictures = known > 0 ? text::Pictures() : earlier_pictures();
  pictures.insert(pictures.end(), new_pictures.begin(), new_pictures.end());
  const size_t lasting = HYBRIDGE_TRY(
      add_tokens(prompt.rendered, known, pictures, prompt.tokens, messages.back().content)
  );
  prompt.lasting = known == 0 ? lasting : 0;
  return prompt;
}

Status Conversation::ask(std::vector<text::Message> messages, const text::Pictures& new_pictures, size_t wanted) {
  try {
    const auto most = static_cast<size_t>(session_.max_seq_len());
    Prompt prompt = HYBRIDGE_TRY(prompt_of(messages, new_pictures));
    if (prompt.tokens.size() + std::clamp<size_t>(wanted, 1, std::max<size_t>(1, most / 4)) > most) {
      HYBRIDGE_TRY(drop_oldest(messages, new_pictures));
      if (dropped_ > 0) prompt = HYBRIDGE_TRY(prompt_of(messages, new_pictures));
    }
    if (prompt.tokens.size() >= most) {
      return Status(
          HYBRIDGE_NO_ROOM, "the message makes " + std::to_string(prompt.tokens.size()) +
                                " tokens with what must stay before it, which leaves no room for an answer in " +
                                std::to_string(most) + ": shorten it, or " +
                                longer_context(session_.info(), session_.max_seq_len())
      );
    }
    if (dropped_ == 0) keep(2 * log_.turns.size());
    auto special = spelled(prompt.rendered, prompt.rendered.text.size());
    log_.turns.push_back(
        {prompt.start,
         prompt.tokens.size(),
         prompt.lasting,
         std::move(prompt.rendered.text),
         {},
         std::move(special),
         new_pictures}
    );
    log_.messages = std::move(messages);
    log_.tokens = std::move(prompt.tokens);
    has_new_system_ = false;
    return Status();
  } catch (const text::TextError& error) {
    return Status(HYBRIDGE_INVALID_TEMPLATE, error.what());
  }
}

Status Conversation::drop_oldest(std::vector<text::Message>& messages, const text::Pictures& new_pictures) {
  std::vector<size_t> users;  // where the user speaks
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].role == "user") users.push_back(i);
  }
  if (users.size() < 2) return Status();
  const auto begin = messages.begin() + static_cast<ptrdiff_t>(users[0]);
  const auto without = [&](size_t count) {
    std::vector<text::Message> rest(messages.begin(), begin);
    rest.insert(rest.end(), messages.begin() + static_cast<ptrdiff_t>(users[count]), messages.end());
    return rest;
  };
  // A message of the user begins a turn, and so does the first result of an answer's calls.
  const auto turns_of = [&](size_t count) {
    size_t turns = 0;
    for (size_t i = users[0]; i < users[count]; ++i)
      turns += messages[i].role == "user" || (messages[i].role == "tool" && messages[i - 1].role != "tool");
    return turns;
  };
  text::Pictures pictures = earlier_pictures();
  pictures.insert(pictures.end(), new_pictures.begin(), new_pictures.end());
  const auto pictures_of = [&](size_t count) {
    size_t gone = 0;
    for (size_t i = 0; i < turns_of(count); ++i) gone += log_.turns[i].pictures.size();
    return text::Pictures(pictures.begin() + static_cast<ptrdiff_t>(gone), pictures.end());
  };
  size_t least = 1, most = users.size() - 1;
  while (least < most) {  // the more messages go, the fewer tokens are left
    const size_t count = (least + most) / 2;
    std::vector<int64_t> tokens;
    HYBRIDGE_TRY(add_tokens(template_.render(without(count)), 0, pictures_of(count), tokens));
    if (tokens.size() <= static_cast<size_t>(session_.max_seq_len()) / 2) most = count;
    else least = count + 1;
  }
  dropped_ = users[least] - users[0];
  log_.turns.erase(log_.turns.begin(), log_.turns.begin() + static_cast<ptrdiff_t>(turns_of(least)));
  messages = without(least);
  log_.tokens.clear();
  // The turns that stay are written as if the others had never been.
  size_t at = users[0];
  for (text::Turn& turn : log_.turns) {
    do ++at;  // the new message follows
    while (messages[at].role == "tool");
    const text::Rendered rendered = template_.render(std::span(messages).first(at));
    turn.start = turn.lasting = 0;
    turn.rendered = rendered.text;
    turn.spelled = spelled(rendered, rendered.text.size());
    at += messages[at].role == "assistant";
  }
  return Status();
}

Result<size_t> Conversation::read_beginning(const GenerationOptions& options) {
  std::vector<text::Message> other;
  std::ranges::copy_if(log_.messages, std::back_inserter(other), [](const auto& each) {
    return each.role == "system";
  });
  other.push_back({"user", ANOTHER});
  std::vector<int64_t> tokens;
  try {
    HYBRIDGE_TRY(add_tokens(template_.render(other), 0, {}, tokens));
  } catch (const text::TextError&) {
    return 0;  // a template that wants other messages first
  }
  const auto differ = std::ranges::mismatch(tokens, log_.tokens).in1;
  const auto chunk = static_cast<size_t>(session_.info().prefill_chunk);
  const auto shared = static_cast<size_t>(differ - tokens.begin()) / chunk * chunk;
  if (shared == 0 || shared >= log_.tokens.size()) return 0;
  if (const auto kept = cache_->find(log_.tokens, &session_); kept != nullptr && kept->length() >= shared) return 0;
  const Tokens beginning = Tokens(log_.tokens).first(shared);
  return shared -
         static_cast<size_t>(HYBRIDGE_TRY(bring_to(session_, beginning, *cache_, options.cancelled, options.on_read)));
}

size_t Conversation::known_bytes(const text::Rendered& rendered) const {
  if (log_.turns.empty() || log_.tokens.empty()) return 0;
  const text::Turn& last = log_.turns.back();
  const std::string known = last.rendered + last.said.value_or("");
  const bool goes_on = rendered.text.starts_with(known) && spelled(rendered, last.rendered.size()) == last.spelled;
  return goes_on ? known.size() : 0;
}

Result<size_t> Conversation::add_tokens(
    const text::Rendered& rendered, size_t from, const text::Pictures& pictures, std::vector<int64_t>& tokens,
    std::string_view message
) const {
  std::vector<text::TextPart> words;
  for (const auto& [begin, end] : rendered.words) {
    if (end > from) words.push_back({std::max(begin, from) - from, end - from});
  }
  const int64_t placeholder = !pictures.empty() && session_.info().encoder ? session_.info().encoder->placeholder : -1;
  const std::string_view written = std::string_view(rendered.text).substr(from), spoken = without_end(message);
  size_t places = 0, lasting = 0;
  for (const text::TextToken& each : tokenizer_.encode(written, false, words)) {
    if (!spoken.empty() && special_ids_.contains(each.id) &&
        without_end(written.substr(0, each.begin)).ends_with(spoken)) {
      lasting = tokens.size();
    }
    if (each.id != placeholder) tokens.push_back(each.id);
    else if (places++ < pictures.size())
      tokens.insert(tokens.end(), pictures[places - 1]->ids.begin(), pictures[places - 1]->ids.end());
    if (each.id == placeholder) lasting = tokens.size();
  }
  if (places == pictures.size()) return lasting;
  return Status(
      HYBRIDGE_INVALID_PICTURE, "the chat template made " + std::to_string(places) + " places for " +
                                    std::to_string(pictures.size()) +
                                    " pictures: it writes them otherwise, or not at all"
  );
}

Status Conversation::encode_again() {
  const Status done = encode_last();
  if (!done.ok()) (void)reset();
  return done;
}

Status Conversation::encode_last() {
  text::Turn& last = log_.turns.back();
  try {
    log_.tokens.clear();
    HYBRIDGE_TRY(add_tokens({last.rendered, last.spelled}, 0, earlier_pictures(), log_.tokens));
    last.start = 0;
    last.answer = log_.tokens.size();
    if (last.said) HYBRIDGE_TRY(add_tokens({*last.said, {}}, 0, {}, log_.tokens));
    return Status();
  } catch (const text::TextError& error) {
    return Status(HYBRIDGE_INVALID_TEMPLATE, error.what());
  }
}

text::Pictures Conversation::earlier_pictures() const {
  text::Pictures found;
  for (const text::Turn& each : log_.turns) found.insert(found.end(), each.pictures.begin(), each.pictures.end());
  return found;
}

void Conversation::forget_answer() {
  if (log_.messages.back().role == "assistant") log_.messages.pop_back();
  log_.turns.back().said.reset();
}

Result<ChatAnswer> Conversation::answer(
    Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops, const text::Message* continued
) {
  ChatAnswer done;
  std::unique_ptr<text::Splitter> splitter;
  try {
    splitter = template_.answer(log_.turns.back().rendered);
  } catch (const text::TextError& error) {
    return Status(HYBRIDGE_INVALID_TEMPLATE, error.what());
  }
  const size_t count = log_.tokens.size();
  const double began = seconds_now();
  const GenerationOptions& options = generator.options();
  if (options.wait_for) options.wait_for(splitter->reasoning_end());
  const Tokens prompt = Tokens(log_.tokens).first(count - 1);
  const bool is_first = log_.turns.size() == 1 && continued == nullptr;
  const size_t begun = is_first ? HYBRIDGE_TRY(read_beginning(options)) : 0;
  const OnRead on_read = [&](size_t read) {
    if (options.on_read) options.on_read(begun + read);
  };
  const size_t number = 2 * log_.turns.size() - 1, mark = continued == nullptr ? log_.turns.back().lasting : 0;
  const auto keep_mark = [&] { keep_in_slot(number); };
  done.cached_tokens = static_cast<size_t>(
      HYBRIDGE_TRY(bring_to(session_, prompt, *cache_, options.cancelled, on_read, mark, keep_mark)) -
      static_cast<int64_t>(begun)
  );
  done.prompt_tokens = count - done.cached_tokens;
  done.dropped = dropped_;
  const double read = seconds_now() - began;
  if (mark > 0) keep_checkpoint(session_, *cache_);
  else if (continued == nullptr) keep(number);
  const auto said = say(generator, on_piece, std::move(stops), *splitter, continued);
  done.generated = generator.done();
  done.generated.prefill_seconds += read;
  if (!said.ok()) return said.status();
  done.end = *said;
  return done;
}

Result<AnswerEnd> Conversation::say(
    Generator& generator, const OnPiece& on_piece, std::vector<std::string> stops, text::Splitter& splitter,
    const text::Message* continued
) {
  text::TextStream stream(tokenizer_, false);
  text::StopStrings stopping(generator.options().stop_after_reasoning ? std::vector<std::string>() : stops);
  if (generator.options().stop_after_reasoning) {
    for (const std::string& each : stops) splitter.stop_at(each);
  }
  const auto has_stopped = [&] { return stopping.is_complete() || !splitter.cut().empty(); };
  const auto& ends = session_.info().eos_ids;
  const auto is_cancelled = [cancelled = generator.options().cancelled] { return cancelled != nullptr && *cancelled; };
  const int64_t last = log_.tokens.back();
  AnswerEnd end = AnswerEnd::BY_LENGTH;
  const auto pushed = [&](int64_t token) {
    const auto id = static_cast<uint32_t>(token);
    return stopping.push(hidden_.contains(id) ? std::string() : stream.push(id));
  };
  log_.turns.back().said = "";
  log_.messages.push_back({"assistant", ""});
  text::Message& written = log_.messages.back();
  std::string_view seen_content, seen_reasoning;  // beyond what the tokens so far have completed
  if (continued != nullptr) {
    for (const int64_t token : Tokens(log_.tokens).subspan(log_.turns.back().answer)) {
      const std::string piece = pushed(token);
      add(piece, splitter.push(piece));
    }
    if (has_stopped())
      return Status(HYBRIDGE_INVALID_STATE, "the last answer ended at a stop string, so there is nothing to continue");
    const auto rest_of = [](std::string_view all, std::string_view begun) {
      return all.starts_with(begun) ? all.substr(begun.size()) : std::string_view();
    };
    seen_content = rest_of(continued->content, written.content);
    seen_reasoning = rest_of(continued->reasoning, written.reasoning);
  }
  const auto show = [&](text::Parts parts) {
    leave_out(parts.content, seen_content);
    leave_out(parts.reasoning, seen_reasoning);
    return on_piece(parts);
  };
  Tokens given = HYBRIDGE_TRY(generator.begin({&last, 1}));
  has_answered_ = true;
  while (!given.empty()) {
    size_t taken = 0;
    bool is_wanted = true;
    while (taken < given.size() && is_wanted) {
      const int64_t token = given[taken++];
      const bool is_end = std::ranges::find(ends, token) != ends.end();
      if (!is_end) log_.tokens.push_back(token);  // the template writes the end of a turn itself
      const std::string piece = is_end ? stopping.push("") : pushed(token);
      is_wanted = show(add(piece, splitter.push(piece)));
      if (!is_wanted || is_cancelled()) end = AnswerEnd::BY_CALLER;
      if (has_stopped()) end = AnswerEnd::BY_STOP;
      if (is_end) end = AnswerEnd::BY_MODEL;
      is_wanted = end == AnswerEnd::BY_LENGTH;
    }
    if (!is_wanted) {
      HYBRIDGE_TRY(generator.end(taken));
      break;
    }
    given = HYBRIDGE_TRY(generator.next());
  }
  if (end == AnswerEnd::BY_LENGTH && is_cancelled()) end = AnswerEnd::BY_CALLER;
  const std::string rest = stopping.push(stream.finish()) + stopping.finish();
  text::Parts parts = splitter.push(rest);
  const text::Parts last_parts = splitter.finish();
  parts.calls.insert(parts.calls.end(), last_parts.calls.begin(), last_parts.calls.end());
  (void)show(
      add(rest, {parts.content + last_parts.content, parts.reasoning + last_parts.reasoning, std::move(parts.calls)})
  );
  std::string& said = *log_.turns.back().said;
  if (!splitter.cut().empty()) said.resize(std::min(said.size(), said.rfind(splitter.cut())));
  return end;
}

text::Parts Conversation::add(const std::string& piece, text::Parts parts) {
  *log_.turns.back().said += piece;
  log_.messages.back().content += parts.content;
  log_.messages.back().reasoning += parts.reasoning;
  for (text::ToolCall& each : parts.calls) {
    each.id = next_id();
    log_.messages.back().calls.push_back(each);
  }
  return parts;
}

std::string Conversation::next_id() const {
  size_t next = 0;
  for (const text::Message& each : log_.messages) {
    for (const text::ToolCall& call : each.calls) {
      const bool is_ours = call.id.starts_with("call");
      next = std::max<size_t>(next, is_ours ? std::strtoul(call.id.c_str() + 4, nullptr, 10) + 1 : 0);
    }
  }
  std::string digits = std::to_string(next);
  return "call" + std::string(5 - std::min<size_t>(5, digits.size()), '0') + digits;
}

void Conversation::keep(size_t number) {
  keep_checkpoint(session_, *cache_);
  keep_in_slot(number);
}

void Conversation::keep_in_slot(size_t number) {
  const auto ring = static_cast<size_t>(session_.info().snapshot_slots) / 2 * 2;
  if (ring > 0) (void)session_.snapshot(static_cast<int64_t>(number % ring));
}

Status Conversation::keep_slots() {
  const auto loaded = HYBRIDGE_TRY(session_.checkpoint());
  for (int64_t slot = 0; slot < session_.info().snapshot_slots; ++slot) {
    if (session_.slot(slot).empty() || !session_.restore(slot).ok()) continue;  // overwritten since
    keep_checkpoint(session_, *cache_);
  }
  return session_.resume(*loaded).status();
}

}  // namespace hybridge
