// Methods of one program over the same memory, called by name.
#ifndef HYBRIDGE_NATIVE_METHODS_H
#define HYBRIDGE_NATIVE_METHODS_H

#include <executorch/runtime/backend/backend_options_map.h>
#include <executorch/runtime/executor/memory_manager.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <hybridge/memory.h>

namespace hybridge {

using executorch::runtime::Error;
using executorch::runtime::Result;

// What goes into a method, a view for as long as the call lasts: numbers of the shape that the method was exported with.
struct Input {
  Input(const std::vector<int64_t>& values)  // NOLINT: what is handed over is the vector
      : type(executorch::aten::ScalarType::Long), data(values.data()), count(values.size()) {}
  Input(const std::vector<float>& values)  // NOLINT
      : type(executorch::aten::ScalarType::Float), data(values.data()), count(values.size()) {}

  executorch::aten::ScalarType type;
  const void* data;
  size_t count;
};

class Methods {
 public:
  using Method = executorch::runtime::Method;
  using Program = executorch::runtime::Program;
  using HierarchicalAllocator = executorch::runtime::HierarchicalAllocator;
  template <typename T>
  using Span = executorch::runtime::Span<T>;
  using Numbers = std::vector<int64_t>;

  // The program must outlive its methods. Fails as the runtime does: OperatorMissing where a kernel is not linked.
  // prefix: of their names in the program; here they are called without it.
  static Result<std::unique_ptr<Methods>> load(
      const Program& program, const std::vector<std::string>& names, const std::string& prefix = "") {
    std::unique_ptr<Methods> methods(new Methods(prefix));
    ET_CHECK_OK_OR_RETURN_ERROR(methods->plan(program, names));
    for (const std::string& name : names) ET_CHECK_OK_OR_RETURN_ERROR(methods->add(program, name));
    return methods;
  }

  Methods(const Methods&) = delete;
  Methods& operator=(const Methods&) = delete;

  // Runs a method; its outputs lie in memory that the next call reuses.
  // Internal for whatever fails in there, so that nobody takes it for a refusal; the runtime has then logged what it was.
  Result<const Method*> call(std::string_view name, std::initializer_list<Input> inputs = {}) {
    const auto found = methods_.find(name);
    if (found == methods_.end()) return Error::NotFound;
    size_t index = 0;
    for (const Input& input : inputs) {
      if (set(found->second, index++, input) != Error::Ok) return Error::Internal;
    }
    if (found->second.execute() != Error::Ok) return Error::Internal;
    return &found->second;
  }

  // Whether each method answers, and with tensors alone: the runtime ends a process that takes another value for one.
  bool answer_with_tensors() const {
    return std::all_of(methods_.begin(), methods_.end(), [](const auto& entry) {
      const Method& method = entry.second;
      bool are_tensors = method.outputs_size() > 0;
      for (size_t i = 0; i < method.outputs_size(); ++i) are_tensors = are_tensors && method.get_output(i).isTensor();
      return are_tensors;
    });
  }

  // The buffers that methods keep between calls: export plans them into one arena that is the same for all.
  Span<uint8_t> state() const {
    return arenas_.size() > STATE ? arenas_[STATE].bytes() : Span<uint8_t>();
  }

  // Those of these buffers that stand at `places` of the program's list of them; shorter where there is no such place.
  std::vector<Span<uint8_t>> buffers(std::string_view method, std::span<const int64_t> places) {
    std::vector<Span<uint8_t>> found;
    const auto owner = methods_.find(method);
    if (owner == methods_.end()) return found;
    for (int64_t place : places) {
      const auto meta = owner->second.method_meta().attribute_tensor_meta(static_cast<size_t>(place));
      if (!meta.ok()) break;
      auto tensor = owner->second.get_attribute(meta->name());
      if (!tensor.ok()) break;
      found.emplace_back(tensor->mutable_data_ptr<uint8_t>(), tensor->nbytes());
    }
    return found;
  }

