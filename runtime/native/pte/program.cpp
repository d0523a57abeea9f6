// A program of ExecuTorch: model.pte of an artifact, mapped once for all sessions, and its methods over one memory.
// This file and runtime.cpp are all that knows ExecuTorch.

#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/core/data_loader.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fnv1a.h"
#include "engine/lazy_memory.h"
#include "engine/mapped_file.h"
#include "engine/program.h"

#include "delegates.h"
#include "heap.h"
#include "runtime.h"

namespace hybridge {

namespace {

using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::runtime::DataLoader;
using executorch::runtime::Error;
using executorch::runtime::FreeableBuffer;
using executorch::runtime::HierarchicalAllocator;
using executorch::runtime::Method;
using executorch::runtime::MethodMeta;
using File = executorch::runtime::Program;
template <typename T>
using Span = executorch::runtime::Span<T>;
template <typename T>
using RuntimeResult = executorch::runtime::Result<T>;

constexpr std::pair<ScalarType, Type> TYPES[] = {
    {ScalarType::Byte, Type::uint8},    {ScalarType::Char, Type::int8},    {ScalarType::Long, Type::int64},
    {ScalarType::Float, Type::float32}, {ScalarType::Bool, Type::boolean}, {ScalarType::Half, Type::float16},
};

std::optional<Type> type_of(ScalarType type) {
  const auto found = std::ranges::find(TYPES, type, [](const auto& each) { return each.first; });
  return found == std::end(TYPES) ? std::nullopt : std::optional(found->second);
}

// No numbers where they are of another type than these.
Array array(const Tensor& tensor) {
  const auto type = type_of(tensor.scalar_type());
  if (!type) return {Type::uint8, {0}, nullptr};
  return {*type, Shape(tensor.sizes().begin(), tensor.sizes().end()), const_cast<void*>(tensor.const_data_ptr())};
}

ScalarType scalar_type(Type type) {
  return std::ranges::find(TYPES, type, [](const auto& each) { return each.second; })->first;
}

size_t count_of(Span<const int32_t> sizes) { return Array{Type::uint8, Shape(sizes.begin(), sizes.end())}.count(); }

// doing: what failed, such as "the program's method 'decode' does not load"; the runtime's log says more.
Status failed(Error error, const std::string& doing) {
  const auto code = [error] {
    switch (error) {
      case Error::OperatorMissing:
      case Error::NotFound: return HYBRIDGE_MISSING_OPERATOR;
      case Error::MemoryAllocationFailed: return HYBRIDGE_OUT_OF_MEMORY;
      default: return HYBRIDGE_INVALID_ARTIFACT;
    }
  };
  const std::string missing = error == Error::OperatorMissing ? pte::missing_kernels() : "";
  return Status(code(), doing + (missing.empty() ? pte::logged() : missing));
}

Status invalid(std::string words) { return Status(HYBRIDGE_INVALID_ARTIFACT, std::move(words)); }

// A mapped file as the runtime reads one.
class MappedLoader final : public DataLoader {
 public:
  explicit MappedLoader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  RuntimeResult<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo&) const override {
    if (!holds(offset, size)) return Error::InvalidArgument;
    return FreeableBuffer(bytes_.data() + offset, size, nullptr);
  }

  Error load_into(size_t offset, size_t size, const SegmentInfo&, void* buffer) const override {
    if (!holds(offset, size)) return Error::InvalidArgument;
    std::memcpy(buffer, bytes_.data() + offset, size);
    return Error::Ok;
  }

  RuntimeResult<size_t> size() const override { return bytes_.size(); }

 private:
  bool holds(size_t offset, size_t size) const { return offset <= bytes_.size() && size <= bytes_.size() - offset; }

  std::span<const uint8_t> bytes_;
};

class PteMethods final : public Program {
 public:
  // The file must outlive its methods. prefix: of their names in it; here they are called without it. delegated:
  // methods of an accelerator, which may be left out if their backend or its device is not here.
  static Result<std::unique_ptr<PteMethods>> load(
      const File& file, const Names& methods, const std::string& prefix = "", const MappedFile* mapped = nullptr,
      const Names& delegated = {}
  ) {
    std::unique_ptr<PteMethods> loaded(new PteMethods(prefix, mapped));
    Names all = methods;
    all.insert(all.end(), delegated.begin(), delegated.end());
    HYBRIDGE_TRY(loaded->plan(file, all));
    for (const std::string& name : methods) HYBRIDGE_TRY(loaded->add(file, name));
    if (!delegated.empty()) loaded->delegate_ = loaded->add_delegated(file, delegated);
    return loaded;
  }

  PteMethods(const PteMethods&) = delete;
  PteMethods& operator=(const PteMethods&) = delete;

