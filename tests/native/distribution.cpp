// Reads logits, float32, from a file; prints the likeliest token, whether all are finite, and what the next token is
// drawn from:
//
//   FILE TEMPERATURE TOP_K TOP_P MIN_P REPETITION PRESENCE FREQUENCY SIGMA DRY TEXT...
//
// All of the text counts as written.
#include "engine/sampling.h"

#include <cstdio>
#include <cstring>
#include <cstdlib>
#include <fstream>
#include <iterator>

int main(int count, char** arguments) {
  std::ifstream file(arguments[1], std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  std::vector<float> logits(bytes.size() / sizeof(float));
  std::memcpy(logits.data(), bytes.data(), bytes.size());
  std::vector<int64_t> text;
  for (int i = 11; i < count; ++i) text.push_back(std::strtoll(arguments[i], nullptr, 10));
  hybridge::Sampler sampler(
      {.temperature = std::strtod(arguments[2], nullptr),
       .top_p = std::strtod(arguments[4], nullptr),
       .min_p = std::strtod(arguments[5], nullptr),
       .repetition_penalty = std::strtod(arguments[6], nullptr),
       .top_k = std::strtoull(arguments[3], nullptr, 10),
       .presence_penalty = std::strtod(arguments[7], nullptr),
       .frequency_penalty = std::strtod(arguments[8], nullptr),
       .top_n_sigma = std::strtod(arguments[9], nullptr),
       .dry = {.multiplier = std::strtod(arguments[10], nullptr)}}
  );
  const bool are_finite = hybridge::are_finite(logits);
  std::printf("%lld %d\n", static_cast<long long>(hybridge::best(logits)), are_finite);
  if (!are_finite) return 0;
  for (const auto& [token, weight] : sampler.distribution(logits, text)) {
    std::printf("%lld %.17g\n", static_cast<long long>(token), weight);
  }
}
