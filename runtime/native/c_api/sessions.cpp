// The functions of hybridge.h about sessions.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <hybridge/hybridge_dev.h>

#include "c_api/calls.h"
#include "c_api/generation.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/program_table.h"

namespace {

using namespace hybridge::c;

hybridge_status copy_of(
    hybridge_session session, const std::string& (hybridge::Session::*text)() const, char* to, size_t capacity,
    size_t* size
) {
  if (size == nullptr || (to == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& open) {
    const std::string& found = (*open.session.*text)();
    *size = found.size();
    std::copy_n(found.data(), std::min(capacity, found.size()), to);
    return HYBRIDGE_OK;
  });
}

}  // namespace

extern "C" {

hybridge_status hybridge_session_open(hybridge_model model, hybridge_session* session) {
  if (session == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    const InTurn turn({opened->turn});
    auto created = opened->session();
    if (!created.ok()) return answer(created.status());
    auto made = std::make_shared<OpenSession>();
    made->model = opened;
    made->session = std::move(*created);
    *session = handles<OpenSession>().add(std::move(made));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_session_close(hybridge_session session) {
  const auto close = [&](OpenSession& open) {
    open.close();
    return handles<OpenSession>().remove(session) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE;
  };
  return with_session(session, close, true);
}

hybridge_status hybridge_tokens(hybridge_session session, int64_t* tokens, size_t capacity, size_t* count) {
  if (!has_room(tokens, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& open) {
    return answer(open.session->tokens(), tokens, capacity, count);
  });
}

hybridge_status hybridge_session_prompts(
    hybridge_session session, hybridge_prompts_read* read, char* reason, size_t capacity, size_t* size
) {
  if (read == nullptr || size == nullptr || (reason == nullptr && capacity > 0))
    return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& open) {
    if (!open.session->info().has_delegate()) return refused(HYBRIDGE_UNSUPPORTED);
    const auto& found = open.session->prompts_read();
    *read = {found.delegate.ok() ? 1 : 0, found.delegate_tokens, found.cpu_tokens};
    const std::string& words = found.delegate.words();
    *size = words.size();
    std::copy_n(words.data(), std::min(capacity, words.size()), reason);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_delegated(hybridge_session session, int64_t* places, size_t capacity, size_t* count) {
  if (!has_room(places, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& open) {
    return answer(open.session->delegated(), places, capacity, count);
  });
}

hybridge_status hybridge_slot_tokens(
    hybridge_session session, int64_t slot, int64_t* tokens, size_t capacity, size_t* count
) {
  if (!has_room(tokens, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& open) {
    if (slot < 0 || slot >= open.session->info().snapshot_slots) return refused(HYBRIDGE_INVALID_SLOT);
    return answer(open.session->slot(slot), tokens, capacity, count);
  });
}

hybridge_status hybridge_prefill(hybridge_session session, const int64_t* tokens, size_t count, float* logits) {
  return with_session_ending_generation(session, [&](OpenSession& open) {
    return answer(open.session->prefill(span(tokens, count), nullptr, let_others_run(open)), logits);
  });
}

hybridge_status hybridge_decode(hybridge_session session, int64_t token, float* logits) {
  return with_session_ending_generation(session, [&](OpenSession& open) {
    return answer(open.session->decode(token), logits);
  });
}

hybridge_status hybridge_verify(hybridge_session session, const int64_t* tokens, size_t count, float* logits) {
  return with_session_ending_generation(session, [&](OpenSession& open) {
    return answer(open.session->verify(span(tokens, count)), logits);
  });
}

hybridge_status hybridge_commit(hybridge_session session, int64_t count) {
  return with_session_ending_generation(session, [&](OpenSession& open) {
    return answer(open.session->commit(count));
  });
}

hybridge_status hybridge_snapshot(hybridge_session session, int64_t slot) {
  return with_session_ending_generation(session, [&](OpenSession& open) {
    return answer(open.session->snapshot(slot));
  });
}

hybridge_status hybridge_restore(hybridge_session session, int64_t slot) {
  return with_session_ending_generation(session, [&](OpenSession& open) {
    return answer(open.session->restore(slot));
  });
}

hybridge_status hybridge_reset(hybridge_session session) {
  return with_session_ending_generation(session, [&](OpenSession& open) { return answer(open.session->reset()); });
}

hybridge_status hybridge_save(hybridge_session session, const char* path, const char* note) {
  if (path == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  const char* noted = note == nullptr ? "" : note;
  return with_session_in_turn(session, [&](OpenSession& open) { return answer(open.session->save(path, noted)); });
}

hybridge_status hybridge_load(hybridge_session session, const char* path) {
  if (path == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_ending_generation(session, [&](OpenSession& open) { return answer(open.session->load(path)); });
}

hybridge_status hybridge_note(hybridge_session session, char* note, size_t capacity, size_t* size) {
  return copy_of(session, &hybridge::Session::note, note, capacity, size);
}

hybridge_status hybridge_saved_elsewhere(hybridge_session session, char* set, size_t capacity, size_t* size) {
  return copy_of(session, &hybridge::Session::saved_elsewhere, set, capacity, size);
}

hybridge_status hybridge_buffers(hybridge_session session, hybridge_array* buffers, size_t capacity, size_t* count) {
  if (count == nullptr || (buffers == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& open) {
    const auto& names = open.session->buffer_names();
    *count = names.size();
    for (size_t i = 0; i < std::min(capacity, names.size()); ++i) {
      const auto found = open.session->buffer(names[i]);
      if (!found.ok()) return answer(found.status());
      const auto array = shown(names[i].c_str(), *found);
      if (!array) return HYBRIDGE_INTERNAL;
      buffers[i] = *array;
    }
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_hidden(hybridge_session session, const float** hidden, size_t* rows, size_t* width) {
  if (hidden == nullptr || rows == nullptr || width == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& open) {
    const auto& states = open.session->hidden();
    *hidden = states.last().data();
    *width = states.width();
    *rows = states.width() > 0 ? states.last().size() / states.width() : 0;
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_keep_hidden(hybridge_session session, int wanted) {
  return with_session(session, [&](OpenSession& open) {
    if (wanted != HYBRIDGE_OWN_DRAFTER) return open.session->keep_hidden(wanted != 0), HYBRIDGE_OK;
    const auto drafter = get_own_drafter(open);
    if (drafter.ok()) open.own_drafter->listen(true);
    return answer(drafter.status());
  });
}

hybridge_status hybridge_draft(
    hybridge_session session, const float* hidden, size_t rows, size_t width, const int64_t* following, size_t limit,
    const uint32_t* noise, double temperature, hybridge_drafted* drafted
) {
  if (hidden == nullptr || following == nullptr || drafted == nullptr || rows == 0)
    return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_in_turn(session, [&](OpenSession& open) {
    std::optional<hybridge::Draws> draws;
    if (noise != nullptr) draws = hybridge::Draws{{noise, noise + limit}, temperature};
    auto found = open.session->draft({hidden, rows * width}, span(following, rows), limit, draws);
    if (!found.ok()) return answer(found.status());
    open.drafted = std::move(*found);
    *drafted = {open.drafted.tokens.size(), open.drafted.tokens.data(), open.drafted.confidences.data()};
    return HYBRIDGE_OK;
  });
}

}  // extern "C"
