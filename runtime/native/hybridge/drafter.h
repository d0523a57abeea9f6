// A drafter proposes draft tokens: a rejected one costs time and never changes the text.
#ifndef HYBRIDGE_NATIVE_DRAFTER_H
#define HYBRIDGE_NATIVE_DRAFTER_H

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hybridge {

// propose(text, limit): at most `limit` ≥ 1 tokens that may follow the text, none where it has no idea. While one generation
// lasts, the text only ever grows; its last token is not committed yet.
template <typename D>
concept Drafter = requires(D drafter, std::span<const int64_t> text, size_t limit) {
  { drafter.propose(text, limit) } -> std::convertible_to<std::vector<int64_t>>;
};

// Plain decoding.
struct NoDrafter {
  std::vector<int64_t> propose(std::span<const int64_t>, size_t) { return {}; }
};

}  // namespace hybridge

#endif
