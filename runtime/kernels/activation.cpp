// Activations, alone and as the gate of a product: SwiGLU is gated(up, gate, "silu"), attention's output gate a
// "sigmoid".
#include "activation.h"
#include "checks.h"
#include "kernel.h"

namespace hybridge {
namespace {

constexpr int64_t EACH = 16;  // about what a number costs, in operations

// to[i] = f(i's sixteen numbers) over count numbers on all threads; `f` gets a way to load and where.
template <typename F>
void for_lanes(int64_t count, float* to, const F& f) {
  parallel((count + LANES - 1) / LANES, EACH * LANES, [&](int64_t begin, int64_t end) {
    for (int64_t lane = begin; lane < end; ++lane) {
      const int64_t at = lane * LANES, rest = count - at;
      if (rest >= LANES) {
        store(to + at, f([at](const float* from) { return load<f32x16>(from + at); }));
      } else {
        store_first(to + at, f([at, rest](const float* from) { return load_first(from + at, rest); }), rest);
      }
    }
  });
}

Tensor& activation_out(KernelRuntimeContext& context, const Tensor& x, std::string_view name, Tensor& out) {
  Size count;
  REQUIRE(holds<float>(x, count));
  REQUIRE(holds<float>(out, count));
  const float* from = data<float>(x);
  const bool known = with_activation(name, [&](auto activation) {
    for_lanes(count, data<float>(out), [from](const auto& load) { return decltype(activation)::of(load(from)); });
  });
  ET_KERNEL_CHECK_MSG(
      context, known, InvalidArgument, out, "there is no activation %.*s", int(name.size()), name.data()
  );
  return out;
}

Tensor& gated_out(
    KernelRuntimeContext& context, const Tensor& x, const Tensor& gate, std::string_view name, Tensor& out
) {
  Size count;
  REQUIRE(holds<float>(x, count));
  REQUIRE(holds<float>(gate, count));
  REQUIRE(holds<float>(out, count));
  const float *value = data<float>(x), *opening = data<float>(gate);
  const bool known = with_activation(name, [&](auto activation) {
    for_lanes(count, data<float>(out), [value, opening](const auto& load) {
      return load(value) * decltype(activation)::of(load(opening));
    });
  });
  ET_KERNEL_CHECK_MSG(
      context, known, InvalidArgument, out, "there is no activation %.*s", int(name.size()), name.data()
  );
  return out;
}

HYBRIDGE_KERNEL("activation.out", activation_out);
HYBRIDGE_KERNEL("gated.out", gated_out);

}  // namespace
}  // namespace hybridge
