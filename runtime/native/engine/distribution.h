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

// Draws one of at least one tokens, with probabilities in proportion to their weights.
//
// The exponential variate of each token, divided by its weight, is least for the token that is drawn (the Gumbel-max
// trick). Variates follow from the noise and the token alone, so with the same noise two distributions that are alike
// mostly give the same token: with probability (1 - d) / (1 + d) or more for a total variation distance d (Daliri,
// Musco, Suresh, arXiv:2408.07978).
int64_t pick(const Distribution& weights, uint32_t noise);

}  // namespace hybridge

#endif
