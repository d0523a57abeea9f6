// The functions of hybridge.h about generations.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "text/json.h"

#include "c_api/calls.h"
#include "c_api/generation.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/options.h"

namespace hybridge::c {

Result<GivenOptions> GivenOptions::read(const hybridge_generation* given) {
  const hybridge_generation chosen = HYBRIDGE_TRY(read_options(given));
  const hybridge_sampling sampling = HYBRIDGE_TRY(read_options(chosen.sampling));
  const bool has_lists = (sampling.logit_bias != nullptr || sampling.bias_count == 0) &&
                         (sampling.dry_breakers != nullptr || sampling.dry_breaker_count == 0);
  if (!has_lists) return Status(HYBRIDGE_INVALID_ARGUMENT, "logit_bias or dry_breakers is null, but has a count");
  return GivenOptions{chosen, sampling, HYBRIDGE_TRY(read_options(chosen.dev))};
}

hybridge_sampling read_sampling(std::string_view json) {
  hybridge_sampling read{};
  OptionsOf<hybridge_sampling>::set(read);
  read.struct_size = sizeof read;
  const text::JsonDocument document(json);
  const text::Json config = document.root("generation_config.json");
  if (!config.is_object()) config.fail("an object");
  if (config["do_sample"].is_boolean() && !config["do_sample"].boolean()) return read;
  const auto named = [&](const char* name, double hybridge_sampling::* field) {
    const text::Json value = config[name];
    if (!value.is_number()) return false;
    const double before = std::exchange(read.*field, value.number());
    if (to_sampling(read).check(0).ok()) return true;
    read.*field = before;
    return false;
  };
  bool is_sampled = config["do_sample"].is_boolean();
  is_sampled |= named("top_p", &hybridge_sampling::top_p);
  is_sampled |= named("min_p", &hybridge_sampling::min_p);
  (void)named("repetition_penalty", &hybridge_sampling::repetition_penalty);
  (void)named("presence_penalty", &hybridge_sampling::presence_penalty);
  (void)named("frequency_penalty", &hybridge_sampling::frequency_penalty);
  if (const text::Json top_k = config["top_k"]; top_k.is_number() && top_k.number() >= 1 && top_k.number() < 1e15) {
    read.top_k = static_cast<size_t>(top_k.number());
    is_sampled = true;
  }
  if (!named("temperature", &hybridge_sampling::temperature) && is_sampled) read.temperature = 1;
  return read;
}

Sampling to_sampling(const hybridge_sampling& given) {
  Sampling read{
      .temperature = given.temperature,
      .top_p = given.top_p,
      .min_p = given.min_p,
      .repetition_penalty = given.repetition_penalty,
      .top_k = given.top_k,
      .presence_penalty = given.presence_penalty,
      .frequency_penalty = given.frequency_penalty,
      .top_n_sigma = given.top_n_sigma,
      .repeat_last_n = given.repeat_last_n,
      .dry = {
          .multiplier = given.dry_multiplier,
          .base = given.dry_base,
          .allowed_length = given.dry_allowed_length,
          .breakers = {given.dry_breakers, given.dry_breakers + given.dry_breaker_count}
      }
  };
  for (const hybridge_bias& each : std::span(given.logit_bias, given.bias_count))
    read.logit_bias.push_back({each.token, each.bias});
  if (given.has_seed != 0) read.seed = given.seed;
  return read;
}

GenerationOptions to_generation_options(const GivenOptions& options, OpenSession& open, void* user) {
  const auto& [chosen, sampling, dev] = options;
  GenerationOptions engine_options{
      .max_new_tokens = chosen.max_new_tokens,
      .block_length = chosen.block_length,
      .cancelled = &open.cancelled,
      .sampling = to_sampling(sampling),
      .turns = &open.turn
  };
  OnRead on_read;
  if (chosen.on_read != nullptr)
    on_read = [on_read = chosen.on_read, user](size_t count) { call_back(on_read, count, user); };
  engine_options.on_read = let_others_run(open, std::move(on_read));
  if (chosen.mask != nullptr) {
    engine_options.mask = [mask = chosen.mask, user](Tokens text, std::span<float> logits) {
      call_back(mask, text.data(), text.size(), logits.data(), logits.size(), user);
    };
  }
  engine_options.stop_after_reasoning = chosen.stop_after_reasoning != 0;
  if (dev.forced != nullptr) {
    engine_options.forced = [forced = dev.forced, user](Tokens text, size_t limit) {
      std::vector<int64_t> tokens(limit);
      tokens.resize(std::min(limit, call_back(forced, text.data(), text.size(), tokens.data(), limit, user)));
      return tokens;
    };
  }
  if (dev.fitting != nullptr) {
    engine_options.fitting = [fitting = dev.fitting, user](Tokens text, Tokens proposed) {
      const size_t fit = call_back(fitting, text.data(), text.size(), proposed.data(), proposed.size(), user);
      return std::min(proposed.size(), fit);
    };
  }
  if (dev.watch != nullptr) {
    engine_options.watch = [watch = dev.watch, user](int64_t token, std::span<const float> logits) {
      call_back(watch, token, logits.data(), logits.size(), user);
    };
  }
  if (dev.clock != nullptr) engine_options.clock = [clock = dev.clock, user] { return call_back(clock, user); };
  if (dev.noise != nullptr) engine_options.noise = *dev.noise;
  return engine_options;
}

hybridge_status resolve_handles(OpenSession& open, const hybridge_generation& chosen) {
  open.turns = {open.model->turn};
  if (chosen.grammar.id != 0 && handles<OpenGrammar>().find(chosen.grammar) == nullptr)
    return refused(HYBRIDGE_INVALID_HANDLE);
  const bool is_beside = chosen.drafter == HYBRIDGE_AUTO_DRAFTER && chosen.draft.id != 0;
  if (chosen.drafter != HYBRIDGE_DRAFT_MODEL && !is_beside) return HYBRIDGE_OK;
  const auto draft_model = handles<OpenModel>().find(chosen.draft);
  if (draft_model == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
  if (open.draft_model != draft_model) open.drop_draft_model();
  open.draft_model = draft_model;
  open.turns.push_back(draft_model->turn);
  return HYBRIDGE_OK;
}

Result<Drafter*> get_own_drafter(OpenSession& open) {
  if (!open.session->info().has_drafter()) {
    return Status(
        HYBRIDGE_INVALID_DRAFTER, "this artifact has no drafter of its own; export it again with --drafter or --mtp"
    );
  }
  if (!open.own_drafter) open.own_drafter.emplace(*open.session);
  return static_cast<Drafter*>(&*open.own_drafter);
}

Result<Drafter*> get_draft_model(OpenSession& open) {
  if (open.draft_model == nullptr)
    return Status(HYBRIDGE_INVALID_DRAFTER, "there is no draft model: open one and give it as `draft`");
  if (!open.model_drafter) {
    auto made = DraftModel::create(open.draft_model->model, open.session->info());
    if (!made.ok()) return made.status();
    open.model_drafter = std::make_shared<DraftModel>(std::move(*made));
  }
  return static_cast<Drafter*>(&*open.model_drafter);
}

Result<Drafter*> get_callback_drafter(const hybridge_generation& chosen, OpenSession& open, void* user) {
  if (chosen.propose == nullptr)
    return Status(HYBRIDGE_INVALID_DRAFTER, "a drafter of the caller's has no function: give `propose`");
  constexpr size_t MOST = 16;  // a caller that makes a drafter for each text is not remembered
  if (open.callback_drafters.size() >= MOST && !open.callback_drafters.contains(chosen.drafter_id))
    open.callback_drafters.clear();
  auto& drafter = open.callback_drafters[chosen.drafter_id];
  if (drafter == nullptr || chosen.drafter_id == 0) drafter = std::make_unique<CallbackDrafter>(*open.session);
  drafter->call(chosen, user);
  return static_cast<Drafter*>(drafter.get());
}

Result<std::vector<Drafter*>> get_drafters(const hybridge_generation& chosen, OpenSession& open, void* user) {
  std::vector<Drafter*> found;
  switch (chosen.drafter) {
    case HYBRIDGE_NO_DRAFTER: return found;
    case HYBRIDGE_PROMPT_LOOKUP: return std::vector<Drafter*>{&open.prompt_lookup};
    case HYBRIDGE_OWN_DRAFTER: return std::vector<Drafter*>{HYBRIDGE_TRY(get_own_drafter(open))};
    case HYBRIDGE_DRAFT_MODEL: return std::vector<Drafter*>{HYBRIDGE_TRY(get_draft_model(open))};
    case HYBRIDGE_CALLBACK_DRAFTER:
      return std::vector<Drafter*>{HYBRIDGE_TRY(get_callback_drafter(chosen, open, user))};
    case HYBRIDGE_AUTO_DRAFTER: break;
  }
  if (chosen.drafter != HYBRIDGE_AUTO_DRAFTER)
    return Status(HYBRIDGE_INVALID_ARGUMENT, "there is no drafter of this number");
  found.push_back(&open.prompt_lookup);
  // Hidden states are read once: by the caller's drafter where it wants them.
  if (open.session->info().has_drafter() && chosen.reads_hidden == 0)
    found.push_back(HYBRIDGE_TRY(get_own_drafter(open)));
  if (chosen.draft.id != 0) found.push_back(HYBRIDGE_TRY(get_draft_model(open)));
  if (chosen.propose != nullptr) found.push_back(HYBRIDGE_TRY(get_callback_drafter(chosen, open, user)));
  return found;
}

Result<std::unique_ptr<Generator>> make_generator(const GivenOptions& options, OpenSession& open, void* user) {
  const hybridge_generation& chosen = options.chosen;
  if (chosen.tool_choice != nullptr) return Status(HYBRIDGE_INVALID_ARGUMENT, "tool_choice is for answers of a chat");
  GenerationOptions engine_options = to_generation_options(options, open, user);
  if (chosen.grammar.id != 0) {
    const auto grammar = handles<OpenGrammar>().find(chosen.grammar);
    if (grammar == nullptr) return Status(HYBRIDGE_INVALID_HANDLE, hybridge_status_text(HYBRIDGE_INVALID_HANDLE));
    if (options.has_constraint()) {
      return Status(HYBRIDGE_INVALID_ARGUMENT, "a generation follows a grammar or functions of the caller's, not both");
    }
    if (open.session->info().eos_ids.empty() && !grammar->has_ends()) {
      return Status(
          HYBRIDGE_INVALID_GRAMMAR,
          "this model has no token that ends a text, so nothing can say that a structure is complete"
      );
    }
    grammar->follow(engine_options, open.session->info().eos_ids);
  }
  std::vector<Drafter*> drafters = HYBRIDGE_TRY(get_drafters(chosen, open, user));
  const bool is_own = open.own_drafter && std::ranges::find(drafters, &*open.own_drafter) != drafters.end();
  if (is_own) open.own_drafter->listen(true);
  else open.session->keep_hidden(!drafters.empty() && chosen.reads_hidden != 0);
  return std::make_unique<Generator>(*open.session, std::move(engine_options), std::move(drafters));
}

hybridge_generated counted(const Generated& done) {
  return {done.tokens.size(),  done.proposed,       done.accepted,        done.verifies,      done.decodes,
          done.rollbacks,      done.forced,         done.prefill_seconds, done.draft_seconds, done.verify_seconds,
          done.commit_seconds, done.decode_seconds, done.new_seconds};
}

}  // namespace hybridge::c

namespace {

using namespace hybridge::c;
using hybridge::Generator;

}  // namespace

extern "C" {

hybridge_status hybridge_sampling_init(hybridge_sampling* sampling, size_t struct_size) {
  if (sampling == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] { return answer(write_defaults(sampling, struct_size)); });
}

hybridge_status hybridge_sampling_read(const char* json, size_t size, hybridge_sampling* sampling) {
  if (json == nullptr || sampling == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto known = read_options(sampling);
    if (!known.ok()) return answer(known.status());
    try {
      const hybridge_sampling found = read_sampling({json, size});
      const size_t struct_size = sampling->struct_size;
      std::memcpy(sampling, &found, std::min(struct_size, sizeof found));
      sampling->struct_size = struct_size;
    } catch (const hybridge::text::TextError& error) {
      return refused(HYBRIDGE_INVALID_ARTIFACT, error.what());
    }
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_generation_init(hybridge_generation* options, size_t struct_size) {
  if (options == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] { return answer(write_defaults(options, struct_size)); });
}

hybridge_status hybridge_generate(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options,
    hybridge_on_token on_token, void* user, hybridge_generated* generated
) {
  const auto read = GivenOptions::read(options);
  if (!read.ok()) return answer(read.status());
  return begin_generation(session, *read, user, [&](OpenSession& open, std::unique_ptr<Generator> generator) {
    const auto wanted = [&](int64_t token) { return on_token == nullptr || call_back(on_token, token, user) != 0; };
    const auto done = generator->run(span(prompt, count), wanted);
    open.session->keep_hidden(false);
    if (done.ok() && generated != nullptr) *generated = counted(*done);
    return answer(done);
  });
}

hybridge_status hybridge_begin(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options, void* user,
    int64_t* tokens, size_t capacity, size_t* given
) {
  if (!has_room(tokens, capacity, given) || capacity == 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  const auto read = GivenOptions::read(options);
  if (!read.ok()) return answer(read.status());
  return begin_generation(session, *read, user, [&](OpenSession& open, std::unique_ptr<Generator> generator) {
    const auto first = generator->begin(span(prompt, count));
    if (first.ok()) {
      open.generator = std::move(generator);
      return answer(first, tokens, capacity, given);
    }
    open.session->keep_hidden(false);
    return answer(first);
  });
}

hybridge_status hybridge_next(hybridge_session session, int64_t* tokens, size_t capacity, size_t* given) {
  if (!has_room(tokens, capacity, given)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_generation(session, [&](OpenSession& open, Generator& generator) {
    if (capacity < static_cast<size_t>(open.session->info().verify_len())) return refused(HYBRIDGE_INVALID_ARGUMENT);
    open.turn.take(open.turns);
    const auto round = generator.next();
    return answer(round, tokens, capacity, given);
  });
}

hybridge_status hybridge_end(hybridge_session session, size_t taken, hybridge_generated* generated) {
  return with_generation(session, [&](OpenSession& open, Generator& generator) {
    open.turn.take(open.turns);
    const hybridge::Status ended = generator.end(taken);
    if (generated != nullptr) *generated = counted(generator.done());
    open.generator.reset();
    open.session->keep_hidden(false);
    return answer(ended);
  });
}

hybridge_status hybridge_progress(hybridge_session session, hybridge_generated* generated) {
  if (generated == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_generation(session, [&](const OpenSession&, const Generator& generator) {
    *generated = counted(generator.done());
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_proposed(
    hybridge_session session, int64_t* tokens, size_t capacity, size_t* count, int* forced
) {
  if (!has_room(tokens, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_generation(session, [&](const OpenSession&, const Generator& generator) {
    if (forced != nullptr) *forced = generator.was_forced();
    return answer(generator.proposed(), tokens, capacity, count);
  });
}

hybridge_status hybridge_cancel(hybridge_session session) {
  return with_open<OpenSession>(session, [](OpenSession& open) {
    open.cancel();
    return HYBRIDGE_OK;
  });
}

}  // extern "C"
