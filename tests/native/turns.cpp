// Turns, cancels and closes of hybridge/hybridge.h, two models at a time.   turns ARTIFACT DRAFT.pte TOKEN ...
//
// A mask is called in the middle of a round, when its session has the model's turn. Whatever is called meanwhile and
// waits for that turn would wait for ever, and the watchdog ends the program.
#include <hybridge/hybridge_dev.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Text = std::vector<int64_t>;
using namespace std::chrono_literals;

std::atomic<const char*> running = "";

#define OK(call) check((call), HYBRIDGE_OK, #call, __LINE__)
#define CHECK(call, wanted) check((call), (wanted), #call, __LINE__)

[[noreturn]] void fail(const std::string& what, int line) {
  std::fprintf(stderr, "%s, line %d: %s\n", running.load(), line, what.c_str());
  std::_Exit(1);
}

void check(hybridge_status got, hybridge_status wanted, const char* call, int line) {
  if (got == wanted) return;
  fail(std::string(call) + " is " + hybridge_status_text(got) + ", not " + hybridge_status_text(wanted), line);
}

void require(bool is_so, const char* what, int line) {
  if (!is_so) fail(std::string("not so: ") + what, line);
}
#define REQUIRE(what) require((what), #what, __LINE__)

struct Models {
  hybridge_artifact artifact = {};
  hybridge_model target = {}, draft = {};
  Text prompt;

  hybridge_session session(hybridge_model of) const {
    hybridge_session opened = {};
    OK(hybridge_session_open(of, &opened));
    return opened;
  }
  hybridge_chat chat() const {
    hybridge_chat opened = {};
    OK(hybridge_chat_open(artifact, nullptr, &opened));
    return opened;
  }
};

Text tokens(hybridge_session session) {
  size_t count = 0;
  OK(hybridge_tokens(session, nullptr, 0, &count));
  Text text(count);
  OK(hybridge_tokens(session, text.data(), text.size(), &count));
  return text;
}

// The callbacks of one generation, which get this object as `user`. in_round: called once, in the middle of a round.
struct Listener {
  std::function<void()> in_round = nullptr;
  std::function<bool(int64_t)> on_token = nullptr;

  static void mask(const int64_t*, size_t, float*, size_t, void* user) {
    auto& self = *static_cast<Listener*>(user);
    if (const auto once = std::exchange(self.in_round, nullptr)) once();
  }
  static int take(int64_t token, void* user) {
    auto& self = *static_cast<Listener*>(user);
    return self.on_token == nullptr || self.on_token(token);
  }
};

hybridge_status generate(
    hybridge_session session, const Text& prompt, Listener& listener, hybridge_drafter drafter = HYBRIDGE_NO_DRAFTER,
    hybridge_model draft = {}, size_t most = 12
) {
  hybridge_generation options = hybridge_generation_defaults();
  options.max_new_tokens = most;
  options.drafter = drafter;
  options.draft = draft;
  if (drafter != HYBRIDGE_NO_DRAFTER) options.block_length = 4;
  options.mask = Listener::mask;
  return hybridge_generate(session, prompt.data(), prompt.size(), &options, Listener::take, &listener, nullptr);
}

// Runs `work` in another thread while a session of `of` is in the middle of a round.
void while_in_a_round(const Models& models, hybridge_model of, const std::function<void()>& work) {
  const hybridge_session busy = models.session(of);
  Listener listener{[&] { std::thread(work).join(); }};
  OK(generate(busy, models.prompt, listener));
  REQUIRE(listener.in_round == nullptr);
  OK(hybridge_session_close(busy));
}

