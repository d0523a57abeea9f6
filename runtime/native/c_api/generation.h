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
#include "constraint.h"
#include "failure.h"
#include "handles.h"
#include "open_session.h"

namespace hybridge::c {

// Returns the options, with defaults that leave the distribution as it is for those that are 0 in C.
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

inline Generation wishes(const hybridge_generation& chosen, const std::atomic<bool>* cancelled, void* user) {
  Generation asked{
      .max_new_tokens = chosen.max_new_tokens, .block_length = chosen.block_length, .cancelled = cancelled,
      .sampling = sampling(chosen.sampling), .mask = mask(chosen.mask, user)};
  if (chosen.on_read != nullptr) asked.on_read = [on_read = chosen.on_read, user](size_t count) { on_read(count, user); };
  if (chosen.forced != nullptr) {
    asked.forced = [forced = chosen.forced, user](Tokens text, size_t limit) {
      std::vector<int64_t> tokens(limit);
      tokens.resize(std::min(limit, forced(text.data(), text.size(), tokens.data(), limit, user)));
      return tokens;
    };
  }
  if (chosen.fitting != nullptr) {
    asked.fitting = [fitting = chosen.fitting, user](Tokens text, Tokens proposed) {
      return std::min(proposed.size(), fitting(text.data(), text.size(), proposed.data(), proposed.size(), user));
    };
  }
  if (chosen.watch != nullptr) {
    asked.watch = [watch = chosen.watch, user](int64_t token, std::span<const float> logits) {
      watch(token, logits.data(), logits.size(), user);
    };
  }
  if (chosen.clock != nullptr) asked.clock = [clock = chosen.clock, user] { return clock(user); };
  if (chosen.noise != nullptr) asked.noise = *chosen.noise;
  return asked;
}

inline hybridge_generation chosen_or_usual(const hybridge_generation* options) {
  if (options != nullptr) return *options;
  hybridge_generation usual{};
  usual.max_new_tokens = 64;
  usual.drafter = HYBRIDGE_PROMPT_LOOKUP;
  return usual;
}

// Lets the session draft with the model that is asked for, if one is, from its next call on, which then waits for that model's
// turn too. Looks for the grammar that is asked for.
inline hybridge_status find_parts(hybridge_session session, const hybridge_generation& chosen) {
  if (chosen.grammar != 0 && handles<OpenGrammar>().find(chosen.grammar) == nullptr) return HYBRIDGE_INVALID_HANDLE;
  if (chosen.drafter != HYBRIDGE_DRAFT_MODEL) return HYBRIDGE_OK;
  const auto small = handles<OpenModel>().find(chosen.draft);
  if (small == nullptr) return HYBRIDGE_INVALID_HANDLE;
  return change(session, [&](OpenSession& it) {
    if (it.small != small) it.by_small.reset();
    it.small = small;
    return HYBRIDGE_OK;
  });
}

// Finds or makes the drafter that is asked for; null for plain decoding.
inline Result<Drafter*> drafter_of(const hybridge_generation& chosen, OpenSession& it, void* user) {
  const auto found = [](Drafter& drafter) { return Result<Drafter*>(&drafter); };
  switch (chosen.drafter) {
    case HYBRIDGE_NO_DRAFTER: return static_cast<Drafter*>(nullptr);
    case HYBRIDGE_PROMPT_LOOKUP: return found(it.lookup);
    case HYBRIDGE_OWN_DRAFTER:
      if (!it.session->facts().has_drafter()) return Error::InvalidArgument;
      if (!it.own) it.own.emplace(*it.session);
      return found(*it.own);
    case HYBRIDGE_DRAFT_MODEL:
      if (it.small == nullptr) return Error::InvalidArgument;
      if (!it.by_small) {
        auto made = DraftModel::create(it.small->model, it.session->facts());
        if (!made.ok()) return made.error();
        it.by_small.emplace(std::move(*made));
      }
      return found(*it.by_small);
    case HYBRIDGE_CALLBACK_DRAFTER: break;
  }
  if (chosen.drafter != HYBRIDGE_CALLBACK_DRAFTER || chosen.propose == nullptr) return Error::InvalidArgument;
  constexpr size_t MOST = 16;  // a caller that makes a drafter for each text is not remembered
  if (it.outside.size() >= MOST && !it.outside.contains(chosen.drafter_id)) it.outside.clear();
  auto& drafter = it.outside[chosen.drafter_id];
  if (drafter == nullptr || chosen.drafter_id == 0) drafter = std::make_unique<CallbackDrafter>(*it.session);
  drafter->call(chosen, user);
  return found(*drafter);
}

// A generation that is ready to begin. Hidden states are kept no longer than it lasts: those that nobody reads would pile up.
inline Result<std::unique_ptr<Generator>> generator_of(const hybridge_generation& chosen, OpenSession& it, void* user) {
  it.running.reset();
  it.constraint.reset();
  Generation asked = wishes(chosen, &it.cancelled, user);
  if (chosen.grammar != 0) {
    const auto grammar = handles<OpenGrammar>().find(chosen.grammar);
    if (grammar == nullptr || chosen.mask != nullptr || chosen.forced != nullptr || chosen.fitting != nullptr) return Error::InvalidArgument;
    if (it.session->facts().eos_ids.empty()) {
      logged() = "this model has no token that ends a text, so nothing can say that a structure is complete";
      return Error::InvalidArgument;
    }
    grammar->follow(asked, it.constraint.emplace(), it.session->facts().eos_ids);
  }
  Drafter* drafter = ET_UNWRAP(drafter_of(chosen, it, user));
  const bool reads = chosen.drafter == HYBRIDGE_OWN_DRAFTER || (drafter != nullptr && chosen.reads_hidden != 0);
  it.session->keep_hidden(reads);
  return std::make_unique<Generator>(*it.session, std::move(asked), drafter);
}

// The status of what a generation did, with the grammar's own words for why no token may come.
inline hybridge_status generated_status(Error error, const OpenSession& it) {
  if (error != Error::Ok && it.constraint && !it.constraint->failure().empty()) logged() = it.constraint->failure();
  return status(error);
}

inline hybridge_generated counted(const Generated& done) {
  return {
      done.tokens.size(), done.proposed, done.accepted, done.verifies, done.decodes, done.rollbacks, done.forced, done.prefill_seconds,
      done.draft_seconds, done.verify_seconds, done.commit_seconds, done.decode_seconds, done.new_seconds};
}

}  // namespace hybridge::c

#endif
