// Which tokens of a text an accelerator has read: its prefill is outside of the promise of equal bits.
#ifndef HYBRIDGE_ENGINE_DELEGATED_H
#define HYBRIDGE_ENGINE_DELEGATED_H

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace hybridge {

// The places at which a delegate began and stopped to read, in turn: an even number of them, ascending.
using Delegated = std::vector<int64_t>;

inline void add_run(Delegated& runs, int64_t begin, int64_t end) {
  if (!runs.empty() && runs.back() == begin) runs.back() = end;
  else runs.insert(runs.end(), {begin, end});
}

// The runs of the tokens from `begin` to `end`.
inline Delegated between(const Delegated& runs, int64_t begin, int64_t end) {
  Delegated found;
  for (size_t i = 0; i + 1 < runs.size(); i += 2) {
    const int64_t first = std::max(begin, runs[i]), last = std::min(end, runs[i + 1]);
    if (first < last) add_run(found, first, last);
  }
  return found;
}

// Returns whether these can be runs of the tokens from `begin` to `end`.
inline bool are_runs(const Delegated& runs, int64_t begin, int64_t end) {
  const bool is_ascending = std::ranges::adjacent_find(runs, std::ranges::greater_equal()) == runs.end();
  return runs.empty() || (runs.size() % 2 == 0 && is_ascending && begin <= runs.front() && runs.back() <= end);
}

}  // namespace hybridge

#endif