  Result<std::span<const Array>> call(std::string_view name, std::initializer_list<Array> inputs) override {
    auto* method = HYBRIDGE_TRY(run(name, inputs));
    outputs_.clear();
    for (size_t i = 0; i < method->outputs_size(); ++i) outputs_.push_back(array(method->get_output(i).toTensor()));
    return std::span<const Array>(outputs_);
  }

  // Returns the answer of a constant method: one integer or several.
  Result<std::vector<int64_t>> constants(std::string_view name) {
    const auto* method = HYBRIDGE_TRY(run(name, {}));
    std::vector<int64_t> values;
    for (size_t i = 0; i < method->outputs_size(); ++i) {
      if (!method->get_output(i).isInt())
        return invalid("the program's '" + std::string(name) + "' has other values than integers");
      values.push_back(method->get_output(i).toInt());
    }
    if (values.empty()) return invalid("the program's '" + std::string(name) + "' has no values");
    return values;
  }

  size_t input_count(std::string_view name, size_t index) const override {
    const auto found = methods_.find(name);
    if (found == methods_.end()) return 0;
    const auto meta = found->second.method_meta().input_tensor_meta(index);
    return meta.ok() ? count_of(meta->sizes()) : 0;
  }

  Result<Array> buffer(const std::string& name) override {
    const auto found = buffers_.find(name);
    if (found == buffers_.end()) return Status(HYBRIDGE_PROGRAM_FAILED, "the program has no buffer " + name);
    return found->second;
  }

  void give_back(Bytes part) override {
    for (const LazyMemory& arena : arenas_) arena.give_back(part);
  }

  bool is_unchanged() const override { return mapped_ == nullptr || mapped_->is_unchanged(); }

  // Finds the buffers, those at `bounded` places of the program's list among them.
  Status find_buffers(std::span<const int64_t> bounded) {
    auto& owner = methods_.at("decode");
    const auto meta = owner.method_meta();
    for (size_t i = 0; i < meta.num_attributes(); ++i) {
      const auto described = meta.attribute_tensor_meta(i);
      if (!described.ok()) return failed(described.error(), "the program's state cannot be read");
      const std::string full(described->name());
      auto tensor = owner.get_attribute(full);
      if (!tensor.ok()) return failed(tensor.error(), "the program's buffer " + full + " cannot be read");
      if (!type_of(tensor->scalar_type()))
        return invalid("the program's buffer " + full + " has a type that is not known");
      names_.push_back(full.starts_with(PREFIX) ? full.substr(PREFIX.size()) : full);
      buffers_.emplace(names_.back(), array(*tensor));
    }
    for (const int64_t place : bounded) {
      const bool is_there = 0 <= place && place < static_cast<int64_t>(names_.size());
      if (!is_there) return invalid("the program names a bounded buffer that it does not have");
      bounded_.push_back(names_[static_cast<size_t>(place)]);
    }
    return Status();
  }

  // Returns whether each method has outputs, and only tensors: the runtime ends a process that takes another value for
  // one.
  bool answer_with_tensors() const {
    return std::all_of(methods_.begin(), methods_.end(), [](const auto& entry) {
      const Method& method = entry.second;
      bool are_tensors = method.outputs_size() > 0;
      for (size_t i = 0; i < method.outputs_size(); ++i) are_tensors = are_tensors && method.get_output(i).isTensor();
      return are_tensors;
    });
  }

 private:
  static constexpr std::string_view PREFIX = "state.cache.";

  PteMethods(std::string prefix, const MappedFile* mapped) : prefix_(std::move(prefix)), mapped_(mapped) {}

  Result<Method*> run(std::string_view name, std::initializer_list<Array> inputs) {
    has_changed_nothing_ = true;
    const auto found = methods_.find(name);
    if (found == methods_.end())
      return Status(HYBRIDGE_PROGRAM_FAILED, "the program has no method '" + std::string(name) + "'");
    pte::clear_log();
    size_t index = 0;
    for (const Array& given : inputs) {
      if (set(found->second, index++, given) != Error::Ok) return failed_in(name);
    }
    has_changed_nothing_ = false;
    if (found->second.execute() != Error::Ok) return failed_in(name);
    return &found->second;
  }

  static Status failed_in(std::string_view name) {
    return Status(HYBRIDGE_PROGRAM_FAILED, "the program failed in '" + std::string(name) + "'" + pte::logged());
  }

