#include "grammar.h"

#include <algorithm>
#include <limits>

#include "../error.h"
#include "json_schema.h"
#include "regex.h"

namespace hybridge::text {
namespace {

constexpr float NEVER = -std::numeric_limits<float>::infinity();
constexpr std::string_view BLANK_LINE = "\n\n";  // models write it between reasoning and answer

template <typename Read>
std::shared_ptr<Grammar> read(
    const char* what, std::string_view text, std::shared_ptr<const Tokenizer> tokenizer, Read&& read,
    Grammar::FreeText free = {}
) {
  const std::string name(what);
  if (text.size() > Grammar::LARGEST) {
    throw TextError(
        "this " + name + " has " + std::to_string(text.size()) + " bytes, and " + std::to_string(Grammar::LARGEST) +
        " are the most there can be"
    );
  }
  try {
    GrammarExpressions expressions = read();
    if (!expressions.all.is_alive(expressions.start)) throw TextError("nothing fits it");
    if (expressions.after_blank_line == Expressions::NONE) {
      expressions.after_blank_line = expressions.all.concat(expressions.all.literal(BLANK_LINE), expressions.start);
    }
    return std::make_shared<Grammar>(std::move(expressions), std::move(tokenizer), std::move(free));
  } catch (const TextError& error) {
    throw TextError("this " + name + " cannot be followed: " + error.what());
  }
}

// The marks of a form's answers. In messages with headers, those of bodies stand for the marks of reasoning: only a
// header opens calls, or only what is no analysis.
Grammar::FreeText free_text(const AnswerForm& form) {
  if (!form.has_channels) return {form.calls.open, form.reasoning_open, form.reasoning_close};
  const bool in_header = form.calls.syntax == CallSyntax::JSON;
  return {
      form.calls.open, {in_header ? "<|message|>" : "<|channel|>analysis"}, {"<|start|>", "<|channel|>", "<|end|>"}
  };
}

}  // namespace

std::shared_ptr<Grammar> Grammar::json_schema(std::string_view schema, std::shared_ptr<const Tokenizer> tokenizer) {
  return read("JSON schema", schema, std::move(tokenizer), [&] { return read_json_schema(schema); });
}

std::shared_ptr<Grammar> Grammar::regex(std::string_view pattern, std::shared_ptr<const Tokenizer> tokenizer) {
  return read("regular expression", pattern, std::move(tokenizer), [&] {
    GrammarExpressions expressions;
    expressions.start = read_regex(pattern, expressions.all);
    return expressions;
  });
}

std::shared_ptr<Grammar> Grammar::calls(
    const AnswerForm& form, std::string_view tools, const ToolChoice& choice, std::shared_ptr<const Tokenizer> tokenizer
) {
  const TokenBytes& tokens = tokenizer->token_bytes();
  FreeText free;
  if (!choice.is_required) free = free_text(form);
  return read(
      "list of tools", tools, std::move(tokenizer), [&] { return read_calls(form, tools, choice, tokens); },
      std::move(free)
  );
}

Grammar::Grammar(GrammarExpressions expressions, std::shared_ptr<const Tokenizer> tokenizer, FreeText free)
    : expressions_(std::move(expressions)),
      tokenizer_(std::move(tokenizer)),
      tokens_(tokenizer_->token_bytes()),
      free_(std::move(free)) {}

GrammarFollower::GrammarFollower(std::shared_ptr<Grammar> grammar, Tokens eos_ids, std::optional<size_t> start)
    : grammar_(std::move(grammar)), eos_ids_(eos_ids.begin(), eos_ids.end()), start_(start) {}

bool GrammarFollower::is_eos(int64_t token) const { return std::ranges::find(eos_ids_, token) != eos_ids_.end(); }

// Returns whether a token that ends texts may come: where the text is complete, or the token is a mark of its form that
// comes next.
bool GrammarFollower::may_end(Automaton& automaton, const Place& place, int64_t eos) const {
  if (place.phase == Phase::WAITING) return false;
  if (place.phase != Phase::FOLLOWING || automaton.is_complete(place.state)) return true;
  const std::string_view bytes = grammar_->tokens_.bytes(eos);
  return bytes.starts_with(TokenBytes::SPECIAL) && automaton.step(place.state, bytes) != Automaton::NOWHERE;
}

// The forced tokens up to one that ends texts: a text cannot go on after it.
std::span<const uint32_t> GrammarFollower::forced_tokens(Automaton& automaton, Automaton::State state) const {
  const auto& all = automaton.forced(state);
  const auto end = std::ranges::find_if(all, [&](uint32_t token) { return is_eos(token); });
  return std::span(all).first(static_cast<size_t>(end - all.begin()));
}

// Calls `call(automaton)` where the text is reached. Notes why it could not be.
template <typename Call>
void GrammarFollower::with_automaton(Tokens text, Call&& call) {
  if (!failure_.empty()) return;
  const std::lock_guard lock(grammar_->mutex_);
  auto& automaton = grammar_->automaton_;
  const auto renew = [&] {
    automaton.reset();
    automaton = std::make_unique<Automaton>(grammar_->expressions_, grammar_->tokens_);
    grammar_->generation_++;
  };
  try {
    if (automaton == nullptr || !automaton->begin_call()) renew();
    reach(text);
    call(*automaton);
  } catch (const TextError& error) {
    failure_ = std::string("the grammar cannot be followed any further: ") + error.what();
    automaton.reset();  // which may be too large for the next call
  }
}

void GrammarFollower::reach(Tokens text) {
  if (!start_) start_ = text.size();
  const Tokens said = text.subspan(std::min(*start_, text.size()));
  if (generation_ != grammar_->generation_ || places_.empty()) {
    generation_ = grammar_->generation_;
    taken_.clear();
    places_ = {start()};
  }
  const size_t common = static_cast<size_t>(std::ranges::mismatch(taken_, said).in1 - taken_.begin());
  taken_.resize(common);
  places_.resize(common + 1);
  for (size_t count = common; count < said.size(); count++) {
    taken_.push_back(said[count]);
    places_.push_back(next(places_.back(), count + 1));
  }
}

GrammarFollower::Place GrammarFollower::start() {
  if (!grammar_->free_.opening.empty())
    return {awaited_.empty() ? Phase::FREE : Phase::REASONING, Automaton::NOWHERE, 0};
  return awaited_.empty() ? Place{Phase::FOLLOWING, grammar_->automaton_->start(), 0}
                          : Place{Phase::WAITING, Automaton::NOWHERE, 0};
}

// Where the first `count` taken tokens lead, of which all but the last lead to `from`.
GrammarFollower::Place GrammarFollower::next(const Place& from, size_t count) {
  Automaton& automaton = *grammar_->automaton_;
  const int64_t token = taken_[count - 1];
  if (from.phase == Phase::ENDED || (is_eos(token) && from.phase != Phase::WAITING))
    return {Phase::ENDED, Automaton::NOWHERE, 0};
  if (from.phase == Phase::FOLLOWING) {
    const std::string_view bytes = grammar_->tokens_.bytes(token);
    const Automaton::State state = bytes.empty() ? Automaton::NOWHERE : automaton.step(from.state, bytes);
    const bool is_free_again = !grammar_->free_.opening.empty() && automaton.is_final(state);
    return is_free_again ? Place{Phase::FREE, Automaton::NOWHERE, count} : Place{Phase::FOLLOWING, state, 0};
  }
  return look(from.phase, from.begin, count);
}

// Looks for the marks of a phase in the taken tokens from `begin` on.
GrammarFollower::Place GrammarFollower::look(Phase phase, size_t begin, size_t count) {
  Automaton& automaton = *grammar_->automaton_;
  const Grammar::FreeText& free = grammar_->free_;
  const Marks awaited = {awaited_};
  const auto marks_of = [&](Phase of) {
    std::vector<const Marks*> marks;
    if (of == Phase::WAITING) marks = {&awaited};
    if (of == Phase::FREE) marks = {&free.opening, &free.reasoning_open};
    if (of == Phase::REASONING) marks = {&free.reasoning_close};
    return marks;
  };
  size_t longest = 0;
  for (const Marks* marks : marks_of(phase)) {
    for (const std::string& each : *marks) longest = std::max(longest, each.size());
  }
  // A token has a character at least, so that older ones are no part of a mark.
  begin = std::max(begin, count - std::min(count, longest + 1));
  const std::vector<uint32_t> ids(
      taken_.begin() + static_cast<ptrdiff_t>(begin), taken_.begin() + static_cast<ptrdiff_t>(count)
  );
  const std::string text = grammar_->tokens_.tokenizer().decode(ids, false);
  std::string_view rest = text;
  while (true) {
    size_t first = rest.npos, end = 0;
    const Marks* found = nullptr;
    for (const Marks* marks : marks_of(phase)) {
      for (const std::string& each : *marks) {
        const size_t place = rest.find(each);
        if (place > first || place == rest.npos || (place == first && place + each.size() <= end)) continue;
        first = place;
        end = place + each.size();
        found = marks;
      }
    }
    if (found == nullptr) return {phase, Automaton::NOWHERE, begin};
    rest.remove_prefix(end);
    begin = count;
    if (found == &free.reasoning_open || found == &free.reasoning_close) {
      phase = found == &free.reasoning_open ? Phase::REASONING : Phase::FREE;
      continue;
    }
    const bool has_blank_line = phase == Phase::WAITING && (rest.empty() || BLANK_LINE.starts_with(rest));
    const size_t passed = phase == Phase::WAITING && !has_blank_line && rest.starts_with(BLANK_LINE) ? BLANK_LINE.size()
                                                                                                     : 0;
    const Automaton::State state = automaton.step(automaton.start(has_blank_line), rest.substr(passed));
    if (state != Automaton::NOWHERE) return {Phase::FOLLOWING, state, 0};
    if (phase == Phase::WAITING)
      return {phase, Automaton::NOWHERE, count};  // it was none: the grammar does not go on with the rest
  }
}

void GrammarFollower::mask(Tokens text, std::span<float> logits) {
  const auto is_in = [&](int64_t token) { return 0 <= token && static_cast<size_t>(token) < logits.size(); };
  bool is_done = false;
  with_automaton(text, [&](Automaton& automaton) {
    const Place& place = places_.back();
    std::vector<std::pair<int64_t, float>> ends;  // the logits of tokens that end a text, which may come next
    for (const int64_t token : eos_ids_) {
      if (!is_in(token)) continue;
      ends.emplace_back(token, may_end(automaton, place, token) ? logits[static_cast<size_t>(token)] : NEVER);
    }
    if (place.phase == Phase::ENDED) {
      std::ranges::fill(logits, NEVER);
    } else if (place.phase == Phase::FOLLOWING) {
      // Where only one token comes next, no other one says the same, such as the first half of it.
      const auto only = forced_tokens(automaton, place.state);
      if (!only.empty()) {
        const float logit = only.front() < logits.size() ? logits[only.front()] : NEVER;
        std::ranges::fill(logits, NEVER);
        if (only.front() < logits.size()) logits[only.front()] = logit;
      } else {
        const TokenMask& allowed = automaton.mask(place.state);
        for (size_t i = 0; i < logits.size(); i++) {
          if (i / 64 >= allowed.size() || (allowed[i / 64] >> i % 64 & 1) == 0) logits[i] = NEVER;
        }
      }
    }
    for (const auto& [token, logit] : ends) logits[static_cast<size_t>(token)] = logit;
    is_done = true;
    const bool leaves_none = place.phase == Phase::FOLLOWING &&
                             std::ranges::all_of(logits, [](float logit) { return logit == NEVER; });
    if (leaves_none) failure_ = "the grammar leaves no token to go on with; simplify it";
  });
  if (!is_done) std::ranges::fill(logits, NEVER);
}

std::vector<int64_t> GrammarFollower::forced(Tokens text, size_t limit) {
  std::vector<int64_t> tokens;
  with_automaton(text, [&](Automaton& automaton) {
    if (places_.back().phase != Phase::FOLLOWING) return;
    const auto all = forced_tokens(automaton, places_.back().state);
    tokens.assign(all.begin(), all.begin() + static_cast<ptrdiff_t>(std::min(limit, all.size())));
  });
  return tokens;
}

size_t GrammarFollower::fitting(Tokens text, Tokens proposed) {
  size_t count = 0;
  with_automaton(text, [&](Automaton& automaton) {
    const size_t before = taken_.size();
    for (; count < proposed.size(); count++) {
      const Place from = places_.back();
      const bool ends = is_eos(proposed[count]);
      if (from.phase == Phase::ENDED || (ends && !may_end(automaton, from, proposed[count]))) break;
      if (from.phase == Phase::FOLLOWING) {
        const auto only = forced_tokens(automaton, from.state);
        if (!only.empty() && only.front() != proposed[count]) break;
      }
      taken_.push_back(proposed[count]);
      places_.push_back(next(from, taken_.size()));
      if (places_.back().phase == Phase::FOLLOWING && places_.back().state == Automaton::NOWHERE) break;
    }
    taken_.resize(before);
    places_.resize(before + 1);
  });
  return count;
}

}  // namespace hybridge::text
