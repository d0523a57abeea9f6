// Open objects by handle.
#ifndef HYBRIDGE_NATIVE_C_API_HANDLES_H
#define HYBRIDGE_NATIVE_C_API_HANDLES_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace hybridge::c {

// No number is used twice, for whatever it stands.
inline uint64_t next_handle() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// Open objects of one kind. Lives as long as the process: threads may still call while it ends.
template <typename T>
class Handles {
 public:
  uint64_t add(std::shared_ptr<T> opened) {
    const uint64_t handle = next_handle();
    const std::lock_guard lock(mutex_);
    entries_.emplace(handle, std::move(opened));
    return handle;
  }

  std::shared_ptr<T> find(uint64_t handle) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(handle);
    return found == entries_.end() ? nullptr : found->second;
  }

  bool remove(uint64_t handle) {
    std::shared_ptr<T> removed;  // destroyed behind the lock
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(handle);
    if (found == entries_.end()) return false;
    removed = std::move(found->second);
    entries_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<uint64_t, std::shared_ptr<T>> entries_;
};

template <typename T>
Handles<T>& handles() {
  static auto& all = *new Handles<T>;
  return all;
}

}  // namespace hybridge::c

#endif
