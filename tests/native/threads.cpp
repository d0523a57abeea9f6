// hybridge/hybridge.h from many threads at once, for the thread sanitizer.   threads MODEL.pte FOLDER ROUNDS TOKEN ...
//
// Each thread must get what one alone got: with a session of its own over one model, with a model of its own, and while others
// open, close and cancel. Who calls a session that another thread is in is told so. Prints how often.
#include <hybridge/hybridge.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
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

// What a session holds after a prompt and what it generates behind it, saved and loaded, kept and resumed in between.
Text talk(hybridge_session session, hybridge_cache cache, const Text& prompt, const std::string& state) {
  hybridge_generation options{};
  options.max_new_tokens = 12;
  options.drafter = HYBRIDGE_PROMPT_LOOKUP;
  hybridge_checkpoint kept = 0;
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

struct Program {
  const char* path;
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
    hybridge_model model = 0;
    OK(hybridge_model_open(path, &model));
    return model;
  }

  hybridge_session session(hybridge_model model) const {
    hybridge_session opened = 0;
    OK(hybridge_session_open(model, &opened));
    return opened;
  }

  void alone() {
    const hybridge_model model = open();
    const hybridge_session one = session(model);
    for (int i = 0; i < THREADS; ++i) expected.push_back(talk(one, 0, prompts[size_t(i)], state(i)));
    OK(hybridge_session_close(one));
    OK(hybridge_model_close(model));
  }

  void sessions_of_one_model() const {
    const hybridge_model model = open();
    hybridge_cache cache = 0;
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
        compare(talk(own, 0, prompts[size_t(thread)], state(thread)), thread);
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
    if (tokens(shared).size() != size_t(committed)) check(HYBRIDGE_INTERNAL, HYBRIDGE_OK, "the shared session's length", __LINE__);
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
      const hybridge_status got = hybridge_generate(own, prompt.data(), prompt.size(), nullptr, nullptr, nullptr, nullptr);
      is_done = true;
      other.join();
      if (got != HYBRIDGE_OK) check(got, HYBRIDGE_CANCELLED, "hybridge_generate", __LINE__);
      if (got == HYBRIDGE_CANCELLED && !tokens(own).empty()) check(got, HYBRIDGE_OK, "a cancelled prompt stays", __LINE__);
    }
    OK(hybridge_session_close(own));
    OK(hybridge_model_close(model));
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 6) return 2;
  Program program{argv[1], argv[2], std::atoi(argv[3]), {}, {}};
  for (int i = 0; i < THREADS; ++i) {
    Text prompt;
    for (int word = 4; word < argc; ++word) prompt.push_back(std::atoll(argv[word]) + i);
    program.prompts.push_back(prompt);
  }
  program.alone();
  program.sessions_of_one_model();
  program.models();
  program.cancelled();
  std::printf("busy %d\n", program.one_session());
}
