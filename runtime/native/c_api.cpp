// hybridge/hybridge.h over engine/session.h: handles, one call at a time, and errors as numbers and words.

#include <algorithm>
#include <memory>
#include <utility>

#include <hybridge/hybridge_dev.h>
#include "engine/runtime.h"
#include "engine/threads.h"

#include "c_api/calls.h"
#include "c_api/generation.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/options.h"
#include "c_api/program_table.h"

namespace {

using hybridge::Generator;
using namespace hybridge::c;

constexpr size_t MOST_THREADS = 1024;

}  // namespace

extern "C" {

const char* hybridge_version(void) { return HYBRIDGE_VERSION; }

const char* hybridge_status_text(hybridge_status status) {
  switch (status) {
    case HYBRIDGE_OK: return "no error";
    case HYBRIDGE_INVALID_ARGUMENT:
      return "a pointer is null that must not be, or a number or an option is out of range";
    case HYBRIDGE_INVALID_HANDLE: return "this handle is closed or was never given out";
    case HYBRIDGE_BUSY:
      return "what is asked for is in use by another call, by its own callback, or by an open session";
    case HYBRIDGE_NO_ROOM:
      return "the tokens do not fit into the context; reset the session, or restore a shorter state";
    case HYBRIDGE_INVALID_STATE: return "there is no generation, message or tool call to continue";
    case HYBRIDGE_INVALID_ARTIFACT: return "a file of the artifact is damaged, of another format, or was changed";
    case HYBRIDGE_UNREADABLE_FILE: return "the file does not exist, cannot be read, or is no regular file";
    case HYBRIDGE_MISSING_OPERATOR:
      return "the app links no kernels for an operator of the program; see its manifest.json";
    case HYBRIDGE_OUT_OF_MEMORY: return "there is not enough memory";
    case HYBRIDGE_INTERNAL: return "this library has a defect; please report it";
    case HYBRIDGE_CANCELLED: return "the generation was cancelled before its first token";
    case HYBRIDGE_NOT_FINITE: return "the logits are NaN or infinite; reset the session, or restore or load a state";
    case HYBRIDGE_BROKEN_STATE:
      return "an earlier call failed in the middle; reset the session, or restore, resume or load";
    case HYBRIDGE_PROGRAM_FAILED:
      return "a method of the program failed, refused what fits, or answered in another form";
    case HYBRIDGE_INVALID_TOKEN: return "a token is outside the vocabulary, or there are none or too many";
    case HYBRIDGE_INVALID_COMMIT: return "there is no verified block, or it has fewer tokens";
    case HYBRIDGE_INVALID_SLOT: return "the slot does not exist, was never filled, or was overwritten since";
    case HYBRIDGE_INVALID_DRAFTER: return "the model has no such drafter, or it does not fit";
    case HYBRIDGE_INVALID_PICTURE: return "the picture is not one that the model takes, or it is closed";
    case HYBRIDGE_INVALID_GRAMMAR: return "the grammar cannot be followed, or it leaves no token";
    case HYBRIDGE_INVALID_TEMPLATE: return "the chat template has an error, or refuses these messages";
    case HYBRIDGE_INVALID_SAVED_STATE: return "the saved state is damaged, or of another model";
    case HYBRIDGE_UNWRITABLE_FILE: return "the file cannot be written";
    case HYBRIDGE_OTHER_MODEL: return "the checkpoint, the cache or the picture is of another model";
    case HYBRIDGE_UNSUPPORTED: return "this model, its tokenizer or its chat template cannot do that";
    case HYBRIDGE_CALLBACK_FAILED: return "a callback threw an exception";
  }
  return "no status of hybridge";
}

const char* hybridge_failure(void) {
  const auto& [code, words] = last_ending();
  return code == HYBRIDGE_OK || !words.empty() ? words.c_str() : hybridge_status_text(code);
}

void hybridge_print_log(int wanted) { hybridge::print_runtime_log(wanted != 0); }

int hybridge_has_operator(const char* name) { return name != nullptr && hybridge::has_operator(name); }

int hybridge_has_backend(const char* name) { return name != nullptr && hybridge::has_backend(name); }

hybridge_status hybridge_set_threads(size_t count) {
  if (count > MOST_THREADS) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] { return answer(hybridge::set_threads(count)); });
}

