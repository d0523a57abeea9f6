#include "engine/sampling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <initializer_list>
#include <limits>
#include <string>
#include <utility>

#include "engine/vocabulary_loops.h"

namespace hybridge {

namespace {

// A weight that no sum of doubles notices beside the best token's, nor those of a vocabulary of such tokens.
constexpr double NOTHING = 1e-22;
// A weight that need not be exact beside the best token's.
constexpr float LIGHT = 1e-6f;

// Tokens of a repetition beyond these make its continuation no less likely: the penalty is exponential in them.
constexpr size_t LONGEST_REPETITION = 64;

// Options that must lie in an interval.
struct Range {
  const char* name;
  double value, least, most;
  bool has_least = true;
  double also = NAN;  // allowed besides

  bool fits() const { return (has_least ? least <= value : least < value) && value <= most ? true : value == also; }
};

std::string shown(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", number);
  return text;
}

bool leaves_some(std::span<const float> logits) {
  return are_numbers(logits, true) && largest(logits) > -std::numeric_limits<float>::infinity();
}

}  // namespace

Status Sampling::check(int64_t vocab_size) const {
  const std::initializer_list<Range> ranges = {
      {.name = "temperature", .value = temperature, .least = 1e-6, .most = 1e6, .also = 0},
      {.name = "top_p", .value = top_p, .least = 0, .most = 1, .has_least = false},
      {.name = "min_p", .value = min_p, .least = 0, .most = 1},
      {.name = "repetition_penalty", .value = repetition_penalty, .least = 1e-6, .most = 1e6},
      {.name = "presence_penalty", .value = presence_penalty, .least = -2, .most = 2},
      {.name = "frequency_penalty", .value = frequency_penalty, .least = -2, .most = 2},
      {.name = "top_n_sigma", .value = top_n_sigma, .least = 0, .most = 1e6},
      {.name = "dry_multiplier", .value = dry.multiplier, .least = 0, .most = 100},
      {.name = "dry_base", .value = dry.base, .least = 1, .most = 100},
  };
  for (const Range& each : ranges) {
    if (each.fits()) continue;
    const std::string interval = each.has_least
                                     ? " must lie between " + shown(each.least) + " and " + shown(each.most)
                                     : " must be above " + shown(each.least) + " and at most " + shown(each.most);
    const std::string also = each.also == each.also ? " or be " + shown(each.also) : "";
    return Status(
        HYBRIDGE_INVALID_ARGUMENT, std::string(each.name) + " is " + shown(each.value) + ", but" + interval + also
    );
  }
  if (repeat_last_n < -1)
    return Status(
        HYBRIDGE_INVALID_ARGUMENT,
        "repeat_last_n is " + std::to_string(repeat_last_n) + ", but must be a number of tokens, or -1 for all"
    );
  for (const Bias& each : logit_bias) {
    const std::string name = "logit_bias of token " + std::to_string(each.token);
    if (each.token < 0 || each.token >= vocab_size)
      return Status(
          HYBRIDGE_INVALID_TOKEN,
          name + ": the vocabulary has " + std::to_string(vocab_size) + " tokens; give ids from 0 on below that"
      );
    if (!(-100 <= each.bias && each.bias <= 100))
      return Status(
          HYBRIDGE_INVALID_ARGUMENT, name + " is " + shown(each.bias) + ", but must lie between -100 and 100"
      );
  }
  return Status();
}

bool Sampling::changes_logits() const {
  return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0 || dry.multiplier != 0 ||
         !logit_bias.empty();
}

Sampler::Sampler(const Sampling& sampling, Mask mask, std::optional<uint64_t> noise)
    : sampling_(sampling),
      mask_(std::move(mask)),
      seed_(
          sampling.seed ? *sampling.seed
          : noise       ? *noise
                        : drawn_seed()
      ) {
  std::ranges::sort(sampling_.dry.breakers);
}

int64_t Sampler::draw(std::span<const float> logits, std::span<const int64_t> text) {
  const auto left = allowed(logits, text);
  return left.empty() ? -1 : draft(left, text);
}

int64_t Sampler::draft(std::span<const float> logits, std::span<const int64_t> text) {
  if (is_greedy()) return best(penalized(logits, text));
  weigh(logits, text);
  return pick(candidates_, noise(text.size()));
}

Distribution Sampler::distribution(std::span<const float> logits, std::span<const int64_t> text) {
  weigh(logits, text);
  normalize(candidates_);
  return candidates_;
}

std::span<const float> Sampler::allowed(std::span<const float> logits, std::span<const int64_t> text) {
  if (mask_ == nullptr) return are_finite(logits) ? logits : std::span<const float>();
  masked_.assign(logits.begin(), logits.end());
  mask_(text, masked_);
  return leaves_some(masked_) ? std::span<const float>(masked_) : std::span<const float>();
}

void Sampler::weigh(std::span<const float> logits, std::span<const int64_t> text) {
  const auto scores = penalized(logits, text);
  const bool has_top_k = 0 < sampling_.top_k && sampling_.top_k < scores.size(), has_top_p = sampling_.top_p < 1;
  const double top = largest(scores), least_kept = least_by_sigma(scores, top);
  if (has_top_k || !has_top_p) {
    const double light = score_of(has_top_p ? NOTHING : std::max(NOTHING, sampling_.min_p / 2), top);
    const double least = std::max(light, least_kept);
    weigh_from(scores, top, has_top_k ? std::max<double>(least, kth_largest(scores, sampling_.top_k)) : least);
    if (has_top_p) keep_top_p(0);
  } else {
    for (double lightest = 1e-3;; lightest *= 1e-3) {
      const double least = score_of(lightest, top);
      weigh_from(scores, top, std::max(least, least_kept));
      const bool are_all = lightest < NOTHING || least <= least_kept;
      if (keep_top_p(are_all ? 0 : static_cast<double>(scores.size() - candidates_.size()) * lightest)) break;
    }
  }
  // Nguyen et al., arXiv:2407.01082, relative to the best token's weight.
  if (const double least = sampling_.min_p; least > 0)
    std::erase_if(candidates_, [=](auto& each) { return each.weight < least; });
}

std::span<const float> Sampler::penalized(std::span<const float> logits, std::span<const int64_t> text) {
  if (!sampling_.changes_logits()) return logits;
  scores_.assign(logits.begin(), logits.end());
  counts_.resize(scores_.size());
  const auto window = static_cast<size_t>(sampling_.repeat_last_n);  // -1 becomes the largest number
  const auto seen = text.last(std::min(text.size(), window));
  for (const Bias& each : sampling_.logit_bias) add(each.token, each.bias);
  if (sampling_.repetition_penalty != 1) penalize_repetition(seen);
  if (sampling_.presence_penalty != 0 || sampling_.frequency_penalty != 0)
    penalize_written(seen.last(std::min(seen.size(), text.size() - std::min(start_, text.size()))));
  if (sampling_.dry.multiplier != 0) penalize_continuations(seen);
  return scores_;
}

void Sampler::penalize_repetition(std::span<const int64_t> seen) {
  constexpr float LARGEST = std::numeric_limits<float>::max();
  const auto penalty = static_cast<float>(sampling_.repetition_penalty);
  for (const int64_t token : seen) {
    if (token >= 0) counts_[static_cast<size_t>(token)] = 1;  // below 0 is a row of a picture
  }
  for (const int64_t token : seen) {
    if (token < 0 || std::exchange(counts_[static_cast<size_t>(token)], 0) == 0) continue;
    float& score = scores_[static_cast<size_t>(token)];
    if (std::isinf(score)) continue;  // what a mask refuses
    score = std::clamp(score < 0 ? score * penalty : score / penalty, -LARGEST, LARGEST);
  }
}

void Sampler::penalize_written(std::span<const int64_t> written) {
  for (const int64_t token : written) {
    if (token >= 0) ++counts_[static_cast<size_t>(token)];
  }
  for (const int64_t token : written) {
    const uint32_t count = token < 0 ? 0 : std::exchange(counts_[static_cast<size_t>(token)], 0);
    if (count > 0) add(token, -(sampling_.presence_penalty + sampling_.frequency_penalty * count));
  }
}

void Sampler::penalize_continuations(std::span<const int64_t> seen) {
  const Dry& dry = sampling_.dry;
  const auto breaks = [&](int64_t token) {
    return token < 0 || std::binary_search(dry.breakers.begin(), dry.breakers.end(), token);
  };
  if (seen.empty() || breaks(seen.back())) return;
  const size_t end = seen.size() - 1;
  for (size_t at = 0; at < end; ++at) {
    if (seen[at] != seen[end] || breaks(seen[at + 1])) continue;
    uint32_t length = 1;
    while (length <= at && length < LONGEST_REPETITION && seen[at - length] == seen[end - length] &&
           !breaks(seen[at - length]))
      ++length;
    uint32_t& longest = counts_[static_cast<size_t>(seen[at + 1])];
    longest = std::max(longest, length);
  }
  for (const int64_t token : seen) {
    const uint32_t length = token < 0 ? 0 : std::exchange(counts_[static_cast<size_t>(token)], 0);
    if (length == 0 || length < dry.allowed_length) continue;
    add(token, -dry.multiplier * std::pow(dry.base, static_cast<double>(length - dry.allowed_length)));
  }
}

void Sampler::add(int64_t token, double change) {
  constexpr double LARGEST = std::numeric_limits<float>::max();
  float& score = scores_[static_cast<size_t>(token)];
  if (std::isinf(score)) return;  // what a mask refuses
  score = static_cast<float>(std::clamp<double>(score + static_cast<float>(change), -LARGEST, LARGEST));
}

double Sampler::least_by_sigma(std::span<const float> scores, double top) const {
  constexpr double NONE = -std::numeric_limits<double>::infinity();
  if (sampling_.top_n_sigma == 0) return NONE;
  double count = 0, sum = 0, squares = 0;  // of scores below the largest, which are exact enough in doubles
  for (const float score : scores) {
    if (std::isinf(score)) continue;
    const double below = top - score;
    ++count, sum += below, squares += below * below;
  }
  const double mean = sum / count;
  return top - sampling_.top_n_sigma * std::sqrt(std::max(0.0, squares / count - mean * mean));
}

float Sampler::kth_largest(std::span<const float> scores, size_t k) {
  float least = -std::numeric_limits<float>::infinity();
  largest_.clear();
  const auto cut = [&] {
    if (largest_.size() < k) return;  // of logits that are no numbers
    std::nth_element(
        largest_.begin(), largest_.begin() + static_cast<ptrdiff_t>(k) - 1, largest_.end(), std::greater<>()
    );
    largest_.resize(k);
    least = largest_.back();
  };
  for_logits_from(
      scores, [&] { return least; },
      [&](size_t, float score) {
        largest_.push_back(score);
        if (largest_.size() == 2 * k + 64) cut();
      }
  );
  cut();
  return least;
}

void Sampler::weigh_from(std::span<const float> scores, double top, double least) {
  candidates_.clear();
  float about[LOGITS_IN_A_BLOCK];
  for_blocks_from(
      scores, [&] { return least; },
      [&](size_t begin, size_t count) {
        if (count < LOGITS_IN_A_BLOCK) std::fill_n(about, count, 1.0f);
        else exponentials(&scores[begin], static_cast<float>(top), static_cast<float>(sampling_.temperature), about);
        for (size_t i = 0; i < count; ++i) {
          const double score = scores[begin + i];
          if (score < least) continue;
          const double weight = about[i] < LIGHT ? about[i] : std::exp((score - top) / sampling_.temperature);
          candidates_.push_back({static_cast<int64_t>(begin + i), weight});
        }
      }
  );
}

bool Sampler::keep_top_p(double left_out) {
  const auto is_heavier = [](const Candidate& one, const Candidate& other) {
    return one.weight != other.weight ? one.weight > other.weight : one.token < other.token;
  };
  const double all = total(candidates_), wanted = sampling_.top_p * all;
  // Halves the places where the last one that is kept may lie: those before `first` do not reach what is wanted.
  sorted_ = candidates_;
  auto first = sorted_.begin(), end = sorted_.end();
  double reached = 0;
  while (end - first > 1) {
    const auto middle = first + (end - first) / 2;
    std::nth_element(first, middle, end, is_heavier);
    double more = 0;
    for (auto each = first; each != middle; ++each) more += each->weight;
    if (reached + more >= wanted) end = middle;
    else reached += more, first = middle;
  }
  if (left_out > 0 && reached + first->weight < sampling_.top_p * (all + left_out)) return false;
  std::erase_if(candidates_, [&](const Candidate& each) { return is_heavier(*first, each); });
  return true;
}

}  // namespace hybridge
