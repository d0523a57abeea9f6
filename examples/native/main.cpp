// A chat at a terminal over an artifact's folder: words in, words out.   talk FOLDER
// /undo takes the last message back, /retry answers it again, /save FILE and /load FILE keep the conversation.
#include <cstdio>
#include <iostream>
#include <string>

#include <hybridge/hybridge.hpp>

namespace {

// Called for each token of an answer; false would end it.
bool show(const hybridge::Piece& piece) {
  std::fwrite(piece.content.data(), 1, piece.content.size(), stdout);
  return std::fflush(stdout) == 0;
}

hybridge::Status answer(hybridge::Chat& chat, const std::string& line) {
  if (line == "/undo") return chat.undo();
  if (line == "/retry") return chat.retry(show).status();
  if (line.starts_with("/save ")) return chat.save(line.substr(6));
  if (line.starts_with("/load ")) return chat.load(line.substr(6));
  return chat.send(line, show).status();
}

int fail(const hybridge::Status& status) { return std::fprintf(stderr, "talk: %s\n", status.words().c_str()), 1; }

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return std::fprintf(stderr, "usage: talk FOLDER, which 'hybridge export' wrote\n"), 2;
  auto artifact = hybridge::Artifact::open(argv[1]);
  if (!artifact.ok()) return fail(artifact.status());
  auto chat = hybridge::Chat::open(*artifact);
  if (!chat.ok()) return fail(chat.status());
  for (std::string line; std::getline(std::cin, line);) {
    if (const auto status = answer(*chat, line); !status.ok()) fail(status);
    std::puts("");
  }
  return 0;
}
