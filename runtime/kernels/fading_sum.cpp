// The recurrence h <- exp(log_decay) h + x of each channel by itself: the RG-LRU's.
#include "kernel.h"
#include "vector.h"
#include "vector_math.h"

namespace hybridge {
namespace {

// n tokens [T, C] of sixteen channels from c on; `out` and `after` may be null.
void run(const float* log_decay, const float* x, int64_t C, int64_t n, int64_t c, const float* before, float* after, float* out) {
  const int64_t count = std::min<int64_t>(LANES, C - c);
  f32x16 h = load_first(before + c, count);
  for (int64_t t = 0; t < n; ++t) {
    h = exp(load_first(log_decay + t * C + c, count)) * h + load_first(x + t * C + c, count);
    if (out) store_first(out + t * C + c, h, count);
  }
  if (after) store_first(after + c, h, count);
}

// The first n of T tokens of every channel.
void run_all(const Tensor& log_decay, const Tensor& x, int64_t n, const float* before, float* after, float* out) {
  const int64_t T = x.size(1), C = last(x), vectors = (C + LANES - 1) / LANES;
  parallel(x.size(0) * vectors, LANES * T * 16, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int64_t batch = item / vectors, c = item % vectors * LANES, rows = batch * T * C;
      run(data<float>(log_decay) + rows, data<float>(x) + rows, C, n, c, before + batch * C, after ? after + batch * C : nullptr, out ? out + rows : nullptr);
    }
  });
}

bool is_sound(const Tensor& log_decay, const Tensor& x, const Tensor& state) {
  return is_float(log_decay) && is_float(x) && is_float(state) && x.dim() == 3 && log_decay.numel() == x.numel() && state.numel() == x.size(0) * last(x);
}

Tensor& fading_sum_out(KernelRuntimeContext& context, const Tensor& log_decay, const Tensor& x, Tensor& state, const Tensor& count, Tensor& out) {
  const int64_t n = *data<int64_t>(count), T = x.size(1), C = last(x);
  ET_KERNEL_CHECK(context, is_sound(log_decay, x, state) && n >= 0 && n <= T && out.numel() == x.numel(), InvalidArgument, out);
  for (int64_t batch = 0; batch < x.size(0); ++batch) std::fill_n(data<float>(out) + (batch * T + n) * C, (T - n) * C, 0.0f);
  if (n) run_all(log_decay, x, n, data<float>(state), data<float>(state), data<float>(out));
  return out;
}

Tensor& fading_sum_verify_out(KernelRuntimeContext& context, const Tensor& log_decay, const Tensor& x, Tensor& staged_log_decay, Tensor& staged_x, const Tensor& state, Tensor& out) {
  const int64_t T = x.size(1), C = last(x), S = staged_x.size(1);
  ET_KERNEL_CHECK(context, is_sound(log_decay, x, state) && T <= S && out.numel() == x.numel(), InvalidArgument, out);
  for (int64_t batch = 0; batch < x.size(0); ++batch) {
    std::memcpy(data<float>(staged_log_decay) + batch * S * C, data<float>(log_decay) + batch * T * C, T * C * sizeof(float));
    std::memcpy(data<float>(staged_x) + batch * S * C, data<float>(x) + batch * T * C, T * C * sizeof(float));
  }
  run_all(log_decay, x, T, data<float>(state), nullptr, data<float>(out));
  return out;
}

Tensor& fading_sum_commit_out(KernelRuntimeContext& context, Tensor& state, const Tensor& log_decay, const Tensor& x, const Tensor& count, Tensor& out) {
  const int64_t n = *data<int64_t>(count);
  ET_KERNEL_CHECK(context, is_sound(log_decay, x, state) && n >= 0 && n <= x.size(1), InvalidArgument, out);
  *data<int64_t>(out) = n;
  if (n) run_all(log_decay, x, n, data<float>(state), data<float>(state), nullptr);
  return out;
}

EXECUTORCH_LIBRARY(hybridge, "fading_sum.out", fading_sum_out);
EXECUTORCH_LIBRARY(hybridge, "fading_sum_verify.out", fading_sum_verify_out);
EXECUTORCH_LIBRARY(hybridge, "fading_sum_commit.out", fading_sum_commit_out);

}  // namespace
}  // namespace hybridge
