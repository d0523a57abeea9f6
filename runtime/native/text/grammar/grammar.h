// Answers that fit a JSON schema, match a regular expression, or call tools: which tokens may come next.
//
//   const auto grammar = hybridge::text::Grammar::json_schema(schema, tokenizer);  // once for a schema
//   hybridge::text::GrammarFollower follower(grammar, eos_ids);                    // once for a text
#ifndef HYBRIDGE_NATIVE_TEXT_GRAMMAR_GRAMMAR_H
#define HYBRIDGE_NATIVE_TEXT_GRAMMAR_GRAMMAR_H

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "../answers/form.h"
#include "../tokenizer.h"
#include "automaton.h"
#include "calls.h"

namespace hybridge::text {

// What a text must be. Any number of followers, in any threads, may use one; what one finds out, the others know.
class Grammar {
 public:
  // The most bytes of a schema or an expression.
  static constexpr size_t LARGEST = size_t(1) << 20;

  // Throw TextError for what cannot be followed.
  static std::shared_ptr<Grammar> json_schema(std::string_view schema, std::shared_ptr<const Tokenizer> tokenizer);
  static std::shared_ptr<Grammar> regex(std::string_view pattern, std::shared_ptr<const Tokenizer> tokenizer);

  // Calls of tools, a JSON list as in OpenAI's API: a text that is calls, or a free one in which the form's marks open
  // them outside of its reasoning.
  static std::shared_ptr<Grammar> calls(
      const AnswerForm& form, std::string_view tools, const ToolChoice& choice,
      std::shared_ptr<const Tokenizer> tokenizer
  );

  // The marks of a free text: what the grammar begins after, and those of reasoning. None of the first: it is not free.
  struct FreeText {
    Marks opening = {}, reasoning_open = {}, reasoning_close = {};
  };

  Grammar(GrammarExpressions expressions, std::shared_ptr<const Tokenizer> tokenizer, FreeText free);

 private:
  friend class GrammarFollower;

  const GrammarExpressions expressions_;
  const std::shared_ptr<const Tokenizer> tokenizer_;
  const TokenBytes& tokens_;
  const FreeText free_;
  std::mutex mutex_;
  std::unique_ptr<Automaton> automaton_;
  uint64_t generation_ = 0;  // of the automaton: a new one has other states
};

// Follows the text of one generation. Tokens may be taken back: each call has the whole text.
class GrammarFollower {
 public:
  using Tokens = std::span<const int64_t>;

  // eos_ids: tokens that end a text. start: number of tokens before the text; if left out, those of the first call are.
  GrammarFollower(std::shared_ptr<Grammar> grammar, Tokens eos_ids, std::optional<size_t> start = std::nullopt);

  // Leaves the choice free until the text contains `end`, which ends a reasoning. A blank line and the grammar come
  // after it; in a free text the reasoning's marks are passed.
  void wait_for(std::string end) { awaited_ = std::move(end); }

  // Makes the logits minus infinity of all tokens that may not come next; of all tokens, where there is a `failure`.
  void mask(Tokens text, std::span<float> logits);

  // The tokens, at most `limit`, that come next whatever is chosen.
  std::vector<int64_t> forced(Tokens text, size_t limit);

  // The number of proposed tokens, from the first on, that may follow.
  size_t fitting(Tokens text, Tokens proposed);

  // Why the text cannot go on; empty as long as it can.
  const std::string& failure() const { return failure_; }

 private:
  // WAITING: for the awaited text. FREE and REASONING: of a free text.
  enum class Phase : uint8_t { WAITING, FREE, REASONING, FOLLOWING, ENDED };

  // Where a text is. begin: where to look for marks from, unless it follows the grammar.
  struct Place {
    Phase phase;
    Automaton::State state;
    size_t begin;
  };

  template <typename Call>
  void with_automaton(Tokens text, Call&& call);
  void reach(Tokens text);
  Place start();
  Place next(const Place& from, size_t count);
  Place look(Phase phase, size_t begin, size_t count);
  bool is_eos(int64_t token) const;
  bool may_end(Automaton& automaton, const Place& place, int64_t eos) const;
  std::span<const uint32_t> forced_tokens(Automaton& automaton, Automaton::State state) const;

  const std::shared_ptr<Grammar> grammar_;
  const std::vector<int64_t> eos_ids_;
  std::optional<size_t> start_;
  std::string awaited_, failure_;
  std::vector<int64_t> taken_;
  std::vector<Place> places_;  // before each token, and after all
  uint64_t generation_ = 0;
};

}  // namespace hybridge::text

#endif