  // The names that the program has for them all, in its order.
  std::vector<std::string> buffer_names(std::string_view method) const {
    std::vector<std::string> names;
    const auto found = methods_.find(method);
    if (found == methods_.end()) return names;
    const auto meta = found->second.method_meta();
    for (size_t i = 0; i < meta.num_attributes(); ++i) {
      const auto buffer = meta.attribute_tensor_meta(i);
      if (buffer.ok()) names.emplace_back(buffer->name());
    }
    return names;
  }

  // One of them by its name.
  Result<executorch::aten::Tensor> tensor(std::string_view method, const std::string& name) {
    const auto found = methods_.find(method);
    if (found == methods_.end()) return Error::NotFound;
    return found->second.get_attribute(name);
  }

  // The memory of one of them; empty where there is none.
  Span<uint8_t> buffer(std::string_view method, const std::string& name) {
    auto tensor = this->tensor(method, name);
    return tensor.ok() ? Span<uint8_t>(tensor->mutable_data_ptr<uint8_t>(), tensor->nbytes()) : Span<uint8_t>();
  }

  // One of these buffers, int64 [1], by the name that the program has for it; null where there is none.
  int64_t* number(std::string_view method, const char* buffer) {
    auto tensor = this->tensor(method, buffer);
    const bool fits = tensor.ok() && tensor->numel() == 1 && tensor->scalar_type() == executorch::aten::ScalarType::Long;
    return fits ? tensor->mutable_data_ptr<int64_t>() : nullptr;
  }

 private:
  explicit Methods(const std::string& prefix) : prefix_(prefix) {}

  // Every arena is as large as the most demanding method wants it: only one method runs at a time.
  Error plan(const Program& program, const std::vector<std::string>& names) {
    std::vector<size_t> sizes;
    for (const std::string& name : names) {
      ET_CHECK_OK_OR_RETURN_ERROR(widen(sizes, program.method_meta((prefix_ + name).c_str())));
    }
    for (size_t size : sizes) {
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

  Error add(const Program& program, const std::string& name) {
    // XNNPACK else packs the weights anew for every method of every session.
    executorch::runtime::BackendOptions<1> once;
    ET_CHECK_OK_OR_RETURN_ERROR(once.set_option("weight_cache_enabled", true));
    executorch::runtime::LoadBackendOptionsMap options;
    ET_CHECK_OK_OR_RETURN_ERROR(options.set_options("XnnpackBackend", once.view()));
    auto method = program.load_method((prefix_ + name).c_str(), manager_.get(), nullptr, nullptr, &options);
    if (!method.ok()) return method.error();
    methods_.emplace(name, std::move(method.get()));
    return Error::Ok;
  }

  static Error set(Method& method, size_t index, const Input& input) {
    const auto meta = method.method_meta().input_tensor_meta(index);
    if (!meta.ok()) return meta.error();
    std::vector<int32_t> shape(meta->sizes().begin(), meta->sizes().end());
    const size_t count = std::accumulate(shape.begin(), shape.end(), size_t(1), std::multiplies<>());
    if (count != input.count || meta->scalar_type() != input.type) return Error::InvalidArgument;
    executorch::aten::TensorImpl tensor(
        input.type, static_cast<ssize_t>(shape.size()), shape.data(), const_cast<void*>(input.data));
    return method.set_input(executorch::runtime::EValue(executorch::aten::Tensor(&tensor)), index);
  }

  static constexpr size_t STATE = 1;  // memory id 2

  const std::string prefix_;
  Heap heap_;
  std::vector<Arena> arenas_;
  std::vector<Span<uint8_t>> spans_;
  std::unique_ptr<HierarchicalAllocator> planned_;
  std::unique_ptr<executorch::runtime::MemoryManager> manager_;
  std::map<std::string, Method, std::less<>> methods_;  // destroyed first, because it lives in all of the above
};

}  // namespace hybridge

#endif
