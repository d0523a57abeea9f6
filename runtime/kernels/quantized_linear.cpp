// y = x W^T + b with W in 4 or 8 bits (quantized.h), either over x rounded to 8 bits by group or over x as it is.
#include "kernel.h"
#include "quantized.h"
#include "vector.h"

#include <cmath>

namespace hybridge {
namespace {

constexpr int TOKENS = 8;
constexpr int64_t ALIGNED = 64;

struct Product {
  Panels weight;
  const float* x;
  const float* bias;
  float* out;
  int64_t T;
  // x in 8 bits [T, K], its scales and sums by group, each [T, K / group]
  int8_t* quanta;
  float* steps;
  int32_t* sums;
};

// Rounds one group of x: quanta = round(x / step), step = max |x| / 127. The largest possible sum fits easily.
void quantize(const float* x, int64_t count, int8_t* quanta, float* step, int32_t* total) {
  float largest = 0.0f;
  for (int64_t k = 0; k < count; ++k) largest = std::max(largest, std::fabs(x[k]));
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  int32_t all = 0;
  for (int64_t k = 0; k < count; ++k) {
    const int32_t q = int32_t(std::nearbyint(x[k] * inverse));
    quanta[k] = int8_t(q);
    all += q;
  }
  *step = largest * (1.0f / 127.0f);
  *total = all;
}

void quantize_rows(const Product& p, int64_t begin, int64_t end) {
  const int64_t K = p.weight.K, group = p.weight.group, groups = K / group;
  for (int64_t t = begin; t < end; ++t)
    for (int64_t g = 0; g < groups; ++g) {
      const int64_t at = t * K + g * group;
      quantize(p.x + at, group, p.quanta + at, p.steps + t * groups + g, p.sums + t * groups + g);
    }
}

inline int32_t quad(const int8_t* from) { return load<int32_t>(from); }

// acc[t] += sixteen rows times T tokens in whole numbers over one group, without the offset of the stored bytes.
template <int Bits, int T>
inline void group_products(i32x16 (&acc)[T], const uint8_t* w, const int8_t* a, int64_t K, int64_t group) {
  if constexpr (Bits == 4) {
    for (int64_t k = 0; k < group; k += 8, w += 64) {
      const u8x64 both = load<u8x64>(w), low = both & uint8_t(15), high = both >> 4;
      for (int t = 0; t < T; ++t) acc[t] = dot4(dot4(acc[t], low, quad(a + t * K + k)), high, quad(a + t * K + k + 4));
    }
  } else {
    for (int64_t k = 0; k < group; k += 4, w += 64) {
      const u8x64 bytes = load<u8x64>(w);
      for (int t = 0; t < T; ++t) acc[t] = dot4_signed(acc[t], bytes, quad(a + t * K + k));
    }
  }
}

template <int T>
void finish(const Product& p, const f32x16 (&total)[T], int64_t panel, int64_t t0) {
  const int64_t n = panel * LANES, count = std::min<int64_t>(LANES, p.weight.N - n);
  for (int t = 0; t < T; ++t) {
    float* out = p.out + (t0 + t) * p.weight.N + n;
    for (int64_t lane = 0; lane < count; ++lane) out[lane] = total[t][lane] + (p.bias ? p.bias[n + lane] : 0.0f);
  }
}

template <int Bits, int T>
void integer_tile(const Product& p, int64_t panel, int64_t t0) {
  const auto& [packed, scales, N, K, group, bits] = p.weight;
  const int64_t groups = K / group, stride = group * LANES * Bits / 8;
  constexpr int OFFSET = Bits == 4 ? 8 : SIGNED_OFFSET;
  const uint8_t* w = p.weight.panel(panel);
  const _Float16* scale = p.weight.panel_scales(panel);
  f32x16 total[T] = {};
  for (int64_t g = 0; g < groups; ++g, w += stride, scale += LANES) {
    i32x16 acc[T];
    for (int t = 0; t < T; ++t) acc[t] = i32x16{} - OFFSET * p.sums[(t0 + t) * groups + g];
    group_products<Bits, T>(acc, w, p.quanta + t0 * K + g * group, K, group);
    const f32x16 step = to_float(load<f16x16>(scale));
    for (int t = 0; t < T; ++t) total[t] += to_float(acc[t]) * (step * p.steps[(t0 + t) * groups + g]);
  }
  finish<T>(p, total, panel, t0);
}

// The four columns of a block of bytes, each in the low byte of its lane.
inline f32x16 column(i32x16 block, int j) { return to_float((block << (24 - 8 * j)) >> 24); }

template <int Bits, int T>
void float_tile(const Product& p, int64_t panel, int64_t t0) {
  const auto& [packed, scales, N, K, group, bits] = p.weight;
  const uint8_t* w = p.weight.panel(panel);
  const _Float16* scale = p.weight.panel_scales(panel);
  f32x16 total[T] = {};
  for (int64_t g = 0; g < K / group; ++g, scale += LANES) {
    f32x16 acc[T] = {};
    for (int64_t k = g * group; k < (g + 1) * group; w += 64) {
      const u8x64 bytes = load<u8x64>(w);
      for (int half = 0; half < 8 / Bits; ++half) {
        u8x64 part = bytes;
        if constexpr (Bits == 4) part = (half ? bytes >> 4 : bytes & uint8_t(15)) - uint8_t(8);
        for (int j = 0; j < 4; ++j, ++k) {
          const f32x16 weights = column((i32x16)part, j);
          for (int t = 0; t < T; ++t) acc[t] += weights * p.x[(t0 + t) * K + k];
        }
      }
    }
    const f32x16 step = to_float(load<f16x16>(scale));
    for (int t = 0; t < T; ++t) total[t] += acc[t] * step;
  }
  finish<T>(p, total, panel, t0);
}

template <int Bits, int T>
void tile(const Product& p, int64_t panel, int64_t t0) {
  if (p.quanta) {
    integer_tile<Bits, T>(p, panel, t0);
  } else {
    float_tile<Bits, T>(p, panel, t0);
  }
}

template <int Bits>
void panel_product(const Product& p, int64_t panel) {
  int64_t t = 0;
  for (; t + TOKENS <= p.T; t += TOKENS) tile<Bits, TOKENS>(p, panel, t);
  for (; t + 4 <= p.T; t += 4) tile<Bits, 4>(p, panel, t);
  if (p.T - t == 3) tile<Bits, 3>(p, panel, t);
  if (p.T - t == 2) tile<Bits, 2>(p, panel, t);
  if (p.T - t == 1) tile<Bits, 1>(p, panel, t);
}

bool is_sound(const Panels& w, const Tensor& packed, const Tensor& scales) {
  return w.K % w.group == 0 && w.group % 8 == 0 && packed.numel() == w.count() * w.bytes() &&
      scales.numel() == w.count() * (w.K / w.group) * LANES && scales.scalar_type() == ScalarType::Half;
}

Panels panels(const Tensor& packed, const Tensor& scales, int64_t N, int64_t K) {
  const int bits = packed.scalar_type() == ScalarType::Byte ? 4 : 8;
  const int64_t groups = scales.size(1);
  return {static_cast<const uint8_t*>(packed.const_data_ptr()), static_cast<const _Float16*>(scales.const_data_ptr()), N, K, groups ? K / groups : K, bits};
}

Tensor& quantized_linear_out(KernelRuntimeContext& context, const Tensor& x, const Tensor& packed, const Tensor& scales,
    const std::optional<Tensor>& bias, int64_t N, bool integer, Tensor& out) {
  Product p{panels(packed, scales, N, last(x)), data<float>(x), bias ? data<float>(*bias) : nullptr, data<float>(out), rows(x), nullptr, nullptr, nullptr};
  ET_KERNEL_CHECK(context, is_sound(p.weight, packed, scales) && out.numel() == p.T * N, InvalidArgument, out);
  const int64_t K = p.weight.K, groups = K / p.weight.group;
  if (integer) {
    p.quanta = scratch<int8_t>(context, p.T * K);
    p.steps = scratch<float>(context, p.T * groups);
    p.sums = scratch<int32_t>(context, p.T * groups);
    ET_KERNEL_CHECK(context, p.quanta && p.steps && p.sums, MemoryAllocationFailed, out);
    parallel(p.T, K * sizeof(float), [&](int64_t begin, int64_t end) { quantize_rows(p, begin, end); });
  }
  parallel(p.weight.count(), p.weight.bytes() * std::min<int64_t>(p.T, 4), [&](int64_t begin, int64_t end) {
    for (int64_t panel = begin; panel < end; ++panel)
      p.weight.bits == 4 ? panel_product<4>(p, panel) : panel_product<8>(p, panel);
  });
  return out;
}

Tensor& quantized_embedding_out(KernelRuntimeContext& context, const Tensor& tokens, const Tensor& packed, const Tensor& scales, int64_t N, int64_t K, Tensor& out) {
  const Panels weight = panels(packed, scales, N, K);
  ET_KERNEL_CHECK(context, is_sound(weight, packed, scales) && out.numel() == tokens.numel() * K, InvalidArgument, out);
  const int64_t* ids = data<int64_t>(tokens);
  for (int64_t t = 0; t < tokens.numel(); ++t) {
    ET_KERNEL_CHECK_MSG(context, ids[t] >= 0 && ids[t] < N, InvalidArgument, out, "token %lld is not below %lld", (long long)ids[t], (long long)N);
    for (int64_t k = 0; k < K; ++k) data<float>(out)[t * K + k] = weight.value(ids[t], k) * weight.scale(ids[t], k);
  }
  return out;
}

EXECUTORCH_LIBRARY(hybridge, "quantized_linear.out", quantized_linear_out);
EXECUTORCH_LIBRARY(hybridge, "quantized_embedding.out", quantized_embedding_out);

}  // namespace
}  // namespace hybridge
