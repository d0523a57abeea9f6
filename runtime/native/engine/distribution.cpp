#include "engine/distribution.h"

#include <algorithm>
#include <numeric>

namespace hybridge {

namespace {

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

}  // namespace

double total(const Distribution& distribution) {
  return std::accumulate(distribution.begin(), distribution.end(), 0.0, [](double sum, const Candidate& each) {
    return sum + each.weight;
  });
}

void normalize(Distribution& weights) {
  const double share = 1 / total(weights);
  for (Candidate& each : weights) each.weight *= share;
}

double weight_of(const Distribution& weights, int64_t token) {
  const auto found = std::lower_bound(weights.begin(), weights.end(), Candidate{token, 0}, comes_before);
  return found != weights.end() && found->token == token ? found->weight : 0.0;
}

int64_t pick(const Distribution& weights, double place) {
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

Distribution excess(const Distribution& p, double factor, const Distribution& q) {
  Distribution left;
  for_excess(p, factor, q, [&](int64_t token, double weight) { left.push_back({token, weight}); });
  return left;
}

double total_excess(const Distribution& p, double factor, const Distribution& q) {
  double sum = 0;
  for_excess(p, factor, q, [&](int64_t, double weight) { sum += weight; });
  return sum;
}

}  // namespace hybridge
