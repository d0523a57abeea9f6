// hybridge/hybridge.h over hybridge/session.h: handles, one call at a time, and errors as numbers.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <type_traits>
#include <unordered_map>
#include <utility>

#include <hybridge/hybridge.h>
#include <hybridge/block_drafter.h>
#include <hybridge/draft_model.h>
#include <hybridge/speculative.h>
#include <hybridge/threads.h>

namespace {

using hybridge::Error;
using hybridge::Logits;
using hybridge::Result;

constexpr size_t MOST_THREADS = 1024;

struct OpenModel {
  std::shared_ptr<const hybridge::Model> model;
  std::shared_ptr<std::recursive_mutex> turn = std::make_shared<std::recursive_mutex>();
};

struct OpenSession {
  std::unique_ptr<hybridge::Session> session;
  std::shared_ptr<std::recursive_mutex> turn;  // the model's: its sessions run one after the other, or in another's callback
  std::atomic<bool> busy = false, cancelled = false;
  hybridge::NoDrafter none;
  hybridge::PromptLookup lookup;
  std::optional<hybridge::BlockDrafter> own;  // of the session, behind which it is declared
  std::shared_ptr<OpenModel> small;           // the draft model, whose turn is waited for as well
  std::optional<hybridge::DraftModel> by_small;

  using OnToken = std::function<bool(int64_t)>;

  template <typename D>
  Result<hybridge::Generated> generate(
      hybridge::Tokens prompt, const hybridge::Generation& wishes, D& drafter, const OnToken& wanted) {
    return hybridge::generate(*session, prompt, wishes, drafter, wanted);
  }

  Result<hybridge::Generated> generate_by_small(
      hybridge::Tokens prompt, const hybridge::Generation& wishes, const OnToken& wanted) {
    if (small == nullptr) return Error::InvalidArgument;
    if (!by_small) {
      auto made = hybridge::DraftModel::create(small->model, session->facts());
      if (!made.ok()) return made.error();
      by_small.emplace(std::move(*made));
    }
    return generate(prompt, wishes, *by_small, wanted);
  }

