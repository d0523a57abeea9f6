// Activations by the names that transformers' configs have for them.
#pragma once

#include <cmath>
#include <string_view>

#include "vector_math.h"

namespace hybridge::inline INSTRUCTION_SET {

struct Sigmoid {
  static f32x16 of(f32x16 x) { return 1.0f / (1.0f + exp(-x)); }
};

struct Silu {
  static f32x16 of(f32x16 x) { return x / (1.0f + exp(-x)); }
};

struct Relu {
  static f32x16 of(f32x16 x) { return x < 0.0f ? splat(0.0f) : x; }
};

// x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). Source: Hendrycks and Gimpel (arXiv:1606.08415).
struct TanhGelu {
  static f32x16 of(f32x16 x) { return x / (1.0f + exp(x * (x * x * -0.0713548162726f - 1.59576912160573f))); }
};

struct Gelu {
  static f32x16 of(f32x16 x) {
    f32x16 y;
    for (int i = 0; i < LANES; ++i) y[i] = 0.5f * x[i] * (1.0f + std::erf(x[i] * 0.707106781186548f));
    return y;
  }
};

struct Tanh {
  static f32x16 of(f32x16 x) { return tanh(x); }
};

struct Identity {
  static f32x16 of(f32x16 x) { return x; }
};

// log(1 + e^x), without an e^x that overflows.
struct Softplus {
  static f32x16 of(f32x16 x) { return Relu::of(x) + log1p_of_fraction(exp(x > 0.0f ? -x : x)); }
};

// Calls f with the activation of that name; false where there is none.
template <typename F>
bool with_activation(std::string_view name, const F& f) {
  if (name == "silu") return f(Silu{}), true;
  if (name == "sigmoid") return f(Sigmoid{}), true;
  if (name == "gelu_tanh") return f(TanhGelu{}), true;
  if (name == "gelu") return f(Gelu{}), true;
  if (name == "relu") return f(Relu{}), true;
  if (name == "tanh") return f(Tanh{}), true;
  if (name == "softplus") return f(Softplus{}), true;
  return false;
}

}  // namespace hybridge::inline INSTRUCTION_SET
