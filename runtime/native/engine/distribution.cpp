#include "engine/distribution.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "engine/noise.h"

namespace hybridge {

double total(const Distribution& distribution) {
  return std::accumulate(distribution.begin(), distribution.end(), 0.0, [](double sum, const Candidate& each) {
    return sum + each.weight;
  });
}

void normalize(Distribution& weights) {
  const double share = 1 / total(weights);
  for (Candidate& each : weights) each.weight *= share;
}

int64_t pick(const Distribution& weights, uint32_t noise) {
  int64_t first = weights.front().token;
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [token, weight] : weights) {
    const double from_token = noise_of_token(noise, token), most = least * weight;
    if (from_token >= most) continue;  // -log(1 - x) >= x
    const double variate = -std::log1p(-from_token);
    if (variate < most) least = variate / weight, first = token;
  }
  return first;
}

}  // namespace hybridge
