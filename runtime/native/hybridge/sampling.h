// Tokens drawn from logits: repetition penalty, temperature, top-k, top-p and min-p, in transformers' order.
//
//   hybridge::generate(session, prompt, {.sampling = {.temperature = 0.8, .top_p = 0.95}}, lookup, on_token);
//
// The noise of a token follows from the seed and its place in the text alone. A draft token of a certain drafter is accepted
// exactly where it is what would have been drawn anyway: the text of a seed is the same with every drafter, and Python's. Where
// no seed is given, drafters draw their tokens, too, and those are accepted so that the distribution stays the model's.
#ifndef HYBRIDGE_NATIVE_SAMPLING_H
#define HYBRIDGE_NATIVE_SAMPLING_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hybridge/distribution.h>
#include <hybridge/logits.h>
#include <hybridge/noise.h>

namespace hybridge {

// temperature 0 is greedy; top_k 0, top_p 1, min_p 0 and repetition_penalty 1 leave the distribution as it is. Without a seed one
// is drawn from the system.
struct Sampling {
  double temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
  size_t top_k = 0;
  std::optional<uint64_t> seed = std::nullopt;

  // Returns whether these options make a distribution.
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
  // noise: takes the place of the seed that is drawn if none is given.
  explicit Sampler(const Sampling& sampling, Mask mask = nullptr, std::optional<uint64_t> noise = std::nullopt)
      : sampling_(sampling), mask_(std::move(mask)), seed_(sampling.seed ? *sampling.seed : noise ? *noise : drawn_seed()) {}

  bool is_greedy() const { return sampling_.temperature == 0; }
  double temperature() const { return sampling_.temperature; }

  // True if drafters draw their tokens and give the distribution; with a seed the text depends on the seed alone.
  bool draws_drafts() const { return !is_greedy() && !sampling_.seed; }

  // A number in [0, 1) that belongs to a place of the text; another stream has other ones.
  double noise(size_t place, Stream stream) const { return hybridge::noise(seed_, place, stream); }

  // Returns the token after `text`, by its logits [V]; -1 if the mask leaves none, or a logit is NaN or infinite.
  int64_t draw(std::span<const float> logits, std::span<const int64_t> text) {
    const auto left = allowed(logits, text);
    return left.empty() ? -1 : drawn(left, text);
  }

  // Returns the draft token after `text` if it is accepted, otherwise its replacement; -1 as above. q: its distribution.
  //
  // Each token is then distributed as `draw` would have it (Leviathan, Kalman, Matias, arXiv:2211.17192): x is accepted with
  // probability min(1, p(x) / q(x)), else its replacement comes from max(0, p - q).
  int64_t judge(std::span<const float> logits, std::span<const int64_t> text, int64_t token, const Distribution& q) {
    const auto left = allowed(logits, text);
    if (left.empty()) return -1;
    if (is_greedy()) return drawn(left, text);
    const Distribution p = distribution(left, text);
    if (noise(text.size(), Stream::accept) * weight_of(q, token) < weight_of(p, token)) return token;
    const Distribution rest = excess(p, q);
    return pick(rest.empty() ? p : rest, noise(text.size(), Stream::draw));  // empty: p is q, but for rounding
  }

  // A number of draft tokens that are accepted, and the token behind them, -1 as above.
  struct Judged {
    size_t accepted;
    int64_t next;
  };

  // Judges draft tokens together, each drawn from its distribution in `q`, where row i of `logits` follows the text and i of them.
  //
  // Text is distributed as by `judge`, but more is accepted: a token that the model finds likelier than its drafter did makes up
  // for one before it (Sun et al., arXiv:2403.10444, algorithm 2). Without a mask, which follows texts that only grow.
  Judged judge_block(
      const Logits& logits, std::span<const int64_t> text, std::span<const int64_t> drafted, std::span<const Distribution> q) {
    std::vector<int64_t> seen(text.begin(), text.end());
    const size_t count = drafted.size();
    if (!are_finite(logits[0])) return {0, -1};
    Distribution p = distribution(logits[0], seen), kept = p, rest = excess(p, q[0]);
    double reached = 1;  // how likely the drafted text is by the model, relative to its drafter
    size_t accepted = 0;
    for (size_t i = 0; i < count && reached > 0; ++i) {
      const double likely = reached * weight_of(p, drafted[i]), drawn = weight_of(q[i], drafted[i]);
      reached = likely < drawn ? likely / drawn : likely > 0 ? 1.0 : 0.0;
      seen.push_back(drafted[i]);
      if (!are_finite(logits[i + 1])) return {accepted, -1};
      p = distribution(logits[i + 1], seen);
      Distribution more = i + 1 < count ? excess(scaled(p, reached), q[i + 1]) : p;
      const double left = i + 1 < count ? total(more) : reached;
      const double chance = i + 1 == count ? reached : left + 1 - reached > 0 ? left / (left + 1 - reached) : 1.0;
      if (noise(text.size() + i, Stream::accept) >= chance) continue;
      accepted = i + 1;
      kept = p;
      rest = std::move(more);
    }
    return {accepted, pick(rest.empty() ? kept : rest, noise(text.size() + accepted, Stream::draw))};
  }