void getters_and_closes_wait_for_nobody(const Models& models) {
  running = "getters and closes wait for nobody";
  const hybridge_session session = models.session(models.target), gone = models.session(models.target);
  const hybridge_chat chat = models.chat();
  hybridge_checkpoint kept = {};
  hybridge_cache cache = {};
  OK(hybridge_prefill(session, models.prompt.data(), models.prompt.size(), nullptr));
  OK(hybridge_checkpoint_make(session, &kept));
  OK(hybridge_cache_open(models.target, 1 << 20, &cache));
  OK(hybridge_cache_add(cache, kept));
  while_in_a_round(models, models.target, [&] {
    size_t count = 0, rows = 0, width = 0;
    int forced = 0;
    int64_t room = 0;
    const float* hidden = nullptr;
    hybridge_info info;
    hybridge_kept about;
    hybridge_cached cached;
    hybridge_generated generated;
    REQUIRE(tokens(session) == models.prompt);
    OK(hybridge_slot_tokens(session, 0, nullptr, 0, &count));
    OK(hybridge_note(session, nullptr, 0, &count));
    OK(hybridge_buffers(session, nullptr, 0, &count));
    OK(hybridge_hidden(session, &hidden, &rows, &width));
    OK(hybridge_keep_hidden(session, 0));
    CHECK(hybridge_progress(session, &generated), HYBRIDGE_INVALID_STATE);
    CHECK(hybridge_proposed(session, nullptr, 0, &count, &forced), HYBRIDGE_INVALID_STATE);
    OK(hybridge_cancel(session));
    OK(hybridge_model_info(models.target, &info));
    OK(hybridge_model_eos_ids(models.target, nullptr, 0, &count));
    OK(hybridge_checkpoint_info(kept, &about));
    REQUIRE(about.length == models.prompt.size());
    OK(hybridge_checkpoint_parts(kept, nullptr, 0, &count));
    OK(hybridge_checkpoint_part(kept, 0, nullptr, 0, &count));
    OK(hybridge_cache_info(cache, &cached));
    REQUIRE(cached.checkpoints == 1 && cached.bytes >= about.bytes);
    OK(hybridge_chat_messages(chat, nullptr, 0, &count, &room));
    OK(hybridge_chat_note(chat, nullptr, 0, &count));
    OK(hybridge_chat_cancel(chat));
    OK(hybridge_chat_close(chat));
    OK(hybridge_session_close(gone));
    OK(hybridge_checkpoint_close(kept));
    OK(hybridge_cache_close(cache));
  });
  CHECK(hybridge_session_close(gone), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_checkpoint_close(kept), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_cache_close(cache), HYBRIDGE_INVALID_HANDLE);
  CHECK(hybridge_chat_close(chat), HYBRIDGE_INVALID_HANDLE);
  OK(hybridge_session_close(session));
}

// Two generations come on together, and each gives its text.
void generations_take_turns(const Models& models) {
  running = "generations take turns";
  constexpr size_t MOST = 80;
  const struct {
    hybridge_drafter drafter;
    hybridge_model draft;
  } ways[] = {
      {HYBRIDGE_NO_DRAFTER, {}},
      {HYBRIDGE_DRAFT_MODEL, models.draft},
      {HYBRIDGE_OWN_DRAFTER, {}},
      {HYBRIDGE_AUTO_DRAFTER, models.draft}
  };
  const hybridge_session sessions[] = {models.session(models.target), models.session(models.target)};
  Text prompts[] = {models.prompt, models.prompt}, alone[2];
  prompts[1].push_back(models.prompt.front());
  for (const auto& way : ways) {
    std::atomic<size_t> given[2] = {0, 0};
    size_t others[2] = {0, 0};  // tokens that the other one had when this one ended
    const auto talk = [&](size_t me, bool is_alone) {
      Listener listener{nullptr, [&, me](int64_t) { return ++given[me], true; }};
      OK(hybridge_reset(sessions[me]));
      OK(generate(sessions[me], prompts[me], listener, way.drafter, way.draft, MOST));
      others[me] = given[1 - me];
      const Text text = tokens(sessions[me]);
      if (is_alone && alone[me].empty()) alone[me] = text;
      REQUIRE(text == alone[me]);
    };
    for (size_t me = 0; me < 2; ++me) talk(me, true);
    given[0] = given[1] = 0;
    std::barrier both(2);
    std::thread other([&] {
      both.arrive_and_wait();
      talk(1, false);
    });
    both.arrive_and_wait();
    talk(0, false);
    other.join();
    REQUIRE(given[0] == MOST && given[1] == MOST);
    REQUIRE(others[0] > MOST / 5 && others[1] > MOST / 5);
  }
  for (const hybridge_session each : sessions) OK(hybridge_session_close(each));
}

