// hybridge/hybridge.h from many threads at once, for the thread sanitizer.
//   threads ARTIFACT DRAFT.pte FOLDER ROUNDS TOKEN ...
//
// Each thread must get what one alone got: with a session of its own over one model, with a model of its own, and while
// others open, close and cancel sessions, chats and checkpoints. Who calls a session that another thread is in is told
// so. Prints how often.
#include <hybridge/hybridge.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Text = std::vector<int64_t>;
constexpr int THREADS = 4;

#define OK(call) check((call), HYBRIDGE_OK, #call, __LINE__)

void check(hybridge_status got, hybridge_status wanted, const char* call, int line) {
  if (got == wanted) return;
  std::fprintf(stderr, "line %d: %s is %d (%s), not %d\n", line, call, got, hybridge_status_text(got), wanted);
  std::exit(1);
}

Text tokens(hybridge_session session) {
  size_t count = 0;
  OK(hybridge_tokens(session, nullptr, 0, &count));
  Text text(count);
  OK(hybridge_tokens(session, text.data(), text.size(), &count));
  return text;
}

// What a session holds after a prompt and what it generates after it, saved and loaded, kept and resumed in between.
Text talk(hybridge_session session, hybridge_cache cache, const Text& prompt, const std::string& state) {
  hybridge_generation options = hybridge_generation_defaults();
  options.max_new_tokens = 12;
  options.drafter = HYBRIDGE_PROMPT_LOOKUP;
  hybridge_checkpoint kept = {};
  OK(hybridge_reset(session));
  OK(hybridge_bring_to(session, cache, prompt.data(), prompt.size() - 1, nullptr));
  OK(hybridge_checkpoint_make(session, &kept));
  OK(hybridge_snapshot(session, 0));
  OK(hybridge_save(session, state.c_str(), nullptr));
  OK(hybridge_decode(session, prompt.front(), nullptr));
  OK(hybridge_load(session, state.c_str()));
  OK(hybridge_decode(session, prompt.front(), nullptr));
  OK(hybridge_resume(session, kept));
  OK(hybridge_checkpoint_close(kept));
  OK(hybridge_generate(session, &prompt.back(), 1, &options, nullptr, nullptr, nullptr));
  return tokens(session);
}

template <class F>
void in_threads(F&& work) {
  std::vector<std::thread> threads;
  for (int i = 0; i < THREADS; ++i) threads.emplace_back(work, i);
  for (std::thread& each : threads) each.join();
}

// Closes what may be in a call of another thread.
template <class F, class Handle>
void close(F&& call, Handle handle) {
  hybridge_status got = HYBRIDGE_BUSY;
  while ((got = call(handle)) == HYBRIDGE_BUSY) std::this_thread::yield();
  check(got, HYBRIDGE_OK, "a close", __LINE__);
}

struct Program {
  std::string artifact;
  const char* draft;
  std::string folder;
  int rounds;
  std::vector<Text> prompts, expected;

  std::string state(int thread) const { return folder + "/state-" + std::to_string(thread); }

  void compare(const Text& got, int thread) const {
    if (got == expected[size_t(thread)]) return;
    std::fprintf(stderr, "thread %d generated another text than one alone\n", thread);
    std::exit(1);
  }

  hybridge_model open() const {
    hybridge_model model = {};
    OK(hybridge_model_open((artifact + "/model.pte").c_str(), &model));
    return model;
  }

  hybridge_session session(hybridge_model model) const {
    hybridge_session opened = {};
    OK(hybridge_session_open(model, &opened));
    return opened;
  }

  void alone() {
    const hybridge_model model = open();
    const hybridge_session one = session(model);
    for (int i = 0; i < THREADS; ++i) expected.push_back(talk(one, {}, prompts[size_t(i)], state(i)));
    OK(hybridge_session_close(one));
    OK(hybridge_model_close(model));
  }

