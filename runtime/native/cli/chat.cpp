// hybridge-cli chat: talks with a model; a line, or the lines between three quotes, are a message or a command that
// begins with a slash.

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <unistd.h>

#include "arguments.h"
#include "chat_options.h"
#include "commands.h"
#include "failure.h"
#include "output.h"
#include "shown_answer.h"
#include "stats.h"
#include "text_model.h"

namespace hybridge::cli {

namespace {

constexpr size_t MOST_BYTES = size_t(1) << 40;
constexpr int INTERRUPTED = 130;
constexpr double OTHER_TEMPERATURE = 0.7;  // of another answer, where the first one was greedy
constexpr char QUOTES[] = "\"\"\"";
constexpr char HELP
    [] = "/undo         take the last message and its answer back\n"
         "/retry        another answer to the last message\n"
         "/continue     go on with an answer that ended by its length\n"
         "/result TEXT  what a tool that the answer calls has found; one for each call\n"
         "/image FILE   a picture before the next message\n"
         "/system TEXT  tell the model something else; \"\" for nothing\n"
         "/set NAME VALUE  temperature, top_k and others; /set shows them\n"
         "/tokens       how full the context is\n"
         "/save FILE    keep the conversation and the model's state\n"
         "/load FILE    continue a saved one\n"
         "/reset        start anew\n"
         "/stats        what the last answer took\n"
         "/help         this\n"
         "/exit         leave (also Ctrl-D); Ctrl-C clears the line, or stops an answer\n"
         "\"\"\"           begins and ends a message of several lines\n";

// Ctrl-C, which a thread waits for: it stops the answer that is being given. Otherwise it clears a terminal's line, as
// the terminal itself has done then, and ends a process that reads from something else.
class Interrupts {
 public:
  // Called before other threads begin: theirs is the mask of the thread that starts them.
  static void begin() {
    const sigset_t blocked = interrupt();
    ::pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
    std::thread([] {
      const sigset_t signals = interrupt();
      for (int number; ::sigwait(&signals, &number) == 0;) {
        if (const hybridge_chat chat = answering_; chat.id != 0) {
          (void)hybridge_chat_cancel(chat);
        } else if (::isatty(STDIN_FILENO)) {
          constexpr char said[] = "\n/exit or Ctrl-D leaves\n> ";
          (void)!::write(2, said, sizeof(said) - 1);
        } else {
          constexpr char said[] = "\nInterrupted.\n";
          (void)!::write(2, said, sizeof(said) - 1);
          std::_Exit(INTERRUPTED);
        }
      }
    }).detach();
  }

  // An answer, as long as it is given.
  class Answer {
   public:
    explicit Answer(hybridge_chat chat) { answering_ = chat; }
    Answer(const Answer&) = delete;
    Answer& operator=(const Answer&) = delete;
    ~Answer() { answering_ = hybridge_chat{}; }
  };

 private:
  static sigset_t interrupt() {
    sigset_t signals;
    ::sigemptyset(&signals);
    ::sigaddset(&signals, SIGINT);
    return signals;
  }

