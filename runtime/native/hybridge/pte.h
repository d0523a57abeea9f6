// A program of ExecuTorch: model.pte of an artifact, mapped once for all sessions, and its methods over one memory.
#ifndef HYBRIDGE_NATIVE_PTE_H
#define HYBRIDGE_NATIVE_PTE_H

#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <hybridge/fnv1a.h>
#include <hybridge/mapped_file.h>
#include <hybridge/memory.h>
#include <hybridge/program.h>
#include <hybridge/threads.h>

namespace hybridge {

class PteMethods final : public Program {
 public:
  using Method = executorch::runtime::Method;
  using File = executorch::runtime::Program;

  // The file must outlive its methods. prefix: of their names in it; here they are called without it.
  static Result<std::unique_ptr<PteMethods>> load(
      const File& file, const Names& methods, const std::string& prefix = "", const MappedFile* mapped = nullptr) {
    std::unique_ptr<PteMethods> loaded(new PteMethods(prefix, mapped));
    ET_CHECK_OK_OR_RETURN_ERROR(loaded->plan(file, methods));
    for (const std::string& name : methods) ET_CHECK_OK_OR_RETURN_ERROR(loaded->add(file, name));
    return loaded;
  }

  PteMethods(const PteMethods&) = delete;
  PteMethods& operator=(const PteMethods&) = delete;

  Result<std::span<const Array>> call(std::string_view name, std::initializer_list<Array> inputs) override {
    auto* method = ET_UNWRAP(run(name, inputs));
    outputs_.clear();
    for (size_t i = 0; i < method->outputs_size(); ++i) outputs_.push_back(array(method->get_output(i).toTensor()));
    return std::span<const Array>(outputs_);
  }

  // Returns the answer of a constant method: one integer or several.
  Result<std::vector<int64_t>> constants(std::string_view name) {
    const auto* method = ET_UNWRAP(run(name, {}));
    std::vector<int64_t> values;
    for (size_t i = 0; i < method->outputs_size(); ++i) {
      if (!method->get_output(i).isInt()) return Error::InvalidProgram;
      values.push_back(method->get_output(i).toInt());
    }
    if (values.empty()) return Error::InvalidProgram;
    return values;
  }

  size_t input_count(std::string_view name, size_t index) const override {
    const auto found = methods_.find(name);
    if (found == methods_.end()) return 0;
    const auto meta = found->second.method_meta().input_tensor_meta(index);
    return meta.ok() ? Array{meta->scalar_type(), Shape(meta->sizes().begin(), meta->sizes().end())}.count() : 0;
  }

  Result<Array> buffer(const std::string& name) override {
    const auto found = buffers_.find(name);
    if (found == buffers_.end()) return Error::NotFound;
    return found->second;
  }

  bool is_unchanged() const override { return mapped_ == nullptr || mapped_->is_unchanged(); }

  // Finds the buffers, those at `bounded` places of the program's list among them.
  Error find_buffers(std::span<const int64_t> bounded) {
    auto& owner = methods_.at("decode");
    const auto meta = owner.method_meta();
    for (size_t i = 0; i < meta.num_attributes(); ++i) {
      const auto described = meta.attribute_tensor_meta(i);
      if (!described.ok()) return described.error();
      const std::string full(described->name());
      auto tensor = owner.get_attribute(full);
      if (!tensor.ok()) return tensor.error();
      names_.push_back(full.starts_with(PREFIX) ? full.substr(PREFIX.size()) : full);
      buffers_.emplace(names_.back(), array(*tensor));
    }
    for (const int64_t place : bounded) {
      if (place < 0 || place >= static_cast<int64_t>(names_.size())) return Error::InvalidProgram;
      bounded_.push_back(names_[static_cast<size_t>(place)]);
    }
    return Error::Ok;
  }

  // Returns whether each method has outputs, and only tensors: the runtime ends a process that takes another value for one.
  bool answer_with_tensors() const {
    return std::all_of(methods_.begin(), methods_.end(), [](const auto& entry) {
      const Method& method = entry.second;
      bool are_tensors = method.outputs_size() > 0;
      for (size_t i = 0; i < method.outputs_size(); ++i) are_tensors = are_tensors && method.get_output(i).isTensor();
      return are_tensors;
    });
  }

 private:
  template <typename T>
  using Span = executorch::runtime::Span<T>;
  using HierarchicalAllocator = executorch::runtime::HierarchicalAllocator;

  static constexpr std::string_view PREFIX = "state.cache.";

  PteMethods(std::string prefix, const MappedFile* mapped) : prefix_(std::move(prefix)), mapped_(mapped) {}

  static Array array(const executorch::aten::Tensor& tensor) {
    return {tensor.scalar_type(), Shape(tensor.sizes().begin(), tensor.sizes().end()), const_cast<void*>(tensor.const_data_ptr())};
  }