  void sessions_of_one_model() const {
    const hybridge_model model = open();
    hybridge_cache cache = {};
    OK(hybridge_cache_open(model, 1 << 20, &cache));
    in_threads([&](int thread) {
      const hybridge_session own = session(model);
      for (int i = 0; i < rounds; ++i) compare(talk(own, cache, prompts[size_t(thread)], state(thread)), thread);
      OK(hybridge_session_close(own));
    });
    OK(hybridge_cache_close(cache));
    OK(hybridge_model_close(model));
  }

  void models() const {
    in_threads([&](int thread) {
      for (int i = 0; i < rounds; ++i) {
        const hybridge_model model = open();
        const hybridge_session own = session(model);
        OK(hybridge_model_close(model));
        compare(talk(own, {}, prompts[size_t(thread)], state(thread)), thread);
        OK(hybridge_session_close(own));
      }
    });
  }

  // Every call succeeds or says that another thread is inside; what succeeded is what the session holds.
  int one_session() const {
    const hybridge_model model = open();
    const hybridge_session shared = session(model);
    std::atomic<int> busy = 0, committed = 0;
    in_threads([&](int thread) {
      for (int i = 0; i < 6 * rounds; ++i) {
        const hybridge_status got = hybridge_decode(shared, prompts[size_t(thread)].front(), nullptr);
        if (got == HYBRIDGE_OK) ++committed;
        else if (got == HYBRIDGE_BUSY) ++busy;
        else check(got, HYBRIDGE_NO_ROOM, "hybridge_decode", __LINE__);
      }
    });
    if (tokens(shared).size() != size_t(committed))
      check(HYBRIDGE_INTERNAL, HYBRIDGE_OK, "the shared session's length", __LINE__);
    OK(hybridge_session_close(shared));
    OK(hybridge_model_close(model));
    return busy;
  }

  // A generation that another thread cancels keeps a beginning of its text, or nothing.
  void cancelled() const {
    const hybridge_model model = open();
    const hybridge_session own = session(model);
    const Text& prompt = prompts[0];
    for (int i = 0; i < rounds; ++i) {
      OK(hybridge_reset(own));
      std::atomic<bool> is_done = false;
      std::thread other([&] {
        while (!is_done) OK(hybridge_cancel(own));
      });
      const hybridge_status got = hybridge_generate(
          own, prompt.data(), prompt.size(), nullptr, nullptr, nullptr, nullptr
      );
      is_done = true;
      other.join();
      if (got != HYBRIDGE_OK) check(got, HYBRIDGE_CANCELLED, "hybridge_generate", __LINE__);
      if (got == HYBRIDGE_CANCELLED && !tokens(own).empty())
        check(got, HYBRIDGE_OK, "a cancelled prompt stays", __LINE__);
    }
    OK(hybridge_session_close(own));
    OK(hybridge_model_close(model));
  }

