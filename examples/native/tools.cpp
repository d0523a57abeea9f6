// A chat whose model may call two tools: the time, and notes that it keeps.   tools FOLDER
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <hybridge/hybridge.h>

namespace {

constexpr const char* TOOLS = R"([
  {"type": "function", "function": {"name": "time", "description": "Get the local time.",
    "parameters": {"type": "object", "properties": {}}}},
  {"type": "function", "function": {"name": "keep_note", "description": "Keep a note for later.",
    "parameters": {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}}}])";

// Runs a tool. arguments: a JSON object, which an app reads with a library of its own.
std::string call(const std::string& name, const std::string& arguments) {
  static std::vector<std::string> notes;
  if (name == "keep_note") {
    notes.push_back(arguments);
    return "There are " + std::to_string(notes.size()) + " notes.";
  }
  if (name != "time") return "There is no tool of this name.";
  const std::time_t now = std::time(nullptr);
  return std::ctime(&now);
}

// Called for each token of an answer; runs the tools that it calls. 0 would end the answer.
int show(const hybridge_piece* piece, void* results) {
  std::fwrite(piece->content, 1, piece->content_size, stdout);
  for (size_t i = 0; i < piece->call_count; ++i) {
    const hybridge_call& each = piece->calls[i];
    const std::string name(each.name, each.name_size), arguments(each.arguments, each.arguments_size);
    std::printf("[%s %s]\n", name.c_str(), arguments.c_str());
    static_cast<std::vector<std::string>*>(results)->push_back(call(name, arguments));
  }
  return std::fflush(stdout) == 0;
}

bool works(hybridge_status status) {
  if (status != HYBRIDGE_OK) std::fprintf(stderr, "tools: %s\n", hybridge_failure());
  return status == HYBRIDGE_OK;
}

}  // namespace

int main(int argc, char** argv) {
  hybridge_artifact artifact;
  hybridge_chat chat;
  if (argc != 2) return std::fprintf(stderr, "usage: tools FOLDER, which 'hybridge export' wrote\n"), 2;
  hybridge_chat_options options = hybridge_chat_options_defaults();
  options.tools = TOOLS;
  if (!works(hybridge_artifact_open(argv[1], &artifact)) || !works(hybridge_chat_open(artifact, &options, &chat)))
    return 1;
  for (std::string line; std::getline(std::cin, line);) {
    std::vector<std::string> results;
    bool is_answered = works(
        hybridge_chat_send(chat, line.data(), line.size(), nullptr, nullptr, 0, show, &results, nullptr)
    );
    while (is_answered && !results.empty()) {
      const std::vector<std::string> given = std::exchange(results, {});
      std::vector<hybridge_result> views;
      for (const std::string& each : given) views.push_back({each.data(), each.size()});
      is_answered = works(
          hybridge_chat_give_results(chat, views.data(), views.size(), nullptr, nullptr, 0, show, &results, nullptr)
      );
    }
    std::puts("");
  }
  return 0;
}
