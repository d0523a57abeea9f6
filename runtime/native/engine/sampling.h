// Tokens drawn from logits: biases and penalties, temperature, top-n-sigma, top-k, top-p and min-p, in transformers'
// order where it has them.
//
//   hybridge::Generator generator(session, {.sampling = {.temperature = 0.8, .top_p = 0.95}}, {&lookup});
//
// The noise of a token follows from the seed and its place in the text alone, and a draft token is accepted if it is
// the one that is drawn there anyway: the text of a seed is the same with every drafter and without one. Drafters that
// draw use the same noise, so that they mostly draw the same token.
#ifndef HYBRIDGE_ENGINE_SAMPLING_H
#define HYBRIDGE_ENGINE_SAMPLING_H

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "engine/distribution.h"
#include "engine/logits.h"
#include "engine/noise.h"
#include "engine/status.h"

namespace hybridge {

struct Bias {
  int64_t token;
  double bias;
};

// DRY ("don't repeat yourself", Weidmann, text-generation-webui #5677): a token that would continue a repetition of the
// text's last n tokens loses multiplier * base^(n - allowed_length), from allowed_length on. No repetition goes across
// a token of `breakers`.
struct Dry {
  double multiplier = 0, base = 1.75;
  size_t allowed_length = 2;
  std::vector<int64_t> breakers = {};
};

// temperature 0 is greedy; top_k 0, top_p 1, min_p 0, top_n_sigma 0, repetition_penalty 1, other penalties 0 and a DRY
// multiplier of 0 leave the distribution as it is. Presence and frequency penalty count the tokens that the generation
// has written, as OpenAI's API does; repetition penalty and DRY look at all of the text, as in transformers.
// repeat_last_n: latest tokens of the text that penalties see; -1 for all. Without a seed one is drawn from the system.
struct Sampling {
  double temperature = 0, top_p = 1, min_p = 0, repetition_penalty = 1;
  size_t top_k = 0;
  double presence_penalty = 0, frequency_penalty = 0, top_n_sigma = 0;
  int64_t repeat_last_n = -1;
  Dry dry = {};
  std::vector<Bias> logit_bias = {};
  std::optional<uint64_t> seed = std::nullopt;

  // Returns why these options make no distribution over a vocabulary: INVALID_ARGUMENT or INVALID_TOKEN.
  Status check(int64_t vocab_size) const;

  // Returns whether unlikely tokens are never drawn.
  bool keeps_likely() const { return top_k > 0 || top_p < 1 || min_p > 0 || top_n_sigma > 0; }

  // Returns whether logits are others before the temperature.
  bool changes_logits() const;
};

// Called with a text and the logits [V] after it, of which it makes those minus infinity whose tokens may not come
// next: the text of a generation then is what a grammar, say, allows, whatever was proposed.
using Mask = std::function<void(std::span<const int64_t> text, std::span<float> logits)>;

class Sampler {
 public:
  // noise: takes the place of the seed that is drawn if none is given.
  explicit Sampler(const Sampling& sampling, Mask mask = nullptr, std::optional<uint64_t> noise = std::nullopt);

  bool is_greedy() const { return sampling_.temperature == 0; }

  // The temperature for a drafter that draws by the same noise and knows no other option. It is less certain than its
  // target, above all of a target that draws likely tokens only (docs/speculation.md has what these factors gain).
  double draft_temperature() const { return (sampling_.keeps_likely() ? 0.5 : 0.85) * sampling_.temperature; }

  // Says that the generation writes what comes after so many tokens of the text.
  void begin(size_t start) { start_ = start; }

  // The noise of a place of the text, which drafters may draw by, too.
  uint32_t noise(size_t place) const { return hybridge::noise(seed_, place); }

  // Returns the token after `text`, by its logits [V]; -1 if the mask leaves none, or a logit is NaN or infinite.
  int64_t draw(std::span<const float> logits, std::span<const int64_t> text);

  // The same without the mask, for a draft model whose logits these are.
  int64_t draft(std::span<const float> logits, std::span<const int64_t> text);

  // Returns the distribution of the token after `text`, without the mask; it sums to 1. For a temperature above 0.
  Distribution distribution(std::span<const float> logits, std::span<const int64_t> text);

 private:
  // Logits as the mask leaves them; empty where that is none. Without a mask all of them are finite, as a session's
  // are.
  std::span<const float> allowed(std::span<const float> logits, std::span<const int64_t> text);

  // The candidates of these logits, weighted by their probabilities times a factor; the best one weighs 1.
  //
  // Top-p needs the sum of all weights, but of most of them only that it is small: light tokens are weighed where they
  // could change which ones are kept.
  void weigh(std::span<const float> logits, std::span<const int64_t> text);

  // The score that has this weight.
  double score_of(double weight, double top) const { return top + sampling_.temperature * std::log(weight); }

  // The logits with biases and penalties, in float32.
  std::span<const float> penalized(std::span<const float> logits, std::span<const int64_t> text);

  // Keskar et al., arXiv:1909.05858, as transformers does it: tokens of the text lose, whatever their sign.
  void penalize_repetition(std::span<const int64_t> seen);

  // Presence and frequency penalty of the tokens that were written.
  void penalize_written(std::span<const int64_t> written);

  void penalize_continuations(std::span<const int64_t> seen);

  // Adds to a score, which stays finite if it is.
  void add(int64_t token, double change);

  // The least score that top-n-sigma keeps (Tang et al., arXiv:2411.07641): so many standard deviations of the scores
  // below the largest.
  double least_by_sigma(std::span<const float> scores, double top) const;

  // The k-th largest score, of more than k.
  float kth_largest(std::span<const float> scores, size_t k);

  // The tokens whose scores are at least that. Light ones, of which there are many, are as exact as a float32's
  // exponential.
  void weigh_from(std::span<const float> scores, double top, double least);

  // Keeps the fewest best tokens that together reach top_p. left_out: the most that tokens weigh together which are no
  // candidates. Returns false where it depends on them which ones that are, and keeps all.
  bool keep_top_p(double left_out);

  Sampling sampling_;
  Mask mask_;
  uint64_t seed_;
  size_t start_ = 0;
  std::vector<float> masked_, scores_, largest_;
  std::vector<uint32_t> counts_;  // of each token, all 0 between two calls
  Distribution candidates_, sorted_;
};

}  // namespace hybridge

#endif