  // Two models, drafts, chats and checkpoints, which all threads use, cancel and close at once. A call succeeds, or
  // says which of these came between; a generation of the thread's own session, which nobody else has, gives its text.
  void two_models() const {
    hybridge_artifact opened = {};
    hybridge_model target = {}, small = {};
    OK(hybridge_artifact_open(artifact.c_str(), &opened));
    OK(hybridge_artifact_model(opened, &target));
    OK(hybridge_model_open(draft, &small));
    std::atomic<hybridge_chat> chats[THREADS];
    std::atomic<hybridge_session> sessions[THREADS];
    std::atomic<hybridge_checkpoint> kept[THREADS];
    const auto chat = [&] {
      hybridge_chat made = {};
      OK(hybridge_chat_open(opened, nullptr, &made));
      return made;
    };
    const auto checkpoint = [&](hybridge_session of) {
      hybridge_checkpoint made = {};
      OK(hybridge_checkpoint_make(of, &made));
      return made;
    };
    const hybridge_session first = session(target);
    for (int i = 0; i < THREADS; ++i) {
      chats[i] = chat();
      sessions[i] = session(i % 2 == 0 ? target : small);
      kept[i] = checkpoint(first);
    }
    OK(hybridge_session_close(first));
    const auto expect = [](hybridge_status got, std::initializer_list<hybridge_status> possible, const char* call) {
      if (std::ranges::find(possible, got) == possible.end()) check(got, HYBRIDGE_OK, call, __LINE__);
    };
    const auto closed = {HYBRIDGE_OK, HYBRIDGE_INVALID_HANDLE};
    const auto looked = {HYBRIDGE_OK, HYBRIDGE_BUSY, HYBRIDGE_INVALID_HANDLE};
    const auto generated = {HYBRIDGE_OK, HYBRIDGE_BUSY, HYBRIDGE_INVALID_HANDLE, HYBRIDGE_CANCELLED, HYBRIDGE_NO_ROOM};
    in_threads([&](int thread) {
      const hybridge_session own = session(target);
      std::mt19937 random(static_cast<unsigned>(thread));
      const auto any = [&](auto& slots) { return slots[random() % THREADS].load(); };
      hybridge_generation options = hybridge_generation_defaults();
      options.max_new_tokens = 12;
      options.block_length = 4;
      options.drafter = HYBRIDGE_DRAFT_MODEL;
      options.draft = small;
      hybridge_generation few = options;
      few.max_new_tokens = 3;
      size_t count = 0;
      int64_t room = 0;
      const Text& prompt = prompts[size_t(thread)];
      for (int i = 0; i < 10 * rounds; ++i) {
        const size_t place = random() % THREADS;
        switch (random() % 8) {
          case 0:
            OK(hybridge_reset(own));
            OK(hybridge_generate(own, prompt.data(), prompt.size(), &options, nullptr, nullptr, nullptr));
            compare(tokens(own), thread);
            break;
          case 1: close(hybridge_chat_close, chats[place].exchange(chat())); break;
          case 2: close(hybridge_session_close, sessions[place].exchange(session(place % 2 ? small : target))); break;
          case 3: close(hybridge_checkpoint_close, kept[place].exchange(checkpoint(own))); break;
          case 4:
            expect(
                hybridge_chat_send(any(chats), "a", 1, &few, nullptr, 0, nullptr, nullptr, nullptr), generated,
                "hybridge_chat_send"
            );
            break;
          case 5:
            expect(
                hybridge_generate(any(sessions), prompt.data(), prompt.size(), &few, nullptr, nullptr, nullptr),
                generated, "hybridge_generate"
            );
            break;
          case 6:
            expect(hybridge_chat_cancel(any(chats)), closed, "hybridge_chat_cancel");
            expect(hybridge_cancel(any(sessions)), closed, "hybridge_cancel");
            break;
          default: {
            hybridge_kept about;
            expect(hybridge_tokens(any(sessions), nullptr, 0, &count), looked, "hybridge_tokens");
            expect(hybridge_chat_messages(any(chats), nullptr, 0, &count, &room), looked, "hybridge_chat_messages");
            expect(hybridge_checkpoint_info(any(kept), &about), closed, "hybridge_checkpoint_info");
            expect(hybridge_resume(own, any(kept)), closed, "hybridge_resume");
          }
        }
      }
      OK(hybridge_session_close(own));
    });
    for (const auto& each : chats) OK(hybridge_chat_close(each.load()));
    for (const auto& each : sessions) OK(hybridge_session_close(each.load()));
    for (const auto& each : kept) OK(hybridge_checkpoint_close(each.load()));
    OK(hybridge_model_close(small));
    OK(hybridge_artifact_close(opened));
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 7) return 2;
  Program program{argv[1], argv[2], argv[3], std::atoi(argv[4]), {}, {}};
  for (int i = 0; i < THREADS; ++i) {
    Text prompt;
    for (int word = 5; word < argc; ++word) prompt.push_back(std::atoll(argv[word]) + i);
    program.prompts.push_back(prompt);
  }
  program.alone();
  program.sessions_of_one_model();
  program.models();
  program.cancelled();
  program.two_models();
  std::printf("busy %d\n", program.one_session());
}
