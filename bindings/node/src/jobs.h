// Calls of the library on threads of their own, and their way back to the thread of JavaScript.
//
// A Node.js environment is the main thread or a worker. Each has its jobs and its open handles; when it ends, its jobs
// are cancelled and waited for, and its handles are closed, whatever JavaScript did not come to.
#pragma once

#include <node_api.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include <hybridge/hybridge.h>

namespace hybridge_node {

enum class Kind { model, picture, session, checkpoint, cache, tokenizer, text, grammar, artifact, chat };

// A handle of the library.
using Handle = std::pair<Kind, uint64_t>;

// Closes a handle, in this thread.
hybridge_status close(const Handle& handle);

class Environment;

// A call of the library. `work` runs on another thread, and `result`, after a success, on the environment's own.
struct Job {
  using Work = std::function<hybridge_status(Job&)>;
  using Result = std::function<napi_value(napi_env)>;

  // Has a function be called on the environment's thread, before the job ends; it waits for nothing.
  void post(std::function<void(napi_env, Job&)> deliver);

  // Ends a generation: this one in its callbacks.
  void cancel();

  Environment& environment;
  Work work;
  Result result;
  Handle generates = {};        // the session or chat of a generation, which can be cancelled
  napi_ref callback = nullptr;  // of JavaScript
  napi_ref memory = nullptr;    // an array that `work` reads or writes
  napi_deferred promise = nullptr;
  std::atomic<bool> cancelled = false;
  hybridge_status status = HYBRIDGE_OK;
  std::string words = {};  // of a failure
};

class Environment {
 public:
  explicit Environment(napi_env env);
  ~Environment();

  // Begins a job; returns its promise.
  napi_value start(std::unique_ptr<Job> job);

  // Cancels the generations that run in a session or chat, or are about to.
  void cancel(const Handle& handle);

  // Remembers a handle that was opened, and forgets one that was closed. From any thread.
  void opened(const Handle& handle);
  void closed(const Handle& handle);

  // Cancels what runs and waits until no thread is in a call; nothing begins after that. process.exit() ends no
  // environment: it destroys the library's static objects while threads use them, so this comes before it.
  void stop();

 private:
  friend struct Job;
  struct Message {
    Job* job;
    std::function<void(napi_env, Job&)> deliver;  // empty for the job's end
  };
  static void deliver(napi_env env, napi_value, void* self, void* message);
  void run(Job* job);
  void send(Message* message);
  void finish(napi_env env, std::unique_ptr<Job> job);

  napi_env env_;
  napi_threadsafe_function to_javascript_ = nullptr;
  std::mutex mutex_;
  std::condition_variable ended_;
  std::set<Job*> running_;  // whose work has not ended
  size_t busy_ = 0;         // threads that may use this object
  std::set<Handle> handles_;
  bool stopping_ = false;
  size_t pending_ = 0;  // jobs whose promises wait; of JavaScript's thread alone
};

}  // namespace hybridge_node