size_t hybridge_threads(void) { return hybridge::thread_count(); }

hybridge_status hybridge_model_open(const char* path, hybridge_model* model) {
  if (path == nullptr || model == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    auto loaded = hybridge::Model::load(path);
    if (!loaded.ok()) return answer(loaded.status());
    auto opened = std::make_shared<OpenModel>(std::move(*loaded));
    *model = handles<OpenModel>().add(std::move(opened));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_program_open(const hybridge_program* program, hybridge_model* model) {
  if (program == nullptr || model == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto described = read_options(program);
    if (!described.ok()) return answer(described.status());
    auto loaded = TableModel::open(*described);
    if (!loaded.ok()) return answer(loaded.status());
    *model = handles<OpenModel>().add(std::make_shared<OpenModel>(std::move(*loaded)));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_close(hybridge_model model) {
  return guarded([&] { return handles<OpenModel>().remove(model) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_model_ask(hybridge_model model, hybridge_is_same is_same, void* user) {
  if (is_same == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return in_turn<OpenModel>(model, [&](OpenModel& it) {
    it.model->ask([is_same, user] { return call_back(is_same, user) != 0; });
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_info(hybridge_model model, hybridge_info* info) {
  if (info == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    const hybridge::Facts& facts = opened->model->facts();
    *info = {
        facts.max_seq_len,
        facts.vocab_size,
        facts.prefill_chunk,
        facts.verify_len(),
        facts.snapshot_slots,
        facts.has_drafter() ? facts.draft_blocks.back() - 1 : 0,
        facts.encoder ? facts.encoder->unit() : 0,
        facts.encoder ? facts.encoder->budgets.back() : 0,
        facts.encoder ? facts.encoder->placeholder : -1
    };
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_eos_ids(hybridge_model model, int64_t* ids, size_t capacity, size_t* count) {
  if (!has_room(ids, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    return answer(opened->model->facts().eos_ids, ids, capacity, count);
  });
}

hybridge_status hybridge_model_verify_lens(hybridge_model model, int64_t* lengths, size_t capacity, size_t* count) {
  if (!has_room(lengths, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    return answer(opened->model->facts().verify_lens, lengths, capacity, count);
  });
}

hybridge_status hybridge_session_open(hybridge_model model, hybridge_session* session) {
  if (session == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    const InTurn turn({opened->turn});
    auto created = hybridge::Session::create(opened->model);
    if (!created.ok()) return answer(created.status());
    auto made = std::make_shared<OpenSession>();
    made->of = opened;
    made->session = std::move(*created);
    *session = handles<OpenSession>().add(std::move(made));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_session_close(hybridge_session session) {
  const auto close = [&](OpenSession& it) {
    it.close();
    return handles<OpenSession>().remove(session) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE;
  };
  return with_session(session, close, true);
}

hybridge_status hybridge_tokens(hybridge_session session, int64_t* tokens, size_t capacity, size_t* count) {
  if (!has_room(tokens, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& it) { return answer(it.session->tokens(), tokens, capacity, count); });
}

hybridge_status hybridge_slot_tokens(
    hybridge_session session, int64_t slot, int64_t* tokens, size_t capacity, size_t* count
) {
  if (!has_room(tokens, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& it) {
    if (slot < 0 || slot >= it.session->facts().snapshot_slots) return refused(HYBRIDGE_INVALID_SLOT);
    return answer(it.session->slot(slot), tokens, capacity, count);
  });
}

hybridge_status hybridge_prefill(hybridge_session session, const int64_t* tokens, size_t count, float* logits) {
  return change_session(session, [&](OpenSession& it) {
    return answer(it.session->prefill(span(tokens, count), nullptr, let_others_run(it)), logits);
  });
}

hybridge_status hybridge_decode(hybridge_session session, int64_t token, float* logits) {
  return change_session(session, [&](OpenSession& it) { return answer(it.session->decode(token), logits); });
}

hybridge_status hybridge_verify(hybridge_session session, const int64_t* tokens, size_t count, float* logits) {
  return change_session(session, [&](OpenSession& it) {
    return answer(it.session->verify(span(tokens, count)), logits);
  });
}

hybridge_status hybridge_commit(hybridge_session session, int64_t count) {
  return change_session(session, [&](OpenSession& it) { return answer(it.session->commit(count)); });
}

hybridge_status hybridge_snapshot(hybridge_session session, int64_t slot) {
  return change_session(session, [&](OpenSession& it) { return answer(it.session->snapshot(slot)); });
}

hybridge_status hybridge_restore(hybridge_session session, int64_t slot) {
  return change_session(session, [&](OpenSession& it) { return answer(it.session->restore(slot)); });
}

hybridge_status hybridge_reset(hybridge_session session) {
  return change_session(session, [&](OpenSession& it) { return answer(it.session->reset()); });
}

hybridge_status hybridge_save(hybridge_session session, const char* path, const char* note) {
  if (path == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  const char* noted = note == nullptr ? "" : note;
  return with_session_in_turn(session, [&](OpenSession& it) { return answer(it.session->save(path, noted)); });
}

hybridge_status hybridge_load(hybridge_session session, const char* path) {
  if (path == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return change_session(session, [&](OpenSession& it) { return answer(it.session->load(path)); });
}

hybridge_status hybridge_note(hybridge_session session, char* note, size_t capacity, size_t* size) {
  if (size == nullptr || (note == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& it) {
    const std::string& noted = it.session->note();
    *size = noted.size();
    std::copy_n(noted.data(), std::min(capacity, noted.size()), note);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_buffers(hybridge_session session, hybridge_array* buffers, size_t capacity, size_t* count) {
  if (count == nullptr || (buffers == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session(session, [&](OpenSession& it) {
    const auto& names = it.session->buffer_names();
    *count = names.size();
    for (size_t i = 0; i < std::min(capacity, names.size()); ++i) {
      const auto found = it.session->buffer(names[i]);
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
  return with_session(session, [&](OpenSession& it) {
    const auto& states = it.session->hidden();
    *hidden = states.last().data();
    *width = states.width();
    *rows = states.width() > 0 ? states.last().size() / states.width() : 0;
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_keep_hidden(hybridge_session session, int wanted) {
  return with_session(session, [&](OpenSession& it) {
    if (wanted != HYBRIDGE_OWN_DRAFTER) return it.session->keep_hidden(wanted != 0), HYBRIDGE_OK;
    const auto own = own_drafter(it);
    if (own.ok()) it.own->listen(true);
    return answer(own.status());
  });
}

hybridge_status hybridge_draft(
    hybridge_session session, const float* hidden, size_t rows, size_t width, const int64_t* following, size_t limit,
    const float* noise, double temperature, hybridge_drafted* drafted
) {
  if (hidden == nullptr || following == nullptr || drafted == nullptr || rows == 0)
    return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_in_turn(session, [&](OpenSession& it) {
    std::optional<hybridge::Draws> draws;
    if (noise != nullptr) draws = hybridge::Draws{{noise, noise + limit}, temperature};
    auto found = it.session->draft({hidden, rows * width}, span(following, rows), limit, draws);
    if (!found.ok()) return answer(found.status());
    it.drafted = std::move(*found);
    const auto& all = it.drafted;
    const size_t count = all.tokens.size(), scored = count > 0 ? all.scores.size() / count : 0;
    const auto data = [](const auto& values) { return values.empty() ? nullptr : values.data(); };
    *drafted = {
        count,
        scored,
        data(all.tokens),
        data(all.confidences),
        data(all.scores),
        data(all.candidates),
        all.candidates.size() == scored
    };
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_make(hybridge_session session, hybridge_checkpoint* checkpoint) {
  if (checkpoint == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_in_turn(session, [&](OpenSession& it) {
    auto kept = it.session->checkpoint();
    if (!kept.ok()) return answer(kept.status());
    auto made = std::make_shared<OpenCheckpoint>(it.of, std::move(*kept));
    *checkpoint = handles<OpenCheckpoint>().add(std::move(made));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_info(hybridge_checkpoint checkpoint, hybridge_kept* kept) {
  if (kept == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with<OpenCheckpoint>(checkpoint, [&](const OpenCheckpoint& it) {
    *kept = {it.kept->length(), it.kept->bytes(), it.kept->shared_bytes()};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_close(hybridge_checkpoint checkpoint) {
  return guarded([&] { return handles<OpenCheckpoint>().remove(checkpoint) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_resume(hybridge_session session, hybridge_checkpoint checkpoint) {
  return change_session(session, [&](OpenSession& it) {
    const auto found = handles<OpenCheckpoint>().find(checkpoint);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    return answer(it.session->resume(*found->kept));
  });
}

hybridge_status hybridge_checkpoint_parts(
    hybridge_checkpoint checkpoint, uint64_t* ids, size_t capacity, size_t* count
) {
  if (count == nullptr || (ids == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with<OpenCheckpoint>(checkpoint, [&](const OpenCheckpoint& it) {
    std::vector<uint64_t> all;
    for (const auto& segment : hybridge::chain(it.kept->segment)) all.push_back(segment->id);
    all.push_back(it.kept->id);
    *count = all.size();
    std::copy_n(all.data(), std::min(capacity, all.size()), ids);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_part(
    hybridge_checkpoint checkpoint, size_t part, uint8_t* bytes, size_t capacity, size_t* size
) {
  if (size == nullptr || (bytes == nullptr && capacity > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with<OpenCheckpoint>(checkpoint, [&](const OpenCheckpoint& it) {
    const auto segments = hybridge::chain(it.kept->segment);
    if (part > segments.size()) return refused(HYBRIDGE_INVALID_ARGUMENT);
    const auto encoded = part < segments.size() ? hybridge::encode(*segments[part]) : hybridge::encode(*it.kept);
    *size = encoded.size();
    std::copy_n(encoded.data(), std::min(capacity, encoded.size()), bytes);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_checkpoint_read(
    hybridge_session session, hybridge_checkpoint like, size_t shared, const hybridge_part* parts, size_t count,
    hybridge_checkpoint* checkpoint
) {
  if (parts == nullptr || count == 0 || checkpoint == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_session_in_turn(session, [&](OpenSession& it) {
    const auto other = handles<OpenCheckpoint>().find(like);
    if (shared > 0 && other == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    std::vector<hybridge::Part> given;
    for (const hybridge_part& each : std::span(parts, count))
      given.emplace_back(each.bytes, each.bytes == nullptr ? 0 : each.size);
    auto made = it.session->read_checkpoint(shared > 0 ? other->kept.get() : nullptr, shared, given);
    if (!made.ok()) return answer(made.status());
    *checkpoint = handles<OpenCheckpoint>().add(std::make_shared<OpenCheckpoint>(it.of, std::move(*made)));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_open(hybridge_model model, size_t bytes, hybridge_cache* cache) {
  if (cache == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    *cache = handles<OpenCache>().add(
        std::make_shared<OpenCache>(opened, std::make_shared<hybridge::PrefixCache>(bytes))
    );
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_close(hybridge_cache cache) {
  return guarded([&] { return handles<OpenCache>().remove(cache) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_cache_watch(hybridge_cache cache, hybridge_on_use on_use, void* user) {
  return in_turn<OpenCache>(cache, [&](OpenCache& it) {
    if (on_use == nullptr) return it.kept->watch(nullptr), HYBRIDGE_OK;
    it.kept->watch([=, of = it.of](const hybridge::PrefixCache::Kept& used) {
      call_back(on_use, handles<OpenCheckpoint>().add(std::make_shared<OpenCheckpoint>(of, used)), user);
    });
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_add(hybridge_cache cache, hybridge_checkpoint checkpoint) {
  return in_turn<OpenCache>(cache, [&](OpenCache& it) {
    const auto found = handles<OpenCheckpoint>().find(checkpoint);
    if (found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    if (found->of->model->fingerprint() != it.of->model->fingerprint()) return refused(HYBRIDGE_OTHER_MODEL);
    it.kept->add(found->kept);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_find(
    hybridge_cache cache, const int64_t* tokens, size_t count, hybridge_checkpoint* checkpoint
) {
  if (checkpoint == nullptr || (tokens == nullptr && count > 0)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return in_turn<OpenCache>(cache, [&](OpenCache& it) {
    auto found = it.kept->find(span(tokens, count));
    *checkpoint = found == nullptr
                      ? hybridge_checkpoint{}
                      : handles<OpenCheckpoint>().add(std::make_shared<OpenCheckpoint>(it.of, std::move(found)));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_clear(hybridge_cache cache) {
  return in_turn<OpenCache>(cache, [&](OpenCache& it) {
    it.kept->clear();
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_cache_info(hybridge_cache cache, hybridge_cached* cached) {
  if (cached == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with<OpenCache>(cache, [&](const OpenCache& it) {
    *cached = {it.kept->size(), it.kept->bytes()};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_bring_to(
    hybridge_session session, hybridge_cache cache, const int64_t* tokens, size_t count, size_t* cached_tokens
) {
  if (tokens == nullptr || count == 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return change_session(session, [&](OpenSession& it) {
    const auto found = handles<OpenCache>().find(cache);
    if (cache.id != 0 && found == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    if (found != nullptr && found->of->model->fingerprint() != it.of->model->fingerprint())
      return refused(HYBRIDGE_OTHER_MODEL);
    hybridge::PrefixCache none(0);
    hybridge::PrefixCache& kept = found != nullptr ? *found->kept : none;
    const bool reads = it.session->facts().has_drafter() && !it.session->hidden().is_kept() && own_drafter(it).ok();
    if (reads) it.own->listen(true);
    const auto cached = hybridge::bring_to(*it.session, span(tokens, count), kept, nullptr, let_others_run(it));
    if (reads) it.own->listen(false);
    if (cached.ok() && cached_tokens != nullptr) *cached_tokens = static_cast<size_t>(*cached);
    return answer(cached);
  });
}

hybridge_status hybridge_sampling_init(hybridge_sampling* sampling, size_t struct_size) {
  if (sampling == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] { return answer(write_defaults(sampling, struct_size)); });
}

hybridge_status hybridge_generation_init(hybridge_generation* options, size_t struct_size) {
  if (options == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] { return answer(write_defaults(options, struct_size)); });
}

hybridge_status hybridge_generate(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options,
    hybridge_on_token on_token, void* user, hybridge_generated* generated
) {
  const auto read = GenerationOptions::read(options);
  if (!read.ok()) return answer(read.status());
  return begin_generation(session, *read, user, [&](OpenSession& it, std::unique_ptr<Generator> generator) {
    const auto wanted = [&](int64_t token) { return on_token == nullptr || call_back(on_token, token, user) != 0; };
    const auto done = hybridge::generate(*generator, it.session->facts(), &it.cancelled, span(prompt, count), wanted);
    it.session->keep_hidden(false);
    if (done.ok() && generated != nullptr) *generated = counted(*done);
    return answer(done);
  });
}

hybridge_status hybridge_begin(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options, void* user,
    int64_t* tokens, size_t capacity, size_t* given
) {
  if (!has_room(tokens, capacity, given) || capacity == 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
  const auto read = GenerationOptions::read(options);
  if (!read.ok()) return answer(read.status());
  return begin_generation(session, *read, user, [&](OpenSession& it, std::unique_ptr<Generator> generator) {
    const auto first = generator->begin(span(prompt, count));
    if (first.ok()) {
      it.running = std::move(generator);
      return answer(first, tokens, capacity, given);
    }
    it.session->keep_hidden(false);
    return answer(first);
  });
}

hybridge_status hybridge_next(hybridge_session session, int64_t* tokens, size_t capacity, size_t* given) {
  if (!has_room(tokens, capacity, given)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_generation(session, [&](OpenSession& it, Generator& generator) {
    if (capacity < static_cast<size_t>(it.session->facts().verify_len())) return refused(HYBRIDGE_INVALID_ARGUMENT);
    it.turn.take(it.turns);
    const auto round = generator.next();
    return answer(round, tokens, capacity, given);
  });
}

hybridge_status hybridge_end(hybridge_session session, size_t taken, hybridge_generated* generated) {
  return with_generation(session, [&](OpenSession& it, Generator& generator) {
    it.turn.take(it.turns);
    const hybridge::Status ended = generator.end(taken);
    if (generated != nullptr) *generated = counted(generator.done());
    it.running.reset();
    it.session->keep_hidden(false);
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
  return with<OpenSession>(session, [](OpenSession& it) {
    it.cancel();
    return HYBRIDGE_OK;
  });
}
}
