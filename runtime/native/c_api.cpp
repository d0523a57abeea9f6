// hybridge/hybridge.h over hybridge/session.h: handles, one call at a time, and errors as numbers.

#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/kernel/operator_registry.h>

#include <hybridge/hybridge.h>
#include <hybridge/threads.h>

#include "c_api/calls.h"
#include "c_api/generation.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/runtime_log.h"

namespace {

using hybridge::Error;
using namespace hybridge::c;

constexpr size_t MOST_THREADS = 1024;

// Before anything is called: the runtime's table of functions should not change under running threads.
[[maybe_unused]] const bool listening = RuntimeLog::listen();

}  // namespace

extern "C" {

const char* hybridge_version(void) { return HYBRIDGE_VERSION; }

const char* hybridge_status_text(hybridge_status status) {
  switch (status) {
    case HYBRIDGE_OK: return "no error";
    case HYBRIDGE_INVALID_ARGUMENT:
      return "a null pointer, a token outside the vocabulary, a count or slot out of range, or a drafter or checkpoint that does not fit";
    case HYBRIDGE_INVALID_HANDLE: return "this handle is closed or was never given out";
    case HYBRIDGE_BUSY: return "the session is in another call";
    case HYBRIDGE_NO_ROOM: return "the tokens do not fit into the context; reset the session, or restore a shorter state";
    case HYBRIDGE_INVALID_STATE: return "no verified block waits for a commit, or the slot keeps nothing";
    case HYBRIDGE_INVALID_FILE: return "the file is damaged, of another model, or no artifact of a format that is known here";
    case HYBRIDGE_FILE_ACCESS: return "the file cannot be read or written";
    case HYBRIDGE_MISSING_OPERATOR: return "the app links no kernels for an operator of the program; see its manifest.json";
    case HYBRIDGE_OUT_OF_MEMORY: return "there is not enough memory";
    case HYBRIDGE_INTERNAL: return "the runtime failed inside a method";
    case HYBRIDGE_CANCELLED: return "the generation was cancelled before its first token";
    case HYBRIDGE_NOT_FINITE: return "the logits are NaN or infinite; reset the session, or restore or load a state";
  }
  return "no status of hybridge";
}

const char* hybridge_failure(void) { return logged().c_str(); }

void hybridge_print_log(int wanted) { RuntimeLog::print(wanted != 0); }

int hybridge_has_operator(const char* name) {
  return name != nullptr && executorch::ET_RUNTIME_NAMESPACE::registry_has_op_function(name);
}

int hybridge_has_backend(const char* name) {
  return name != nullptr && executorch::ET_RUNTIME_NAMESPACE::get_backend_class(name) != nullptr;
}

hybridge_status hybridge_set_threads(size_t count) {
  if (count > MOST_THREADS) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    hybridge::set_threads(count);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_open(const char* path, hybridge_model* model) {
  if (path == nullptr || model == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    RuntimeLog::listen();
    auto loaded = hybridge::Model::load(path);
    if (!loaded.ok()) return status(loaded.error());
    auto opened = std::make_shared<OpenModel>();
    opened->model = std::move(*loaded);
    *model = handles<OpenModel>().add(std::move(opened));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_close(hybridge_model model) {
  return guarded([&] { return handles<OpenModel>().remove(model) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_model_info(hybridge_model model, hybridge_info* info) {
  if (info == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const hybridge::Facts& facts = opened->model->facts();
    *info = {facts.max_seq_len, facts.vocab_size, facts.prefill_chunk, facts.verify_len(), facts.snapshot_slots,
             facts.has_drafter() ? facts.draft_blocks.back() - 1 : 0};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_eos_ids(hybridge_model model, int64_t* ids, size_t capacity, size_t* count) {
  if (!has_room(ids, capacity, count)) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return HYBRIDGE_INVALID_HANDLE;
    hybridge::Tokens known = opened->model->facts().eos_ids;
    if (known.front() < 0) known = {};  // -1: the model has none
    return answer(known, ids, capacity, count);
  });
}

hybridge_status hybridge_model_verify_lens(hybridge_model model, int64_t* lengths, size_t capacity, size_t* count) {
  if (!has_room(lengths, capacity, count)) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return HYBRIDGE_INVALID_HANDLE;
    return answer(opened->model->facts().verify_lens, lengths, capacity, count);
  });
}

hybridge_status hybridge_session_open(hybridge_model model, hybridge_session* session) {
  if (session == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const std::lock_guard turn(opened->turn);
    auto created = hybridge::Session::create(opened->model);
    if (!created.ok()) return status(created.error());
    auto made = std::make_shared<OpenSession>();
    made->of = opened;
    made->session = std::move(*created);
    *session = handles<OpenSession>().add(std::move(made));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_session_close(hybridge_session session) {
  return in(session, [&](OpenSession& it) {
    it.close();
    return handles<OpenSession>().remove(session) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE;
  });
}

hybridge_status hybridge_tokens(hybridge_session session, int64_t* tokens, size_t capacity, size_t* count) {
  if (!has_room(tokens, capacity, count)) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& it) { return answer(it.session->tokens(), tokens, capacity, count); });
}

hybridge_status hybridge_slot_tokens(hybridge_session session, int64_t slot, int64_t* tokens, size_t capacity, size_t* count) {
  if (!has_room(tokens, capacity, count)) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& it) {
    if (slot < 0 || slot >= it.session->facts().snapshot_slots) return HYBRIDGE_INVALID_ARGUMENT;
    return answer(it.session->slot(slot), tokens, capacity, count);
  });
}

hybridge_status hybridge_prefill(hybridge_session session, const int64_t* tokens, size_t count, float* logits) {
  return in(session, [&](OpenSession& it) { return answer(it.session->prefill(span(tokens, count)), logits); });
}

hybridge_status hybridge_decode(hybridge_session session, int64_t token, float* logits) {
  return in(session, [&](OpenSession& it) { return answer(it.session->decode(token), logits); });
}

hybridge_status hybridge_verify(hybridge_session session, const int64_t* tokens, size_t count, float* logits) {
  return in(session, [&](OpenSession& it) { return answer(it.session->verify(span(tokens, count)), logits); });
}

hybridge_status hybridge_commit(hybridge_session session, int64_t count) {
  return in(session, [&](OpenSession& it) { return answer(it.session->commit(count)); });
}

hybridge_status hybridge_snapshot(hybridge_session session, int64_t slot) {
  return in(session, [&](OpenSession& it) { return answer(it.session->snapshot(slot)); });
}

hybridge_status hybridge_restore(hybridge_session session, int64_t slot) {
  return in(session, [&](OpenSession& it) { return answer(it.session->restore(slot)); });
}

hybridge_status hybridge_reset(hybridge_session session) {
  return in(session, [&](OpenSession& it) { return answer(it.session->reset()); });
}

hybridge_status hybridge_save(hybridge_session session, const char* path) {
  if (path == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& it) { return status(it.session->save(path)); });
}

hybridge_status hybridge_load(hybridge_session session, const char* path) {
  if (path == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& it) { return answer(it.session->load(path)); });
}

hybridge_status hybridge_keep_hidden(hybridge_session session, int wanted) {
  return in(session, [&](OpenSession& it) {
    it.session->keep_hidden(wanted != 0);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_draft(hybridge_session session, int64_t next, int64_t* tokens, size_t limit, size_t* count) {
  if (!has_room(tokens, limit, count)) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& it) {
    const auto drafted = it.session->draft(next, limit);
    return drafted.ok() ? answer(drafted->tokens, tokens, limit, count) : status(drafted.error());
  });
}

hybridge_status hybridge_checkpoint_make(hybridge_session session, hybridge_checkpoint* checkpoint) {
  if (checkpoint == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& it) {
    auto made = std::make_shared<OpenCheckpoint>(it.of, it.session->checkpoint());
    *checkpoint = handles<OpenCheckpoint>().add(std::move(made));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_info(hybridge_checkpoint checkpoint, hybridge_kept* kept) {
  if (kept == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return on(checkpoint, [&](const OpenCheckpoint& it) {
    *kept = {it.kept->length(), it.kept->bytes(), it.kept->shared_bytes()};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_close(hybridge_checkpoint checkpoint) {
  return on(checkpoint, [&](const OpenCheckpoint&) {
    return handles<OpenCheckpoint>().remove(checkpoint) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE;
  });
}

hybridge_status hybridge_resume(hybridge_session session, hybridge_checkpoint checkpoint) {
  return in(session, [&](OpenSession& it) {
    const auto found = handles<OpenCheckpoint>().find(checkpoint);
    if (found == nullptr) return HYBRIDGE_INVALID_HANDLE;
    if (found->of != it.of) return HYBRIDGE_INVALID_ARGUMENT;  // its turn is another one
    return answer(it.session->resume(*found->kept));
  });
}

hybridge_status hybridge_model_cache(hybridge_model model, size_t bytes) {
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const std::lock_guard turn(opened->turn);
    opened->cache = std::make_unique<hybridge::PrefixCache>(bytes);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_cached(hybridge_model model, hybridge_cached* cached) {
  if (cached == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const std::lock_guard turn(opened->turn);
    *cached = {opened->cache->size(), opened->cache->bytes()};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_bring_to(hybridge_session session, const int64_t* tokens, size_t count, size_t* known) {
  if (tokens == nullptr || count == 0) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& it) {
    const auto found = hybridge::bring_to(*it.session, span(tokens, count), *it.of->cache);
    if (found.ok() && known != nullptr) *known = static_cast<size_t>(*found);
    return answer(found);
  });
}

hybridge_status hybridge_generate(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options,
    hybridge_on_token on_token, void* user, hybridge_generated* generated) {
  hybridge_generation chosen{};
  chosen.max_new_tokens = 64;
  chosen.drafter = HYBRIDGE_PROMPT_LOOKUP;
  if (options != nullptr) chosen = *options;
  if (chosen.drafter == HYBRIDGE_DRAFT_MODEL) {
    const hybridge_status chose = choose_draft(session, chosen.draft);
    if (chose != HYBRIDGE_OK) return chose;
  }

  return in(session, [&](OpenSession& it) {
    bool started = false;
    const OpenSession::OnToken wanted = [&](int64_t token) {
      started = true;
      return on_token == nullptr || on_token(token, user) != 0;
    };
    const auto done = generate_by(chosen, it, span(prompt, count), wanted, user);
    if (done.ok() && generated != nullptr) *generated = counted(*done);
    const bool stopped = done.error() == Error::InvalidState && it.cancelled && !started;
    return stopped ? HYBRIDGE_CANCELLED : status(done.error());
  });
}

hybridge_status hybridge_cancel(hybridge_session session) {
  return guarded([&] {
    const auto found = handles<OpenSession>().find(session);
    if (found == nullptr) return HYBRIDGE_INVALID_HANDLE;
    found->cancelled = true;
    return HYBRIDGE_OK;
  });
}
}
