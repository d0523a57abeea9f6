// A generation as C asks for it.
#ifndef HYBRIDGE_NATIVE_C_API_GENERATION_H
#define HYBRIDGE_NATIVE_C_API_GENERATION_H

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include <hybridge/hybridge.h>
#include <hybridge/sampling.h>

#include "calls.h"
#include "handles.h"
#include "open_session.h"

namespace hybridge::c {

// Of the values that are 0 in C those that leave the distribution as it is.
inline Sampling sampling(const hybridge_sampling* given) {
  if (given == nullptr) return {};
  Sampling read{.temperature = given->temperature, .min_p = given->min_p, .top_k = given->top_k};
  if (given->top_p != 0) read.top_p = given->top_p;
  if (given->repetition_penalty != 0) read.repetition_penalty = given->repetition_penalty;
  if (given->has_seed != 0) read.seed = given->seed;
  return read;
}

inline Mask mask(hybridge_mask given, void* user) {
  if (given == nullptr) return nullptr;
  return [given, user](Tokens text, std::span<float> logits) {
    given(text.data(), text.size(), logits.data(), logits.size(), user);
  };
}

// Draft tokens of the caller's function.
struct CallbackDrafter {
  hybridge_propose given;
  void* user;

  Proposal propose(Tokens text, size_t limit) {
    std::vector<int64_t> tokens(limit);
    tokens.resize(std::min(limit, given(text.data(), text.size(), tokens.data(), limit, user)));
    return tokens;
  }
};

inline Generation wishes(const hybridge_generation& chosen, const std::atomic<bool>* cancelled, void* user) {
  Generation asked{
      .max_new_tokens = chosen.max_new_tokens, .block_length = chosen.block_length, .cancelled = cancelled,
      .sampling = sampling(chosen.sampling), .mask = mask(chosen.mask, user)};
  if (chosen.on_read != nullptr) asked.on_read = [on_read = chosen.on_read, user](size_t count) { on_read(count, user); };
  if (chosen.clock != nullptr) asked.clock = [clock = chosen.clock, user] { return clock(user); };
  if (chosen.noise != nullptr) asked.noise = *chosen.noise;
  return asked;
}

// Lets the session draft with this model from its next call on, which then waits for that model's turn too.
inline hybridge_status choose_draft(hybridge_session session, hybridge_model draft) {
  const auto small = handles<OpenModel>().find(draft);
  if (small == nullptr) return HYBRIDGE_INVALID_HANDLE;
  return in(session, [&](OpenSession& it) {
    if (it.small != small) it.by_small.reset();
    it.small = small;
    return HYBRIDGE_OK;
  });
}

inline Result<Generated> generate_by(
    const hybridge_generation& chosen, OpenSession& it, Tokens prompt, const OpenSession::OnToken& wanted, void* user) {
  const Generation asked = wishes(chosen, &it.cancelled, user);
  switch (chosen.drafter) {
    case HYBRIDGE_NO_DRAFTER: return it.generate(prompt, asked, it.none, wanted);
    case HYBRIDGE_PROMPT_LOOKUP: return it.generate(prompt, asked, it.lookup, wanted);
    case HYBRIDGE_OWN_DRAFTER: return it.generate_by_own(prompt, asked, wanted);
    case HYBRIDGE_DRAFT_MODEL: return it.generate_by_small(prompt, asked, wanted);
    case HYBRIDGE_CALLBACK_DRAFTER: break;
  }
  if (chosen.drafter != HYBRIDGE_CALLBACK_DRAFTER || chosen.propose == nullptr) return Error::InvalidArgument;
  CallbackDrafter outside{chosen.propose, user};
  return it.generate(prompt, asked, outside, wanted);
}

inline hybridge_generated counted(const Generated& done) {
  return {
      done.tokens.size(), done.proposed, done.accepted, done.verifies, done.decodes, done.rollbacks, done.prefill_seconds,
      done.draft_seconds, done.verify_seconds, done.commit_seconds, done.decode_seconds, done.new_seconds};
}

}  // namespace hybridge::c

#endif
