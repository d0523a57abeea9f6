// Reads tokenizers and texts, each pair behind its length, and answers each with a line; see driver.py. A pair is the length of the
// file (uint32), the file and the text.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "text/tokenizer.h"

namespace {

using namespace hybridge::text;

std::string answer(std::string_view json, std::string_view text) {
  try {
    const Tokenizer tokenizer(json);
    const TextPart people[] = {{0, text.size() / 4}, {text.size() / 2, text.size()}};
    for (const bool flag : {true, false}) {
      std::vector<uint32_t> ids;
      for (const TextToken& token : tokenizer.encode(text, flag, flag ? std::span<const TextPart>() : people)) {
        if (token.begin > token.end) return "wrong: a token ends before it begins";
        ids.push_back(token.id);
      }
      tokenizer.decode(ids, flag);
      TextStream stream(tokenizer, flag);
      for (const uint32_t id : ids) stream.push(id);
      stream.finish();
    }
    return "accepted";
  } catch (const TokenizerError& error) {
    std::string reason = error.what();
    for (char& each : reason) each = each < ' ' ? ' ' : each;
    return "refused: " + reason.substr(0, 200);
  }
}

}  // namespace

int main() {
  uint32_t length;
  std::string data;
  while (std::fread(&length, sizeof length, 1, stdin) == 1) {
    data.resize(length);
    if (length < 4 || std::fread(data.data(), 1, length, stdin) != length) return 3;
    uint32_t file;
    std::memcpy(&file, data.data(), 4);
    const std::string_view all = std::string_view(data).substr(4);
    std::puts(answer(all.substr(0, file), all.substr(file)).c_str());
    std::fflush(stdout);
  }
}
