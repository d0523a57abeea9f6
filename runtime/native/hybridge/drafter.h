// A drafter proposes draft tokens: a rejected one costs time and never changes the text.
#ifndef HYBRIDGE_NATIVE_DRAFTER_H
#define HYBRIDGE_NATIVE_DRAFTER_H

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hybridge/distribution.h>
#include <hybridge/pace.h>
#include <hybridge/sampling.h>

namespace hybridge {

// Draft tokens; none where the drafter has no idea. probabilities: what each was drawn from, which sums to 1; none where the
// drafter is certain. chance: its own estimate that a token is right if those before it are, where it has one; chances: one for
// each token. They decide how many are verified, so they must not depend on tokens that were drawn: that would leave another
// distribution than `probabilities`.
struct Proposal {
  Proposal() = default;
  Proposal(std::vector<int64_t> proposed) : tokens(std::move(proposed)) {}

  // What draft token `i` was drawn from; null if it was not.
  const Distribution* drawn_from(size_t i) const { return i < probabilities.size() ? &probabilities[i] : nullptr; }

  std::vector<int64_t> tokens;
  std::vector<Distribution> probabilities;
  std::optional<double> chance;
  std::vector<double> chances;
};

// Proposes what comes next. It may serve one generation after the other, and keeps what was measured with it meanwhile.
class Drafter {
 public:
  virtual ~Drafter() = default;

  // At most `limit` ≥ 1 tokens that may follow the text, whose last token is not committed yet. While one generation lasts, the
  // text only ever grows. sampler: how the model draws, for a drafter that draws too.
  virtual Proposal propose(std::span<const int64_t> text, size_t limit, Sampler& sampler) = 0;

  // Whether it takes next to no time: it is then asked in every round, and gives a chance.
  virtual bool is_free() const { return false; }

  // The pace with the model that `model` is the address of, and whose verify methods have these lengths.
  Pace& pace(const void* model, const std::vector<int64_t>& lengths) {
    if (!pace_ || model_ != model || lengths_ != lengths) {
      model_ = model;
      lengths_ = lengths;
      pace_.emplace(lengths);
    }
    return *pace_;
  }

 private:
  const void* model_ = nullptr;
  std::vector<int64_t> lengths_;
  std::optional<Pace> pace_;
};

}  // namespace hybridge

#endif
