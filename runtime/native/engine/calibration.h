// Calibrates a drafter's confidences by how many tokens of about the same confidence were right.
#ifndef HYBRIDGE_ENGINE_CALIBRATION_H
#define HYBRIDGE_ENGINE_CALIBRATION_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hybridge {

// Turns a drafter's own estimates into shares of right tokens, in bands of equal width, and learns them from the text.
class Calibration {
 public:
  Calibration();

  // The confidence of each of `tokens`, which stand at position `at` of the text and after it.
  std::vector<double> propose(size_t at, std::span<const int64_t> tokens, std::span<const float> estimates);

  // Compares what was proposed last with the text, up to the first token that was wrong.
  void learn(std::span<const int64_t> text);

 private:
  static constexpr size_t BANDS = 8;
  struct Band {
    double right, judged;
  };

  // NaN is the lowest.
  static size_t band(double estimate);

  std::array<Band, BANDS> bands_;
  size_t at_ = 0;
  std::vector<int64_t> tokens_;
  std::vector<size_t> proposed_;  // the band of each token
};

}  // namespace hybridge

#endif