  // Every arena is as large as the most demanding method wants it: only one method runs at a time.
  Status plan(const File& file, const Names& methods) {
    std::vector<size_t> sizes;
    for (const std::string& name : methods) {
      pte::clear_log();
      const auto method = file.method_meta((prefix_ + name).c_str());
      if (!method.ok() || !widen(sizes, *method))
        return invalid("the program has no method '" + name + "'" + pte::logged());
      if (hold_ == nullptr && method->uses_backend("XnnpackBackend")) hold_ = std::make_unique<pte::PoolHold>();
    }
    for (const size_t size : sizes) {
      arenas_.emplace_back(size);
      if (!arenas_.back().is_there()) return Status(HYBRIDGE_OUT_OF_MEMORY, "there is no memory for a session's state");
      const Bytes bytes = arenas_.back().bytes();
      spans_.emplace_back(bytes.data(), bytes.size());
    }
    planned_ = std::make_unique<HierarchicalAllocator>(Span<Span<uint8_t>>(spans_.data(), spans_.size()));
    manager_ = std::make_unique<executorch::runtime::MemoryManager>(&heap_, planned_.get());
    return Status();
  }

  static bool widen(std::vector<size_t>& sizes, const MethodMeta& method) {
    sizes.resize(std::max(sizes.size(), method.num_memory_planned_buffers()));
    for (size_t i = 0; i < method.num_memory_planned_buffers(); ++i) {
      const auto size = method.memory_planned_buffer_size(i);
      if (!size.ok()) return false;
      sizes[i] = std::max(sizes[i], static_cast<size_t>(*size));
    }
    return true;
  }

  Status add(const File& file, const std::string& name) {
    pte::clear_log();
    const std::string doing = "the program's method '" + name + "' does not load";
    // XNNPACK else packs the weights anew for every method of every session.
    executorch::runtime::BackendOptions<1> once;
    executorch::runtime::LoadBackendOptionsMap options;
    if (const Error set = once.set_option("weight_cache_enabled", true); set != Error::Ok) return failed(set, doing);
    if (const Error set = options.set_options("XnnpackBackend", once.view()); set != Error::Ok)
      return failed(set, doing);
    auto method = file.load_method((prefix_ + name).c_str(), manager_.get(), nullptr, nullptr, &options);
    if (!method.ok()) return failed(method.error(), doing);
    methods_.emplace(name, std::move(method.get()));
    return Status();
  }

  Status add_delegated(const File& file, const Names& methods) {
    const char* wanted = std::getenv("HYBRIDGE_DELEGATE");
    if (wanted != nullptr && std::string_view(wanted) == "off")
      return Status(HYBRIDGE_UNSUPPORTED, "HYBRIDGE_DELEGATE is off");
    for (const std::string& name : methods) HYBRIDGE_TRY(add(file, name));
    return Status();
  }

  // Numbers of the shape that the method was exported with.
  static Error set(Method& method, size_t index, const Array& given) {
    const auto meta = method.method_meta().input_tensor_meta(index);
    if (!meta.ok()) return meta.error();
    std::vector<int32_t> shape(meta->sizes().begin(), meta->sizes().end());
    const ScalarType type = scalar_type(given.type);
    if (count_of(meta->sizes()) != given.count() || meta->scalar_type() != type) return Error::InvalidArgument;
    executorch::aten::TensorImpl tensor(type, static_cast<ssize_t>(shape.size()), shape.data(), given.data);
    return method.set_input(executorch::runtime::EValue(executorch::aten::Tensor(&tensor)), index);
  }

  const std::string prefix_;
  const MappedFile* mapped_;
  std::unique_ptr<pte::PoolHold> hold_;  // as long as methods point to the pool
  pte::Heap heap_;
  std::vector<LazyMemory> arenas_;
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
  static Result<std::shared_ptr<const Model>> load(const char* path) {
    pte::listen_to_log();
    executorch::runtime::runtime_init();
    pte::set_default_threads();
    pte::register_shared_backends();
    auto mapped = HYBRIDGE_TRY(MappedFile::open(path));
    auto loader = std::make_unique<MappedLoader>(mapped->bytes());
    pte::clear_log();
    auto file = File::load(loader.get(), File::Verification::InternalConsistency);
    if (!file.ok()) return failed(file.error(), std::string(path) + " is no program, or it is damaged");
    const int64_t format = HYBRIDGE_TRY(constants(*file, "hybridge_format_version")).front();
    if (format != FORMAT) {
      return invalid(
          "the program has format version " + std::to_string(format) + ", and this library reads " +
          std::to_string(FORMAT) + "; export the model again"
      );
    }
    ModelInfo info = HYBRIDGE_TRY(read(*file));
    auto bounded = HYBRIDGE_TRY(constants(*file, "hybridge_bounded"));
    const uint64_t fingerprint = sample(mapped->bytes());
    return std::shared_ptr<const Model>(new PteModel(
        std::move(mapped), std::move(loader), std::move(*file), std::move(info), std::move(bounded), fingerprint
    ));
  }

