#include "c_api/program_table.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <stdexcept>

namespace hybridge::c {

std::optional<hybridge_array> shown(const char* name, const Array& array) {
  const auto* type = std::find_if(std::begin(TYPES), std::end(TYPES), [&](const auto& each) {
    return each.second == array.type;
  });
  if (type == std::end(TYPES) || array.shape.size() > HYBRIDGE_MOST_DIMENSIONS) return std::nullopt;
  hybridge_array out{name, type->first, array.shape.size(), {}, array.data};
  std::ranges::copy(array.shape, out.shape);
  return out;
}

std::optional<Array> taken(const hybridge_array& array) {
  const auto* type = std::find_if(std::begin(TYPES), std::end(TYPES), [&](const auto& each) {
    return each.first == array.type;
  });
  if (type == std::end(TYPES) || array.dimensions > HYBRIDGE_MOST_DIMENSIONS) return std::nullopt;
  Array found{type->second, Shape(array.shape, array.shape + array.dimensions), array.data};
  const bool is_there = std::all_of(found.shape.begin(), found.shape.end(), [](int64_t n) {
    return 0 <= n && n < (int64_t(1) << 40);
  });
  return is_there && (found.data != nullptr || found.count() == 0) ? std::optional(found) : std::nullopt;
}

Table::~Table() {
  if (functions.close != nullptr) functions.close(functions.self);
}

TableProgram::TableProgram(std::shared_ptr<const Table> table, Names names, Names bounded) : table_(std::move(table)) {
  names_ = std::move(names);
  bounded_ = std::move(bounded);
}

Result<std::span<const Array>> TableProgram::call(std::string_view name, std::initializer_list<Array> inputs) {
  has_changed_nothing_ = true;
  std::vector<hybridge_array> arguments;
  for (const Array& each : inputs) {
    const auto given = shown(nullptr, each);
    if (!given) return failed(name);
    arguments.push_back(*given);
  }
  hybridge_array out[MOST_OUTPUTS]{};
  const auto& functions = table_->functions;
  const int count = call_back(
      functions.call, functions.self, std::string(name).c_str(), arguments.data(), arguments.size(), out, MOST_OUTPUTS
  );
  has_changed_nothing_ = count == UNDONE;
  if (count < 0 || static_cast<size_t>(count) > MOST_OUTPUTS) return failed(name);
  outputs_.clear();
  for (const hybridge_array& each : std::span(out, static_cast<size_t>(count))) {
    const auto array = taken(each);
    if (!array) return failed(name);
    outputs_.push_back(*array);
  }
  return std::span<const Array>(outputs_);
}

Result<Array> TableProgram::buffer(const std::string& name) {
  hybridge_array found{};
  const auto& functions = table_->functions;
  const bool is_there = call_back(functions.buffer, functions.self, name.c_str(), &found) == 0;
  const auto known = sizes_.find(name);
  if (!is_there && known == sizes_.end()) return Status(HYBRIDGE_PROGRAM_FAILED, "the program has no buffer " + name);
  const auto array = is_there ? taken(found) : std::nullopt;
  // Callers rely on the size that it had: HYBRIDGE_INTERNAL.
  if (known != sizes_.end() && (!array || known->second != array->bytes().size())) {
    throw std::length_error("the program's buffer " + name + " has another size than before");
  }
  if (!array)
    return Status(HYBRIDGE_PROGRAM_FAILED, "the program's buffer " + name + " has a type or a shape that is not known");
  sizes_.emplace(name, array->bytes().size());
  return *array;
}

Status TableProgram::failed(std::string_view name) {
  return Status(HYBRIDGE_PROGRAM_FAILED, "the program failed in '" + std::string(name) + "'");
}

Result<std::shared_ptr<const Model>> TableModel::open(const hybridge_program& given) {
  // Null is none, which the sizes then do not go with.
  const auto numbers = [](const int64_t* all, size_t count) {
    return all != nullptr ? std::vector<int64_t>(all, all + count) : std::vector<int64_t>();
  };
  const auto are_names = [](const char* const* all, size_t count) {
    return count == 0 ||
           (all != nullptr && std::all_of(all, all + count, [](const char* name) { return name != nullptr; }));
  };
  ModelInfo info{
      .max_seq_len = given.max_seq_len,
      .vocab_size = given.vocab_size,
      .prefill_chunk = given.prefill_chunk,
      .snapshot_slots = given.snapshot_slots,
      .verify_lens = numbers(given.verify_lens, given.verify_len_count),
      .eos_ids = numbers(given.eos_ids, given.eos_id_count),
      .draft_blocks = numbers(given.draft_blocks, given.draft_block_count),
      .taps = given.taps,
      .draft_taps = numbers(given.draft_taps, given.draft_tap_count),
      .draft_samples = given.draft_samples != 0,
      .fixed_shapes = given.fixed_shapes != 0,
      .row_axis = given.row_axis,
      .encoder = Encoder::read(numbers(given.vision, given.vision_count)),
  };
  const bool has_all = given.call != nullptr && given.buffer != nullptr && are_names(given.names, given.name_count) &&
                       are_names(given.bounded, given.bounded_count);
  if (!has_all) return Status(HYBRIDGE_INVALID_ARGUMENT, "the program lacks a function, or the name of a buffer");
  if (!info.are_sane() || (given.vision_count > 0 && !info.encoder)) {
    return Status(HYBRIDGE_INVALID_ARGUMENT, "the program has sizes that cannot be");
  }
  return std::shared_ptr<const Model>(new TableModel(given, std::move(info)));
}

Result<std::unique_ptr<Program>> TableModel::program() const {
  if (taken_.exchange(true)) {
    return Status(HYBRIDGE_BUSY, "this program has one state, which another session has; open the program again");
  }
  return std::unique_ptr<Program>(std::make_unique<TableProgram>(table_, names_, bounded_));
}

TableModel::TableModel(const hybridge_program& given, ModelInfo info)
    : Model(std::move(info), given.fingerprint),
      table_(std::make_shared<const Table>(given)),
      names_(given.names, given.names + given.name_count),
      bounded_(given.bounded, given.bounded + given.bounded_count) {}

}  // namespace hybridge::c
