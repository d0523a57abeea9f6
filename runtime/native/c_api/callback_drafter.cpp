#include "c_api/callback_drafter.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace hybridge::c {

Proposal CallbackDrafter::propose(std::span<const int64_t> text, size_t limit, Sampler&) {
  const HiddenStates& states = session_.hidden();
  const bool reads = chosen_.reads_hidden != 0 && states.count() > 0;
  const hybridge_context context{
      text.data(), text.size(), reads ? states.unread().data() : nullptr, reads ? states.count() : 0,
      reads ? states.width() : 0
  };
  std::vector<int64_t> tokens(limit);
  std::vector<double> confidences(limit);
  hybridge_proposal written{tokens.data(), confidences.data(), 0};
  tokens.resize(std::min(limit, call_back(chosen_.propose, &context, &written, limit, user_)));
  if (reads) session_.forget_hidden();
  Proposal proposal(std::move(tokens));
  confidences.resize(std::min(confidences.size(), written.confidence_count));
  if (is_cheap() && !confidences.empty()) proposal.confidence = confidences[0];
  if (!is_cheap()) proposal.confidences = std::move(confidences);
  return proposal;
}

}  // namespace hybridge::c
