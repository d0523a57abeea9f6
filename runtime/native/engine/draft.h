// Runs the methods of the drafter inside a program: pairs in, draft tokens out. docs/artifact.md has the methods.
#ifndef HYBRIDGE_ENGINE_DRAFT_H
#define HYBRIDGE_ENGINE_DRAFT_H

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/model_info.h"
#include "engine/status.h"

namespace hybridge {

// Draws draft tokens from softmax(scores / temperature), each by the noise of its place (engine/noise.h).
struct Draws {
  std::vector<uint32_t> noise;
  double temperature;
};

// Draft tokens, none where the drafter's context is full, and its own estimate that each is right if those before it
// are.
struct Drafted {
  std::vector<int64_t> tokens;
  std::vector<float> confidences;
};

// Lets the drafter read rows of hidden states [n, width] and the token after each.
Status read_pairs(
    const ModelInfo& info, const CallMethod& call, std::span<const float> rows, std::span<const int64_t> following
);

// Lets the drafter read rows of hidden states [n, width] and the token after each, n ≥ 1, and propose at most `limit` ≥
// 1 tokens after the last one: its best, or drawn by a drafter that can.
Result<Drafted> draft(
    const ModelInfo& info, const CallMethod& call, std::span<const float> rows, std::span<const int64_t> following,
    size_t limit, const std::optional<Draws>& draws = std::nullopt
);

}  // namespace hybridge

#endif
