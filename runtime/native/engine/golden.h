// Golden steps: calls of a session that an export stored with the eager model's logits, replayed where there is no
// PyTorch. docs/artifact.md has the file.
#ifndef HYBRIDGE_ENGINE_GOLDEN_H
#define HYBRIDGE_ENGINE_GOLDEN_H

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/session.h"
#include "engine/status.h"

namespace hybridge {

constexpr size_t MOST_GOLDEN_STEPS = 32, LARGEST_GOLDEN_FILE = 256 << 10;

// worst: the largest error of a logit, as a share of the largest logit; tolerance: the largest that passes.
struct Replay {
  double worst = 0, tolerance = 0;
  std::vector<uint64_t> bits = {};  // of each step: a hash of what it answered
  bool has_bits = false;            // whether the file has them, by these kernels:
  bool are_same = false;
  std::string instruction_set = {}, version = {};
};

// Replays the steps of a file's text in an empty session. NaN, and an error above the tolerance, fail as
// INVALID_ARTIFACT with the step's name, and so does a file that is damaged or of another model.
Result<Replay> replay_golden(Session& session, std::string_view text);

}  // namespace hybridge

#endif
