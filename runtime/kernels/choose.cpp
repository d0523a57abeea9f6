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

// Numbers in (0, 1] that follow from a row's noise and the tokens at `at` and after it alone, as noise_of_token of
// runtime/native/engine/noise.h gives them.
INLINE f32x16 noise_of_tokens(uint32_t noise, const int64_t* ids, int64_t at, int64_t count) {
  uint32_t tokens[LANES] = {};
  for (int64_t i = 0; i < std::min<int64_t>(LANES, count - at); ++i) tokens[i] = uint32_t(ids ? ids[at + i] : at + i);
  u32x16 x = load<u32x16>(tokens) * 0x9e3779b1u + noise;
  x = (x ^ (x >> 16u)) * 0x21f0aaadu;
  x = (x ^ (x >> 15u)) * 0x735a2d97u;
  x = x ^ (x >> 15u);
  // In halves: registers convert signed integers.
  const auto high = convert<f32x16>((i32x16)(x >> 16u)), low = convert<f32x16>((i32x16)(x & 0xffffu));
  return high * 0x1p-16f + (low + 0.5f) * 0x1p-32f;
}

// Returns the place of a token drawn from softmax(factor scores): the one with the least exponential variate divided by
// its weight.
int64_t drawn(const float* row, const int64_t* ids, int64_t count, uint32_t noise, float factor, float top) {
  float least = INFINITY;
  int64_t found = 0;
  for (int64_t at = 0; at < count; at += LANES) {
    const f32x16 weights = exp((scores_at(row, at, count) - top) * factor);
    const f32x16 from_token = noise_of_tokens(noise, ids, at, count);
    // -log(1 - x) >= x: most are too large without a logarithm.
    if (!(largest(select(from_token < weights * least, splat(1.0f), splat(0.0f))) > 0.0f)) continue;
    float each[LANES], numbers[LANES];
    store(each, weights), store(numbers, from_token);
    for (int i = 0; i < LANES; ++i) {
      const float variate = -std::log1p(-numbers[i]);
      if (variate < least * each[i]) least = variate / each[i], found = at + i;
    }
  }
  return found;
}

Tensor& draw_out(
    KernelRuntimeContext& context, const Tensor& scores, const Tensor& noise, const Tensor& temperature,
    const std::optional<Tensor>& ids, Tensor& out
) {
  Size N, C, I;
  REQUIRE(is<float>(scores, 1, N, C));
  REQUIRE(is<int64_t>(noise, 1, N));
  REQUIRE(holds<float>(temperature, 1));
  REQUIRE(!ids || (is<int64_t>(*ids, 1, I, C) && (I == 1 || I == N)));
  REQUIRE(is<int64_t>(out, 1, N));
  const float heat = *data<float>(temperature);
  const int64_t count = C, step = ids && I > 1 ? count : 0;
  const float* from = data<float>(scores);
  const int64_t *bits = data<int64_t>(noise), *tokens = ids ? data<int64_t>(*ids) : nullptr;
  int64_t* to = data<int64_t>(out);
  parallel(N, EACH * C, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* each = from + row * count;
      const float top = best_of(each, count, to[row]);
      const int64_t* mine = tokens ? tokens + row * step : nullptr;
      if (heat > 0.0f) to[row] = drawn(each, mine, count, uint32_t(bits[row]), 1.0f / heat, top);
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