  void ask(std::function<bool()> is_same) const override { mapped_->ask(std::move(is_same)); }

  Result<std::unique_ptr<Program>> program() const override {
    Names delegated;
    if (info().delegate_from > 0) delegated.push_back("delegate_prefill");
    if (info().delegate_encodes) delegated.push_back("delegate_vision_encoder");
    auto methods = HYBRIDGE_TRY(PteMethods::load(file_, this->methods(), METHOD_PREFIX, mapped_.get(), delegated));
    if (!methods->answer_with_tensors())
      return invalid("the program has methods that answer with something else than tensors");
    HYBRIDGE_TRY(methods->find_buffers(bounded_));
    return std::unique_ptr<Program>(std::move(methods));
  }

 private:
  static constexpr int64_t FORMAT = 4;
  static constexpr const char* METHOD_PREFIX = "hybridge_";

  PteModel(
      std::unique_ptr<MappedFile> mapped, std::unique_ptr<DataLoader> loader, File file, ModelInfo info,
      std::vector<int64_t> bounded, uint64_t fingerprint
  )
      : Model(std::move(info), fingerprint),
        mapped_(std::move(mapped)),
        loader_(std::move(loader)),
        file_(std::move(file)),
        bounded_(std::move(bounded)) {}

  static Result<ModelInfo> read(const File& file) {
    ModelInfo info{
        .max_seq_len = HYBRIDGE_TRY(constants(file, "get_max_seq_len")).front(),
        .vocab_size = HYBRIDGE_TRY(constants(file, "get_vocab_size")).front(),
        .prefill_chunk = HYBRIDGE_TRY(constants(file, "hybridge_prefill_chunk")).front(),
        .snapshot_slots = HYBRIDGE_TRY(constants(file, "hybridge_snapshot_slots")).front(),
        .verify_lens = HYBRIDGE_TRY(constants(file, "hybridge_verify_lens")),
        .eos_ids = HYBRIDGE_TRY(constants(file, "get_eos_ids")),
        .draft_blocks = HYBRIDGE_TRY(constants_if_any(file, "hybridge_draft_blocks")),
        .taps = HYBRIDGE_TRY(constants(file, "hybridge_taps")).front(),
        .draft_taps = HYBRIDGE_TRY(constants_if_any(file, "hybridge_draft_taps")),
    };
    if (info.eos_ids.front() < 0) info.eos_ids.clear();  // -1: the model has none
    const auto delegated = HYBRIDGE_TRY(constants_if_any(file, "hybridge_delegate"));
    if (!delegated.empty() && has_method(file, "hybridge_delegate_prefill")) info.delegate_from = delegated.front();
    if (has_method(file, "hybridge_vision")) {
      const auto form = HYBRIDGE_TRY(constants_if_any(file, "hybridge_vision_form"));
      info.encoder = Encoder::read(HYBRIDGE_TRY(constants(file, "hybridge_vision")), form);
      if (!info.encoder)
        return invalid("the program describes an encoder of pictures that is not known; export the model again");
      info.delegate_encodes = has_method(file, "hybridge_delegate_vision_encoder");
    }
    info.draft_samples = has_method(file, "hybridge_draft") && file.method_meta("hybridge_draft")->num_inputs() > 3;
    if (info.draft_samples) {
      const auto noise = file.method_meta("hybridge_draft")->input_tensor_meta(3);
      if (!noise.ok() || noise->scalar_type() != ScalarType::Long)
        return invalid(
            "the program's drafter draws by other random numbers than this hybridge; export the model again"
        );
    }
    if (!info.are_sane()) return invalid("the program has sizes that cannot be; export the model again");
    return info;
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
    const auto methods = HYBRIDGE_TRY(PteMethods::load(file, {name}));
    return methods->constants(name);
  }

  // FNV-1a of the size and of pieces from everywhere: a look at all weights would read them into memory.
  static uint64_t sample(std::span<const uint8_t> file) {
    constexpr size_t PIECES = 1024, PIECE = 64;
    const size_t size = file.size();
    uint64_t hash = fnv1a(&size, sizeof(size));
    for (size_t i = 0; i < PIECES; ++i) {
      const auto piece = file.subspan(size / PIECES * i);
      hash = fnv1a(piece.data(), std::min(PIECE, piece.size()), hash);
    }
    return hash;
  }

  std::unique_ptr<MappedFile> mapped_;
  std::unique_ptr<DataLoader> loader_;  // outlives the file, which reads from it
  File file_;
  std::vector<int64_t> bounded_;  // places of the bounded buffers
};

}  // namespace

Result<std::shared_ptr<const Model>> Model::load(const char* path) { return PteModel::load(path); }

}  // namespace hybridge
