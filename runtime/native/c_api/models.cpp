// The functions of hybridge.h about models and programs.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <hybridge/hybridge_dev.h>

#include "c_api/calls.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/options.h"
#include "c_api/program_table.h"

namespace {

using namespace hybridge::c;

}  // namespace

extern "C" {

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
  return with_open_in_turn<OpenModel>(model, [&](OpenModel& open) {
    open.model->ask([is_same, user] { return call_back(is_same, user) != 0; });
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_info(hybridge_model model, hybridge_info* info) {
  if (info == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    const hybridge::ModelInfo& known = opened->model->info();
    *info = {
        opened->max_seq_len,
        known.vocab_size,
        known.prefill_chunk,
        known.verify_len(),
        known.snapshot_slots,
        known.has_drafter() ? known.draft_blocks.back() - 1 : 0,
        known.encoder ? known.encoder->unit() : 0,
        known.encoder ? known.encoder->budgets.back() : 0,
        known.encoder ? known.encoder->placeholder : -1
    };
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_limit(hybridge_model model, int64_t max_seq_len) {
  return with_open<OpenModel>(model, [&](OpenModel& open) {
    const int64_t most = open.model->info().max_seq_len;
    if (1 <= max_seq_len && max_seq_len <= most) return open.max_seq_len = max_seq_len, HYBRIDGE_OK;
    return refused(
        HYBRIDGE_INVALID_ARGUMENT, "a context of " + std::to_string(max_seq_len) + " tokens cannot be: give 1 to " +
                                       std::to_string(most) + ", for which the artifact was exported (--max-seq-len)"
    );
  });
}

hybridge_status hybridge_model_eos_ids(hybridge_model model, int64_t* ids, size_t capacity, size_t* count) {
  if (!has_room(ids, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    return answer(opened->model->info().eos_ids, ids, capacity, count);
  });
}

hybridge_status hybridge_model_verify_lens(hybridge_model model, int64_t* lengths, size_t capacity, size_t* count) {
  if (!has_room(lengths, capacity, count)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    const auto opened = handles<OpenModel>().find(model);
    if (opened == nullptr) return refused(HYBRIDGE_INVALID_HANDLE);
    return answer(opened->model->info().verify_lens, lengths, capacity, count);
  });
}

}  // extern "C"
