// Resizing of pictures: each pixel is a weighted mean of those that its place covers, first across, then down.
#ifndef HYBRIDGE_ENGINE_RESAMPLE_H
#define HYBRIDGE_ENGINE_RESAMPLE_H

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace hybridge {

// The weights of the values from `first` on, of which a place is the mean; their sum is 1.
template <typename Weight>
struct Taps {
  size_t first = 0;
  std::vector<Weight> weights;
};

// The taps of each of `to` places over `from` values, with antialiasing: a filter that reaches `reach` places to either
// side is as many times wider as there are more values than places.
template <typename Filter>
std::vector<Taps<double>> taps(size_t from, size_t to, double reach, Filter filter) {
  const double scale = static_cast<double>(from) / static_cast<double>(to), width = std::max(scale, 1.0);
  std::vector<Taps<double>> found(to);
  for (size_t place = 0; place < to; ++place) {
    const double center = (static_cast<double>(place) + 0.5) * scale;
    const auto begin = static_cast<size_t>(std::max(center - reach * width + 0.5, 0.0));
    const size_t end = std::min(static_cast<size_t>(center + reach * width + 0.5), from);
    double total = 0;
    found[place].first = begin;
    for (size_t i = begin; i < end; ++i) {
      found[place].weights.push_back(filter((static_cast<double>(i) - center + 0.5) / width));
      total += found[place].weights.back();
    }
    for (double& weight : found[place].weights) weight /= total;
  }
  return found;
}

// Linear interpolation between two values.
inline double triangle(double away) { return std::max(0.0, 1.0 - std::abs(away)); }

// Cubic convolution with the parameter -1/2 (Keys, 1981): through the values, over the two on either side.
inline double cubic(double away) {
  const double x = std::abs(away);
  if (x < 1) return (1.5 * x - 2.5) * x * x + 1;
  return x < 2 ? ((-0.5 * x + 2.5) * x - 4) * x + 2 : 0;
}

// Bilinear in float32, rounded once at the end, as PyTorch resizes.
struct Bilinear {
  using Weight = float;
  using Sum = float;
  using Between = float;  // a value that is resized across, but not down yet
  static constexpr Sum ZERO = 0;

  static std::vector<Taps<double>> places(size_t from, size_t to) { return taps(from, to, 1, triangle); }
  static Weight weight(double exact) { return static_cast<Weight>(exact); }
  static Between between(Sum sum) { return sum; }
  static uint8_t pixel(Sum sum) { return static_cast<uint8_t>(std::clamp(std::nearbyint(sum), 0.0f, 255.0f)); }
};

// In fixed point, rounded to pixels between the two directions as well, as Pillow resizes.
struct FixedPoint {
  using Weight = int32_t;
  using Sum = int32_t;
  using Between = uint8_t;
  static constexpr int BITS = 22;  // after the point: weights of up to 2 and pixels of 8 bits leave these of 32
  static constexpr Sum ZERO = 1 << (BITS - 1);

  static Weight weight(double exact) { return static_cast<Weight>(std::lround(exact * (1 << BITS))); }
  static Between between(Sum sum) { return pixel(sum); }
  static uint8_t pixel(Sum sum) { return static_cast<uint8_t>(std::clamp(sum >> BITS, 0, 255)); }
};

struct Bicubic : FixedPoint {
  static std::vector<Taps<double>> places(size_t from, size_t to) { return taps(from, to, 2, cubic); }
};

struct BilinearFixed : FixedPoint {
  static std::vector<Taps<double>> places(size_t from, size_t to) { return taps(from, to, 1, triangle); }
};

// Bicubic in float32 with the values that lie outside of those of a pixel, as PyTorch resizes floats: their range is
// 25/16 as wide, because the absolute weights add up to 5/4 at most in each direction. So a value is rounded once, by
// 25/32 of 255 at most.
struct Unclamped {
  using Weight = float;
  using Sum = float;
  using Between = float;
  static constexpr Sum ZERO = 0;
  static constexpr Sum STEP = 25.0f / 16, DARKEST = -255.0f * 9 / 32;

  static std::vector<Taps<double>> places(size_t from, size_t to) { return taps(from, to, 2, cubic); }
  static Weight weight(double exact) { return static_cast<Weight>(exact); }
  static Between between(Sum sum) { return sum; }
  static uint8_t pixel(Sum sum) {
    return static_cast<uint8_t>(std::clamp(std::nearbyint((sum - DARKEST) / STEP), 0.0f, 255.0f));
  }
};

// Returns uint8 [new_height, new_width, 3] of rgb [height, width, 3]. In memory are no more lines between the
// directions than a new one takes.
template <typename Kind>
std::vector<uint8_t> resized(
    std::span<const uint8_t> rgb, size_t width, size_t height, size_t new_width, size_t new_height
) {
  const auto rounded = [](const std::vector<Taps<double>>& exact) {
    std::vector<Taps<typename Kind::Weight>> found(exact.size());
    for (size_t i = 0; i < exact.size(); ++i) {
      found[i].first = exact[i].first;
      for (const double weight : exact[i].weights) found[i].weights.push_back(Kind::weight(weight));
    }
    return found;
  };
  const auto across = rounded(Kind::places(width, new_width)), down = rounded(Kind::places(height, new_height));
  size_t most = 0;
  for (const auto& each : down) most = std::max(most, each.weights.size());
  const size_t line = new_width * 3;
  std::vector<typename Kind::Between> lines(most * line);  // a ring
  std::vector<typename Kind::Sum> sums(line);
  std::vector<uint8_t> pixels;
  pixels.reserve(new_height * line);
  size_t read = 0;
  for (const auto& [top, weights] : down) {
    for (read = std::max(read, top); read < top + weights.size(); ++read) {
      const uint8_t* from = rgb.data() + read * width * 3;
      auto* to = lines.data() + read % most * line;
      for (const auto& [left, shares] : across) {
        typename Kind::Sum sum[3] = {Kind::ZERO, Kind::ZERO, Kind::ZERO};
        const uint8_t* pixel = from + left * 3;
        for (const auto share : shares) {
          for (size_t c = 0; c < 3; ++c) sum[c] += share * static_cast<typename Kind::Sum>(*pixel++);
        }
        for (const auto each : sum) *to++ = Kind::between(each);
      }
    }
    std::ranges::fill(sums, Kind::ZERO);
    for (size_t i = 0; i < weights.size(); ++i) {
      const auto* from = lines.data() + (top + i) % most * line;
      for (size_t x = 0; x < line; ++x) sums[x] += weights[i] * static_cast<typename Kind::Sum>(from[x]);
    }
    for (const auto sum : sums) pixels.push_back(Kind::pixel(sum));
  }
  return pixels;
}

}  // namespace hybridge

#endif
