// Generation, plain and speculative, over one loop: propose, verify, accept, commit.
//
//   hybridge::PromptLookup lookup;
//   auto done = hybridge::generate(session, prompt, {.max_new_tokens = 64}, lookup, [](int64_t token) { return show(token); });
//
// A draft token is accepted if it is what the model itself would have gone on with, by its best logit or by the draw of that
// place, so the text is the same with every drafter. Without a seed a drafter may draw its tokens, which are then accepted so that
// the distribution is the same (hybridge/sampling.h).
#ifndef HYBRIDGE_NATIVE_SPECULATIVE_H
#define HYBRIDGE_NATIVE_SPECULATIVE_H

#include <algorithm>
#include <atomic>
#include <chrono>
#include <concepts>
#include <cstddef>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include <hybridge/drafter.h>
#include <hybridge/pace.h>
#include <hybridge/prompt_lookup.h>
#include <hybridge/sampling.h>
#include <hybridge/session.h>

namespace hybridge {

inline double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// block_length: tokens that are verified at once, the known one included; 0 for what is fastest by what is measured, plain
// decoding included (hybridge/pace.h). cancelled: another thread may set it while the generation runs. mask: what each token may
// be, if not any. on_read: called between two chunks of the prompt. For tests that repeat themselves: clock, in seconds, and noise, the seed of a sampling without one.
struct Generation {
  size_t max_new_tokens = 64, block_length = 0;
  const std::atomic<bool>* cancelled = nullptr;
  Sampling sampling = {};
  Mask mask = nullptr;
  OnRead on_read = nullptr;
  std::function<double()> clock = seconds_now;
  std::optional<uint64_t> noise = std::nullopt;
};

// proposed and accepted count draft tokens; rollbacks the blocks that were not accepted whole. Seconds are those of the system, by
// phase; new_seconds is the time of all new tokens after the first, without what on_token takes.
struct Generated {
  std::vector<int64_t> tokens;
  size_t proposed = 0, accepted = 0, verifies = 0, decodes = 0, rollbacks = 0;
  double prefill_seconds = 0, draft_seconds = 0, verify_seconds = 0, commit_seconds = 0, decode_seconds = 0, new_seconds = 0;
};

// One generation. The last token given is not committed yet: it waits for the next round.
template <Drafter D, std::predicate<int64_t> OnToken>
class Generator {
 public:
  Generator(Session& session, const Generation& options, D& drafter, OnToken& on_token)
      : session_(session),
        options_(options),
        drafter_(drafter),
        on_token_(on_token),
        sampler_(options.sampling, options.mask, options.noise),
        longest_(static_cast<size_t>(session.facts().verify_len())),
        own_pace_(session.facts().verify_lens, fixed_length()),
        pace_(pace_of(drafter)) {}

  Result<Generated> run(Tokens prompt) {
    const Logits logits = ET_UNWRAP(timed(done_.prefill_seconds, [&] { return session_.prefill(prompt, options_.cancelled, options_.on_read); }));
    text_.assign(session_.tokens().begin(), session_.tokens().end());
    const int64_t first = sampler_.draw(logits.last(), text_);
    if (first < 0) return NOTHING_ALLOWED;
    give({first});
    if (is_going_on()) read_prompt();
    while (is_going_on()) ET_CHECK_OK_OR_RETURN_ERROR(round());
    return std::move(done_);
  }

 private:
  static constexpr Error NOTHING_ALLOWED = Error::InvalidArgument;

  // Runs `call` and adds its time.
  template <typename Call>
  static auto timed(double& seconds, Call call) {
    const double began = seconds_now();
    auto answer = call();
    seconds += seconds_now() - began;
    return answer;
  }

  bool is_cancelled() const { return options_.cancelled != nullptr && *options_.cancelled; }
  bool is_going_on() const { return !ended_ && !is_cancelled() && session_.room() > 0; }
  bool may_draft() const { return !std::is_same_v<D, NoDrafter> && longest_ > 1; }

  std::optional<size_t> fixed_length() const {
    return options_.block_length > 0 ? std::optional(std::min(options_.block_length, longest_)) : std::nullopt;
  }

  Pace& pace_of(D& drafter) {
    if constexpr (std::is_base_of_v<Paced, D>) {
      if (options_.block_length == 0) return drafter.pace(&session_.facts(), session_.facts().verify_lens);
    }
    return own_pace_;
  }

  // Proposes and verifies a block, or decodes one token.
  Error round() {
    const double began = options_.clock(), started = seconds_now();
    drafting_ = 0;
    const Proposal proposal = worthwhile();
    if (is_cancelled()) return Error::Ok;
    const auto& proposed = proposal.tokens;
    const auto found = proposed.empty() ? decode() : verify(proposal);
    if (!found.ok()) return found.error();
    double seconds = options_.clock() - began;
    done_.new_seconds += seconds_now() - started;
    const size_t given = give(*found);
    const double closing = options_.clock(), finishing = seconds_now();
    if (!proposed.empty()) ET_UNWRAP(timed(done_.commit_seconds, [&] { return session_.commit(static_cast<int64_t>(given)); }));
    seconds += options_.clock() - closing;
    done_.new_seconds += seconds_now() - finishing;
    pace_.round_done(1 + proposed.size(), proposed.size(), found->size() - 1, seconds, drafting_);
    return found->empty() || found->back() >= 0 ? Error::Ok : NOTHING_ALLOWED;
  }

