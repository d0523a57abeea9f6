// Generation, plain and speculative, over one loop: propose, verify, accept, commit.
//
//   hybridge::PromptLookup lookup;
//   auto done = hybridge::generate(session, prompt, {.max_new_tokens = 64}, lookup, [](int64_t token) { return show(token); });
//
// A draft token is accepted if it is what the model itself would have gone on with, by its best logit or by the draw of that
// place (hybridge/sampling.h), so the text is the same with every drafter.
#ifndef HYBRIDGE_NATIVE_SPECULATIVE_H
#define HYBRIDGE_NATIVE_SPECULATIVE_H

#include <algorithm>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <vector>

#include <hybridge/drafter.h>
#include <hybridge/prompt_lookup.h>
#include <hybridge/sampling.h>
#include <hybridge/session.h>

namespace hybridge {

// block_length: most tokens that are verified at once, the known one included; 0 for the model's verify_len.
// cancelled: another thread may set it while the generation runs.
struct Generation {
  size_t max_new_tokens = 64, block_length = 0;
  const std::atomic<bool>* cancelled = nullptr;
  Sampling sampling = {};
};

// proposed and accepted count draft tokens; rollbacks the blocks that were not accepted whole.
struct Generated {
  std::vector<int64_t> tokens;
  size_t proposed = 0, accepted = 0, verifies = 0, rollbacks = 0;
};

// One generation. The last token given is not committed yet: it waits for the next round.
template <Drafter D, std::predicate<int64_t> OnToken>
class Generator {
 public:
  Generator(Session& session, Generation options, D& drafter, OnToken& on_token)
      : session_(session), options_(options), drafter_(drafter), on_token_(on_token), sampler_(options.sampling) {}

  Result<Generated> run(Tokens prompt) {
    const Logits logits = ET_UNWRAP(session_.prefill(prompt, options_.cancelled));
    text_.assign(session_.tokens().begin(), session_.tokens().end());
    give({sampler_.draw(logits.last(), text_)});
    while (!ended_ && session_.room() > 0) ET_CHECK_OK_OR_RETURN_ERROR(round());
    return std::move(done_);
  }

 private:
  Error round() {
    const std::vector<int64_t> proposed = propose();
    if (!proposed.empty()) return verify(proposed);
    const auto logits = session_.decode(text_.back());
    if (!logits.ok()) return logits.error();
    give({sampler_.draw(logits->last(), text_)});
    return Error::Ok;
  }

  std::vector<int64_t> propose() {
    const size_t left = std::min(options_.max_new_tokens - done_.tokens.size(), static_cast<size_t>(session_.room()));
    const auto longest = static_cast<size_t>(session_.facts().verify_len());
    const size_t limit = std::min(left, options_.block_length > 0 ? std::min(options_.block_length, longest) : longest) - 1;
    std::vector<int64_t> proposed = limit > 0 ? drafter_.propose(text_, limit) : std::vector<int64_t>();
    proposed.resize(std::min(proposed.size(), limit));
    return proposed;
  }

  Error verify(const std::vector<int64_t>& proposed) {
    std::vector<int64_t> block = {text_.back()};
    block.insert(block.end(), proposed.begin(), proposed.end());
    const auto logits = session_.verify(block);
    if (!logits.ok()) return logits.error();
    const std::vector<int64_t> tokens = accept(*logits, proposed);
    done_.proposed += proposed.size();
    done_.accepted += tokens.size() - 1;
    done_.rollbacks += tokens.size() <= proposed.size();
    ++done_.verifies;
    return session_.commit(static_cast<int64_t>(give(tokens))).error();
  }

  // The draft tokens that are right, and the model's own token behind them; row i of its logits comes after draft token i - 1.
  std::vector<int64_t> accept(const Logits& logits, Tokens proposed) {
    const size_t known = text_.size();
    for (size_t i = 0; i == 0 || (i <= proposed.size() && proposed[i - 1] == text_.back()); ++i) {
      const int64_t token = sampler_.draw(logits[i], text_);
      text_.push_back(token);
    }
    const std::vector<int64_t> tokens(text_.begin() + static_cast<ptrdiff_t>(known), text_.end());
    text_.resize(known);
    return tokens;
  }

  // Hands over tokens as long as they are wanted; how many that were. As many of the verified block are now the text's.
  size_t give(const std::vector<int64_t>& tokens) {
    size_t given = 0;
    while (given < tokens.size() && !ended_) {
      const int64_t token = tokens[given++];
      text_.push_back(token);
      done_.tokens.push_back(token);
      const auto& ends = session_.facts().eos_ids;
      const bool is_end = std::find(ends.begin(), ends.end(), token) != ends.end();
      ended_ = !on_token_(token) || is_end || done_.tokens.size() == options_.max_new_tokens ||
               (options_.cancelled != nullptr && *options_.cancelled);
    }
    return given;
  }

  Session& session_;
  Generation options_;
  D& drafter_;
  OnToken& on_token_;
  Sampler sampler_;
  std::vector<int64_t> text_;
  Generated done_;
  bool ended_ = false;
};

// Continues `prompt` from the session's state by at most max_new_tokens ≥ 1, and stops early behind an end-of-sequence token,
// where the context is full, where on_token(token) answers false, or where it is cancelled. The session's text then ends just
// before the last token. Cancelled before its first token it is InvalidState, and the session's text is what it was.
// Refuses what `prefill` does, a max_new_tokens of 0, a sampling that makes no distribution, and draft tokens outside the
// vocabulary.
template <Drafter D, std::predicate<int64_t> OnToken>
Result<Generated> generate(Session& session, Tokens prompt, Generation options, D& drafter, OnToken on_token) {
  if (options.max_new_tokens < 1 || !options.sampling.is_valid()) return Error::InvalidArgument;
  return Generator<D, OnToken>(session, options, drafter, on_token).run(prompt);
}

}  // namespace hybridge

#endif
