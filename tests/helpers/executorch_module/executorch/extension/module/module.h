// ExecuTorch 1.4's Module as far as docs/on-device.md uses it: the wheel exports the class, but does not bring its header.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <executorch/runtime/core/evalue.h>
#include <executorch/runtime/core/event_tracer.h>
#include <executorch/runtime/core/memory_allocator.h>
#include <executorch/runtime/core/result.h>

namespace executorch::extension {
namespace module {

class Module {
 public:
  enum class LoadMode { File, Mmap };

  explicit Module(
      const std::string& file_path,
      const LoadMode load_mode = LoadMode::File,
      std::unique_ptr<runtime::EventTracer> event_tracer = nullptr,
      std::unique_ptr<runtime::MemoryAllocator> memory_allocator = nullptr,
      std::unique_ptr<runtime::MemoryAllocator> temp_allocator = nullptr,
      bool share_memory_arenas = false);
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  runtime::Result<std::vector<runtime::EValue>> execute(const std::string& method, const std::vector<runtime::EValue>& inputs);

 private:
  // Room for what the real class has. It is never torn down: the destructor is not exported.
  alignas(std::max_align_t) std::byte members_[4096];
};

}  // namespace module
using module::Module;
}  // namespace executorch::extension
