#include "engine/calibration.h"

#include <algorithm>
#include <cmath>

namespace hybridge {

namespace {

constexpr double FORGET = 0.98,
                 TRIES = 4.0;  // tokens of a band that count; what the drafter's own estimate counts as

}  // namespace

Calibration::Calibration() {
  for (size_t i = 0; i < BANDS; ++i) bands_[i] = {TRIES * (static_cast<double>(i) + 0.5) / BANDS, TRIES};
}

std::vector<double> Calibration::propose(size_t at, std::span<const int64_t> tokens, std::span<const float> estimates) {
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

void Calibration::learn(std::span<const int64_t> text) {
  const size_t count = text.size() > at_ ? std::min(tokens_.size(), text.size() - at_) : 0;
  for (size_t i = 0; i < count; ++i) {
    const bool right = tokens_[i] == text[at_ + i];
    auto& band = bands_[proposed_[i]];
    band = {FORGET * band.right + right, FORGET * band.judged + 1};
    if (!right) break;
  }
  tokens_.clear();
}

size_t Calibration::band(double estimate) {
  return std::isnan(estimate) ? 0 : static_cast<size_t>(std::clamp(estimate * BANDS, 0.0, BANDS - 1.0));
}

}  // namespace hybridge
