// A short causal convolution, one tap for each channel and distance, with its window [W, C] of inputs before the block
// in place.
//
// Tokens are rows, so sixteen channels lie side by side in inputs, taps [W + 1, C], window and outputs alike.
#include "activation.h"
#include "checks.h"
#include "kernel.h"
#include "recurrent.h"

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
    store_up_to(out + c, sum, count);
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
    std::memmove(window + w * conv.C + begin, input(conv, window, w + n) + begin, (end - begin) * sizeof(float));
}

Conv conv_of(const Tensor& x, const Tensor& taps, const std::optional<Tensor>& bias, int64_t start, int64_t batch) {
  const int64_t T = x.size(1), stride = last(x);
  return {
      data<float>(x) + batch * T * stride + start,
      data<float>(taps),
      bias ? data<float>(*bias) : nullptr,
      stride,
      T,
      last(taps),
      taps.size(0) - 1
  };
}

// x [B, T, X], of which C channels are read from `start` on; taps [W + 1, C], bias [C], window [B, W, C], out [B, T,
// C].
struct Sizes {
  Size B, T, X, W, C;
  bool agree(
      const Tensor& x, const Tensor& taps, const std::optional<Tensor>& bias, const Tensor& window, int64_t start,
      const Tensor& out
  ) {
    return is<float>(x, B, T, X) && is<float>(window, B, W, C) && is<float>(taps, W + 1, C) && is<float>(bias, C) &&
           is<float>(out, B, T, C) && fits(start, C, X);
  }
};

Tensor& short_conv_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& taps, const std::optional<Tensor>& bias,
    Tensor& window, const Tensor& count, int64_t start, std::string_view activation, Tensor& out
) {
  Sizes sizes;
  int64_t n;
  REQUIRE(sizes.agree(x, taps, bias, window, start, out));
  const int64_t T = sizes.T, C = sizes.C, W = sizes.W;
  REQUIRE(reads(count, n, 0, T));
  const bool known = activated(activation, [&](auto activate) {
    for_channels<BLOCK>(x.size(0), C, T * W * 2 * sizeof(float), [&](int64_t batch, int64_t begin, int64_t end) {
      const Conv conv = conv_of(x, taps, bias, start, batch);
      float *to = data<float>(out) + batch * T * C, *before = data<float>(window) + batch * W * C;
      for (int64_t t = 0; t < n; ++t) outputs<decltype(activate)>(conv, before, to + t * C, t, begin, end);
      for (int64_t t = n; t < T; ++t) std::fill(to + t * C + begin, to + t * C + end, 0.0f);
      shift(conv, before, n, begin, end);
    });
  });
  ET_KERNEL_CHECK_MSG(
      context, known, InvalidArgument, out, "there is no activation %.*s", int(activation.size()), activation.data()
  );
  return out;
}

Tensor& short_conv_verify_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& taps, const std::optional<Tensor>& bias,
    const Tensor& window, Tensor& staged, int64_t start, std::string_view activation, Tensor& out
) {
  Sizes sizes;
  Size S;
  REQUIRE(sizes.agree(x, taps, bias, window, start, out));
  const int64_t T = sizes.T, C = sizes.C, W = sizes.W;
  REQUIRE(is<float>(staged, sizes.B, S, C) && T <= S);
  const bool known = activated(activation, [&](auto activate) {
    for_channels<BLOCK>(x.size(0), C, T * W * 2 * sizeof(float), [&](int64_t batch, int64_t begin, int64_t end) {
      const Conv conv = conv_of(x, taps, bias, start, batch);
      const float* before = data<float>(window) + batch * W * C;
      for (int64_t t = 0; t < T; ++t) {
        std::memmove(
            data<float>(staged) + (batch * S + t) * C + begin, conv.x + t * conv.stride + begin,
            (end - begin) * sizeof(float)
        );
        outputs<decltype(activate)>(conv, before, data<float>(out) + (batch * T + t) * C, t, begin, end);
      }
    });
  });
  ET_KERNEL_CHECK_MSG(
      context, known, InvalidArgument, out, "there is no activation %.*s", int(activation.size()), activation.data()
  );
  return out;
}

Tensor& shift_window_out(
    KernelRuntimeContext& context, Tensor& window, const Tensor& x, const Tensor& count, Tensor& out
) {
  Size B, T, W, C;
  int64_t n;
  REQUIRE(is<float>(x, B, T, C));
  REQUIRE(is<float>(window, B, W, C));
  REQUIRE(reads(count, n, 0, T));
  REQUIRE(holds<int64_t>(out, 1));
  for (int64_t batch = 0; batch < B; ++batch) {
    const Conv conv{data<float>(x) + batch * T * C, nullptr, nullptr, C, T, C, W};
    shift(conv, data<float>(window) + batch * W * C, n, 0, C);
  }
  *data<int64_t>(out) = n;
  return out;
}

HYBRIDGE_KERNEL("short_conv.out", short_conv_out);
HYBRIDGE_KERNEL("short_conv_verify.out", short_conv_verify_out);
HYBRIDGE_KERNEL("shift_window.out", shift_window_out);

}  // namespace
}  // namespace hybridge
