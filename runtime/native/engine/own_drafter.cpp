#include "engine/own_drafter.h"

namespace hybridge {

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
  proposal.confidences = calibration_.propose(text.size(), drafted->tokens, drafted->confidences);
  return proposal;
}

std::optional<Draws> OwnDrafter::draws(size_t start, size_t limit, const Sampler& sampler) const {
  if (!session_.info().draft_samples || sampler.is_greedy()) return std::nullopt;
  Draws draws{{}, sampler.draft_temperature()};
  for (size_t i = 0; i < limit; ++i) draws.noise.push_back(sampler.noise(start + i));
  return draws;
}

}  // namespace hybridge