  // Draft tokens, as many as pay.
  Proposal worthwhile() {
    if (!may_draft()) return {};
    const size_t most = std::min(options_.max_new_tokens - done_.tokens.size(), static_cast<size_t>(session_.room()));
    if (is_free<D>()) return worthwhile_of_free(std::min(most, longest_) - 1);
    const size_t length = pace_.choose(most);
    if (length == 1 && pace_.wants_shadow()) propose_in_shadow();
    const double began = options_.clock();
    Proposal proposal = propose(length - 1);
    if (!proposal.tokens.empty()) drafting_ = options_.clock() - began;
    if (!proposal.chances.empty()) proposal.tokens.resize(std::min(proposal.tokens.size(), pace_.cut(proposal.chances)));
    return proposal;
  }

  Proposal worthwhile_of_free(size_t limit) {
    Proposal proposal = propose(limit);
    if (proposal.tokens.empty()) return {};
    const size_t length = pace_.choose(proposal.tokens.size() + 1, proposal.chance);
    proposal.tokens.resize(std::min(proposal.tokens.size(), length - 1));
    return proposal;
  }

  Proposal propose(size_t limit) {
    if (limit == 0) return {};
    Proposal proposal = timed(done_.draft_seconds, [&] { return asked(limit); });
    proposal.tokens.resize(std::min(proposal.tokens.size(), limit));
    return proposal;
  }

  Proposal asked(size_t limit) {
    if constexpr (DrawingDrafter<D>) return drafter_.propose(text_, limit, sampler_);
    else return drafter_.propose(text_, limit);
  }

  // Lets the drafter read the prompt, which is a prefill too; its first proposal is compared.
  void read_prompt() {
    if (!may_draft()) return;
    const double drafting = done_.draft_seconds;
    pace_.shadow(propose(pace_.shadow_length()).tokens, 0);
    done_.prefill_seconds += std::exchange(done_.draft_seconds, drafting) - drafting;
  }

  // Proposes only to compare with what comes: it tells whether speculation would pay again.
  void propose_in_shadow() {
    const double began = options_.clock();
    Proposal proposal = propose(pace_.shadow_length());
    pace_.shadow(std::move(proposal.tokens), options_.clock() - began);
  }

  Result<std::vector<int64_t>> decode() {
    const Logits logits = ET_UNWRAP(timed(done_.decode_seconds, [&] { return session_.decode(text_.back()); }));
    ++done_.decodes;
    const int64_t token = sampler_.draw(logits.last(), text_);
    pace_.compare(token);
    return std::vector<int64_t>{token};
  }

  // The tokens that follow the text, of which all but the last were proposed; they wait for a commit.
  Result<std::vector<int64_t>> verify(const Proposal& proposal) {
    const auto& proposed = proposal.tokens;
    std::vector<int64_t> block = {text_.back()};
    block.insert(block.end(), proposed.begin(), proposed.end());
    const Logits logits = ET_UNWRAP(timed(done_.verify_seconds, [&] { return session_.verify(block); }));
    const std::vector<int64_t> tokens = accept(logits, proposal);
    done_.proposed += proposed.size();
    done_.accepted += tokens.size() - 1;
    done_.rollbacks += tokens.size() <= proposed.size();
    ++done_.verifies;
    return tokens;
  }

  // The draft tokens that are accepted, and the model's own token behind them; row i of its logits comes after draft token i - 1.
  std::vector<int64_t> accept(const Logits& logits, const Proposal& proposal) {
    const size_t known = text_.size();
    const auto& proposed = proposal.tokens;
    for (size_t i = 0; i == 0 || (i <= proposed.size() && proposed[i - 1] == text_.back()); ++i) {
      const Distribution* q = i < proposed.size() ? proposal.drawn_from(i) : nullptr;
      const int64_t token = q != nullptr ? sampler_.judge(logits[i], text_, proposed[i], *q) : sampler_.draw(logits[i], text_);
      text_.push_back(token);
    }
    const std::vector<int64_t> tokens(text_.begin() + static_cast<ptrdiff_t>(known), text_.end());
    text_.resize(known);
    return tokens;
  }

  // Hands over tokens as long as they are wanted; how many that were. As many of the verified block are now the text's.
  size_t give(const std::vector<int64_t>& tokens) {
    size_t given = 0;
    while (given < tokens.size() && !ended_ && tokens[given] >= 0) {
      const int64_t token = tokens[given++];
      text_.push_back(token);
      done_.tokens.push_back(token);
      const auto& ends = session_.facts().eos_ids;
      const bool is_end = std::find(ends.begin(), ends.end(), token) != ends.end();
      ended_ = !on_token_(token) || is_end || done_.tokens.size() == options_.max_new_tokens || is_cancelled();
    }
    return given;
  }

  Session& session_;
  Generation options_;
  D& drafter_;
  OnToken& on_token_;
  Sampler sampler_;
  size_t longest_;
  Pace own_pace_;
  Pace& pace_;
  double drafting_ = 0;  // seconds of a proposal that could have been left out
  std::vector<int64_t> text_;
  Generated done_;
  bool ended_ = false;
};

// Continues `prompt` from the session's state by at most max_new_tokens ≥ 1, and stops early behind an end-of-sequence token,
// where the context is full, where on_token(token) answers false, or where it is cancelled. The session's text then ends just
// before the last token. Cancelled before its first token it is InvalidState, and the session's text is what it was.
// Refuses what `prefill` does, a max_new_tokens of 0, a sampling that makes no distribution, and draft tokens outside the
// vocabulary. A mask that leaves no token, or what is no number, is InvalidArgument: tokens that were given may be committed.
template <Drafter D, std::predicate<int64_t> OnToken>
Result<Generated> generate(Session& session, Tokens prompt, Generation options, D& drafter, OnToken on_token) {
  if (options.max_new_tokens < 1 || !options.sampling.is_valid()) return Error::InvalidArgument;
  return Generator<D, OnToken>(session, options, drafter, on_token).run(prompt);
}

}  // namespace hybridge

#endif
