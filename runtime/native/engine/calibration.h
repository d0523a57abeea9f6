// Calibrates a drafter's confidences by how many tokens of about the same confidence were right.
#ifndef HYBRIDGE_ENGINE_CALIBRATION_H
#define HYBRIDGE_ENGINE_CALIBRATION_H

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hybridge {

// Turns a drafter's own estimates into shares of right tokens, in bands of equal width, and learns them from the text.
class Calibration {
 public:
  Calibration() {
    for (size_t i = 0; i < BANDS; ++i) bands_[i] = {TRIES * (static_cast<double>(i) + 0.5) / BANDS, TRIES};
  }

  // The confidence of each of `tokens`, which stand at position `at` of the text and behind it.
  std::vector<double> propose(size_t at, std::span<const int64_t> tokens, std::span<const float> estimates) {
    at_ = at;
    tokens_.assign(tokens.begin(), tokens.end());
    proposed_.clear();
    std::vector<double> confidences;
    for (const float estimate : estimates) {
      proposed_.push_back(band(estimate));
      confidences.push_back(bands_[proposed_.back()].right / bands_[proposed_.back()].judged);
    }
    return confidences;
  }

  // Compares what was proposed last with the text, up to the first token that was wrong.
  void learn(std::span<const int64_t> text) {
    const size_t count = text.size() > at_ ? std::min(tokens_.size(), text.size() - at_) : 0;
    for (size_t i = 0; i < count; ++i) {
      const bool right = tokens_[i] == text[at_ + i];
      auto& band = bands_[proposed_[i]];
      band = {FORGET * band.right + right, FORGET * band.judged + 1};
      if (!right) break;
    }
    tokens_.clear();
  }

 private:
  static constexpr size_t BANDS = 8;
  static constexpr double FORGET = 0.98,
                          TRIES = 4.0;  // tokens of a band that count; what the drafter's own estimate counts as

  struct Band {
    double right, judged;
  };

  // NaN is the lowest.
  static size_t band(double estimate) {
    return std::isnan(estimate) ? 0 : static_cast<size_t>(std::clamp(estimate * BANDS, 0.0, BANDS - 1.0));
  }

  std::array<Band, BANDS> bands_;
  size_t at_ = 0;
  std::vector<int64_t> tokens_;
  std::vector<size_t> proposed_;  // the band of each token
};

}  // namespace hybridge

#endif
