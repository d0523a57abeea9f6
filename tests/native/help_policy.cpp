// dispatch/help.h over jobs whose times are made up: prints what they took, of what they take where the faster way is
// known.
#include <cmath>
#include <cstdio>
#include <random>

#include "dispatch/help.h"

static void product(void*, int64_t) {}
static void scan(void*, int64_t) {}

struct Machine {
  double product, scan;  // how much faster a job is with help
};

int main() {
  std::mt19937 random(1);
  std::lognormal_distribution<double> noise(0, 0.15);
  std::bernoulli_distribution stolen(0.002);  // the processor was another process's for a while
  const auto share = [&](std::initializer_list<Machine> machines, int jobs) {
    hybridge::HelpPolicy policy;
    double taken = 0, least = 0;
    for (const Machine& machine : machines) {
      for (int i = 0; i < jobs; ++i) {
        const bool is_scan = i % 4 == 3;
        const int64_t cost = is_scan ? 30000 : 100000 << (i % 3);
        const double gain = is_scan ? machine.scan : machine.product;
        const auto choice = policy.choose(is_scan ? scan : product, cost);
        const double alone = double(cost) * noise(random) + (stolen(random) ? 4e6 : 0), helped = alone / gain;
        const double nanoseconds = choice.helped ? helped : alone;
        policy.done(choice, cost, std::llround(nanoseconds));
        taken += nanoseconds;
        least += std::min(alone, helped);
      }
    }
    return taken / least;
  };
  std::printf(
      "%.3f %.3f %.3f %.3f %.3f\n", share({{0.8, 0.7}}, 100000), share({{1.9, 1.8}}, 100000),
      share({{3.8, 3.5}}, 100000), share({{1.5, 0.6}}, 100000), share({{0.8, 0.7}, {1.9, 1.8}}, 200000)
  );
}
