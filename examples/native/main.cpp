// Two chat turns with the demo's model: the text comes token by token, the second turn goes back to before the first, and the
// conversation is saved for another process.   talk MODEL.pte QUESTION [STATE]
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include <hybridge/speculative.h>

namespace {

// The demo's model reads bytes: a token for each. An app has its tokenizer here.
std::vector<int64_t> encode(const std::string& text) {
  return {reinterpret_cast<const unsigned char*>(text.data()), reinterpret_cast<const unsigned char*>(text.data()) + text.size()};
}

bool show(int64_t token) {
  if (token < 256) std::putchar(static_cast<int>(token));
  return token < 256;
}

int fail(const char* what, hybridge::Error error) {
  std::fprintf(stderr, "talk: %s: %s\n", what, executorch::runtime::to_string(error));
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return std::fprintf(stderr, "usage: talk MODEL.pte QUESTION [STATE]\n"), 2;
  const auto model = hybridge::Model::load(argv[1]);
  if (!model.ok()) return fail("the model does not load", model.error());
  const auto created = hybridge::Session::create(*model);
  if (!created.ok()) return fail("no session", created.error());
  hybridge::Session& session = **created;

  const std::vector<int64_t> turn = encode("\n\n# " + std::string(argv[2]) + "\n");  // the demo's chat template
  session.prefill(turn);
  session.snapshot(0);  // an undo costs nothing: it is a place to come back to
  hybridge::PromptLookup lookup;
  for (const char* start : {"def ", "import "}) {
    session.restore(0);
    std::printf("%s", start);
    const auto done = hybridge::generate(session, encode(start), {.max_new_tokens = 48}, lookup, show);
    if (!done.ok()) return fail("the turn failed", done.error());
    std::printf("\n[%zu tokens, %zu of %zu draft tokens accepted]\n", done->tokens.size(), done->accepted, done->proposed);
  }
  if (argc > 3) {
    if (const auto error = session.save(argv[3]); error != hybridge::Error::Ok) return fail("the state is not saved", error);
  }
  return 0;
}
