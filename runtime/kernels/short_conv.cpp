// A short causal convolution, one tap for each channel and distance, with its window [W, C] of inputs before the block in place.
//
// Tokens are rows, so sixteen channels lie side by side in inputs, taps [W + 1, C], window and outputs alike.
#include "activation.h"
#include "kernel.h"
#include "vector.h"
#include "vector_math.h"

namespace hybridge {
namespace {

constexpr int64_t BLOCK = 256;  // channels at a time: their rows stay in the first cache from token to token

struct Conv {
  const float *x, *taps, *bias;
  int64_t stride, T, C, W;  // of x's rows
};

// The input that lies `row` rows behind the start of the window.
inline const float* input(const Conv& conv, const float* window, int64_t row) {
  return row < conv.W ? window + row * conv.C : conv.x + (row - conv.W) * conv.stride;
}

template <typename Activation>
void outputs(const Conv& conv, const float* window, float* out, int64_t t, int64_t begin, int64_t end) {
  for (int64_t c = begin; c < end; c += LANES) {
    const int64_t count = std::min<int64_t>(LANES, end - c);
    const auto get = [&](const float* row) { return load_up_to(row + c, count); };
    f32x16 sum = conv.bias ? get(conv.bias) : f32x16{};
    for (int64_t w = 0; w <= conv.W; ++w) sum += get(conv.taps + w * conv.C) * get(input(conv, window, t + w));
    sum = Activation::of(sum);
    count == LANES ? store(out + c, sum) : store_first(out + c, sum, count);
  }
}

// Calls f with the activation of that name, or with none; false where there is no such.
template <typename F>
bool activated(std::string_view name, const F& f) {
  if (name.empty()) return f(Identity{}), true;
  return with_activation(name, f);
}

// The window once n more inputs are in: each row is the one n further on, which none before has overwritten.
void shift(const Conv& conv, float* window, int64_t n, int64_t begin, int64_t end) {
  if (n == 0) return;
  for (int64_t w = 0; w < conv.W; ++w)
    std::memcpy(window + w * conv.C + begin, input(conv, window, w + n) + begin, (end - begin) * sizeof(float));
}

// f(batch, first channel, last channel) for all of them, in threads.
template <typename F>
void for_channels(int64_t batch, int64_t C, int64_t each, const F& f) {
  const int64_t blocks = (C + BLOCK - 1) / BLOCK;
  parallel(batch * blocks, BLOCK * each, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) f(item / blocks, item % blocks * BLOCK, std::min((item % blocks + 1) * BLOCK, C));
  });
}

Conv conv_of(const Tensor& x, const Tensor& taps, const std::optional<Tensor>& bias, int64_t start, int64_t batch) {
  const int64_t T = x.size(1), stride = last(x);
  return {data<float>(x) + batch * T * stride + start, data<float>(taps), bias ? data<float>(*bias) : nullptr, stride, T, last(taps), taps.size(0) - 1};
}

bool is_sound(const Tensor& x, const Tensor& taps, const Tensor& window, int64_t start, const Tensor& out) {
  const int64_t C = last(taps);
  return is_float(x) && is_float(window) && start >= 0 && start + C <= last(x) && last(window) == C &&
      window.size(1) == taps.size(0) - 1 && out.numel() == x.size(0) * x.size(1) * C;
}

Tensor& short_conv_out(KernelRuntimeContext& context, const Tensor& x, const Tensor& taps, const std::optional<Tensor>& bias, Tensor& window,
    const Tensor& count, int64_t start, std::string_view activation, Tensor& out) {
  const int64_t n = *data<int64_t>(count), T = x.size(1), C = last(taps), W = taps.size(0) - 1;
  ET_KERNEL_CHECK(context, is_sound(x, taps, window, start, out) && n >= 0 && n <= T, InvalidArgument, out);
  const bool known = activated(activation, [&](auto activate) {
    for_channels(x.size(0), C, T * W * 2 * sizeof(float), [&](int64_t batch, int64_t begin, int64_t end) {
      const Conv conv = conv_of(x, taps, bias, start, batch);
      float *to = data<float>(out) + batch * T * C, *before = data<float>(window) + batch * W * C;
      for (int64_t t = 0; t < n; ++t) outputs<decltype(activate)>(conv, before, to + t * C, t, begin, end);
      for (int64_t t = n; t < T; ++t) std::fill(to + t * C + begin, to + t * C + end, 0.0f);
      shift(conv, before, n, begin, end);
    });
  });
  ET_KERNEL_CHECK(context, known, InvalidArgument, out);
  return out;
}

Tensor& short_conv_verify_out(KernelRuntimeContext& context, const Tensor& x, const Tensor& taps, const std::optional<Tensor>& bias, const Tensor& window,
    Tensor& staged, int64_t start, std::string_view activation, Tensor& out) {
  const int64_t T = x.size(1), S = staged.size(1), C = last(taps), W = taps.size(0) - 1;
  ET_KERNEL_CHECK(context, is_sound(x, taps, window, start, out) && T <= S && last(staged) == C, InvalidArgument, out);
  const bool known = activated(activation, [&](auto activate) {
    for_channels(x.size(0), C, T * W * 2 * sizeof(float), [&](int64_t batch, int64_t begin, int64_t end) {
      const Conv conv = conv_of(x, taps, bias, start, batch);
      const float* before = data<float>(window) + batch * W * C;
      for (int64_t t = 0; t < T; ++t) {
        std::memcpy(data<float>(staged) + (batch * S + t) * C + begin, conv.x + t * conv.stride + begin, (end - begin) * sizeof(float));
        outputs<decltype(activate)>(conv, before, data<float>(out) + (batch * T + t) * C, t, begin, end);
      }
    });
  });
  ET_KERNEL_CHECK(context, known, InvalidArgument, out);
  return out;
}

Tensor& shift_window_out(KernelRuntimeContext& context, Tensor& window, const Tensor& x, const Tensor& count, Tensor& out) {
  const int64_t n = *data<int64_t>(count), T = x.size(1), W = window.size(1), C = last(window);
  ET_KERNEL_CHECK(context, is_float(x) && is_float(window) && last(x) == C && n >= 0 && n <= T, InvalidArgument, out);
  for (int64_t batch = 0; batch < x.size(0); ++batch) {
    const Conv conv{data<float>(x) + batch * T * C, nullptr, nullptr, C, T, C, W};
    shift(conv, data<float>(window) + batch * W * C, n, 0, C);
  }
  *data<int64_t>(out) = n;
  return out;
}

EXECUTORCH_LIBRARY(hybridge, "short_conv.out", short_conv_out);
EXECUTORCH_LIBRARY(hybridge, "short_conv_verify.out", short_conv_verify_out);
EXECUTORCH_LIBRARY(hybridge, "shift_window.out", shift_window_out);

}  // namespace
}  // namespace hybridge
