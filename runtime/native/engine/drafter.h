// A drafter proposes draft tokens: a rejected one costs time and never changes the text.
#ifndef HYBRIDGE_ENGINE_DRAFTER_H
#define HYBRIDGE_ENGINE_DRAFTER_H

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/draft_length_controller.h"
#include "engine/sampling.h"

namespace hybridge {

// Draft tokens; none if the drafter has no idea. confidence: the drafter's own estimate that a token is right if those
// before it are, if it has one; confidences: one for each token. They decide how many are verified.
struct Proposal {
  Proposal() = default;
  Proposal(std::vector<int64_t> proposed) : tokens(std::move(proposed)) {}

  std::vector<int64_t> tokens;
  std::optional<double> confidence;
  std::vector<double> confidences;
};

// Proposes what comes next. It may serve one generation after the other, and keeps what was measured with it meanwhile.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // At most `limit` ≥ 1 tokens that may follow the text, whose last token is not committed yet. While one generation
  // lasts, the text only ever grows. sampler: how the model draws, for a drafter that draws too.
  virtual Proposal propose(std::span<const int64_t> text, size_t limit, Sampler& sampler) = 0;

  // Called before the first proposal of each generation, whose text may be another one.
  virtual void begin() {}

  // True if a proposal takes next to no time: the drafter is then asked in every round, and gives a confidence.
  virtual bool is_cheap() const { return false; }

  // Most tokens that it ever proposes at once.
  virtual size_t longest() const { return std::numeric_limits<size_t>::max() - 1; }

  // Tokens of the text that a proposal would read first.
  virtual size_t unread(std::span<const int64_t>) const { return 0; }

  // The controller for the model at the address `model`.
  DraftLengthController& controller(const void* model) {
    if (std::exchange(model_, model) != model) controller_ = {};
    return controller_;
  }

 private:
  const void* model_ = nullptr;
  DraftLengthController controller_;
};

}  // namespace hybridge

#endif
