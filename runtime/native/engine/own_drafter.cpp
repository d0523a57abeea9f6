#include "engine/own_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/distribution.h"
#include "engine/logits.h"
#include "engine/noise.h"

namespace hybridge {

namespace {

// softmax(scores / temperature) of these tokens, of which some may be there twice.
Distribution distribution_of(std::span<const float> scores, std::span<const int64_t> tokens, double temperature) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  Distribution all;
  for (size_t i = 0; i < scores.size(); ++i) {
    all.push_back(
        {tokens.empty() ? static_cast<int64_t>(i) : tokens[i], std::exp((scores[i] - largest) / temperature)}
    );
  }
  if (!std::is_sorted(all.begin(), all.end(), comes_before)) std::sort(all.begin(), all.end(), comes_before);
  Distribution once;
  for (const Candidate& each : all) {
    if (!once.empty() && once.back().token == each.token) once.back().weight += each.weight;
    else once.push_back(each);
  }
  normalize(once);
  return once;
}

// Returns the distribution that each draft token was drawn from.
std::vector<Distribution> distributions(const Drafted& drafted, double temperature) {
  std::vector<Distribution> found;
  const std::span scores(drafted.scores);
  const std::span candidates(drafted.candidates);
  const size_t count = drafted.tokens.size(), width = count > 0 ? scores.size() / count : 0;
  for (size_t i = 0; i < count; ++i) {
    const auto tokens = candidates.size() > width ? candidates.subspan(i * width, width) : candidates;
    found.push_back(distribution_of(scores.subspan(i * width, width), tokens, temperature));
  }
  return found;
}

}  // namespace

void OwnDrafter::listen(bool wanted) {
  if (!wanted) return session_.keep_hidden(false);
  session_.keep_for_drafter(controller(&session_.info()).could_pay(session_.costs(), 1 + longest()));
}

Proposal OwnDrafter::propose(Tokens text, size_t limit, Sampler& sampler) {
  calibration_.learn(text);
  const auto draws = this->draws(text.size(), limit, sampler);
  const auto drafted = session_.draft(text.back(), limit, draws);
  if (!drafted.ok()) return {};
  Proposal proposal(drafted->tokens);
  if (draws && are_finite(drafted->scores)) {
    proposal.distributions = distributions(*drafted, draws->temperature);
  } else {
    proposal.confidences = calibration_.propose(text.size(), drafted->tokens, drafted->confidences);
  }
  return proposal;
}

std::optional<Draws> OwnDrafter::draws(size_t start, size_t limit, const Sampler& sampler) const {
  if (!session_.info().draft_samples || !sampler.draws_drafts()) return std::nullopt;
  Draws draws{{}, sampler.temperature()};
  for (size_t i = 0; i < limit; ++i) draws.noise.push_back(sampler.noise(start + i, Stream::draft));
  return draws;
}

}  // namespace hybridge