  static inline std::atomic<hybridge_chat> answering_ = {};
};

std::string file_name(const std::string& argument, const std::string& command) {
  if (argument.empty()) throw Misuse(command + " needs the name of a file, such as " + command + " talk.state.");
  const char* home = std::getenv("HOME");
  return argument.starts_with("~/") && home != nullptr ? home + argument.substr(1) : argument;
}

std::string trimmed(const std::string& line) {
  constexpr char BLANKS[] = " \t\r\n\f\v";
  const size_t begin = line.find_first_not_of(BLANKS);
  return begin == line.npos ? "" : line.substr(begin, line.find_last_not_of(BLANKS) + 1 - begin);
}

bool is_open(const std::string& text) {
  return text.starts_with(QUOTES) && (text.size() < 6 || !text.ends_with(QUOTES));
}

// Reads a line, or the lines between three quotes; nothing at the end.
std::optional<std::string> read_message() {
  std::fputs("> ", stderr);
  std::string text, line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  for (text = trimmed(line); is_open(text); text = trimmed(text + "\n" + line)) {
    std::fputs(". ", stderr);
    if (!std::getline(std::cin, line)) return trimmed(text.substr(3));
  }
  return text.starts_with(QUOTES) ? trimmed(text.substr(3, text.size() - 6)) : text;
}

class Terminal {
 public:
  Terminal(TextModel& model, hybridge_chat chat, const TextOptions& options, bool prints_stats)
      : model_(model), chat_(chat), prints_stats_(prints_stats) {
    use(options);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  // Reads one message after the other. Errors are printed, and change nothing.
  void loop() {
    std::fputs("/help lists the commands\n", stderr);
    while (!ended_) {
      const auto message = read_message();
      if (!message) return;
      try {
        follow(*message);
      } catch (const Failure& failure) {
        std::fprintf(stderr, "Error: %s\n", failure.what());
      }
    }
  }

  void load(const std::string& path) {
    check(hybridge_chat_load(chat_, path.c_str()), path + " cannot be gone on with");
    std::fprintf(stderr, "%s\n", exchanges().c_str());
  }

 private:
  void follow(const std::string& line) {
    if (line.empty()) return;
    if (line[0] != '/' || line.find('\n') != line.npos) {
      // Pictures that the message does not fit with wait for the next one.
      if (answer([&](auto... rest) { return hybridge_chat_send(chat_, line.data(), line.size(), rest...); })) {
        pictures_.clear();
        retries_ = 0;
      }
      return;
    }
    const size_t blank = line.find(' ');
    const std::string name = line.substr(0, blank), argument = blank == line.npos ? "" : trimmed(line.substr(blank));
    if (name == "/undo") {
      check(hybridge_chat_undo(chat_), "there is nothing to undo");
      std::fprintf(stderr, "%s left\n", exchanges().c_str());
    } else if (name == "/retry") {
      retry();
    } else if (name == "/continue") {
      answer([&](auto... rest) { return hybridge_chat_continue(chat_, rest...); });
    } else if (name == "/system") {
      const std::string told = argument == "\"\"" || argument == "none" ? "" : argument;
      if (argument.empty()) throw Misuse("/system needs what the model is told, or \"\" for nothing.");
      check(hybridge_chat_set_system(chat_, told.data(), told.size()), "the model cannot be told that");
    } else if (name == "/set") {
      set(argument);
    } else if (name == "/tokens") {
      size_t count = 0;
      check(hybridge_tokens(model_.session(), nullptr, 0, &count), "the conversation cannot be read");
      std::fprintf(stderr, "%zu tokens are used, %lld fit\n", count, static_cast<long long>(room()));
    } else if (name == "/result") {
      give_result(argument);
    } else if (name == "/image") {
      add_picture(file_name(argument, name));
    } else if (name == "/save") {
      check(hybridge_chat_save(chat_, file_name(argument, name).c_str()), "the conversation is not saved");
      std::fprintf(stderr, "saved; go on with /load %s\n", argument.c_str());
    } else if (name == "/load") {
      load(file_name(argument, name));
    } else if (name == "/reset") {
      check(hybridge_chat_reset(chat_), "the chat cannot begin anew");
      pictures_.clear();
      show_pictures();
    } else if (name == "/stats") {
      print_stats(last_.prompt_tokens, last_.generated);
    } else if (name == "/help") {
      std::fputs(HELP, stderr);
    } else if (name == "/exit") {
      ended_ = true;
    } else {
      throw Misuse("there is no command " + name + "; /help lists them. A message cannot begin with a slash.");
    }
  }

  // Uses other options for the next answers. Throws Misuse, and changes nothing then.
  void use(const TextOptions& options) {
    GrammarHandle grammar = model_.grammar(options);
    (void)model_.generation(options, model_.sampling(options));
    options_ = options;
    sampling_ = model_.sampling(options_);
    grammar_ = std::move(grammar);
    generation_ = model_.generation(options_, sampling_);
    generation_.grammar = grammar_;
    stops_.clear();
    for (const std::string& each : options_.stop) stops_.push_back(each.c_str());
  }

  // Changes an option of the answers, by the name that it has on the command line; lists them without one.
  void set(const std::string& argument) {
    TextOptions changed = options_;
    Arguments arguments("chat", "/set NAME VALUE changes what these options say, such as /set temperature 0.7:");
    changed.declare(arguments);
    if (argument.empty()) {
      std::fputs(arguments.help().c_str(), stderr);
      return;
    }
    const size_t end = argument.find_first_of(" =");
    std::string name = "--" + argument.substr(0, end);
    std::ranges::replace(name, '_', '-');
    const std::string value = end == argument.npos ? "" : trimmed(argument.substr(end + 1));
    if (value.empty()) throw Misuse("/set needs a value after the name, such as /set temperature 0.7.");
    const char* const words[] = {name.c_str(), value.c_str()};
    if (arguments.read(words)) use(changed);
  }

  // Answers the last message in another way: by another seed, and not greedily.
  void retry() {
    const hybridge_sampling usual = sampling_;
    ++retries_;
    if (usual.temperature == 0) {
      std::fprintf(stderr, "greedy answers stay the same: this one has a temperature of %.1f\n", OTHER_TEMPERATURE);
      sampling_.temperature = OTHER_TEMPERATURE;
      sampling_.has_seed = 1;
    }
    sampling_.seed += retries_;
    try {
      answer([&](auto... rest) { return hybridge_chat_retry(chat_, rest...); });
    } catch (...) {
      sampling_ = usual;
      throw;
    }
    sampling_ = usual;
  }

  // The answer comes with the last result that the calls wait for.
  void give_result(const std::string& text) {
    const size_t wanted = open_calls();
    if (wanted == 0) throw Misuse("the last answer calls no tool, so there is nothing to answer with /result.");
    results_.push_back(text);
    if (results_.size() < wanted) {
      std::fprintf(stderr, "%zu more results\n", wanted - results_.size());
      return;
    }
    std::vector<hybridge_result> given;
    for (const std::string& each : results_) given.push_back({each.data(), each.size()});
    answer([&](auto... rest) { return hybridge_chat_give_results(chat_, given.data(), given.size(), rest...); });
  }

  void add_picture(const std::string& path) {
    pictures_.push_back(model_.picture(path));
    size_t tokens = 0;
    hybridge_pictured parts = {};
    check(hybridge_picture_ids(pictures_.back(), nullptr, 0, &tokens, &parts), "the picture cannot be read");
    show_pictures();
    const std::string tiles = parts.parts > 1 ? formatted(" in %zu x %zu tiles", parts.rows, parts.columns) : "";
    std::fprintf(stderr, "a picture of %zu tokens%s before the next message\n", tokens, tiles.c_str());
  }

  // Puts the pictures before the next message.
  void show_pictures() {
    const std::vector<hybridge_picture> handles(pictures_.begin(), pictures_.end());
    check(hybridge_chat_show(chat_, handles.data(), handles.size()), "the pictures cannot be shown");
  }

  // Writes an answer as it comes; returns whether it has begun. Ctrl-C stops it; its text so far stays.
  template <typename Ask>
  bool answer(Ask&& ask) {
    results_.clear();
    ShownAnswer shown;
    hybridge_answer done = {};
    hybridge_status status;
    {
      const Interrupts::Answer interruptible(chat_);
      status = ask(&generation_, stops_.data(), stops_.size(), &ShownAnswer::show, static_cast<void*>(&shown), &done);
    }
    if (status == HYBRIDGE_CANCELLED) {
      std::fputs("(stopped before the answer began)\n", stderr);
      return false;
    }
    check(status, "there is no answer");
    shown.end();
    last_ = done;
    if (done.dropped_messages > 0)
      std::fprintf(stderr, "the context was full: the oldest %zu messages were dropped\n", done.dropped_messages);
    if (done.ending == HYBRIDGE_ENDED_BY_CALLER) std::fputs("(stopped)\n", stderr);
    if (prints_stats_) print_stats(done.prompt_tokens, done.generated);
    if (const size_t calls = open_calls(); calls > 0)
      std::fprintf(stderr, "/result TEXT answers a call; %zu wait\n", calls);
    if (room() == 0) {
      std::fputs("The context is full: with the next message the oldest ones are dropped.\n", stderr);
    } else if (done.ending == HYBRIDGE_ENDED_BY_LENGTH) {
      std::fprintf(stderr, "(ended after %zu tokens; /continue goes on)\n", done.generated.tokens);
    }
    return true;
  }

  // Returns the number of tokens that still fit.
  int64_t room() {
    size_t count = 0;
    int64_t room = 0;
    check(hybridge_chat_messages(chat_, nullptr, 0, &count, &room), "the conversation cannot be read");
    return room;
  }

  std::vector<hybridge_message> messages() {
    size_t count = 0;
    check(hybridge_chat_messages(chat_, nullptr, 0, &count, nullptr), "the conversation cannot be read");
    std::vector<hybridge_message> messages(count);
    check(hybridge_chat_messages(chat_, messages.data(), count, &count, nullptr), "the conversation cannot be read");
    return messages;
  }

  // Returns how many there are, such as "1 exchange".
  std::string exchanges() {
    const auto is_users = [](const hybridge_message& each) { return std::string_view(each.role) == "user"; };
    const auto all = messages();
    const auto count = std::ranges::count_if(all, is_users);
    return std::to_string(count) + (count == 1 ? " exchange" : " exchanges");
  }

  // Returns the number of calls of the last answer, which wait for results.
  size_t open_calls() {
    const auto all = messages();
    return all.empty() || std::string_view(all.back().role) != "assistant" ? 0 : all.back().call_count;
  }

  TextModel& model_;
  hybridge_chat chat_;
  std::vector<PictureHandle> pictures_;  // before the next message
  std::vector<std::string> results_;     // of some of the calls that wait
  TextOptions options_;
  hybridge_sampling sampling_;
  hybridge_generation generation_;
  GrammarHandle grammar_;
  std::vector<const char*> stops_;
  hybridge_answer last_ = {};
  uint64_t retries_ = 0;
  bool prints_stats_, ended_ = false;
};

}  // namespace

void chat(Words words) {
  std::string artifact;
  std::optional<std::string> saved;
  ChatOptions chat_options;
  TextOptions text_options;
  ModelOptions model_options;
  bool stats = false;
  size_t bytes = 0;
  Arguments arguments("chat", "Talk with a model; /help lists the commands. Answers go to stdout.");
  arguments.word("ARTIFACT", "An exported artifact: the folder that 'hybridge export' wrote.", artifact);
  chat_options.declare(arguments);
  arguments.text("--load", "FILE", "Continue a saved conversation.", saved);
  text_options.declare(arguments);
  model_options.declare(arguments);
  arguments.whole(
      "--cache-bytes", "Bytes of memory for checkpoints of earlier texts; 256 MB if left out.", bytes, 1, MOST_BYTES
  );
  arguments.flag(
      "--strict-reuse",
      "Of an artifact with --delegate, reuse a text only if its tokens were read by the accelerator and the CPU as "
      "they would be now.",
      model_options.strict_reuse
  );
  arguments.flag("--stats", "Say on stderr what each answer took.", stats);
  if (!arguments.read(words)) return;
  chat_options.check();

  const ArtifactFolder folder(artifact);
  Interrupts::begin();
  TextModel model(folder, model_options);
  const ChatHandle chat = chat_options.open(folder, model, bytes);
  Terminal terminal(model, chat, text_options, stats);
  if (saved) terminal.load(*saved);
  terminal.loop();
}

}  // namespace hybridge::cli