  // Returns the distribution of the token after `text`, without the mask; it sums to 1. For a temperature above 0.
  Distribution distribution(std::span<const float> logits, std::span<const int64_t> text) {
    weigh(logits, text);
    Distribution p = candidates_;
    normalize(p);
    return p;
  }

 private:
  // Logits as the mask leaves them; empty where that is none. Without a mask all of them are finite, as a session's are.
  std::span<const float> allowed(std::span<const float> logits, std::span<const int64_t> text) {
    if (mask_ == nullptr) return are_finite(logits) ? logits : std::span<const float>();
    masked_.assign(logits.begin(), logits.end());
    mask_(text, masked_);
    return leaves_some(masked_) ? std::span<const float>(masked_) : std::span<const float>();
  }

  static bool leaves_some(std::span<const float> logits) {
    constexpr float INFINITE = std::numeric_limits<float>::infinity();
    const auto is_number = [](float logit) { return logit < INFINITE; };
    return std::all_of(logits.begin(), logits.end(), is_number) && *std::max_element(logits.begin(), logits.end()) > -INFINITE;
  }

  int64_t drawn(std::span<const float> logits, std::span<const int64_t> text) {
    if (is_greedy() && sampling_.repetition_penalty == 1) return best(logits);
    if (is_greedy()) return penalize(logits, text), std::max_element(scores_.begin(), scores_.end()) - scores_.begin();
    weigh(logits, text);
    return pick(candidates_, noise(text.size(), Stream::draw));
  }

  // The candidates of these logits.
  void weigh(std::span<const float> logits, std::span<const int64_t> text) {
    penalize(logits, text);
    weigh_top_k();
    keep_top_p();
    keep_min_p();
  }

  // Keskar et al., arXiv:1909.05858, as transformers does it, in float32: tokens of the text lose, whatever their sign.
  void penalize(std::span<const float> logits, std::span<const int64_t> text) {
    constexpr float LARGEST = std::numeric_limits<float>::max();
    const auto penalty = static_cast<float>(sampling_.repetition_penalty);
    scores_.assign(logits.begin(), logits.end());
    if (penalty == 1) return;
    seen_.assign(scores_.size(), false);
    for (const int64_t token : text) {
      if (token < 0) continue;  // a row of a picture
      const auto at = static_cast<size_t>(token);
      if (seen_[at]) continue;
      seen_[at] = true;
      const auto score = static_cast<float>(scores_[at]);
      scores_[at] = std::clamp(score < 0 ? score * penalty : score / penalty, -LARGEST, LARGEST);
    }
  }

  // The tokens of top-k, all of them without one, weighted by their probabilities times a factor; the best one weighs 1.
  void weigh_top_k() {
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
      candidates_.push_back({static_cast<int64_t>(token), std::exp((scores_[token] - largest) / sampling_.temperature)});
    }
  }

  // The fewest best tokens that together reach top_p, in the order of the vocabulary again.
  void keep_top_p() {
    if (sampling_.top_p == 1) return;
    const double wanted = sampling_.top_p * total(candidates_);
    keep_heavy(wanted);
    const auto heavier = [](const Candidate& one, const Candidate& other) {
      return one.weight != other.weight ? one.weight > other.weight : one.token < other.token;
    };
    std::sort(candidates_.begin(), candidates_.end(), heavier);
    size_t kept = 0;
    for (double reached = 0; kept < candidates_.size() && reached < wanted; ++kept) reached += candidates_[kept].weight;
    candidates_.resize(std::max<size_t>(kept, 1));
    std::sort(candidates_.begin(), candidates_.end(), comes_before);
  }

  // Leaves out light tokens, as long as the others weigh more than `wanted` together: to sort a vocabulary of 250,000 tokens takes
  // longer than a decode. The best token weighs 1.
  void keep_heavy(double wanted) {
    for (double least = 1e-3; least > 1e-15; least *= 1e-3) {
      heavy_.clear();
      std::ranges::copy_if(candidates_, std::back_inserter(heavy_), [&](const Candidate& each) { return each.weight >= least; });
      if (total(heavy_) > (1 + 1e-9) * wanted) return candidates_.swap(heavy_);
    }
  }

  // Without tokens less probable than min_p of the best one (Nguyen et al., arXiv:2407.01082), whose weight is 1.
  void keep_min_p() {
    if (sampling_.min_p == 0) return;
    std::erase_if(candidates_, [this](const Candidate& each) { return each.weight < sampling_.min_p; });
  }

  Sampling sampling_;
  Mask mask_;
  uint64_t seed_;
  std::vector<float> masked_;
  std::vector<double> scores_, sorted_;
  std::vector<bool> seen_;
  Distribution candidates_, heavy_;
};

}  // namespace hybridge

#endif
