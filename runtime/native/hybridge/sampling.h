// Tokens drawn from logits: repetition penalty, temperature, top-k, top-p and min-p, in transformers' order.
//
//   hybridge::generate(session, prompt, {.sampling = {.temperature = 0.8, .top_p = 0.95}}, lookup, on_token);
//
// The noise of a token follows from the seed and its place in the text alone. A draft token is accepted exactly where it is what
// would have been drawn anyway, so the text of a seed is the same with every drafter, and Python's; each token has its own
// distribution.
#ifndef HYBRIDGE_NATIVE_SAMPLING_H
#define HYBRIDGE_NATIVE_SAMPLING_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hybridge/logits.h>
#include <hybridge/noise.h>

namespace hybridge {

// temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 leave the distribution as it is. Without a seed one
// is drawn from the system.
struct Sampling {
  double temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
  size_t top_k = 0;
  std::optional<uint64_t> seed = std::nullopt;

  // Whether these make a distribution.
  bool is_valid() const {
    const auto scales = [](double value) { return 1e-6 <= value && value <= 1e6; };
    return (temperature == 0 || scales(temperature)) && 0 < top_p && top_p <= 1 && 0 <= min_p && min_p <= 1 && scales(repetition_penalty);
  }
};

// Called with a text and the logits [V] behind it, of which it makes those minus infinity whose tokens may not come next: the
// text of a generation then is what a grammar, say, allows, whatever was proposed.
using Mask = std::function<void(std::span<const int64_t> text, std::span<float> logits)>;

class Sampler {
 public:
  explicit Sampler(const Sampling& sampling, Mask mask = nullptr)
      : sampling_(sampling), mask_(std::move(mask)), seed_(sampling.seed ? *sampling.seed : drawn_seed()) {}

  // The token behind `text`, by its logits [V]; -1 where the mask leaves none, or what is no number.
  int64_t draw(std::span<const float> logits, std::span<const int64_t> text) {
    if (mask_ == nullptr) return drawn(logits, text);
    masked_.assign(logits.begin(), logits.end());
    mask_(text, masked_);
    return leaves_some(masked_) ? drawn(masked_, text) : -1;
  }

 private:
  struct Candidate {
    double weight;
    int64_t token;
  };

  static bool leaves_some(std::span<const float> logits) {
    constexpr float INFINITE = std::numeric_limits<float>::infinity();
    const auto is_number = [](float logit) { return logit < INFINITE; };
    return std::all_of(logits.begin(), logits.end(), is_number) && *std::max_element(logits.begin(), logits.end()) > -INFINITE;
  }

  int64_t drawn(std::span<const float> logits, std::span<const int64_t> text) {
    const bool is_greedy = sampling_.temperature == 0;
    if (is_greedy && sampling_.repetition_penalty == 1) return best(logits);
    scores_.assign(logits.begin(), logits.end());
    penalize(text);
    if (is_greedy) return std::max_element(scores_.begin(), scores_.end()) - scores_.begin();
    weigh();
    keep_top_p();
    keep_min_p();
    return pick(noise(seed_, text.size(), Stream::draw));
  }

  // Keskar et al., arXiv:1909.05858, as transformers does it, in float32: tokens of the text lose, whatever their sign.
  void penalize(std::span<const int64_t> text) {
    constexpr float LARGEST = std::numeric_limits<float>::max();
    const auto penalty = static_cast<float>(sampling_.repetition_penalty);
    if (penalty == 1) return;
    seen_.assign(scores_.size(), false);
    for (const int64_t token : text) {
      const auto at = static_cast<size_t>(token);
      if (seen_[at]) continue;
      seen_[at] = true;
      const auto score = static_cast<float>(scores_[at]);
      scores_[at] = std::clamp(score < 0 ? score * penalty : score / penalty, -LARGEST, LARGEST);
    }
  }

  // The tokens of top-k, all of them without one, weighted by their probabilities times a factor; the best one weighs 1.
  void weigh() {
    double least = *std::min_element(scores_.begin(), scores_.end());
    if (0 < sampling_.top_k && sampling_.top_k < scores_.size()) {
      sorted_ = scores_;
      const auto kth = sorted_.begin() + static_cast<ptrdiff_t>(sampling_.top_k) - 1;
      std::nth_element(sorted_.begin(), kth, sorted_.end(), std::greater<>());
      least = *kth;
    }
    const double largest = *std::max_element(scores_.begin(), scores_.end());
    candidates_.clear();
    for (size_t token = 0; token < scores_.size(); ++token) {
      if (scores_[token] < least) continue;
      candidates_.push_back({std::exp((scores_[token] - largest) / sampling_.temperature), static_cast<int64_t>(token)});
    }
  }

  // The fewest best tokens that together reach top_p, in the order of the vocabulary again.
  void keep_top_p() {
    if (sampling_.top_p == 1) return;
    const auto heavier = [](const Candidate& one, const Candidate& other) {
      return one.weight != other.weight ? one.weight > other.weight : one.token < other.token;
    };
    std::sort(candidates_.begin(), candidates_.end(), heavier);
    const double wanted = sampling_.top_p * total();
    size_t kept = 0;
    for (double reached = 0; kept < candidates_.size() && reached < wanted; ++kept) reached += candidates_[kept].weight;
    candidates_.resize(std::max<size_t>(kept, 1));
    std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& one, const Candidate& other) { return one.token < other.token; });
  }

  // Without tokens less probable than min_p of the best one (Nguyen et al., arXiv:2407.01082), whose weight is 1.
  void keep_min_p() {
    if (sampling_.min_p == 0) return;
    std::erase_if(candidates_, [this](const Candidate& each) { return each.weight < sampling_.min_p; });
  }

  double total() const {
    return std::accumulate(candidates_.begin(), candidates_.end(), 0.0, [](double sum, const Candidate& each) { return sum + each.weight; });
  }

  // By the inverse of the cumulative weights; rounding may not reach a token that cannot come.
  int64_t pick(double place) const {
    const double wanted = place * total();
    double reached = 0;
    int64_t last = candidates_.front().token;
    for (const auto& [weight, token] : candidates_) {
      if (weight == 0) continue;
      reached += weight;
      last = token;
      if (wanted < reached) break;
    }
    return last;
  }

  Sampling sampling_;
  Mask mask_;
  uint64_t seed_;
  std::vector<float> masked_;
  std::vector<double> scores_, sorted_;
  std::vector<bool> seen_;
  std::vector<Candidate> candidates_;
};

}  // namespace hybridge

#endif