// A call that waits for the turn of the target or of the draft model, and is cancelled meanwhile, is cancelled.
void no_cancel_is_lost(const Models& models) {
  running = "no cancel is lost";
  const hybridge_session session = models.session(models.target);
  const hybridge_chat chat = models.chat();
  const hybridge_session under = {chat.id - 1};  // handles are counted: that of the chat's session came before it
  hybridge_generation plain = hybridge_generation_defaults();
  plain.max_new_tokens = 20;
  plain.drafter = HYBRIDGE_NO_DRAFTER;
  hybridge_generation drafted = plain;
  drafted.drafter = HYBRIDGE_DRAFT_MODEL;
  drafted.draft = models.draft;
  int64_t given[512];
  size_t count = 0;
  const int64_t* prompt = models.prompt.data();
  const size_t length = models.prompt.size();
  OK(hybridge_chat_send(chat, "a", 1, &plain, nullptr, 0, nullptr, nullptr, nullptr));
  for (const hybridge_generation* options : {&plain, &drafted}) {
    const std::pair<hybridge_session, std::function<hybridge_status()>> calls[] = {
        {session, [&] { return hybridge_generate(session, prompt, length, options, nullptr, nullptr, nullptr); }},
        {session, [&] { return hybridge_begin(session, prompt, length, options, nullptr, given, 512, &count); }},
        {under, [&] { return hybridge_chat_send(chat, "b", 1, options, nullptr, 0, nullptr, nullptr, nullptr); }},
        {under, [&] { return hybridge_chat_retry(chat, options, nullptr, 0, nullptr, nullptr, nullptr); }}
    };
    for (const hybridge_model of : {models.target, models.draft}) {
      if (options == &plain && of.id == models.draft.id) continue;
      for (const auto& each : calls) {
        const hybridge_session callee = each.first;
        const auto& call = each.second;
        hybridge_status got = HYBRIDGE_BUSY;
        std::thread waiting;
        const hybridge_session busy = models.session(of);
        Listener listener{[&] {
          waiting = std::thread([&] {
            while ((got = call()) == HYBRIDGE_BUSY) {}  // by the look at it below
          });
          while (hybridge_tokens(callee, nullptr, 0, &count) != HYBRIDGE_BUSY) std::this_thread::yield();
          OK(hybridge_cancel(callee));
        }};
        OK(generate(busy, models.prompt, listener));
        waiting.join();
        CHECK(got, HYBRIDGE_CANCELLED);
        OK(hybridge_session_close(busy));
        OK(hybridge_cancel(callee));  // which is for no call
        OK(call());
        if (callee.id == session.id) OK(hybridge_reset(session));
      }
    }
  }
  OK(hybridge_chat_close(chat));
  CHECK(hybridge_session_close(under), HYBRIDGE_INVALID_HANDLE);
  OK(hybridge_session_close(session));
}

// Two threads, each in the middle of a round of one model, call a session of the other one.
void callbacks_across_models_end(const Models& models) {
  running = "callbacks across models end";
  const hybridge_model of[] = {models.target, models.draft};
  std::barrier both(2);
  const auto talk = [&](size_t me) {
    const hybridge_session own = models.session(of[me]), other = models.session(of[1 - me]);
    Listener plain, calling;
    OK(generate(own, models.prompt, plain));
    const Text alone = tokens(own);
    both.arrive_and_wait();  // as below: the first round's callback would keep its turn from the other thread's start
    for (int i = 0; i < 5; ++i) {
      calling.in_round = [&] {
        both.arrive_and_wait();
        OK(hybridge_prefill(other, models.prompt.data(), models.prompt.size(), nullptr));
        if (me == 1) std::this_thread::sleep_for(50ms);  // the first thread's generation ends meanwhile
        OK(hybridge_reset(other));
      };
      OK(hybridge_reset(own));
      OK(generate(own, models.prompt, calling));
      REQUIRE(tokens(own) == alone);
      both.arrive_and_wait();  // a wait inside the next round would keep its turn from the other thread's callback
    }
    OK(hybridge_session_close(own));
    OK(hybridge_session_close(other));
  };
  std::thread second([&] { talk(1); });
  talk(0);
  second.join();
}

void callbacks_close(const Models& models) {
  running = "callbacks close";
  const hybridge_session session = models.session(models.target), other = models.session(models.target);
  Listener closing{
      [&] {
        CHECK(hybridge_session_close(session), HYBRIDGE_BUSY);
        OK(hybridge_session_close(other));
        CHECK(hybridge_session_close(other), HYBRIDGE_INVALID_HANDLE);
      },
      [&](int64_t) {
        CHECK(hybridge_session_close(session), HYBRIDGE_BUSY);
        return true;
      }
  };
  OK(generate(session, models.prompt, closing));

  const hybridge_chat chat = models.chat();
  static hybridge_chat own;
  own = chat;
  const auto close_own = [](const hybridge_piece*, void*) {
    CHECK(hybridge_chat_close(own), HYBRIDGE_BUSY);
    return 1;
  };
  OK(hybridge_chat_send(chat, "a", 1, nullptr, nullptr, 0, close_own, nullptr, nullptr));
  OK(hybridge_session_close({chat.id - 1}));  // its session, before it
  CHECK(hybridge_chat_send(chat, "a", 1, nullptr, nullptr, 0, nullptr, nullptr, nullptr), HYBRIDGE_INVALID_HANDLE);
  OK(hybridge_chat_close(chat));
  CHECK(hybridge_chat_close(chat), HYBRIDGE_INVALID_HANDLE);
  OK(hybridge_session_close(session));
}

