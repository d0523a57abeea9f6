// Open objects by handle.
#ifndef HYBRIDGE_C_API_HANDLES_H
#define HYBRIDGE_C_API_HANDLES_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

#include <hybridge/hybridge_dev.h>

namespace hybridge::text {
class Tokenizer;
struct AnswerForm;
}  // namespace hybridge::text

namespace hybridge::c {

// The handle of open objects of a class, which the class names, unless it is one of the text engine's.
template <typename T>
struct HandleOfClass {
  using type = typename T::Handle;
};

template <>
struct HandleOfClass<const text::Tokenizer> {
  using type = hybridge_tokenizer;
};

template <>
struct HandleOfClass<const text::AnswerForm> {
  using type = hybridge_answer_form;
};

template <typename T>
using HandleOf = typename HandleOfClass<T>::type;

// No number is used twice, for whatever it stands.
inline uint64_t next_id() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

// Open objects of one kind. Lives as long as the process: threads may still call while it ends.
template <typename T>
class Handles {
 public:
  HandleOf<T> add(std::shared_ptr<T> opened) {
    const HandleOf<T> handle{next_id()};
    const std::lock_guard lock(mutex_);
    entries_.emplace(handle.id, std::move(opened));
    return handle;
  }

  std::shared_ptr<T> find(HandleOf<T> handle) {
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(handle.id);
    return found == entries_.end() ? nullptr : found->second;
  }

  bool remove(HandleOf<T> handle) {
    std::shared_ptr<T> removed;  // destroyed after the lock
    const std::lock_guard lock(mutex_);
    const auto found = entries_.find(handle.id);
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
