// Activations by the names that transformers' configs have for them.
#pragma once

#include <string_view>

#include "vector_math.h"

namespace hybridge::inline INSTRUCTION_SET {

struct Sigmoid {
  INLINE static f32x16 of(f32x16 x) { return 1.0f / (1.0f + exp(-x)); }
};

struct Silu {
  INLINE static f32x16 of(f32x16 x) { return x / (1.0f + exp(-x)); }
};

struct Relu {
  INLINE static f32x16 of(f32x16 x) { return select(x < 0.0f, splat(0.0f), x); }
};

// x / 2 (1 + tanh(u)) = x sigmoid(2 u), u = sqrt(2 / pi) (x + 0.044715 x^3). Source: Hendrycks and Gimpel
// (arXiv:1606.08415).
struct TanhGelu {
  INLINE static f32x16 of(f32x16 x) { return x / (1.0f + exp(x * (x * x * -0.0713548162726f - 1.59576912160573f))); }
};

struct Gelu {
  INLINE static f32x16 of(f32x16 x) { return x * 0.5f * (1.0f + erf(x * 0.707106781186548f)); }
};

struct Tanh {
  INLINE static f32x16 of(f32x16 x) { return tanh(x); }
};

struct Identity {
  INLINE static f32x16 of(f32x16 x) { return x; }
};

// log(1 + e^x), without an e^x that overflows.
struct Softplus {
  INLINE static f32x16 of(f32x16 x) { return Relu::of(x) + log1p_of_fraction(exp(select(x > 0.0f, -x, x))); }
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
