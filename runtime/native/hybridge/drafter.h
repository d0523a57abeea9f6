// A drafter proposes draft tokens: a rejected one costs time and never changes the text.
#ifndef HYBRIDGE_NATIVE_DRAFTER_H
#define HYBRIDGE_NATIVE_DRAFTER_H

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <hybridge/distribution.h>
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

// propose(text, limit): at most `limit` ≥ 1 tokens that may follow the text. While one generation lasts, the text only ever grows;
// its last token is not committed yet.
//
// A drafter that derives from Paced (hybridge/pace.h) keeps what was measured with it from one generation to the next. One with
// a static IS_FREE, which is true, takes next to no time: it is asked in every round, and gives a chance.
template <typename D>
concept CertainDrafter = requires(D drafter, std::span<const int64_t> text, size_t limit) {
  { drafter.propose(text, limit) } -> std::convertible_to<Proposal>;
};

// propose(text, limit, sampler): likewise of one that may draw its tokens; sampler: how the model draws.
template <typename D>
concept DrawingDrafter = requires(D drafter, std::span<const int64_t> text, size_t limit, Sampler& sampler) {
  { drafter.propose(text, limit, sampler) } -> std::convertible_to<Proposal>;
};

template <typename D>
concept Drafter = CertainDrafter<D> || DrawingDrafter<D>;

template <typename D>
constexpr bool is_free() {
  if constexpr (requires { D::IS_FREE; }) return D::IS_FREE;
  return false;
}

// Plain decoding.
struct NoDrafter {
  Proposal propose(std::span<const int64_t>, size_t) { return {}; }
};

}  // namespace hybridge

#endif
