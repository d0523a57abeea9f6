// Distributions that tokens are drawn from.
#ifndef HYBRIDGE_NATIVE_DISTRIBUTION_H
#define HYBRIDGE_NATIVE_DISTRIBUTION_H

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace hybridge {

struct Candidate {
  int64_t token;
  double weight;
};

// The tokens that may come, ascending and each once. Others have no weight; what there is need not sum to 1.
using Distribution = std::vector<Candidate>;

inline bool comes_before(const Candidate& one, const Candidate& other) { return one.token < other.token; }

inline double total(const Distribution& of) {
  return std::accumulate(of.begin(), of.end(), 0.0, [](double sum, const Candidate& each) { return sum + each.weight; });
}

inline void normalize(Distribution& weights) {
  const double sum = total(weights);
  for (Candidate& each : weights) each.weight /= sum;
}

inline double weight_of(const Distribution& weights, int64_t token) {
  const auto found = std::lower_bound(weights.begin(), weights.end(), Candidate{token, 0}, comes_before);
  return found != weights.end() && found->token == token ? found->weight : 0.0;
}

// The token at `place` in [0, 1), by the inverse of the cumulative weights of at least one token; rounding may not reach a token
// that cannot come.
inline int64_t pick(const Distribution& weights, double place) {
  const double wanted = place * total(weights);
  double reached = 0;
  int64_t last = weights.front().token;
  for (const auto& [token, weight] : weights) {
    if (weight == 0) continue;
    reached += weight;
    last = token;
    if (wanted < reached) break;
  }
  return last;
}

inline Distribution scaled(Distribution weights, double factor) {
  for (Candidate& each : weights) each.weight *= factor;
  return weights;
}

// max(0, p - q), of the tokens that it leaves.
inline Distribution excess(const Distribution& p, const Distribution& q) {
  Distribution left;
  auto other = q.begin();
  for (const auto& [token, weight] : p) {
    while (other != q.end() && other->token < token) ++other;
    const double more = weight - (other != q.end() && other->token == token ? other->weight : 0.0);
    if (more > 0) left.push_back({token, more});
  }
  return left;
}

}  // namespace hybridge

#endif
