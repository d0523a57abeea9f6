// A generation as C asks for it.
#ifndef HYBRIDGE_NATIVE_C_API_GENERATION_H
#define HYBRIDGE_NATIVE_C_API_GENERATION_H

#include <algorithm>
#include <functional>
#include <span>
#include <vector>

#include <hybridge/hybridge_dev.h>
#include "engine/sampling.h"

#include "calls.h"
#include "constraint.h"
#include "failure.h"
#include "handles.h"
#include "open_session.h"
#include "options.h"

namespace hybridge::c {

// The options of a generation as this version knows them.
struct GenerationOptions {
  hybridge_generation chosen;
  hybridge_sampling sampling;
  hybridge_dev_generation dev;

  static Result<GenerationOptions> read(const hybridge_generation* given) {
    const hybridge_generation chosen = HYBRIDGE_TRY(read_options(given));
    return GenerationOptions{
        chosen, HYBRIDGE_TRY(read_options(chosen.sampling)), HYBRIDGE_TRY(read_options(chosen.dev))
    };
  }

  bool has_constraint() const { return chosen.mask != nullptr || dev.forced != nullptr || dev.fitting != nullptr; }
};

inline Sampling to_sampling(const hybridge_sampling& given) {
  Sampling read{
      .temperature = given.temperature,
      .top_p = given.top_p,
      .min_p = given.min_p,
      .repetition_penalty = given.repetition_penalty,
      .top_k = given.top_k
  };
  if (given.has_seed != 0) read.seed = given.seed;
  return read;
}

inline Generation to_generation(const GenerationOptions& options, OpenSession& it, void* user) {
  const auto& [chosen, sampling, dev] = options;
  Generation asked{
      .max_new_tokens = chosen.max_new_tokens,
      .block_length = chosen.block_length,
      .cancelled = &it.cancelled,
      .sampling = to_sampling(sampling),
      .turns = &it.turn
  };
  OnRead on_read;
  if (chosen.on_read != nullptr)
    on_read = [on_read = chosen.on_read, user](size_t count) { call_back(on_read, count, user); };
  asked.on_read = let_others_run(it, std::move(on_read));
  if (chosen.mask != nullptr) {
    asked.mask = [mask = chosen.mask, user](Tokens text, std::span<float> logits) {
      call_back(mask, text.data(), text.size(), logits.data(), logits.size(), user);
    };
  }
  if (dev.forced != nullptr) {
    asked.forced = [forced = dev.forced, user](Tokens text, size_t limit) {
      std::vector<int64_t> tokens(limit);
      tokens.resize(std::min(limit, call_back(forced, text.data(), text.size(), tokens.data(), limit, user)));
      return tokens;
    };
  }
  if (dev.fitting != nullptr) {
    asked.fitting = [fitting = dev.fitting, user](Tokens text, Tokens proposed) {
      const size_t fit = call_back(fitting, text.data(), text.size(), proposed.data(), proposed.size(), user);
      return std::min(proposed.size(), fit);
    };
  }
  if (dev.watch != nullptr) {
    asked.watch = [watch = dev.watch, user](int64_t token, std::span<const float> logits) {
      call_back(watch, token, logits.data(), logits.size(), user);
    };
  }
  if (dev.clock != nullptr) asked.clock = [clock = dev.clock, user] { return call_back(clock, user); };
  if (dev.noise != nullptr) asked.noise = *dev.noise;
  return asked;
}

// Finds the draft model and the grammar that are asked for, and whose turns the generation waits for.
inline hybridge_status find_parts(OpenSession& it, const hybridge_generation& chosen) {
  it.turns = {it.of->turn};
  if (chosen.grammar.id != 0 && handles<OpenGrammar>().find(chosen.grammar) == nullptr)
    return refused(HYBRIDGE_INVALID_HANDLE);
  const bool is_beside = chosen.drafter == HYBRIDGE_AUTO_DRAFTER && chosen.draft.id != 0;
  if (chosen.drafter != HYBRIDGE_DRAFT_MODEL && !is_beside) return HYBRIDGE_OK;
  const auto small = handles<OpenModel>().find(chosen.draft);
  if (small == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
  if (it.small != small) it.drop_draft_model();
  it.small = small;
  it.turns.push_back(small->turn);
  return HYBRIDGE_OK;
}

// The drafters of the session, made when they are first asked for.

inline Result<Drafter*> own_drafter(OpenSession& it) {
  if (!it.session->facts().has_drafter()) {
    return Status(
        HYBRIDGE_INVALID_DRAFTER, "this artifact has no drafter of its own; export it again with --drafter or --mtp"
    );
  }
  if (!it.own) it.own.emplace(*it.session);
  return static_cast<Drafter*>(&*it.own);
}

inline Result<Drafter*> draft_model(OpenSession& it) {
  if (it.small == nullptr)
    return Status(HYBRIDGE_INVALID_DRAFTER, "there is no draft model: open one and give it as `draft`");
  if (!it.by_small) {
    auto made = DraftModel::create(it.small->model, it.session->facts());
    if (!made.ok()) return made.status();
    it.by_small = std::make_shared<DraftModel>(std::move(*made));
  }
  return static_cast<Drafter*>(&*it.by_small);
}

inline Result<Drafter*> callback_drafter(const hybridge_generation& chosen, OpenSession& it, void* user) {
  if (chosen.propose == nullptr)
    return Status(HYBRIDGE_INVALID_DRAFTER, "a drafter of the caller's has no function: give `propose`");
  constexpr size_t MOST = 16;  // a caller that makes a drafter for each text is not remembered
  if (it.outside.size() >= MOST && !it.outside.contains(chosen.drafter_id)) it.outside.clear();
  auto& drafter = it.outside[chosen.drafter_id];
  if (drafter == nullptr || chosen.drafter_id == 0) drafter = std::make_unique<CallbackDrafter>(*it.session);
  drafter->call(chosen, user);
  return static_cast<Drafter*>(drafter.get());
}

// Finds the drafters that are asked for; none for plain decoding.
inline Result<std::vector<Drafter*>> drafters_of(const hybridge_generation& chosen, OpenSession& it, void* user) {
  std::vector<Drafter*> found;
  switch (chosen.drafter) {
    case HYBRIDGE_NO_DRAFTER: return found;
    case HYBRIDGE_PROMPT_LOOKUP: return std::vector<Drafter*>{&it.lookup};
    case HYBRIDGE_OWN_DRAFTER: return std::vector<Drafter*>{HYBRIDGE_TRY(own_drafter(it))};
    case HYBRIDGE_DRAFT_MODEL: return std::vector<Drafter*>{HYBRIDGE_TRY(draft_model(it))};
    case HYBRIDGE_CALLBACK_DRAFTER: return std::vector<Drafter*>{HYBRIDGE_TRY(callback_drafter(chosen, it, user))};
    case HYBRIDGE_AUTO_DRAFTER: break;
  }
  if (chosen.drafter != HYBRIDGE_AUTO_DRAFTER)
    return Status(HYBRIDGE_INVALID_ARGUMENT, "there is no drafter of this number");
  found.push_back(&it.lookup);
  // Hidden states are read once: by the caller's drafter where it wants them.
  if (it.session->facts().has_drafter() && chosen.reads_hidden == 0) found.push_back(HYBRIDGE_TRY(own_drafter(it)));
  if (chosen.draft.id != 0) found.push_back(HYBRIDGE_TRY(draft_model(it)));
  if (chosen.propose != nullptr) found.push_back(HYBRIDGE_TRY(callback_drafter(chosen, it, user)));
  return found;
}

// A generation that is ready to begin. Hidden states are kept no longer than it lasts: those that nobody reads would
// pile up.
inline Result<std::unique_ptr<Generator>> generator_of(const GenerationOptions& options, OpenSession& it, void* user) {
  const hybridge_generation& chosen = options.chosen;
  if (chosen.tool_choice != nullptr) return Status(HYBRIDGE_INVALID_ARGUMENT, "tool_choice is for answers of a chat");
  Generation asked = to_generation(options, it, user);
  if (chosen.grammar.id != 0) {
    const auto grammar = handles<OpenGrammar>().find(chosen.grammar);
    if (grammar == nullptr) return Status(HYBRIDGE_INVALID_HANDLE, hybridge_status_text(HYBRIDGE_INVALID_HANDLE));
    if (options.has_constraint()) {
      return Status(HYBRIDGE_INVALID_ARGUMENT, "a generation follows a grammar or functions of the caller's, not both");
    }
    if (it.session->facts().eos_ids.empty() && !grammar->has_ends()) {
      return Status(
          HYBRIDGE_INVALID_GRAMMAR,
          "this model has no token that ends a text, so nothing can say that a structure is complete"
      );
    }
    grammar->follow(asked, it.session->facts().eos_ids);
  }
  std::vector<Drafter*> drafters = HYBRIDGE_TRY(drafters_of(chosen, it, user));
  const bool is_own = it.own && std::ranges::find(drafters, &*it.own) != drafters.end();
  if (is_own) it.own->listen(true);
  else it.session->keep_hidden(!drafters.empty() && chosen.reads_hidden != 0);
  return std::make_unique<Generator>(*it.session, std::move(asked), std::move(drafters));
}

// Runs `call` on a new generation of the session. All of it is one call of the session: whatever it waits for, a cancel
// ends it.
template <typename Call>
hybridge_status begin_generation(hybridge_session handle, const GenerationOptions& options, void* user, Call&& call) {
  const auto begin = [&](OpenSession& it) {
    if (const hybridge_status found = find_parts(it, options.chosen); found != HYBRIDGE_OK) return found;
    it.turn.take(it.turns);
    auto generator = generator_of(options, it, user);
    return generator.ok() ? call(it, std::move(*generator)) : answer(generator.status());
  };
  return with_session(handle, begin, true);
}

inline hybridge_generated counted(const Generated& done) {
  return {done.tokens.size(),  done.proposed,       done.accepted,        done.verifies,      done.decodes,
          done.rollbacks,      done.forced,         done.prefill_seconds, done.draft_seconds, done.verify_seconds,
          done.commit_seconds, done.decode_seconds, done.new_seconds};
}

}  // namespace hybridge::c

#endif
