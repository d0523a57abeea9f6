#include "delegates.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/platform/log.h>

#include <signal.h>

#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>

#include "heap.h"

namespace hybridge::pte {

namespace {

using executorch::runtime::ArrayRef;
using executorch::runtime::BackendExecutionContext;
using executorch::runtime::BackendInitContext;
using executorch::runtime::BackendInterface;
using executorch::runtime::CompileSpec;
using executorch::runtime::DelegateHandle;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::FreeableBuffer;

// As programs name them (runtime/artifact/delegates.py); without the prefix, as ExecuTorch does.
constexpr std::string_view PREFIX = "hybridge.";
constexpr const char* BACKENDS[] = {"hybridge.OpenvinoBackend", "hybridge.VulkanBackend", "hybridge.CoreMLBackend"};

// Leaves the thread the stack that it had for signals. OpenVINO 2026.0's plugin for CPUs gives it another for each part
// that is loaded, and once several were unloaded in their order, a freed one is left: the next signal that a handler
// of Python's waits for crashes.
struct SignalStack {
  SignalStack() { ::sigaltstack(nullptr, &before); }
  ~SignalStack() { ::sigaltstack(&before, nullptr); }
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  stack_t before{};
};

// A part that a backend has loaded; sessions of one model take turns, so one infers at a time.
struct Part {
  explicit Part(const BackendInterface& backend) : backend(backend) {}
  Part(const Part&) = delete;
  Part& operator=(const Part&) = delete;
  ~Part() {
    if (handle != nullptr) backend.destroy(handle);
  }

  const BackendInterface& backend;
  Heap heap;  // outlives the session that loads it
  DelegateHandle* handle = nullptr;
};

class SharedBackend final : public BackendInterface {
 public:
  explicit SharedBackend(const char* name) : name_(name) {}

  bool is_available() const override { return true; }  // `init` says why it is not

  executorch::runtime::Result<DelegateHandle*> init(
      BackendInitContext& context, FreeableBuffer* processed, ArrayRef<CompileSpec> specs
  ) const override {
    const auto* backend = executorch::runtime::get_backend_class(name_);
    if (backend == nullptr || !backend->is_available()) {
      ET_LOG(Error, "Backend %s is not %s.", name_, backend == nullptr ? "registered" : "available");
      return Error::NotFound;
    }
    const std::lock_guard lock(turn_);
    const SignalStack kept;
    std::erase_if(loaded_, [](const auto& each) { return each.second.expired(); });
    auto& known = loaded_[processed->data()];  // a model's file is mapped once
    auto part = known.lock();
    if (part == nullptr) {
      part = std::make_shared<Part>(*backend);
      BackendInitContext own(
          &part->heap, context.event_tracer(), context.get_method_name(), context.get_named_data_map()
      );
      auto handle = backend->init(own, processed, specs);
      if (!handle.ok()) return handle.error();
      part->handle = *handle;
      known = part;
    }
    return new std::shared_ptr<Part>(std::move(part));
  }

  Error execute(
      BackendExecutionContext& context, DelegateHandle* handle, executorch::runtime::Span<EValue*> values
  ) const override {
    const Part& part = **static_cast<std::shared_ptr<Part>*>(handle);
    return part.backend.execute(context, part.handle, values);
  }

  void destroy(DelegateHandle* handle) const override {
    const std::lock_guard lock(turn_);
    const SignalStack kept;
    delete static_cast<std::shared_ptr<Part>*>(handle);
  }

 private:
  const char* name_;
  mutable std::mutex turn_;
  mutable std::map<const void*, std::weak_ptr<Part>> loaded_;
};

}  // namespace

void register_shared_backends() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (const char* name : BACKENDS) {
      auto* shared = new SharedBackend(name + PREFIX.size());  // sessions may be destroyed while the process ends
      (void)executorch::runtime::register_backend({name, shared});
    }
  });
}

}  // namespace hybridge::pte