  Result<Method*> run(std::string_view name, std::initializer_list<Array> inputs) {
    has_changed_nothing_ = true;
    const auto found = methods_.find(name);
    if (found == methods_.end()) return Error::NotFound;
    size_t index = 0;
    for (const Array& given : inputs) {
      if (set(found->second, index++, given) != Error::Ok) return Error::Internal;
    }
    has_changed_nothing_ = false;
    if (found->second.execute() != Error::Ok) return Error::Internal;
    return &found->second;
  }

  // Every arena is as large as the most demanding method wants it: only one method runs at a time.
  Error plan(const File& file, const Names& methods) {
    std::vector<size_t> sizes;
    for (const std::string& name : methods) {
      const auto method = file.method_meta((prefix_ + name).c_str());
      ET_CHECK_OK_OR_RETURN_ERROR(widen(sizes, method));
      if (hold_ == nullptr && method->uses_backend("XnnpackBackend")) hold_ = std::make_unique<threads::PoolHold>();
    }
    for (const size_t size : sizes) {
      arenas_.emplace_back(size);
      if (!arenas_.back().allocated()) return Error::MemoryAllocationFailed;
      spans_.push_back(arenas_.back().bytes());
    }
    planned_ = std::make_unique<HierarchicalAllocator>(Span<Span<uint8_t>>(spans_.data(), spans_.size()));
    manager_ = std::make_unique<executorch::runtime::MemoryManager>(&heap_, planned_.get());
    return Error::Ok;
  }

  static Error widen(std::vector<size_t>& sizes, const Result<executorch::runtime::MethodMeta>& method) {
    if (!method.ok()) return method.error();
    sizes.resize(std::max(sizes.size(), method->num_memory_planned_buffers()));
    for (size_t i = 0; i < method->num_memory_planned_buffers(); ++i) {
      sizes[i] = std::max(sizes[i], static_cast<size_t>(ET_UNWRAP(method->memory_planned_buffer_size(i))));
    }
    return Error::Ok;
  }

  Error add(const File& file, const std::string& name) {
    // XNNPACK else packs the weights anew for every method of every session.
    executorch::runtime::BackendOptions<1> once;
    ET_CHECK_OK_OR_RETURN_ERROR(once.set_option("weight_cache_enabled", true));
    executorch::runtime::LoadBackendOptionsMap options;
    ET_CHECK_OK_OR_RETURN_ERROR(options.set_options("XnnpackBackend", once.view()));
    auto method = file.load_method((prefix_ + name).c_str(), manager_.get(), nullptr, nullptr, &options);
    if (!method.ok()) return method.error();
    methods_.emplace(name, std::move(method.get()));
    return Error::Ok;
  }

  // Numbers of the shape that the method was exported with.
  static Error set(Method& method, size_t index, const Array& given) {
    const auto meta = method.method_meta().input_tensor_meta(index);
    if (!meta.ok()) return meta.error();
    std::vector<int32_t> shape(meta->sizes().begin(), meta->sizes().end());
    const Shape wanted(shape.begin(), shape.end());
    if (Array{given.type, wanted}.count() != given.count() || meta->scalar_type() != given.type) return Error::InvalidArgument;
    executorch::aten::TensorImpl tensor(given.type, static_cast<ssize_t>(shape.size()), shape.data(), given.data);
    return method.set_input(executorch::runtime::EValue(executorch::aten::Tensor(&tensor)), index);
  }

  const std::string prefix_;
  const MappedFile* mapped_;
  std::unique_ptr<threads::PoolHold> hold_;  // as long as methods point to the pool
  Heap heap_;
  std::vector<Arena> arenas_;
  std::vector<Span<uint8_t>> spans_;
  std::unique_ptr<HierarchicalAllocator> planned_;
  std::unique_ptr<executorch::runtime::MemoryManager> manager_;
  std::map<std::string, Method, std::less<>> methods_;  // destroyed first, because it lives in all of the above
  std::map<std::string, Array> buffers_;
  std::vector<Array> outputs_;
};

// A loaded model.pte: the program, whose weights all sessions share.
class PteModel final : public Model {
 public:
  using DataLoader = executorch::runtime::DataLoader;

  // Maps a file and follows every offset in it, but does not hash it: that is for whoever brings the file.
  // InvalidProgram for what is no artifact of this format version.
  static Result<std::shared_ptr<const Model>> load(const char* path) {
    auto file = MappedFile::open(path);
    if (!file.ok()) return file.error();
    const MappedFile* mapped = file->get();
    return load(std::move(file.get()), mapped);
  }

  // The same from anywhere.
  static Result<std::shared_ptr<const Model>> load(std::unique_ptr<DataLoader> file) { return load(std::move(file), nullptr); }

  void ask(std::function<bool()> is_same) const override {
    if (mapped_ != nullptr) mapped_->ask(std::move(is_same));
  }

  Result<std::unique_ptr<Program>> program() const override {
    auto methods = PteMethods::load(file_, this->methods(), METHOD_PREFIX, mapped_);
    if (!methods.ok()) return methods.error();
    if (!(*methods)->answer_with_tensors()) return Error::InvalidProgram;
    ET_CHECK_OK_OR_RETURN_ERROR((*methods)->find_buffers(bounded_));
    return std::unique_ptr<Program>(std::move(*methods));
  }

