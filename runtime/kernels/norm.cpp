// Norms over the last dimension: y = x / sqrt(mean(x^2) + eps) * weight, and the same of x less its mean.
#include <cmath>

#include "checks.h"
#include "kernel.h"
#include "vector_math.h"

namespace hybridge {
namespace {

constexpr int UNROLL = 4;

// The sum of f over D numbers, in UNROLL * LANES partial sums; f gets sixteen numbers, and zeros behind the end stay
// zeros.
template <typename F>
inline float total(const float* x, int64_t D, const F& f) {
  f32x16 acc[UNROLL] = {};
  int64_t d = 0;
  for (; d + UNROLL * LANES <= D; d += UNROLL * LANES)
    for (int u = 0; u < UNROLL; ++u) acc[u] += f(load<f32x16>(x + d + u * LANES));
  for (; d + LANES <= D; d += LANES) acc[0] += f(load<f32x16>(x + d));
  if (d < D) acc[1] += f(load_first(x + d, D - d));
  return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

// to = (x - mean) * scale * weight + bias, of which weight and bias may be null.
void scaled(const float* x, float mean, float scale, const float* weight, const float* bias, int64_t D, float* to) {
  int64_t d = 0;
  for (; d + LANES <= D; d += LANES) {
    f32x16 y = (load<f32x16>(x + d) - mean) * scale;
    if (weight) y *= load<f32x16>(weight + d);
    if (bias) y += load<f32x16>(bias + d);
    store(to + d, y);
  }
  for (; d < D; ++d) {
    const float y = (x[d] - mean) * scale * (weight ? weight[d] : 1.0f);
    to[d] = bias ? y + bias[d] : y;
  }
}

float scale_of(const float* x, int64_t D, double eps) {
  const float squares = total(x, D, [](f32x16 v) { return v * v; });
  return 1.0f / std::sqrt(squares / float(D) + float(eps));
}

Tensor& rms_norm_out(
    KernelRuntimeContext& context, const Tensor& x, const std::optional<Tensor>& weight, double eps, Tensor& out
) {
  Size count, D, weights;
  REQUIRE(is_rows<float>(x, count, D));
  REQUIRE(is_rows<float>(out, count, D));
  REQUIRE(is_rows<float>(weight, weights, D));
  const int64_t groups = weight ? int64_t(weights) : 1;
  REQUIRE(count % groups == 0);
  const float *from = data<float>(x), *w = weight ? data<float>(*weight) : nullptr;
  float* to = data<float>(out);
  parallel(count, 4 * D, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* each = from + row * D;
      scaled(each, 0.0f, scale_of(each, D, eps), w ? w + row % groups * D : nullptr, nullptr, D, to + row * D);
    }
  });
  return out;
}

Tensor& layer_norm_out(
    KernelRuntimeContext& context, const Tensor& x, const std::optional<Tensor>& weight,
    const std::optional<Tensor>& bias, double eps, Tensor& out
) {
  Size count, D;
  REQUIRE(is_rows<float>(x, count, D));
  REQUIRE(is_rows<float>(out, count, D));
  REQUIRE(holds<float>(weight, D));
  REQUIRE(holds<float>(bias, D));
  const float *from = data<float>(x), *w = weight ? data<float>(*weight) : nullptr,
              *b = bias ? data<float>(*bias) : nullptr;
  float* to = data<float>(out);
  parallel(count, 6 * D, [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* each = from + row * D;
      float* y = to + row * D;
      scaled(each, total(each, D, [](f32x16 v) { return v; }) / float(D), 1.0f, nullptr, nullptr, D, y);
      scaled(y, 0.0f, scale_of(y, D, eps), w, b, D, y);
    }
  });
  return out;
}

HYBRIDGE_KERNEL("rms_norm.out", rms_norm_out);
HYBRIDGE_KERNEL("layer_norm.out", layer_norm_out);

}  // namespace
}  // namespace hybridge
