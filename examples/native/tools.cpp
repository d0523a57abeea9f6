// A chat whose model may call two tools: the time, and notes that it keeps.   tools FOLDER
#include <cstdio>
#include <ctime>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <hybridge/hybridge.hpp>

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

int fail(const hybridge::Status& status) { return std::fprintf(stderr, "tools: %s\n", status.words().c_str()), 1; }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: tools FOLDER, which 'hybridge export' wrote\n"), 2;
  auto artifact = hybridge::Artifact::open(argv[1]);
  if (!artifact.ok()) return fail(artifact.status());
  hybridge_chat_options options = hybridge_chat_options_defaults();
  options.tools = TOOLS;
  auto chat = hybridge::Chat::open(*artifact, options);
  if (!chat.ok()) return fail(chat.status());

  std::vector<std::string> results;
  // Called for each token of an answer; runs the tools that it calls. False would end the answer.
  const auto show = [&](const hybridge::Piece& piece) {
    std::fwrite(piece.content.data(), 1, piece.content.size(), stdout);
    for (const hybridge::ToolCall& each : piece.calls) {
      const std::string name(each.name), arguments(each.arguments);
      std::printf("[%s %s]\n", name.c_str(), arguments.c_str());
      results.push_back(call(name, arguments));
    }
    return std::fflush(stdout) == 0;
  };
  for (std::string line; std::getline(std::cin, line);) {
    auto status = chat->send(line, show).status();
    while (status.ok() && !results.empty()) status = chat->give_results(std::exchange(results, {}), show).status();
    if (!status.ok()) fail(status);
    std::puts("");
  }
  return 0;
}
