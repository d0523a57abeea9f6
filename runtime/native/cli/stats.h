// What a generation took, as rows.
#ifndef HYBRIDGE_NATIVE_CLI_STATS_H
#define HYBRIDGE_NATIVE_CLI_STATS_H

#include <cstdio>

#include <hybridge/hybridge.h>

#include "output.h"

namespace hybridge::cli {

// Of the tokens after the first, which the prompt's time pays for; 0 without any.
inline double tokens_per_second(const hybridge_generated& counts) {
  return counts.tokens > 1 && counts.new_seconds > 0 ? static_cast<double>(counts.tokens - 1) / counts.new_seconds : 0;
}

// Prints them on stderr.
inline void print_stats(size_t prompt_tokens, const hybridge_generated& counts) {
  const auto phase = [&](double seconds) {
    return formatted("%.3f s, %.0f%%", seconds, counts.new_seconds > 0 ? 100 * seconds / counts.new_seconds : 0);
  };
  const double accepted = counts.proposed > 0
                              ? static_cast<double>(counts.accepted) / static_cast<double>(counts.proposed)
                              : 0;
  print_rows(
      stderr,
      {
          {"prompt", formatted("%zu tokens in %.3f s", prompt_tokens, counts.prefill_seconds)},
          {"new", formatted("%zu tokens, %.0f tokens/s", counts.tokens, tokens_per_second(counts))},
          {"draft tokens", formatted("%zu, accepted %zu (%.0f%%)", counts.proposed, counts.accepted, 100 * accepted)},
          {"calls",
           formatted("%zu verifies, %zu decodes, %zu rollbacks", counts.verifies, counts.decodes, counts.rollbacks)},
          {"draft", phase(counts.draft_seconds)},
          {"verify", phase(counts.verify_seconds)},
          {"commit", phase(counts.commit_seconds)},
          {"decode", phase(counts.decode_seconds)},
      }
  );
}

}  // namespace hybridge::cli

#endif
