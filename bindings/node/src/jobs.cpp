#include "jobs.h"

#include <dlfcn.h>

#include <condition_variable>
#include <deque>
#include <new>
#include <thread>

#include "library.h"
#include "values.h"

namespace hybridge_node {

namespace {

// Threads for the calls that run at the same time: as many as there are such calls, kept for the next ones. They are
// not libuv's, of which there are four: long answers would keep files and names from being read.
class Threads {
 public:
  void run(std::function<void()> call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(std::move(call));
    if (calls_.size() > idle_) std::thread([this] { serve(); }).detach();
    wanted_.notify_one();
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      ++idle_;
      wanted_.wait(lock, [&] { return !calls_.empty(); });
      --idle_;
      const std::function<void()> call = std::move(calls_.front());
      calls_.pop_front();
      lock.unlock();
      call();
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable wanted_;
  std::deque<std::function<void()>> calls_;
  size_t idle_ = 0;
};

// Never destroyed, as its threads are not: they may outlive all static objects, and the last environment. So this
// file's code may not be unloaded with that.
Threads& threads() {
  static auto* all = [] {
    Dl_info found;
    if (dladdr(reinterpret_cast<void*>(&close), &found) != 0) dlopen(found.dli_fname, RTLD_NOW | RTLD_NODELETE);
    return new Threads;
  }();
  return *all;
}

void cancel_in_library(const Handle& handle) {
  if (handle.first == Kind::chat) library()->chat_cancel({handle.second});
  if (handle.first == Kind::session) library()->cancel({handle.second});
}

}  // namespace

hybridge_status close(const Handle& handle) {
  const auto& [kind, id] = handle;
  const Library& library = *hybridge_node::library();
  switch (kind) {
    case Kind::model: return library.model_close({id});
    case Kind::picture: return library.picture_close({id});
    case Kind::session: return library.session_close({id});
    case Kind::checkpoint: return library.checkpoint_close({id});
    case Kind::cache: return library.cache_close({id});
    case Kind::tokenizer: return library.tokenizer_close({id});
    case Kind::text: return library.text_close({id});
    case Kind::grammar: return library.grammar_close({id});
    case Kind::artifact: return library.artifact_close({id});
    case Kind::chat: return library.chat_close({id});
  }
  return HYBRIDGE_INVALID_HANDLE;
}

void Job::post(std::function<void(napi_env, Job&)> deliver) {
  environment.send(new Environment::Message{this, std::move(deliver)});
}

// The flag is for a generation that is about to begin, which the library does not know yet.
void Job::cancel() {
  cancelled = true;
  cancel_in_library(generates);
}

Environment::Environment(napi_env env) : env_(env) {
  napi_value name;
  check(env, napi_create_string_utf8(env, "hybridge", NAPI_AUTO_LENGTH, &name));
  check(
      env, napi_create_threadsafe_function(
               env, nullptr, nullptr, name, 0, 1, nullptr, nullptr, this, &Environment::deliver, &to_javascript_
           )
  );
  check(env, napi_unref_threadsafe_function(env, to_javascript_));
}

Environment::~Environment() {
  stop();
  for (const Handle& each : handles_) close(each);
}

napi_value Environment::start(std::unique_ptr<Job> job) {
  napi_value promise;
  check(env_, napi_create_promise(env_, &job->promise, &promise));
  if (pending_++ == 0) check(env_, napi_ref_threadsafe_function(env_, to_javascript_));
  Job* const begun = job.release();
  {
    const std::lock_guard lock(mutex_);
    running_.insert(begun);
    ++busy_;
  }
  threads().run([this, begun] { run(begun); });
  return promise;
}

void Environment::run(Job* job) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) job->cancelled = true;
  }
  try {
    if (job->cancelled) {
      job->status = HYBRIDGE_CANCELLED;
      job->words = "it was cancelled before it began; nothing has changed";
    } else {
      job->status = job->work(*job);
    }
    if (job->status != HYBRIDGE_OK && job->words.empty()) {
      job->words = library()->failure();  // of this thread
      if (job->words.empty()) job->words = library()->status_text(job->status);
    }
  } catch (const std::bad_alloc&) {
    job->status = HYBRIDGE_OUT_OF_MEMORY;
  } catch (...) {
    job->status = HYBRIDGE_INTERNAL;
  }
  {
    const std::lock_guard lock(mutex_);
    running_.erase(job);  // JavaScript's thread may delete it as soon as it has the message
  }
  send(new Message{job, nullptr});
  const std::lock_guard lock(mutex_);
  --busy_;
  ended_.notify_all();
}

void Environment::send(Message* message) {
  if (napi_call_threadsafe_function(to_javascript_, message, napi_tsfn_nonblocking) != napi_ok) {
    deliver(nullptr, nullptr, this, message);
  }
}

// env: null while the environment ends, when no JavaScript can be called.
void Environment::deliver(napi_env env, napi_value, void* self, void* data) {
  const std::unique_ptr<Message> message(static_cast<Message*>(data));
  auto* environment = static_cast<Environment*>(self);
  if (message->deliver == nullptr) {
    std::unique_ptr<Job> job(message->job);
    if (env != nullptr) environment->finish(env, std::move(job));
  } else if (env != nullptr) {
    try {
      message->deliver(env, *message->job);
    } catch (const Pending&) {  // what JavaScript threw is reported as uncaught
    }
  }
}

void Environment::finish(napi_env env, std::unique_ptr<Job> job) {
  for (napi_ref each : {job->callback, job->memory}) {
    if (each != nullptr) napi_delete_reference(env, each);
  }
  if (--pending_ == 0) napi_unref_threadsafe_function(env, to_javascript_);
  try {
    if (job->status == HYBRIDGE_OK) {
      check(env, napi_resolve_deferred(env, job->promise, job->result ? job->result(env) : Maker(env).undefined()));
    } else {
      check(env, napi_reject_deferred(env, job->promise, Maker(env).error(job->status, job->words)));
    }
  } catch (const Pending&) {
    napi_value thrown;
    napi_get_and_clear_last_exception(env, &thrown);
    napi_reject_deferred(env, job->promise, thrown);
  }
}

void Environment::cancel(const Handle& handle) {
  const std::lock_guard lock(mutex_);
  for (Job* each : running_) {
    if (each->generates == handle) each->cancel();
  }
}

void Environment::opened(const Handle& handle) {
  const std::lock_guard lock(mutex_);
  handles_.insert(handle);
}

void Environment::closed(const Handle& handle) {
  const std::lock_guard lock(mutex_);
  handles_.erase(handle);
}

void Environment::stop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  for (Job* each : running_) {
    if (each->generates.second != 0) each->cancel();
  }
  ended_.wait(lock, [&] { return busy_ == 0; });
}

}  // namespace hybridge_node
