// The function of hybridge_dev.h that exports round weights with.
//
// A few groups are fitted at once, one in each lane: then a sum over a group is additions of lanes, and what is chosen
// for a group is chosen in its lane. Sums are taken in one order on every processor, and no product is fused with a sum
// (sources.cmake).

#include <cfloat>
#include <cmath>
#include <cstddef>
#include <vector>

#include <hybridge/hybridge_dev.h>

#include "c_api/failure.h"

namespace {

using namespace hybridge::c;

constexpr size_t LANES = 4;  // what SSE2 and NEON have
constexpr size_t RUN = 8, PARTS = 4;
// Extra steps that a group's span is divided into; numbers beyond the last step are clamped.
constexpr double STRETCHES[] = {-0.6, -0.3, 0.0, 0.3, 0.6, 0.9, 1.2, 1.6};
constexpr float WHOLE = 12582912.0f;  // 1.5 * 2^23: a number below 2^22 that is added to it is rounded, half to even

using Lanes = float __attribute__((vector_size(LANES * sizeof(float))));

// Returns the sum of `number(i)` over the numbers of a group: of those a run apart first, in parts.
template <typename Number>
inline Lanes sum(size_t size, Number&& number) {
  Lanes total{};
  for (size_t begin = 0; begin < RUN && begin < size; ++begin) {
    Lanes parts[PARTS]{};
    for (size_t first = begin; first < size; first += RUN * PARTS) {
      for (size_t part = 0; part < PARTS; ++part) {
        if (const size_t i = first + part * RUN; i < size) parts[part] += number(i);
      }
    }
    total += parts[0] + parts[1] + parts[2] + parts[3];
  }
  return total;
}

// Fits lines to the groups in the lanes. whole: room for their numbers.
void fit(
    const Lanes* values, const Lanes* weights, Lanes* whole, size_t size, float high, Lanes& scale, Lanes& minimum
) {
  Lanes lowest = values[0], highest = values[0];
  for (size_t i = 1; i < size; ++i) {
    lowest = values[i] < lowest ? values[i] : lowest;
    highest = values[i] > highest ? values[i] : highest;
  }
  Lanes span = highest - lowest, least = Lanes{} + INFINITY;
  span = span < FLT_MIN ? Lanes{} + FLT_MIN : span;
  const Lanes total = sum(size, [&](size_t i) { return weights[i]; });
  const Lanes first = sum(size, [&](size_t i) { return weights[i] * values[i]; });
  const Lanes step = span / high, inverse = 1.0f / span;
  scale = step, minimum = lowest;
  for (const double stretch : STRETCHES) {
    const Lanes steps = inverse * static_cast<float>(high + stretch);
    for (size_t i = 0; i < size; ++i) {
      const Lanes rounded = (values[i] - lowest) * steps + WHOLE - WHOLE;
      whole[i] = rounded > high ? Lanes{} + high : rounded;
    }
    const Lanes sums = sum(size, [&](size_t i) { return weights[i] * whole[i]; });
    const Lanes squares = sum(size, [&](size_t i) { return weights[i] * whole[i] * whole[i]; });
    const Lanes crossed = sum(size, [&](size_t i) { return weights[i] * whole[i] * values[i]; });
    const Lanes determinant = total * squares - sums * sums;
    const auto sound = determinant > 1e-10f * total * squares;
    const Lanes slope = sound ? (total * crossed - first * sums) / determinant : step;
    const Lanes low = sound ? (squares * first - sums * crossed) / determinant : lowest;
    const Lanes error = sum(size, [&](size_t i) {
      const Lanes off = whole[i] * slope + low - values[i];
      return off * off * weights[i];
    });
    const auto better = error < least;
    scale = better ? slope : scale, minimum = better ? low : minimum, least = better ? error : least;
  }
}

}  // namespace

extern "C" hybridge_status hybridge_fit_lines(
    const float* values, const float* weights, size_t groups, size_t size, int bits, float* scales, float* minima
) {
  if (size == 0 || bits < 1 || bits > 8) return refused(HYBRIDGE_INVALID_ARGUMENT);
  if (groups != 0 && (!values || !weights || !scales || !minima)) return refused(HYBRIDGE_INVALID_ARGUMENT);
  return guarded([&] {
    std::vector<Lanes> work(3 * size);
    Lanes scale, minimum;
    for (size_t begin = 0; begin < groups; begin += LANES) {
      const size_t count = groups - begin < LANES ? groups - begin : LANES;
      for (size_t lane = 0; lane < LANES; ++lane) {
        const size_t group = begin + (lane < count ? lane : 0);
        for (size_t i = 0; i < size; ++i) {
          work[i][lane] = values[group * size + i];
          work[size + i][lane] = weights[group * size + i];
        }
      }
      const auto high = static_cast<float>((1 << bits) - 1);
      fit(work.data(), &work[size], &work[2 * size], size, high, scale, minimum);
      for (size_t lane = 0; lane < count; ++lane) {
        scales[begin + lane] = scale[lane];
        minima[begin + lane] = minimum[lane];
      }
    }
    return HYBRIDGE_OK;
  });
}
