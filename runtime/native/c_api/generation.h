// A generation as C asks for it.
#ifndef HYBRIDGE_C_API_GENERATION_H
#define HYBRIDGE_C_API_GENERATION_H

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "engine/sampling.h"

#include "c_api/calls.h"
#include "c_api/constraint.h"
#include "c_api/failure.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/options.h"

namespace hybridge::c {

// The options of a generation as this version knows them.
struct GivenOptions {
  hybridge_generation chosen;
  hybridge_sampling sampling;
  hybridge_dev_generation dev;

  static Result<GivenOptions> read(const hybridge_generation* given);

  bool has_constraint() const { return chosen.mask != nullptr || dev.forced != nullptr || dev.fitting != nullptr; }
};

Sampling to_sampling(const hybridge_sampling& given);

// Reads a generation_config.json, as hybridge_sampling_read does. Throws TextError.
hybridge_sampling read_sampling(std::string_view json);

GenerationOptions to_generation_options(const GivenOptions& options, OpenSession& open, void* user);

// Finds the draft model and the grammar that are asked for, and whose turns the generation waits for.
hybridge_status resolve_handles(OpenSession& open, const hybridge_generation& chosen);

// The drafters of the session, made when they are first asked for.

Result<Drafter*> get_own_drafter(OpenSession& open);

Result<Drafter*> get_draft_model(OpenSession& open);

Result<Drafter*> get_callback_drafter(const hybridge_generation& chosen, OpenSession& open, void* user);

// Finds the drafters that are asked for; none for plain decoding.
Result<std::vector<Drafter*>> get_drafters(const hybridge_generation& chosen, OpenSession& open, void* user);

// A generation that is ready to begin. Hidden states are kept no longer than it lasts: those that nobody reads would
// pile up.
Result<std::unique_ptr<Generator>> make_generator(const GivenOptions& options, OpenSession& open, void* user);

// Runs `call` on a new generation of the session. All of it is one call of the session: whatever it waits for, a cancel
// ends it.
template <typename Call>
hybridge_status begin_generation(hybridge_session handle, const GivenOptions& options, void* user, Call&& call) {
  const auto begin = [&](OpenSession& open) {
    if (const hybridge_status found = resolve_handles(open, options.chosen); found != HYBRIDGE_OK) return found;
    open.turn.take(open.turns);
    auto generator = make_generator(options, open, user);
    return generator.ok() ? call(open, std::move(*generator)) : answer(generator.status());
  };
  return with_session(handle, begin, true);
}

hybridge_generated counted(const Generated& done);

}  // namespace hybridge::c

#endif