// What a callback throws ends its call with a status of its own, and the session goes on.
void callbacks_throw(const Models& models) {
  running = "callbacks throw";
  const hybridge_session session = models.session(models.target);
  hybridge_generation options = hybridge_generation_defaults();
  options.on_read = [](size_t, void*) { throw std::runtime_error("no more"); };
  Text longer;
  hybridge_info info;
  OK(hybridge_model_info(models.target, &info));
  while (longer.size() <= size_t(info.prefill_chunk))
    longer.insert(longer.end(), models.prompt.begin(), models.prompt.end());
  const auto read = [&] {
    return hybridge_generate(session, longer.data(), longer.size(), &options, nullptr, nullptr, nullptr);
  };
  CHECK(read(), HYBRIDGE_CALLBACK_FAILED);
  REQUIRE(std::string(hybridge_failure()) == "a callback threw an exception: no more");
  CHECK(hybridge_decode(session, 1, nullptr), HYBRIDGE_BROKEN_STATE);  // which was read half
  OK(hybridge_reset(session));
  Listener throwing{nullptr, [](int64_t) -> bool { throw 1; }}, plain;
  CHECK(generate(session, models.prompt, throwing), HYBRIDGE_CALLBACK_FAILED);
  OK(hybridge_reset(session));
  OK(generate(session, models.prompt, plain));
  OK(hybridge_session_close(session));
}

// A chat that is closed while others send has closed its session, once.
void chats_close_while_others_send(const Models& models) {
  running = "chats close while others send";
  for (int i = 0; i < 30; ++i) {
    const hybridge_chat chat = models.chat();
    std::atomic<int> closed = 0;
    const auto send = [&] {
      hybridge_generation options = hybridge_generation_defaults();
      options.max_new_tokens = 2;
      hybridge_status got = HYBRIDGE_OK;
      while (got == HYBRIDGE_OK || got == HYBRIDGE_BUSY || got == HYBRIDGE_NO_ROOM) {
        got = hybridge_chat_send(chat, "a", 1, &options, nullptr, 0, nullptr, nullptr, nullptr);
      }
      CHECK(got, HYBRIDGE_INVALID_HANDLE);
    };
    const auto close = [&] {
      hybridge_status got = HYBRIDGE_BUSY;
      while ((got = hybridge_chat_close(chat)) == HYBRIDGE_BUSY) {}
      if (got == HYBRIDGE_OK) ++closed;
      else CHECK(got, HYBRIDGE_INVALID_HANDLE);
    };
    std::thread threads[] = {std::thread(send), std::thread(close), std::thread(close)};
    for (std::thread& each : threads) each.join();
    REQUIRE(closed == 1);
    CHECK(hybridge_session_close(hybridge_session{chat.id - 1}), HYBRIDGE_INVALID_HANDLE);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5) return 2;
  std::thread([] {
    std::this_thread::sleep_for(240s);
    fail("it waits for ever", 0);
  }).detach();
  Models models;
  OK(hybridge_artifact_open(argv[1], &models.artifact));
  OK(hybridge_artifact_model(models.artifact, &models.target));
  OK(hybridge_model_open(argv[2], &models.draft));
  for (int word = 3; word < argc; ++word) models.prompt.push_back(std::atoll(argv[word]));
  getters_and_closes_wait_for_nobody(models);
  generations_take_turns(models);
  no_cancel_is_lost(models);
  callbacks_across_models_end(models);
  callbacks_close(models);
  callbacks_throw(models);
  chats_close_while_others_send(models);
  OK(hybridge_model_close(models.draft));
  OK(hybridge_artifact_close(models.artifact));
  std::puts("done");
  std::fflush(stdout);
  std::_Exit(0);  // the watchdog sleeps
}
