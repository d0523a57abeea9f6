// Distributions that tokens are drawn from.
#ifndef HYBRIDGE_ENGINE_DISTRIBUTION_H
#define HYBRIDGE_ENGINE_DISTRIBUTION_H

#include <cstdint>
#include <vector>

namespace hybridge {

struct Candidate {
  int64_t token;
  double weight;
};

// The tokens that may come, ascending and each once. Others have no weight; what there is need not sum to 1.
using Distribution = std::vector<Candidate>;

inline bool comes_before(const Candidate& one, const Candidate& other) { return one.token < other.token; }

double total(const Distribution& distribution);

void normalize(Distribution& weights);

double weight_of(const Distribution& weights, int64_t token);

// The token at `place` in [0, 1), by the inverse of the cumulative weights of at least one token; rounding may not
// reach a token that cannot come.
int64_t pick(const Distribution& weights, double place);

// max(0, factor p - q), of the tokens that it leaves.
Distribution excess(const Distribution& p, double factor, const Distribution& q);

// What the excess sums to.
double total_excess(const Distribution& p, double factor, const Distribution& q);

}  // namespace hybridge

#endif
