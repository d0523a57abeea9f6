// The functions of hybridge.h about grammars, over text/grammar/grammar.h.

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include <hybridge/grammar.h>
#include <hybridge/hybridge.h>

#include "calls.h"
#include "constraint.h"
#include "handles.h"

namespace {

using namespace hybridge::c;
using hybridge::text::Grammar;
using hybridge::text::GrammarFollower;
using hybridge::text::TextError;
using hybridge::text::Tokenizer;

class FollowedGrammar : public OpenGrammar {
 public:
  explicit FollowedGrammar(std::shared_ptr<Grammar> grammar) : grammar_(std::move(grammar)) {}

  void follow(hybridge::Generation& options, Constraint& constraint, hybridge::Tokens eos_ids) const override {
    const auto follower = std::make_shared<GrammarFollower>(grammar_, eos_ids);
    hybridge::follow(options, follower);
    constraint.failure = [follower] { return follower->failure(); };
    constraint.wait_for = [follower](std::string end) { follower->wait_for(std::move(end)); };
  }

  // Follows a text that has nothing before it.
  GrammarFollower follower(hybridge::Tokens eos_ids = {}) const { return GrammarFollower(grammar_, eos_ids, 0); }

 private:
  std::shared_ptr<Grammar> grammar_;
};

template <typename Read>
hybridge_status read(hybridge_tokenizer tokenizer, const char* text, size_t size, hybridge_grammar* grammar, Read&& read) {
  if (text == nullptr || grammar == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    auto of = handles<const Tokenizer>().find(tokenizer);
    if (of == nullptr) return HYBRIDGE_INVALID_HANDLE;
    try {
      (void)of->token_bytes();
    } catch (const TextError& error) {
      logged() = std::string("structured output is not possible with this tokenizer: ") + error.what();
      return HYBRIDGE_INVALID_ARGUMENT;
    }
    try {
      *grammar = handles<OpenGrammar>().add(std::make_shared<FollowedGrammar>(read(std::string_view(text, size), std::move(of))));
      return HYBRIDGE_OK;
    } catch (const TextError& error) {
      logged() = error.what();
      return HYBRIDGE_INVALID_ARGUMENT;
    }
  });
}

// Runs `call(follower)` at the end of a text.
template <typename Call>
hybridge_status behind(hybridge_grammar grammar, hybridge::Tokens eos_ids, Call&& call) {
  return guarded([&] {
    const auto open = std::static_pointer_cast<FollowedGrammar>(handles<OpenGrammar>().find(grammar));
    if (open == nullptr) return HYBRIDGE_INVALID_HANDLE;
    auto follower = open->follower(eos_ids);
    call(follower);
    if (follower.failure().empty()) return HYBRIDGE_OK;
    logged() = follower.failure();
    return HYBRIDGE_INVALID_ARGUMENT;
  });
}

}  // namespace

extern "C" {

hybridge_status hybridge_grammar_json_schema(hybridge_tokenizer tokenizer, const char* schema, size_t size, hybridge_grammar* grammar) {
  return read(tokenizer, schema, size, grammar, [](auto text, auto of) { return Grammar::json_schema(text, std::move(of)); });
}

hybridge_status hybridge_grammar_regex(hybridge_tokenizer tokenizer, const char* pattern, size_t size, hybridge_grammar* grammar) {
  return read(tokenizer, pattern, size, grammar, [](auto text, auto of) { return Grammar::regex(text, std::move(of)); });
}

hybridge_status hybridge_grammar_close(hybridge_grammar grammar) {
  return guarded([&] { return handles<OpenGrammar>().remove(grammar) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_grammar_mask(
    hybridge_grammar grammar, const int64_t* text, size_t count, const int64_t* eos_ids, size_t eos_count, float* logits,
    size_t vocab_size
) {
  const bool has_all = (text != nullptr || count == 0) && (eos_ids != nullptr || eos_count == 0) && logits != nullptr;
  if (!has_all) return HYBRIDGE_INVALID_ARGUMENT;
  return behind(grammar, span(eos_ids, eos_count), [&](GrammarFollower& follower) {
    follower.mask(span(text, count), {logits, vocab_size});
  });
}

hybridge_status hybridge_grammar_forced(
    hybridge_grammar grammar, const int64_t* text, size_t count, int64_t* tokens, size_t capacity, size_t* found
) {
  if ((text == nullptr && count > 0) || !has_room(tokens, capacity, found)) return HYBRIDGE_INVALID_ARGUMENT;
  return behind(grammar, {}, [&](GrammarFollower& follower) {
    const auto all = follower.forced(span(text, count), SIZE_MAX);
    (void)answer(hybridge::Tokens(all), tokens, capacity, found);
  });
}

hybridge_status hybridge_grammar_fitting(
    hybridge_grammar grammar, const int64_t* text, size_t count, const int64_t* proposed, size_t proposals, size_t* fitting
) {
  if ((text == nullptr && count > 0) || (proposed == nullptr && proposals > 0) || fitting == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return behind(grammar, {}, [&](GrammarFollower& follower) { *fitting = follower.fitting(span(text, count), span(proposed, proposals)); });
}

}  // extern "C"
