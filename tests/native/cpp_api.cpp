// hybridge/hybridge.hpp as an app in C++ uses it.   cpp_api FOLDER MESSAGE TOKEN ...
//
// Prints the tokens that follow the prompt, plain and by a drafter of the app's own, then the answer to the message.
#include <hybridge/hybridge.hpp>

#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {

// Ends the program, in words, where something else than expected came.
void expect(bool is_right, const std::string& what) {
  if (is_right) return;
  std::fprintf(stderr, "cpp_api: %s\n", what.c_str());
  std::exit(1);
}

template <typename T>
T works(hybridge::Result<T> result) {
  expect(result.ok(), result.status().words());
  return std::move(*result);
}

void works(const hybridge::Status& status) { expect(status.ok(), status.words()); }

std::vector<int64_t> generated(
    hybridge::Session& session, hybridge::Tokens prompt, const hybridge::Generation& options
) {
  std::vector<int64_t> tokens;
  works(session.reset());
  const auto done = works(session.generate(prompt, options, [&](int64_t token) {
    tokens.push_back(token);
    return true;
  }));
  expect(done.tokens == tokens.size(), "generated counts other tokens");
  return tokens;
}

void in_tokens(const hybridge::Model& model, hybridge::Tokens prompt) {
  auto session = works(hybridge::Session::open(model));
  const auto plain = generated(session, prompt, {.max_new_tokens = 20, .drafter = HYBRIDGE_NO_DRAFTER});
  for (const int64_t token : plain) std::printf("%lld ", static_cast<long long>(token));

  // By a drafter that knows what comes, and by one that never does.
  for (const bool knows : {true, false}) {
    size_t asked = 0;
    hybridge::Drafter drafter;
    drafter.propose = [&](hybridge::Tokens text, size_t) {
      ++asked;
      const auto known = static_cast<ptrdiff_t>(text.size() - prompt.size());
      hybridge::Proposal proposal{{plain.begin() + known, plain.end()}};
      for (int64_t& token : proposal.tokens) token = knows ? token : token == 0;
      proposal.confidences.assign(proposal.tokens.size(), 0.9);
      return proposal;
    };
    hybridge::Generation options{.max_new_tokens = 20, .block_length = 4, .drafter = HYBRIDGE_CALLBACK_DRAFTER};
    options.own_drafter = &drafter;
    expect(generated(session, prompt, options) == plain && asked > 0, "a drafter changed the text, or was not asked");
  }

  // A checkpoint goes on where it was made, and a handle that was moved from closes nothing.
  works(session.reset());
  works(session.prefill(prompt));
  auto checkpoint = works(session.checkpoint());
  works(session.decode(prompt.front()));
  works(session.resume(checkpoint));
  expect(works(session.tokens()).size() == prompt.size(), "resume came to another length");
  auto moved = std::move(session);
  expect(session.id().id == 0 && moved.tokens().ok(), "a session was not moved");
  auto cache = works(hybridge::Cache::open(model, 1 << 20));
  expect(works(moved.bring_to(prompt, cache)) == prompt.size(), "tokens were read again");

  // Failures have a code and words; what a callback throws is one of them.
  const int64_t outside = works(model.info()).vocab_size;
  const auto refused = moved.decode(outside);
  expect(refused.code() == HYBRIDGE_INVALID_TOKEN && !refused.words().empty(), "a token was not refused in words");
  const auto thrown = moved.generate(prompt, {.drafter = HYBRIDGE_NO_DRAFTER}, [](int64_t) -> bool {
    throw std::runtime_error("on_token has thrown");
  });
  expect(thrown.status().code() == HYBRIDGE_CALLBACK_FAILED, "what a callback throws has another status");
  expect(!hybridge::Model::open("nowhere.pte").ok(), "a file that is not there was opened");
}

void in_words(const hybridge::Artifact& artifact, const char* message) {
  auto chat = works(hybridge::Chat::open(artifact));
  std::string said;
  const auto answer = works(chat.send(message, [&](const hybridge::Piece& piece) {
    said += piece.content;
    return true;
  }));
  expect(answer.generated.tokens > 0, "an answer has no tokens");
  works(chat.undo());
  std::string again;
  works(chat.send(message, [&](const hybridge::Piece& piece) {
    again += piece.content;
    return true;
  }));
  expect(again == said, "an answer is another one after undo");
  std::printf("\n%s\n", said.c_str());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::vector<int64_t> prompt;
  for (int i = 3; i < argc; ++i) prompt.push_back(std::atoll(argv[i]));
  in_tokens(works(hybridge::Model::open(std::string(argv[1]) + "/model.pte")), prompt);
  in_words(works(hybridge::Artifact::open(argv[1])), argv[2]);
  return 0;
}
