// The functions of hybridge.h about models and programs.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include <hybridge/hybridge_dev.h>

#include "engine/golden.h"
#include "engine/open_file.h"
#include "engine/runtime.h"

#include "c_api/calls.h"
#include "c_api/handles.h"
#include "c_api/open_session.h"
#include "c_api/options.h"
#include "c_api/program_table.h"

namespace {

using namespace hybridge::c;
using hybridge::Status;

void copy(const std::string& name, char (&to)[32]) { to[name.copy(to, sizeof to - 1)] = '\0'; }

Status validate(OpenModel& open, const char* path, hybridge_validation& found) {
  found = {};
  copy(hybridge::instruction_set(), found.instruction_set);
  const auto file = HYBRIDGE_TRY(hybridge::OpenFile::regular(path));
  const auto size = static_cast<size_t>(file.status().st_size);
  if (size > hybridge::LARGEST_GOLDEN_FILE)
    return Status(
        HYBRIDGE_INVALID_ARTIFACT, std::string(path) + " is larger than golden steps are; copy the artifact again"
    );
  std::string text(size, '\0');
  if (!file.read_all({reinterpret_cast<uint8_t*>(text.data()), size}))
    return Status(HYBRIDGE_UNREADABLE_FILE, std::string(path) + " cannot be read");
  constexpr int64_t NEVER = std::numeric_limits<int64_t>::max();  // the bits are those of the CPU's methods
  const auto session = HYBRIDGE_TRY(hybridge::Session::create(open.model, open.max_seq_len, {NEVER, false}));
  const hybridge::Replay replay = HYBRIDGE_TRY(hybridge::replay_golden(*session, text));
  found.steps = replay.bits.size();
  found.worst = replay.worst, found.tolerance = replay.tolerance;
  std::ranges::copy(replay.bits, found.bits);
  copy(replay.instruction_set, found.exported_on);
  found.same_bits = replay.has_bits && replay.are_same;
  const bool is_same_code = replay.has_bits && replay.instruction_set == hybridge::instruction_set() &&
                            replay.version == hybridge_version() && found.instruction_set[0] != '\0';
  if (found.same_bits || !is_same_code) return Status();
  return Status(
      HYBRIDGE_INVALID_ARTIFACT,
      "the golden steps answer other bits than where the model was exported, with the same "
      "instruction set and the same hybridge: its kernels, the weights or the program were changed, "
      "or this device computes wrongly; export the model again"
  );
}

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

hybridge_status hybridge_validate(hybridge_model model, const char* path, hybridge_validation* validation) {
  if (path == nullptr || validation == nullptr) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return with_open_in_turn<OpenModel>(model, [&](OpenModel& open) {
    return answer(validate(open, path, *validation));
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

hybridge_status hybridge_model_delegate_from(hybridge_model model, int64_t tokens) {
  return with_open<OpenModel>(model, [&](OpenModel& open) {
    if (tokens < 0) return refused(HYBRIDGE_INVALID_ARGUMENT);
    return open.delegate_from = tokens, HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_strict_reuse(hybridge_model model, int wanted) {
  return with_open<OpenModel>(model, [&](OpenModel& open) { return open.strict_reuse = wanted != 0, HYBRIDGE_OK; });
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