  // It listens no longer than it drafts: hidden states that nobody reads would pile up.
  Result<hybridge::Generated> generate_by_own(
      hybridge::Tokens prompt, const hybridge::Generation& wishes, const OnToken& wanted) {
    if (!session->facts().has_drafter()) return Error::InvalidArgument;
    if (!own) own.emplace(*session);
    own->listen(true);
    auto done = generate(prompt, wishes, *own, wanted);
    own->listen(false);
    return done;
  }
};

// What is open, by handle. Lives as long as the process: threads may still call while it ends.
template <typename T>
class Open {
 public:
  uint64_t add(std::shared_ptr<T> opened) {
    static std::atomic<uint64_t> last = 0;
    const uint64_t handle = ++last * 2 + std::is_same_v<T, OpenSession>;  // no number is both a model's and a session's
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

Open<OpenModel>& models() {
  static auto& open = *new Open<OpenModel>;
  return open;
}

Open<OpenSession>& sessions() {
  static auto& open = *new Open<OpenSession>;
  return open;
}

hybridge_status status(Error error) {
  switch (error) {
    case Error::Ok: return HYBRIDGE_OK;
    case Error::InvalidArgument: return HYBRIDGE_INVALID_ARGUMENT;
    case Error::OutOfResources: return HYBRIDGE_NO_ROOM;
    case Error::InvalidState: return HYBRIDGE_INVALID_STATE;
    case Error::InvalidProgram:
    case Error::InvalidExternalData: return HYBRIDGE_INVALID_FILE;
    case Error::AccessFailed: return HYBRIDGE_FILE_ACCESS;
    case Error::OperatorMissing:
    case Error::NotFound: return HYBRIDGE_MISSING_OPERATOR;
    case Error::MemoryAllocationFailed: return HYBRIDGE_OUT_OF_MEMORY;
    case Error::NotSupported: return HYBRIDGE_NOT_FINITE;
    default: return HYBRIDGE_INTERNAL;
  }
}

// Runs `call`, out of which nothing is thrown.
template <typename Call>
hybridge_status guarded(Call&& call) {
  try {
    return call();
  } catch (const std::bad_alloc&) {
    return HYBRIDGE_OUT_OF_MEMORY;
  } catch (...) {
    return HYBRIDGE_INTERNAL;
  }
}

// Runs `call` on the session, in which no other call is then.
template <typename Call>
hybridge_status in(hybridge_session handle, Call&& call) {
  return guarded([&] {
    const auto open = sessions().find(handle);
    if (open == nullptr) return HYBRIDGE_INVALID_HANDLE;
    if (open->busy.exchange(true)) return HYBRIDGE_BUSY;
    struct Release {
      std::atomic<bool>& busy;
      ~Release() { busy = false; }
    } release{open->busy};
    open->cancelled = false;  // a cancel may come while the call waits for its turn
    if (open->session == nullptr) return HYBRIDGE_INVALID_HANDLE;  // closed between the two lines above
    std::unique_lock turn(*open->turn, std::defer_lock), other(open->small ? *open->small->turn : *open->turn, std::defer_lock);
    std::lock(turn, other);
    return call(*open);
  });
}

template <typename T>
hybridge_status answer(const Result<T>& result) {
  return status(result.error());
}

hybridge_status answer(const Result<Logits>& logits, float* out) {
  if (logits.ok() && out != nullptr) std::ranges::copy(logits->all(), out);
  return status(logits.error());
}

// Of the values that are 0 in C those that leave the distribution as it is.
hybridge::Sampling sampling(const hybridge_sampling* given) {
  if (given == nullptr) return {};
  hybridge::Sampling read{.temperature = given->temperature, .min_p = given->min_p, .top_k = given->top_k};
  if (given->top_p != 0) read.top_p = given->top_p;
  if (given->repetition_penalty != 0) read.repetition_penalty = given->repetition_penalty;
  if (given->has_seed != 0) read.seed = given->seed;
  return read;
}

hybridge::Mask mask(hybridge_mask given, void* user) {
  if (given == nullptr) return nullptr;
  return [given, user](hybridge::Tokens text, std::span<float> logits) {
    given(text.data(), text.size(), logits.data(), logits.size(), user);
  };
}

// Lets the session draft with this model from its next call on, which then waits for that model's turn too.
hybridge_status choose_draft(hybridge_session session, hybridge_model draft) {
  const auto small = models().find(draft);
  if (small == nullptr) return HYBRIDGE_INVALID_HANDLE;
  return in(session, [&](OpenSession& open) {
    if (open.small != small) open.by_small.reset();
    open.small = small;
    return HYBRIDGE_OK;
  });
}

hybridge::Tokens span(const int64_t* tokens, size_t count) {
  return tokens == nullptr ? hybridge::Tokens() : hybridge::Tokens(tokens, count);  // none is refused
}

}  // namespace

extern "C" {

const char* hybridge_version(void) { return HYBRIDGE_VERSION; }

const char* hybridge_status_text(hybridge_status status) {
  switch (status) {
    case HYBRIDGE_OK: return "no error";
    case HYBRIDGE_INVALID_ARGUMENT: return "a null pointer, a token outside the vocabulary, or a count or slot out of range";
    case HYBRIDGE_INVALID_HANDLE: return "this handle is closed or was never given out";
    case HYBRIDGE_BUSY: return "the session is in another call";
    case HYBRIDGE_NO_ROOM: return "the tokens do not fit into the context; reset the session, or restore a shorter state";
    case HYBRIDGE_INVALID_STATE: return "no verified block waits for a commit, or the slot keeps nothing";
    case HYBRIDGE_INVALID_FILE: return "the file is damaged, of another model, or no artifact of a format that is known here";
    case HYBRIDGE_FILE_ACCESS: return "the file cannot be read or written";
    case HYBRIDGE_MISSING_OPERATOR: return "the app links no kernels for an operator of the program; see its manifest.json";
    case HYBRIDGE_OUT_OF_MEMORY: return "there is not enough memory";
    case HYBRIDGE_INTERNAL: return "the runtime failed inside a method";
    case HYBRIDGE_CANCELLED: return "the generation was cancelled before its first token";
    case HYBRIDGE_NOT_FINITE: return "the logits are NaN or infinite; reset the session, or restore or load a state";
  }
  return "no status of hybridge";
}

hybridge_status hybridge_set_threads(size_t count) {
  if (count > MOST_THREADS) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    hybridge::set_threads(count);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_open(const char* path, hybridge_model* model) {
  if (path == nullptr || model == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    auto loaded = hybridge::Model::load(path);
    if (!loaded.ok()) return status(loaded.error());
    auto open = std::make_shared<OpenModel>();
    open->model = std::move(*loaded);
    *model = models().add(std::move(open));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_close(hybridge_model model) {
  return guarded([&] { return models().remove(model) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE; });
}

hybridge_status hybridge_model_info(hybridge_model model, hybridge_info* info) {
  if (info == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto open = models().find(model);
    if (open == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const hybridge::Facts& facts = open->model->facts();
    *info = {facts.max_seq_len, facts.vocab_size, facts.prefill_chunk, facts.verify_len(), facts.snapshot_slots,
             facts.has_drafter() ? facts.draft_blocks.back() - 1 : 0};
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_model_eos_ids(hybridge_model model, int64_t* ids, size_t capacity, size_t* count) {
  if (count == nullptr || (ids == nullptr && capacity > 0)) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto open = models().find(model);
    if (open == nullptr) return HYBRIDGE_INVALID_HANDLE;
    hybridge::Tokens known = open->model->facts().eos_ids;
    if (known.front() < 0) known = {};  // -1: the model has none
    *count = known.size();
    std::ranges::copy(known.first(std::min(capacity, known.size())), ids);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_session_open(hybridge_model model, hybridge_session* session) {
  if (session == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return guarded([&] {
    const auto opened = models().find(model);
    if (opened == nullptr) return HYBRIDGE_INVALID_HANDLE;
    const std::lock_guard turn(*opened->turn);
    auto created = hybridge::Session::create(opened->model);
    if (!created.ok()) return status(created.error());
    auto open = std::make_shared<OpenSession>();
    open->session = std::move(*created);
    open->turn = opened->turn;
    *session = sessions().add(std::move(open));
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_session_close(hybridge_session session) {
  return in(session, [&](OpenSession& open) {
    open.own.reset();
    open.by_small.reset();
    open.session.reset();
    return sessions().remove(session) ? HYBRIDGE_OK : HYBRIDGE_INVALID_HANDLE;
  });
}

hybridge_status hybridge_tokens(hybridge_session session, int64_t* tokens, size_t capacity, size_t* count) {
  if (count == nullptr || (tokens == nullptr && capacity > 0)) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& open) {
    const hybridge::Tokens text = open.session->tokens();
    *count = text.size();
    std::ranges::copy(text.first(std::min(capacity, text.size())), tokens);
    return HYBRIDGE_OK;
  });
}

hybridge_status hybridge_prefill(hybridge_session session, const int64_t* tokens, size_t count, float* logits) {
  return in(session, [&](OpenSession& open) { return answer(open.session->prefill(span(tokens, count)), logits); });
}

hybridge_status hybridge_decode(hybridge_session session, int64_t token, float* logits) {
  return in(session, [&](OpenSession& open) { return answer(open.session->decode(token), logits); });
}

hybridge_status hybridge_verify(hybridge_session session, const int64_t* tokens, size_t count, float* logits) {
  return in(session, [&](OpenSession& open) { return answer(open.session->verify(span(tokens, count)), logits); });
}

hybridge_status hybridge_commit(hybridge_session session, int64_t count) {
  return in(session, [&](OpenSession& open) { return answer(open.session->commit(count)); });
}

hybridge_status hybridge_snapshot(hybridge_session session, int64_t slot) {
  return in(session, [&](OpenSession& open) { return answer(open.session->snapshot(slot)); });
}

hybridge_status hybridge_restore(hybridge_session session, int64_t slot) {
  return in(session, [&](OpenSession& open) { return answer(open.session->restore(slot)); });
}

hybridge_status hybridge_reset(hybridge_session session) {
  return in(session, [&](OpenSession& open) { return answer(open.session->reset()); });
}

hybridge_status hybridge_save(hybridge_session session, const char* path) {
  if (path == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& open) { return status(open.session->save(path)); });
}

hybridge_status hybridge_load(hybridge_session session, const char* path) {
  if (path == nullptr) return HYBRIDGE_INVALID_ARGUMENT;
  return in(session, [&](OpenSession& open) { return answer(open.session->load(path)); });
}

hybridge_status hybridge_generate(
    hybridge_session session, const int64_t* prompt, size_t count, const hybridge_generation* options,
    hybridge_on_token on_token, void* user, hybridge_generated* generated) {
  const hybridge_generation chosen = options == nullptr ? hybridge_generation{64, 0, HYBRIDGE_PROMPT_LOOKUP, nullptr, 0, nullptr} : *options;
  if (chosen.drafter == HYBRIDGE_DRAFT_MODEL) {
    const hybridge_status chose = choose_draft(session, chosen.draft);
    if (chose != HYBRIDGE_OK) return chose;
  }

  return in(session, [&](OpenSession& open) {
    bool started = false;
    const OpenSession::OnToken wanted = [&](int64_t token) {
      started = true;
      return on_token == nullptr || on_token(token, user) != 0;
    };
    const hybridge::Generation wishes{
        .max_new_tokens = chosen.max_new_tokens, .block_length = chosen.block_length, .cancelled = &open.cancelled,
        .sampling = sampling(chosen.sampling), .mask = mask(chosen.mask, user)};
    const auto drafted = [&]() -> Result<hybridge::Generated> {
      switch (chosen.drafter) {
        case HYBRIDGE_NO_DRAFTER: return open.generate(span(prompt, count), wishes, open.none, wanted);
        case HYBRIDGE_PROMPT_LOOKUP: return open.generate(span(prompt, count), wishes, open.lookup, wanted);
        case HYBRIDGE_OWN_DRAFTER: return open.generate_by_own(span(prompt, count), wishes, wanted);
        case HYBRIDGE_DRAFT_MODEL: return open.generate_by_small(span(prompt, count), wishes, wanted);
      }
      return Error::InvalidArgument;
    };
    const auto done = drafted();
    if (done.ok() && generated != nullptr) {
      *generated = {done->tokens.size(), done->proposed, done->accepted, done->verifies, done->rollbacks};
    }
    const bool stopped = done.error() == Error::InvalidState && open.cancelled && !started;
    return stopped ? HYBRIDGE_CANCELLED : status(done.error());
  });
}

hybridge_status hybridge_cancel(hybridge_session session) {
  return guarded([&] {
    const auto open = sessions().find(session);
    if (open == nullptr) return HYBRIDGE_INVALID_HANDLE;
    open->cancelled = true;
    return HYBRIDGE_OK;
  });
}
}
