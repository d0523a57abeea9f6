// ExecuTorch's TextLLMRunner in C++, by the protocol of protocol.py. Numbers are bytes of text.
//
//   text_llm_runner MODEL.pte TOKENIZER [LIBRARY ...]    libraries bring operators, such as llama::
//
// ExecuTorch's wheels have the compiled class in the library behind their Python module, and no header of it. So the
// part that is called is declared here, as 1.4.1 and 1.5.1 compiled it; of a version that has other functions this does
// not link.

#include <dlfcn.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace tokenizers {
class Tokenizer {
 public:
  virtual ~Tokenizer();
};
}  // namespace tokenizers

namespace executorch {
namespace runtime {
enum class Error : uint32_t;
}
namespace extension {
namespace module {
struct Module {
  enum class LoadMode { File, Mmap };
};
}  // namespace module
namespace llm {

struct Stats;

struct GenerationConfig {
  bool echo = false;
  std::string grammar, grammar_type;
  bool ignore_eos = false;
  int32_t max_new_tokens = -1;
  bool warming = false;
  int32_t seq_len = -1;
  float temperature = 0;
  int32_t num_bos = 0, num_eos = 0;
};

class TextLLMRunner {
 public:
  virtual ~TextLLMRunner();
  runtime::Error generate(
      const std::string& prompt, const GenerationConfig& config, std::function<void(const std::string&)> on_token,
      std::function<void(const Stats&)> on_stats
  );
  void reset();
};

std::unique_ptr<tokenizers::Tokenizer> load_tokenizer(
    const std::string& path, std::unique_ptr<std::vector<std::string>> special, std::optional<std::string> pattern,
    size_t bos_index, size_t eos_index
);

std::unique_ptr<TextLLMRunner> create_text_llm_runner(
    const std::string& model, std::unique_ptr<tokenizers::Tokenizer> tokenizer, std::optional<const std::string> data,
    float temperature, const std::string& method, module::Module::LoadMode mode
);

}  // namespace llm
}  // namespace extension
}  // namespace executorch

namespace {

using executorch::extension::llm::TextLLMRunner;

int fail(const std::string& what) {
  std::cerr << what << std::endl;
  return 1;
}

// The numbers of "[count, [number, ...]]", flat.
std::vector<long> numbers(std::string line) {
  for (char& c : line) c = (c >= '0' && c <= '9') ? c : ' ';
  std::istringstream in(line);
  std::vector<long> values;
  for (long value; in >> value;) values.push_back(value);
  return values;
}

bool generate(TextLLMRunner& runner, const std::string& prompt, int32_t count, std::string& text) {
  executorch::extension::llm::GenerationConfig config;
  config.max_new_tokens = count;
  return runner.generate(prompt, config, [&](const std::string& piece) { text += piece; }, {}) ==
         executorch::runtime::Error{0};
}

void answer(FILE* answers, const std::string& text) {
  std::fputc('[', answers);
  for (size_t i = 0; i < text.size(); ++i)
    std::fprintf(answers, i ? ", %d" : "%d", static_cast<unsigned char>(text[i]));
  std::fputs("]\n", answers);
  std::fflush(answers);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return fail("usage: text_llm_runner MODEL.pte TOKENIZER [LIBRARY ...]"), 2;
  FILE* answers = ::fdopen(::dup(STDOUT_FILENO), "w");
  ::dup2(STDERR_FILENO, STDOUT_FILENO);  // the runner prints its figures
  for (int i = 3; i < argc; ++i) {
    if (::dlopen(argv[i], RTLD_NOW | RTLD_GLOBAL) == nullptr) return fail(::dlerror());
  }
  using namespace executorch::extension;
  auto tokenizer = llm::load_tokenizer(argv[2], nullptr, std::nullopt, 0, 0);
  if (tokenizer == nullptr) return fail("the tokenizer does not load");
  const auto runner = llm::create_text_llm_runner(
      argv[1], std::move(tokenizer), std::nullopt, -1.0f, "forward", module::Module::LoadMode::Mmap
  );
  if (runner == nullptr) return fail("the model does not load");
  for (std::string line; std::getline(std::cin, line);) {
    const auto asked = numbers(line);
    std::string text;
    if (asked.at(0) == 0) {
      runner->reset();
    } else if (!generate(*runner, std::string(asked.begin() + 1, asked.end()), static_cast<int32_t>(asked[0]), text)) {
      return fail("the runner refused a prompt");
    }
    answer(answers, text);
  }
}
