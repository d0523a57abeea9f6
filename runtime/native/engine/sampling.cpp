#include "engine/sampling.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/vocabulary_loops.h"

namespace hybridge {

namespace {

// A weight that no sum of doubles notices beside the best token's, nor those of a vocabulary of such tokens.
constexpr double NOTHING = 1e-22;
// A weight that need not be exact beside the best token's.
constexpr float LIGHT = 1e-6f;

bool leaves_some(std::span<const float> logits) {
  return are_numbers(logits, true) && largest(logits) > -std::numeric_limits<float>::infinity();
}

}  // namespace

bool Sampling::is_valid() const {
  const auto scales = [](double value) { return 1e-6 <= value && value <= 1e6; };
  return (temperature == 0 || scales(temperature)) && 0 < top_p && top_p <= 1 && 0 <= min_p && min_p <= 1 &&
         scales(repetition_penalty);
}

Sampler::Sampler(const Sampling& sampling, Mask mask, std::optional<uint64_t> noise)
    : sampling_(sampling),
      mask_(std::move(mask)),
      seed_(
          sampling.seed ? *sampling.seed
          : noise       ? *noise
                        : drawn_seed()
      ) {}

int64_t Sampler::draw(std::span<const float> logits, std::span<const int64_t> text) {
  const auto left = allowed(logits, text);
  return left.empty() ? -1 : drawn(left, text);
}

int64_t Sampler::judge(
    std::span<const float> logits, std::span<const int64_t> text, int64_t token, const Distribution& q
) {
  const auto left = allowed(logits, text);
  if (left.empty()) return -1;
  if (is_greedy()) return drawn(left, text);
  const Distribution& p = normalized(left, text);
  if (noise(text.size(), Stream::accept) * weight_of(q, token) < weight_of(p, token)) return token;
  const Distribution rest = excess(p, 1, q);
  return pick(rest.empty() ? p : rest, noise(text.size(), Stream::draw));  // empty: p is q, but for rounding
}

Sampler::Judged Sampler::judge_block(
    const Logits& logits, std::span<const int64_t> text, std::span<const int64_t> drafted,
    std::span<const Distribution> q
) {
  std::vector<int64_t> seen(text.begin(), text.end());
  const size_t count = drafted.size();
  if (!are_finite(logits[0])) return {0, -1};
  const Distribution& p = normalized(logits[0], seen);  // of the row that was looked at last
  double reached = 1;        // how likely the drafted text is by the model, relative to its drafter
  double reached_there = 1;  // the same of the accepted text
  size_t accepted = 0, row = 0;
  while (row < count && reached > 0) {
    const double likely = reached * weight_of(p, drafted[row]), drawn = weight_of(q[row], drafted[row]);
    reached = likely < drawn ? likely / drawn : likely > 0 ? 1.0 : 0.0;
    seen.push_back(drafted[row++]);
    if (!are_finite(logits[row])) return {accepted, -1};
    normalized(logits[row], seen);
    const double left = row < count ? total_excess(p, reached, q[row]) : reached;
    const double chance = row == count ? reached : left + 1 - reached > 0 ? left / (left + 1 - reached) : 1.0;
    if (noise(text.size() + row - 1, Stream::accept) >= chance) continue;
    accepted = row;
    reached_there = reached;
  }
  seen.resize(text.size() + accepted);
  if (accepted != row) normalized(logits[accepted], seen);
  const Distribution rest = accepted < count ? excess(p, reached_there, q[accepted]) : Distribution();
  return {accepted, pick(rest.empty() ? p : rest, noise(text.size() + accepted, Stream::draw))};
}

Distribution Sampler::distribution(std::span<const float> logits, std::span<const int64_t> text) {
  return normalized(logits, text);
}

std::span<const float> Sampler::allowed(std::span<const float> logits, std::span<const int64_t> text) {
  if (mask_ == nullptr) return are_finite(logits) ? logits : std::span<const float>();
  masked_.assign(logits.begin(), logits.end());
  mask_(text, masked_);
  return leaves_some(masked_) ? std::span<const float>(masked_) : std::span<const float>();
}

int64_t Sampler::drawn(std::span<const float> logits, std::span<const int64_t> text) {
  if (is_greedy()) return best(penalized(logits, text));
  weigh(logits, text);
  return pick(candidates_, noise(text.size(), Stream::draw));
}

const Distribution& Sampler::normalized(std::span<const float> logits, std::span<const int64_t> text) {
  weigh(logits, text);
  normalize(candidates_);
  return candidates_;
}

void Sampler::weigh(std::span<const float> logits, std::span<const int64_t> text) {
  const auto scores = penalized(logits, text);
  const bool has_top_k = 0 < sampling_.top_k && sampling_.top_k < scores.size(), has_top_p = sampling_.top_p < 1;
  const double top = largest(scores);
  if (has_top_k || !has_top_p) {
    const double least = score_of(has_top_p ? NOTHING : std::max(NOTHING, sampling_.min_p / 2), top);
    weigh_from(scores, top, has_top_k ? std::max<double>(least, kth_largest(scores, sampling_.top_k)) : least);
    if (has_top_p) keep_top_p(0);
  } else {
    for (double lightest = 1e-3;; lightest *= 1e-3) {
      weigh_from(scores, top, score_of(lightest, top));
      if (keep_top_p(lightest < NOTHING ? 0 : static_cast<double>(scores.size() - candidates_.size()) * lightest))
        break;
    }
  }
  // Nguyen et al., arXiv:2407.01082, relative to the best token's weight.
  if (const double least = sampling_.min_p; least > 0)
    std::erase_if(candidates_, [=](auto& each) { return each.weight < least; });
}

std::span<const float> Sampler::penalized(std::span<const float> logits, std::span<const int64_t> text) {
  constexpr float LARGEST = std::numeric_limits<float>::max();
  const auto penalty = static_cast<float>(sampling_.repetition_penalty);
  if (penalty == 1) return logits;
  scores_.assign(logits.begin(), logits.end());
  seen_.assign(scores_.size(), false);
  for (const int64_t token : text) {
    if (token < 0) continue;  // a row of a picture
    const auto at = static_cast<size_t>(token);
    if (seen_[at]) continue;
    seen_[at] = true;
    const float score = scores_[at];
    scores_[at] = std::clamp(score < 0 ? score * penalty : score / penalty, -LARGEST, LARGEST);
  }
  return scores_;
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
