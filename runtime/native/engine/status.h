// How a call ended: a code for programs, and words for people that arise with the error. Nothing here throws.
//
//   Result<Logits> logits = session.decode(token);
//   if (!logits.ok()) std::fprintf(stderr, "%s\n", logits.status().words().c_str());
//
// A function passes a failure on with HYBRIDGE_TRY, which gives the value otherwise:
//
//   const Logits logits = HYBRIDGE_TRY(session.decode(token));
//   HYBRIDGE_TRY(session.save(path));  // of a Status there is no value
#ifndef HYBRIDGE_ENGINE_STATUS_H
#define HYBRIDGE_ENGINE_STATUS_H

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include <hybridge/hybridge.h>

namespace hybridge {

// Success is a null pointer: it costs nothing to make, to copy or to return. The codes are those of hybridge.h, which
// says what each means.
class [[nodiscard]] Status {
 public:
  Status() = default;

  // code: not HYBRIDGE_OK. words: what is wrong, what was expected and what to do, without a period at the end.
  Status(hybridge_status code, std::string words) : failure_(std::make_shared<const Failure>(code, std::move(words))) {}

  bool ok() const { return failure_ == nullptr; }
  hybridge_status code() const { return ok() ? HYBRIDGE_OK : failure_->code; }

  // Empty for success.
  const std::string& words() const {
    static const std::string none;
    return ok() ? none : failure_->words;
  }

  // For HYBRIDGE_TRY, which treats a Status like a Result.
  const Status& status() const { return *this; }
  void value() const {}

 private:
  struct Failure {
    hybridge_status code;
    std::string words;

    Failure(hybridge_status failure_code, std::string failure_words)
        : code(failure_code), words(std::move(failure_words)) {}
  };

  std::shared_ptr<const Failure> failure_;
};

// A value, or why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}
  Result(Status failure) : status_(std::move(failure)) {}

  bool ok() const { return status_.ok(); }
  const Status& status() const { return status_; }

  // The value, where ok().
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return *std::move(value_); }
  T& operator*() & { return *value_; }
  const T& operator*() const& { return *value_; }
  T&& operator*() && { return *std::move(value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }

 private:
  Status status_;
  std::optional<T> value_;
};

// The value of a Result; a failure is returned from the function around it.
#define HYBRIDGE_TRY(...)                     \
  __extension__({                             \
    auto tried_ = (__VA_ARGS__);              \
    if (!tried_.ok()) return tried_.status(); \
    std::move(tried_).value();                \
  })

}  // namespace hybridge

#endif
