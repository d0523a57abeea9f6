// Draws from logits of which none, the first, a later one or all are VALUE: nan, inf or -inf. A line for each way to
// draw:
//
//   TEMPERATURE PENALTY MASKED TOKEN TOKEN TOKEN TOKEN
#include "engine/sampling.h"

#include <cstdlib>
#include <iostream>

int main(int, char** arguments) {
  const float value = std::strtof(arguments[1], nullptr);
  const std::vector<std::vector<float>> rows = {
      {1, 2, 3, 0}, {value, 2, 3, 0}, {1, 2, value, 0}, std::vector(4, value)
  };
  const std::vector<int64_t> text = {2, 0};
  const hybridge::Mask nothing = [](std::span<const int64_t>, std::span<float>) {};
  for (const double temperature : {0.0, 0.8}) {
    for (const double penalty : {1.0, 1.5}) {
      for (const bool masked : {false, true}) {
        const hybridge::Sampling sampling{.temperature = temperature, .repetition_penalty = penalty, .seed = 1};
        hybridge::Sampler sampler(sampling, masked ? nothing : nullptr);
        std::cout << temperature << ' ' << penalty << ' ' << masked;
        for (const auto& row : rows) std::cout << ' ' << sampler.draw(row, text);
        std::cout << '\n';
      }
    }
  }
}
