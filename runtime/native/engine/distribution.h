// Distributions that tokens are drawn from.
#ifndef HYBRIDGE_ENGINE_DISTRIBUTION_H
#define HYBRIDGE_ENGINE_DISTRIBUTION_H

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
  return std::accumulate(of.begin(), of.end(), 0.0, [](double sum, const Candidate& each) {
    return sum + each.weight;
  });
}

inline void normalize(Distribution& weights) {
  const double share = 1 / total(weights);
  for (Candidate& each : weights) each.weight *= share;
}

inline double weight_of(const Distribution& weights, int64_t token) {
  const auto found = std::lower_bound(weights.begin(), weights.end(), Candidate{token, 0}, comes_before);
  return found != weights.end() && found->token == token ? found->weight : 0.0;
}

// The token at `place` in [0, 1), by the inverse of the cumulative weights of at least one token; rounding may not
// reach a token that cannot come.
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

// Calls f(token, factor p - q) for the tokens of p where that is above 0.
template <typename F>
void for_excess(const Distribution& p, double factor, const Distribution& q, const F& f) {
  auto other = q.begin();
  for (const auto& [token, weight] : p) {
    while (other != q.end() && other->token < token) ++other;
    const double more = factor * weight - (other != q.end() && other->token == token ? other->weight : 0.0);
    if (more > 0) f(token, more);
  }
}

// max(0, factor p - q), of the tokens that it leaves.
inline Distribution excess(const Distribution& p, double factor, const Distribution& q) {
  Distribution left;
  for_excess(p, factor, q, [&](int64_t token, double weight) { left.push_back({token, weight}); });
  return left;
}

// What the excess sums to.
inline double total_excess(const Distribution& p, double factor, const Distribution& q) {
  double sum = 0;
  for_excess(p, factor, q, [&](int64_t, double weight) { sum += weight; });
  return sum;
}

}  // namespace hybridge

#endif
