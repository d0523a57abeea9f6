// A generation as C asks for it.
#ifndef HYBRIDGE_NATIVE_C_API_GENERATION_H
#define HYBRIDGE_NATIVE_C_API_GENERATION_H

#include <span>

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
    hybridge_drafter drafter, OpenSession& it, Tokens prompt, const Generation& wishes, const OpenSession::OnToken& wanted) {
  switch (drafter) {
    case HYBRIDGE_NO_DRAFTER: return it.generate(prompt, wishes, it.none, wanted);
    case HYBRIDGE_PROMPT_LOOKUP: return it.generate(prompt, wishes, it.lookup, wanted);
    case HYBRIDGE_OWN_DRAFTER: return it.generate_by_own(prompt, wishes, wanted);
    case HYBRIDGE_DRAFT_MODEL: return it.generate_by_small(prompt, wishes, wanted);
  }
  return Error::InvalidArgument;
}

}  // namespace hybridge::c

#endif
