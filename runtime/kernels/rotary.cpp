// Rotary position embedding: pairs of a head's first R numbers turn by an angle for each position, the others stay.
#include "checks.h"
#include "kernel.h"

namespace hybridge {
namespace {

struct Rotary {
  const float *x, *cos, *sin;
  float* out;
  int64_t H, D, R, positions;
};

// Halves: number i and number i + R / 2 are a pair.
inline void turn_halves(
    const float* __restrict x, const float* __restrict cos, const float* __restrict sin, int64_t half,
    float* __restrict out
) {
  for (int64_t i = 0; i < half; ++i) {
    out[i] = x[i] * cos[i] - x[half + i] * sin[i];
    out[half + i] = x[half + i] * cos[half + i] + x[i] * sin[half + i];
  }
}

// Interleaved: numbers 2 i and 2 i + 1 are a pair.
inline void turn_neighbours(
    const float* __restrict x, const float* __restrict cos, const float* __restrict sin, int64_t half,
    float* __restrict out
) {
  for (int64_t i = 0; i < 2 * half; i += 2) {
    out[i] = x[i] * cos[i] - x[i + 1] * sin[i];
    out[i + 1] = x[i + 1] * cos[i + 1] + x[i] * sin[i + 1];
  }
}

void turn(const Rotary& r, bool interleaved, int64_t position) {
  const int64_t angles = position % r.positions * r.R;
  for (int64_t head = position * r.H; head < (position + 1) * r.H; ++head) {
    const float* x = r.x + head * r.D;
    float* out = r.out + head * r.D;
    (interleaved ? turn_neighbours : turn_halves)(x, r.cos + angles, r.sin + angles, r.R / 2, out);
    std::copy(x + r.R, x + r.D, out + r.R);
  }
}

Tensor& rotary_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& cos, const Tensor& sin, bool interleaved, Tensor& out
) {
  Size B, T, H, D, R, angles;
  REQUIRE(is<float>(x, B, T, H, D));
  REQUIRE(is<float>(out, B, T, H, D));
  REQUIRE(is_rows<float>(cos, angles, R) && (angles == T || angles == B * T));
  REQUIRE(is_rows<float>(sin, angles, R));
  REQUIRE(R % 2 == 0 && R <= D);
  const Rotary r{data<float>(x), data<float>(cos), data<float>(sin), data<float>(out), H, D, R, angles};
  parallel(B * T, 4 * H * D, [&](int64_t begin, int64_t end) {
    for (int64_t position = begin; position < end; ++position) turn(r, interleaved, position);
  });
  return out;
}

HYBRIDGE_KERNEL("rotary.out", rotary_out);

}  // namespace
}  // namespace hybridge