 private:
  using File = PteMethods::File;

  static constexpr int64_t FORMAT = 4;
  static constexpr const char* METHOD_PREFIX = "hybridge_";

  PteModel(
      std::unique_ptr<DataLoader> loader, const MappedFile* mapped, File file, Facts facts, std::vector<int64_t> bounded,
      uint64_t fingerprint)
      : Model(std::move(facts), fingerprint),
        loader_(std::move(loader)),
        mapped_(mapped),
        file_(std::move(file)),
        bounded_(std::move(bounded)) {}

  static Result<std::shared_ptr<const Model>> load(std::unique_ptr<DataLoader> loader, const MappedFile* mapped) {
    executorch::runtime::runtime_init();
    set_default_threads();
    auto file = File::load(loader.get(), File::Verification::InternalConsistency);
    if (!file.ok()) return file.error();
    const uint64_t fingerprint = ET_UNWRAP(sample(*loader));
    const int64_t format = ET_UNWRAP(constants(*file, "hybridge_format_version")).front();
    if (format != FORMAT) return Error::InvalidProgram;
    Facts facts = ET_UNWRAP(read(*file));
    auto bounded = ET_UNWRAP(constants(*file, "hybridge_bounded"));
    return std::shared_ptr<const Model>(new PteModel(
        std::move(loader), mapped, std::move(*file), std::move(facts), std::move(bounded), fingerprint));
  }

  static Result<Facts> read(const File& file) {
    Facts facts{
        .max_seq_len = ET_UNWRAP(constants(file, "get_max_seq_len")).front(),
        .vocab_size = ET_UNWRAP(constants(file, "get_vocab_size")).front(),
        .prefill_chunk = ET_UNWRAP(constants(file, "hybridge_prefill_chunk")).front(),
        .snapshot_slots = ET_UNWRAP(constants(file, "hybridge_snapshot_slots")).front(),
        .verify_lens = ET_UNWRAP(constants(file, "hybridge_verify_lens")),
        .eos_ids = ET_UNWRAP(constants(file, "get_eos_ids")),
        .draft_blocks = ET_UNWRAP(constants_if_any(file, "hybridge_draft_blocks")),
        .taps = ET_UNWRAP(constants(file, "hybridge_taps")).front(),
        .draft_taps = ET_UNWRAP(constants_if_any(file, "hybridge_draft_taps")),
    };
    if (facts.eos_ids.front() < 0) facts.eos_ids.clear();  // -1: the model has none
    if (has_method(file, "hybridge_vision")) {
      const auto form = ET_UNWRAP(constants_if_any(file, "hybridge_vision_form"));
      facts.encoder = Encoder::of(ET_UNWRAP(constants(file, "hybridge_vision")), form);
      if (!facts.encoder) return Error::InvalidProgram;
    }
    facts.draft_samples = has_method(file, "hybridge_draft") && ET_UNWRAP(file.method_meta("hybridge_draft")).num_inputs() > 3;
    if (!facts.are_sane()) return Error::InvalidProgram;
    return facts;
  }

  // Looks through the names: to ask ExecuTorch for a method that is not there would log an error.
  static bool has_method(const File& file, std::string_view name) {
    for (size_t i = 0; i < file.num_methods(); ++i) {
      const auto found = file.get_method_name(i);
      if (found.ok() && name == *found) return true;
    }
    return false;
  }

  // None where the program has no such method: it has no drafter.
  static Result<std::vector<int64_t>> constants_if_any(const File& file, const char* name) {
    return has_method(file, name) ? constants(file, name) : Result<std::vector<int64_t>>(std::vector<int64_t>());
  }

  static Result<std::vector<int64_t>> constants(const File& file, const char* name) {
    const auto methods = ET_UNWRAP(PteMethods::load(file, {name}));
    return methods->constants(name);
  }

  // FNV-1a of the size and of pieces from everywhere: a look at all weights would read them into memory.
  static Result<uint64_t> sample(const DataLoader& file) {
    constexpr size_t PIECES = 1024, PIECE = 64;
    const size_t size = ET_UNWRAP(file.size());
    uint64_t hash = fnv1a(&size, sizeof(size));
    for (size_t i = 0; i < PIECES; ++i) {
      const size_t offset = size / PIECES * i;
      const auto piece = file.load(offset, std::min(PIECE, size - offset), DataLoader::SegmentInfo());
      if (!piece.ok()) return piece.error();
      hash = fnv1a(piece->data(), piece->size(), hash);
    }
    return hash;
  }

  std::unique_ptr<DataLoader> loader_;  // outlives the file, which reads from it
  const MappedFile* mapped_;            // the same, where it is one of ours
  File file_;
  std::vector<int64_t> bounded_;  // places of the bounded buffers
};

inline Result<std::shared_ptr<const Model>> Model::load(const char* path) { return PteModel::load(path); }

}  // namespace hybridge

#endif
