// A chat at a terminal over an artifact's folder: words in, words out.   talk FOLDER
// /undo takes the last message back, /retry answers it again, /save FILE and /load FILE keep the conversation.
#include <cstdio>
#include <iostream>
#include <string>

#include <hybridge/hybridge.h>

namespace {

// Called for each token of an answer; 0 would end it.
int show(const hybridge_piece* piece, void*) {
  std::fwrite(piece->content, 1, piece->content_size, stdout);
  return std::fflush(stdout) == 0;
}

hybridge_status answer(hybridge_chat chat, const std::string& line) {
  if (line == "/undo") return hybridge_chat_undo(chat);
  if (line == "/retry") return hybridge_chat_retry(chat, nullptr, nullptr, 0, show, nullptr, nullptr);
  if (line.starts_with("/save ")) return hybridge_chat_save(chat, line.c_str() + 6);
  if (line.starts_with("/load ")) return hybridge_chat_load(chat, line.c_str() + 6);
  return hybridge_chat_send(chat, line.data(), line.size(), nullptr, nullptr, 0, show, nullptr, nullptr);
}

bool works(hybridge_status status) {
  if (status != HYBRIDGE_OK) std::fprintf(stderr, "talk: %s\n", hybridge_failure());
  return status == HYBRIDGE_OK;
}

}  // namespace

int main(int argc, char** argv) {
  hybridge_artifact artifact;
  hybridge_chat chat;
  if (argc != 2) return std::fprintf(stderr, "usage: talk FOLDER, which 'hybridge export' wrote\n"), 2;
  if (!works(hybridge_artifact_open(argv[1], &artifact)) || !works(hybridge_chat_open(artifact, nullptr, &chat)))
    return 1;
  for (std::string line; std::getline(std::cin, line);) {
    works(answer(chat, line));
    std::puts("");
  }
  return 0;
}
