// hybridge-cli run: continues a text, or answers a message, and shows it as it comes.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "../text/unicode.h"
#include "chat_options.h"
#include "commands.h"
#include "failure.h"
#include "output.h"
#include "shown_answer.h"
#include "stats.h"
#include "text_model.h"

namespace hybridge::cli {

namespace {

constexpr size_t LARGEST_PROMPT = 64 << 20;  // bytes; far more than any artifact holds tokens

std::string checked_utf8(std::string text, const std::string& name) {
  if (!text::is_valid_utf8(text)) throw Misuse(name + " is not UTF-8 text; convert it.");
  return text;
}

// All of a stream without its last line break, which belongs to the file.
std::string read_text(std::FILE* source, const std::string& name) {
  std::string text;
  char chunk[1 << 16];
  while (const size_t count = std::fread(chunk, 1, sizeof chunk, source)) {
    text.append(chunk, count);
    if (text.size() > LARGEST_PROMPT) {
      throw Misuse(name + " has more than 64 MB, which no artifact can read; give a shorter text.");
    }
  }
  if (std::ferror(source)) throw Misuse(name + " cannot be read (" + std::strerror(errno) + "); give a text file.");
  if (text.ends_with('\n')) text.pop_back();
  if (text.ends_with('\r')) text.pop_back();
  return checked_utf8(std::move(text), name);
}

std::string read_prompt(const std::optional<std::string>& prompt, const std::optional<std::string>& file) {
  if (prompt && file) throw Misuse("--prompt and --prompt-file exclude each other; give one of them.");
  if (!prompt && !file) {
    throw Misuse("there is no text to continue; give --prompt TEXT, --prompt - for stdin, or --prompt-file FILE.");
  }
  if ((prompt ? *prompt : *file) == "-") return read_text(stdin, "stdin");
  if (prompt) return checked_utf8(*prompt, "--prompt");
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> opened(std::fopen(file->c_str(), "rb"), std::fclose);
  if (opened == nullptr) throw Misuse(*file + " cannot be read (" + std::strerror(errno) + "); give a text file.");
  return read_text(opened.get(), *file);
}

std::string openai_call(const hybridge_call& call) {
  return "{\"id\": " + quoted(call.id) +
         ", \"type\": \"function\", \"function\": {\"name\": " + quoted({call.name, call.name_size}) +
         ", \"arguments\": " + quoted({call.arguments, call.arguments_size}) + "}}";
}

// An answer for --json, which is shown once it is whole. calls: as OpenAI's API has them, with commas between.
struct WholeAnswer {
  std::string content = {}, reasoning = {}, calls = {};

  static int add(const hybridge_piece* piece, void* answer) {
    WholeAnswer& whole = *static_cast<WholeAnswer*>(answer);
    whole.content.append(piece->content, piece->content_size);
    whole.reasoning.append(piece->reasoning, piece->reasoning_size);
    for (const hybridge_call& each : std::span(piece->calls, piece->call_count)) {
      whole.calls += (whole.calls.empty() ? "" : ", ") + openai_call(each);
    }
    return 1;
  }
};

void print_json(const std::string& prompt, const WholeAnswer& answer, const GeneratedText& done) {
  const hybridge_generated& counts = done.counts;
  JsonObject shown;
  shown.add("prompt", prompt);
  shown.add("text", answer.content);
  if (!answer.reasoning.empty()) shown.add("reasoning_content", answer.reasoning);
  if (!answer.calls.empty()) shown.put("tool_calls", "[" + answer.calls + "]");
  shown.add("finish_reason", done.ended ? "stop" : "length");
  shown.add("prompt_tokens", done.prompt_tokens);
  shown.add("new_tokens", counts.tokens);
  shown.add("proposed", counts.proposed);
  shown.add("accepted", counts.accepted);
  shown.add("verifies", counts.verifies);
  shown.add("decodes", counts.decodes);
  shown.add("rollbacks", counts.rollbacks);
  shown.add("prefill_seconds", counts.prefill_seconds);
  shown.add("draft_seconds", counts.draft_seconds);
  shown.add("verify_seconds", counts.verify_seconds);
  shown.add("commit_seconds", counts.commit_seconds);
  shown.add("decode_seconds", counts.decode_seconds);
  shown.add("new_seconds", counts.new_seconds);
  shown.add("tokens_per_second", tokens_per_second(counts));
  write_out(shown.text());
}

}  // namespace

void run(Words words) {
  std::string artifact;
  std::optional<std::string> prompt, prompt_file;
  std::vector<std::string> images;
  ChatOptions chat_options;
  TextOptions text_options;
  ModelOptions model_options;
  bool chat = false, stats = false, json = false;
  Arguments arguments(
      "run", "Continue a text by speculative decoding; greedy output is the same with every drafter and without."
  );
  arguments.word("ARTIFACT", "An exported artifact: the folder that 'hybridge export' wrote.", artifact);
  arguments.text("--prompt", "TEXT", "Text to continue; - reads it from stdin.", prompt);
  arguments.text("--prompt-file", "FILE", "A file with the text; - is stdin.", prompt_file);
  arguments.flag(
      "--chat", "The text is a message: the chat template goes around it. The next five options imply it.", chat
  );
  arguments.texts(
      "--image", "FILE", "A picture before the message, for a model that takes some; may be given several times.",
      images
  );
  chat_options.declare(arguments);
  text_options.declare(arguments);
  model_options.declare(arguments);
  arguments.flag("--stats", "Say on stderr what was accepted and how fast it was.", stats);
  arguments.flag("--json", "Print the result as JSON on stdout.", json);
  if (!arguments.read(words)) return;
  chat_options.check();

  const std::string text = read_prompt(prompt, prompt_file);
  const ArtifactFolder folder(artifact);
  TextModel model(folder, model_options);
  GeneratedText done;
  WholeAnswer whole;
  if (!chat && images.empty() && !chat_options.are_given()) {
    bool started = false;
    const auto show = [&](std::string_view piece) {
      if (json) {
        whole.content += piece;
        return;
      }
      if (!started) write_out(text);  // not earlier: a prompt that is refused is not shown
      started = true;
      write_out(piece);
    };
    done = model.generate(model.encode(text), text_options, show);
    if (!json) write_out("\n");
  } else {
    std::vector<PictureHandle> pictures;
    for (const std::string& each : images) pictures.push_back(model.picture(each));
    const ChatHandle opened = chat_options.open(folder, model);
    ShownAnswer shown;
    if (json) done = model.answer(opened, text, pictures, text_options, &WholeAnswer::add, &whole);
    else done = model.answer(opened, text, pictures, text_options, &ShownAnswer::show, &shown);
    if (!json) shown.end();
  }
  if (json) print_json(text, whole, done);
  else if (stats) print_stats(done.prompt_tokens, done.counts);
}

}  // namespace hybridge::cli
