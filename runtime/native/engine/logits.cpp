#include "engine/logits.h"

#include <bit>
#include <limits>

#include "engine/vocabulary_loops.h"

namespace hybridge {

int64_t best(std::span<const float> logits) {
  size_t found = 0;
  float above = -std::numeric_limits<float>::infinity();
  const auto take = [&](size_t token, float logit) {
    if (logit > above) above = logit, found = token;
  };
  for_logits_from(logits, [&] { return above; }, take);
  return static_cast<int64_t>(found);
}

float largest(std::span<const float> logits) { return logits[static_cast<size_t>(best(logits))]; }

// It looks at their bits, which no flag for fast arithmetic optimizes away.
bool are_numbers(std::span<const float> logits, bool is_least_one) {
  constexpr int32_t MAGNITUDE = 0x7fffffff, INFINITE = 0x7f800000;
  const int32_t most = is_least_one ? INFINITE : INFINITE - 1;
  const auto is_none = [&](auto bits) { return ((bits & MAGNITUDE) > most) | (bits == INFINITE); };
  FourInts none = {};
  size_t at = 0;
  for (; at + 4 <= logits.size(); at += 4) none |= is_none(four<FourInts>(&logits[at]));
  bool found = (none[0] | none[1] | none[2] | none[3]) != 0;
  for (; at < logits.size(); ++at) found = found || is_none(std::bit_cast<int32_t>(logits[at]));
  return !found;
}

bool are_finite(std::span<const float> logits) { return are_numbers(logits, false); }

}  // namespace hybridge
