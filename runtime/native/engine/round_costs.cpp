#include "engine/round_costs.h"

#include <algorithm>
#include <iterator>
#include <set>

namespace hybridge {

namespace {

// Cost of one more token to verify, in decodes, while no block was measured.
constexpr double FIRST_STEP = 0.12;
// Times that certainly right tokens are decoded because blocks looked slow, until a block is measured again.
constexpr size_t TRIED = 16;

}  // namespace

double RoundCosts::round_seconds(size_t length) const {
  if (cost_.empty()) return 0;
  const size_t wanted = rounded(length);
  const auto next = cost_.upper_bound(wanted);
  if (next == cost_.begin()) return next->second;
  const auto& [nearest, seconds] = *std::prev(next);
  if (nearest == wanted) return seconds;
  const double step = nearest == 1 ? FIRST_STEP * seconds
                                   : (seconds - round_seconds(1)) / static_cast<double>(nearest - 1);
  return seconds + step * static_cast<double>(wanted - nearest);
}

void RoundCosts::add(size_t length, double seconds, bool is_alone) {
  length = rounded(length);
  decodes_ += length == 1;
  since_decode_ += length > 1;
  if (length > 1 || decodes_ <= FIRST_DECODES || !(is_cold_ || !is_alone)) measure(length, seconds);
  is_cold_ = length > 1;
}

size_t RoundCosts::tokens_worth_verifying(std::span<const double> confidences, double spent) const {
  if (cost_.empty()) return confidences.size();
  std::vector<double> yields = {1.0};  // tokens of a round, by how many draft tokens are verified
  double reached = 1.0;
  for (const double confidence : confidences) yields.push_back(yields.back() + (reached *= confidence));
  std::set<size_t> counts = {0};
  for (const size_t length : lengths_) counts.insert(std::min(length - 1, confidences.size()));
  const auto speed = [&](size_t count) { return yields[count] / (round_seconds(count + 1) + spent); };
  return *std::max_element(counts.begin(), counts.end(), [&](size_t one, size_t other) {
    return speed(one) < speed(other);
  });
}

size_t RoundCosts::certain_tokens_worth_verifying(size_t count) {
  const size_t best = tokens_worth_verifying(std::vector<double>(count, 1.0));
  passed_ += best < count;
  if (passed_ <= TRIED) return best;
  passed_ = 0;
  return count;
}

void RoundCosts::measure(size_t length, double seconds) {
  if (length == 1 && since_decode_ > 0) {
    if (since_decode_ >= every_) every_ = std::min(2 * every_, EVERY);
    since_decode_ = 0;
  }
  const double known = cost_.empty() ? seconds : round_seconds(length);
  const size_t count = ++measured_[length];
  const double weight = count == 2 ? 1.0 : seconds < known ? 0.5 : 0.1, most = count == 2 ? 3.0 : 2.0;
  cost_[length] = known + weight * (std::min(seconds, most * known) - known);
}

size_t RoundCosts::rounded(size_t length) const {
  if (length <= 1) return 1;
  const auto found = std::lower_bound(lengths_.begin(), lengths_.end(), length);
  return found == lengths_.end() ? length : *found;
}

}  // namespace hybridge
