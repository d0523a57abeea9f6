// The drafter inside an artifact (--drafter, --mtp of hybridge export): it proposes from the model's own hidden states.
//
//   hybridge::BlockDrafter drafter(session);   // where session.facts().has_drafter()
//   auto done = hybridge::generate(session, prompt, {.max_new_tokens = 64}, drafter, [](int64_t token) { return show(token); });
#ifndef HYBRIDGE_ENGINE_BLOCK_DRAFTER_H
#define HYBRIDGE_ENGINE_BLOCK_DRAFTER_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/calibration.h"
#include "engine/drafter.h"
#include "engine/logits.h"
#include "engine/session.h"

namespace hybridge {

// softmax(scores / temperature) of these tokens, of which some may be there twice.
inline Distribution distribution_of(
    std::span<const float> scores, std::span<const int64_t> tokens, double temperature
) {
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

// While it lives and listens, the session keeps the hidden states that it has yet to read. Its state rolls back with
// the session's, and is a part of its checkpoints.
class BlockDrafter final : public Drafter {
 public:
  explicit BlockDrafter(Session& session) : session_(session) { listen(true); }
  ~BlockDrafter() override { listen(false); }

  BlockDrafter(const BlockDrafter&) = delete;
  BlockDrafter& operator=(const BlockDrafter&) = delete;

  // Starts or stops reading what is committed. Unless it cannot pay, it reads a text before a checkpoint of it is made:
  // that is a prefill, too.
  void listen(bool wanted) {
    if (!wanted) return session_.keep_hidden(false);
    session_.keep_for_drafter(controller(&session_.facts()).could_pay(session_.costs(), 1 + longest()));
  }

  size_t longest() const override { return static_cast<size_t>(session_.facts().draft_blocks.back()) - 1; }

  size_t unread(Tokens) const override { return session_.hidden().count(); }

  // Without a seed, a drafter that samples draws tokens at the model's temperature and gives their distributions.
  // Otherwise it proposes its best tokens, each with a calibrated confidence. A failure proposes nothing; the session
  // knows if it left a broken state.
  Proposal propose(Tokens text, size_t limit, Sampler& sampler) override {
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

 private:
  // Returns the noise that draft tokens are drawn by; nothing for the best ones.
  std::optional<Draws> draws(size_t start, size_t limit, const Sampler& sampler) const {
    if (!session_.facts().draft_samples || !sampler.draws_drafts()) return std::nullopt;
    Draws draws{{}, sampler.temperature()};
    for (size_t i = 0; i < limit; ++i) draws.noise.push_back(sampler.noise(start + i, Stream::draft));
    return draws;
  }

  // Returns the distribution that each draft token was drawn from.
  static std::vector<Distribution> distributions(const Drafted& drafted, double temperature) {
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

  Session& session_;
  Calibration calibration_;
};

}  // namespace hybridge

#endif
