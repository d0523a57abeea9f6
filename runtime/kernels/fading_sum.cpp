// The recurrence h <- exp(log_decay) h + x of each channel by itself: the RG-LRU's.
#include "checks.h"
#include "kernel.h"
#include "recurrent.h"

namespace hybridge {
namespace {

// n tokens [T, C] of sixteen channels from c on; `out` and `after` may be null.
void run(
    const float* log_decay, const float* x, int64_t C, int64_t n, int64_t c, const float* before, float* after,
    float* out
) {
  const int64_t count = std::min<int64_t>(LANES, C - c);
  f32x16 h = load_up_to(before + c, count);
  for (int64_t t = 0; t < n; ++t) {
    h = exp(load_up_to(log_decay + t * C + c, count)) * h + load_up_to(x + t * C + c, count);
    if (out) store_up_to(out + t * C + c, h, count);
  }
  if (after) store_up_to(after + c, h, count);
}

// The first n of T tokens of every channel.
void run_all(const Tensor& log_decay, const Tensor& x, int64_t n, const float* before, float* after, float* out) {
  const int64_t T = x.size(1), C = last(x);
  for_channels<LANES>(x.size(0), C, T * 16, [&](int64_t batch, int64_t c, int64_t) {
    const int64_t rows = batch * T * C;
    run(data<float>(log_decay) + rows, data<float>(x) + rows, C, n, c, before + batch * C,
        after ? after + batch * C : nullptr, out ? out + rows : nullptr);
  });
}

// log_decay and x [B, T, C], state [B, C].
bool is_sound(const Tensor& log_decay, const Tensor& x, const Tensor& state, Size& B, Size& T, Size& C) {
  return is<float>(x, B, T, C) && is<float>(log_decay, B, T, C) && is<float>(state, B, C);
}

Tensor& fading_sum_out(
    KernelRuntimeContext& context, const Tensor& log_decay, const Tensor& x, Tensor& state, const Tensor& count,
    Tensor& out
) {
  Size B, T, C;
  int64_t n;
  REQUIRE(is_sound(log_decay, x, state, B, T, C));
  REQUIRE(is<float>(out, B, T, C));
  REQUIRE(reads(count, n, 0, T));
  for (int64_t batch = 0; batch < B; ++batch) std::fill_n(data<float>(out) + (batch * T + n) * C, (T - n) * C, 0.0f);
  if (n) run_all(log_decay, x, n, data<float>(state), data<float>(state), data<float>(out));
  return out;
}

Tensor& fading_sum_verify_out(
    KernelRuntimeContext& context, const Tensor& log_decay, const Tensor& x, Tensor& staged_log_decay, Tensor& staged_x,
    const Tensor& state, Tensor& out
) {
  Size B, T, C, S;
  REQUIRE(is_sound(log_decay, x, state, B, T, C));
  REQUIRE(is<float>(out, B, T, C));
  REQUIRE(is<float>(staged_x, B, S, C) && T <= S);
  REQUIRE(is<float>(staged_log_decay, B, S, C));
  stage(staged_log_decay, log_decay), stage(staged_x, x);
  run_all(log_decay, x, T, data<float>(state), nullptr, data<float>(out));
  return out;
}

Tensor& fading_sum_commit_out(
    KernelRuntimeContext& context, Tensor& state, const Tensor& log_decay, const Tensor& x, const Tensor& count,
    Tensor& out
) {
  Size B, S, C;
  int64_t n;
  REQUIRE(is_sound(log_decay, x, state, B, S, C));
  REQUIRE(reads(count, n, 0, S));
  REQUIRE(holds<int64_t>(out, 1));
  *data<int64_t>(out) = n;
  if (n) run_all(log_decay, x, n, data<float>(state), data<float>(state), nullptr);
  return out;
}

HYBRIDGE_KERNEL("fading_sum.out", fading_sum_out);
HYBRIDGE_KERNEL("fading_sum_verify.out", fading_sum_verify_out);
HYBRIDGE_KERNEL("fading_sum_commit.out", fading_sum_commit_out);

}  // namespace
}  // namespace hybridge
