// The functions of hybridge.h about grammars, over text/grammar/grammar.h.

#include <algorithm>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "engine/grammar.h"

#include "c_api/calls.h"
#include "c_api/constraint.h"
#include "c_api/handles.h"

namespace {

using namespace hybridge::c;
using hybridge::text::Grammar;
using hybridge::text::GrammarFollower;
using hybridge::text::TextError;
using hybridge::text::Tokenizer;

// A grammar, and the text after which it begins and the tokens that end texts, if the caller has named them.
class FollowedGrammar : public OpenGrammar {
 public:
  explicit FollowedGrammar(std::shared_ptr<Grammar> grammar, std::string after = {}, hybridge::Tokens eos_ids = {})
      : grammar_(std::move(grammar)), after_(std::move(after)), eos_ids_(eos_ids.begin(), eos_ids.end()) {}

  std::shared_ptr<FollowedGrammar> with(std::string after, hybridge::Tokens eos_ids) const {
    return std::make_shared<FollowedGrammar>(grammar_, std::move(after), eos_ids);
  }

  bool has_ends() const override { return !eos_ids_.empty(); }

  void follow(hybridge::GenerationOptions& options, hybridge::Tokens eos_ids) const override {
    const auto follower = std::make_shared<GrammarFollower>(
        grammar_, has_ends() ? hybridge::Tokens(eos_ids_) : eos_ids
    );
    hybridge::follow(options, follower);
    if (!after_.empty()) {
      follower->wait_for(after_);
      options.wait_for = nullptr;
    }
  }

  // Runs `call(follower)` for a text that has nothing before it. The follower of the last call knows the way to its
  // text.
  template <typename Call>
  hybridge_status ask(Call&& call) {
    const std::lock_guard lock(mutex_);
    if (!last_) last_.emplace(grammar_, eos_ids_, 0).wait_for(after_);
    call(*last_);
    if (last_->failure().empty()) return HYBRIDGE_OK;
    const hybridge_status why = refused(HYBRIDGE_INVALID_GRAMMAR, last_->failure());
    last_.reset();
    return why;
  }

 private:
  const std::shared_ptr<Grammar> grammar_;
  const std::string after_;
  const std::vector<int64_t> eos_ids_;
  std::mutex mutex_;
  std::optional<GrammarFollower> last_;
};

// Calls `call` with an open grammar.
template <typename Call>
hybridge_status with_grammar(hybridge_grammar handle, Call&& call) {
  return guarded([&] {
    const auto open = std::static_pointer_cast<FollowedGrammar>(handles<OpenGrammar>().find(handle));
    return open == nullptr ? refused(HYBRIDGE_INVALID_HANDLE) : call(*open);
  });
}

template <typename Read>
hybridge_status read(
    hybridge_tokenizer tokenizer, const char* text, size_t size, hybridge_grammar* grammar, Read&& read
) {
  if (text == nullptr || grammar == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    auto vocabulary = handles<const Tokenizer>().find(tokenizer);
    if (vocabulary == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    try {
      (void)vocabulary->token_bytes();
    } catch (const TextError& error) {
      return refused(
          HYBRIDGE_INVALID_GRAMMAR,
          std::string("structured output is not possible with this tokenizer: ") + error.what()
      );
    }
    try {
      *grammar = handles<OpenGrammar>().add(
          std::make_shared<FollowedGrammar>(read(std::string_view(text, size), std::move(vocabulary)))
      );
      return HYBRIDGE_OK;
    } catch (const TextError& error) {
      return refused(HYBRIDGE_INVALID_GRAMMAR, error.what());
    }
  });
}

}  // namespace

std::shared_ptr<OpenGrammar> hybridge::c::open_grammar(std::shared_ptr<Grammar> grammar) {
  return std::make_shared<FollowedGrammar>(std::move(grammar));
}

extern "C" {

hybridge_status hybridge_grammar_open(
    hybridge_tokenizer tokenizer, hybridge_grammar_kind kind, const char* text, size_t size, hybridge_grammar* grammar
) {
  switch (kind) {
    case HYBRIDGE_JSON_SCHEMA:
      return read(tokenizer, text, size, grammar, [](auto schema, auto vocabulary) {
        return Grammar::json_schema(schema, std::move(vocabulary));
      });
    case HYBRIDGE_REGEX:
      return read(tokenizer, text, size, grammar, [](auto pattern, auto vocabulary) {
        return Grammar::regex(pattern, std::move(vocabulary));
      });
  }
  return refused(HYBRIDGE_INVALID_ARGUMENT, "there is no kind of grammars of this number");
}

hybridge_status hybridge_grammar_calls(
    hybridge_tokenizer tokenizer, hybridge_answer_form form, const char* tools, size_t size, const char* tool_choice,
    int single, hybridge_grammar* grammar
) {
  const auto chosen = handles<const hybridge::text::AnswerForm>().find(form);
  if (chosen == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
  return read(tokenizer, tools, size, grammar, [&](auto text, auto vocabulary) {
    const auto choice = hybridge::text::ToolChoice::of(tool_choice == nullptr ? "auto" : tool_choice, single != 0);
    return Grammar::calls(*chosen, text, choice, std::move(vocabulary));
  });
}

hybridge_status hybridge_grammar_with(
    hybridge_grammar grammar, const char* after, size_t size, const int64_t* eos_ids, size_t eos_count,
    hybridge_grammar* with
) {
  const bool has_all = (after != nullptr || size == 0) && (eos_ids != nullptr || eos_count == 0) && with != nullptr;
  if (!has_all) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_grammar(grammar, [&](FollowedGrammar& open) {
    *with = handles<OpenGrammar>().add(
        open.with(std::string(after == nullptr ? "" : after, size), span(eos_ids, eos_count))
    );
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_grammar_close(hybridge_grammar grammar) {
  return guarded([&] { return handles<OpenGrammar>().remove(grammar) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_grammar_mask(
    hybridge_grammar grammar, const int64_t* text, size_t count, float* logits, size_t vocab_size
) {
  if ((text == nullptr && count > 0) || logits == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_grammar(grammar, [&](FollowedGrammar& open) {
    return open.ask([&](GrammarFollower& follower) { follower.mask(span(text, count), {logits, vocab_size}); });
  });
}

hybridge_status hybridge_grammar_forced(
    hybridge_grammar grammar, const int64_t* text, size_t count, int64_t* tokens, size_t capacity, size_t* found
) {
  if ((text == nullptr && count > 0) || !has_room(tokens, capacity, found)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_grammar(grammar, [&](FollowedGrammar& open) {
    return open.ask([&](GrammarFollower& follower) {
      const auto all = follower.forced(span(text, count), SIZE_MAX);
      (void)answer(hybridge::Tokens(all), tokens, capacity, found);
    });
  });
}

hybridge_status hybridge_grammar_fitting(
    hybridge_grammar grammar, const int64_t* text, size_t count, const int64_t* proposed, size_t proposals,
    size_t* fitting
) {
  if ((text == nullptr && count > 0) || (proposed == nullptr && proposals > 0) || fitting == nullptr)
    return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_grammar(grammar, [&](FollowedGrammar& open) {
    return open.ask([&](GrammarFollower& follower) {
      *fitting = follower.fitting(span(text, count), span(proposed, proposals));
    });
  });
}

}  // extern "C"
