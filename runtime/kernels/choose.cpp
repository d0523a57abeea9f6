// Draft tokens by their scores: the best one or a draw, the best one's probability, and the best candidates.
#include <cmath>

#include "checks.h"
#include "kernel.h"
#include "vector_math.h"

namespace hybridge {
namespace {

constexpr int64_t EACH = 4;          // about what a score costs, in operations
constexpr int64_t WIDE = 4 * LANES;  // scores that are looked at together

// Scores from `at` on, -inf behind the end.
INLINE f32x16 scores_at(const float* row, int64_t at, int64_t count) {
  if (count - at >= LANES) return load<f32x16>(row + at);
  float scores[LANES];
  std::fill_n(scores, LANES, -INFINITY);
  std::memcpy(scores, row + at, (count - at) * sizeof(float));
  return load<f32x16>(scores);
}

INLINE f32x16 widest(const float* row, int64_t at, int64_t count) {
  f32x16 top = scores_at(row, at, count);
  for (int i = 1; i < 4 && at + i * LANES < count; ++i) top = larger(top, scores_at(row, at + i * LANES, count));
  return top;
}

// The largest score, and the first place that it has.
float best_of(const float* row, int64_t count, int64_t& place) {
  f32x16 tops = splat(-INFINITY);
  for (int64_t at = 0; at < count; at += WIDE) tops = larger(tops, widest(row, at, count));
  const float top = largest(tops);
  for (place = 0; place < count && !(row[place] == top);) ++place;
  if (place == count) place = 0;  // NaN alone
  return top;
}

// The sum of e^(factor (score - top)) over scores begin..end.
float weight(const float* row, int64_t begin, int64_t end, float top, float factor) {
  f32x16 total{};
  for (int64_t at = begin; at < end; at += LANES) total += exp((scores_at(row, at, end) - top) * factor);
  return sum(total);
}

constexpr int64_t PART = 1024;

// Returns the place at which the running sum of the weights passes the share `noise` of the total.
int64_t drawn(const float* row, int64_t count, float noise, float factor, float top, double* sums) {
  const int64_t parts = (count + PART - 1) / PART;
  double total = 0.0;
  for (int64_t p = 0; p < parts; ++p)
    total += sums[p] = weight(row, p * PART, std::min(count, (p + 1) * PART), top, factor);
  double place = noise * total;
  int64_t part = 0;
  while (part + 1 < parts && sums[part] <= place) place -= sums[part++];
  const int64_t end = std::min(count, (part + 1) * PART);
  int64_t last = part * PART;  // of those that have a weight: rounding may lead behind all of them
  for (int64_t at = part * PART; at < end; ++at) {
    const float each = std::exp((row[at] - top) * factor);
    if (!(each > 0.0f)) continue;
    last = at;
    if (place < each) return at;
    place -= each;
  }
  return last;
}

Tensor& draw_out(
    KernelRuntimeContext& context, const Tensor& scores, const Tensor& noise, const Tensor& temperature, Tensor& out
) {
  Size N, C;
  REQUIRE(is<float>(scores, 1, N, C));
  REQUIRE(is<float>(noise, 1, N));
  REQUIRE(holds<float>(temperature, 1));
  REQUIRE(is<int64_t>(out, 1, N));
  const float heat = *data<float>(temperature);
  const bool draws = heat > 0.0f;
  const int64_t parts = (C + PART - 1) / PART, count = C;
  double* sums = draws ? scratch<double>(context, N * parts) : nullptr;
  ET_KERNEL_CHECK(context, !draws || sums, MemoryAllocationFailed, out);
  const float *from = data<float>(scores), *places = data<float>(noise);
  int64_t* to = data<int64_t>(out);
  parallel(N, EACH * C, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* each = from + row * count;
      const float top = best_of(each, count, to[row]);
      if (draws) to[row] = drawn(each, count, places[row], 1.0f / heat, top, sums + row * parts);
    }
  });
  return out;
}

Tensor& top_chance_out(KernelRuntimeContext& context, const Tensor& scores, Tensor& out) {
  Size N, C;
  REQUIRE(is<float>(scores, 1, N, C));
  REQUIRE(is<float>(out, 1, N));
  const float* from = data<float>(scores);
  float* to = data<float>(out);
  const int64_t count = C;
  parallel(N, EACH * C, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      int64_t place = 0;
      const float top = best_of(from + row * count, count, place);
      to[row] = 1.0f / weight(from + row * count, 0, count, top, 1.0f);
    }
  });
  return out;
}

// Keeps the `kept` places with the largest scores, the largest first; of equal ones the first.
void keep_best(const float* row, int64_t count, int64_t* best, int64_t kept) {
  int64_t found = 0;
  const auto offer = [&](int64_t place) {
    int64_t at = found < kept ? found++ : kept - 1;
    for (; at > 0 && row[best[at - 1]] < row[place]; --at) best[at] = best[at - 1];
    best[at] = place;
  };
  int64_t at = 0;
  for (; at < kept; ++at) offer(at);
  for (; at < count; at += WIDE) {
    if (!(largest(widest(row, at, count)) > row[best[kept - 1]])) continue;
    for (int64_t i = at; i < std::min(at + WIDE, count); ++i)
      if (row[i] > row[best[kept - 1]]) offer(i);
  }
}

Tensor& best_candidates_out(KernelRuntimeContext& context, const Tensor& scores, int64_t kept, Tensor& out) {
  Size N, C;
  REQUIRE(is<float>(scores, 1, N, C));
  REQUIRE(1 <= kept && kept <= C);
  REQUIRE(is<int64_t>(out, 1, N, kept));
  const float* from = data<float>(scores);
  int64_t* to = data<int64_t>(out);
  const int64_t count = C;
  parallel(N, EACH * C, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) keep_best(from + row * count, count, to + row * kept, kept);
  });
  return out;
}

HYBRIDGE_KERNEL("draw.out", draw_out);
HYBRIDGE_KERNEL("top_chance.out", top_chance_out);
HYBRIDGE_KERNEL("best_candidates.out", best_candidates_out);

}  // namespace
}  // namespace hybridge
