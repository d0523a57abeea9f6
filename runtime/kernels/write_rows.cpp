// Rows of keys and values into their buffers, in place.
#include "kernel.h"
#include "quantized_rows.h"

#include <cmath>
#include <cstring>

namespace hybridge {
namespace {

// buffer[start + t] = rows[t]; rows [1, T, ...], buffer [1, R, ...].
Tensor& write_rows_out(KernelRuntimeContext& context, const Tensor& rows, Tensor& buffer, const Tensor& start, Tensor& out) {
  const int64_t width = rows.nbytes() / rows.size(1), first = *data<int64_t>(start);
  const bool fits = rows.scalar_type() == buffer.scalar_type() && int64_t(buffer.nbytes()) == buffer.size(1) * width && first >= 0 &&
      first + rows.size(1) <= buffer.size(1);
  ET_KERNEL_CHECK(context, fits, InvalidArgument, out);
  std::memcpy(static_cast<uint8_t*>(buffer.mutable_data_ptr()) + first * width, rows.const_data_ptr(), rows.nbytes());
  return out;
}

// ring[(start + t) % R] = rows[t] for the newest of the first `count` rows [1, T, ...]; ring [1, R, ...].
Tensor& write_window_out(KernelRuntimeContext& context, const Tensor& rows, Tensor& ring, const Tensor& start, const Tensor& count, Tensor& out) {
  const int64_t width = rows.nbytes() / rows.size(1), R = ring.size(1), first = *data<int64_t>(start), real = *data<int64_t>(count);
  const bool fits = rows.scalar_type() == ring.scalar_type() && int64_t(ring.nbytes()) == R * width && first >= 0 && real >= 0 && real <= rows.size(1);
  ET_KERNEL_CHECK(context, fits, InvalidArgument, out);
  const auto* from = static_cast<const uint8_t*>(rows.const_data_ptr());
  auto* to = static_cast<uint8_t*>(ring.mutable_data_ptr());
  for (int64_t t = std::max<int64_t>(0, real - R); t < real; ++t) std::memcpy(to + (first + t) % R * width, from + t * width, width);
  return out;
}

// put(d, q) for each number of x, rounded to 8 bits with the scale that is returned: max |x| / 127.
template <typename F>
float round_row(const float* x, int64_t count, const F& put) {
  float largest = 0.0f;
  for (int64_t d = 0; d < count; ++d) largest = std::max(largest, std::fabs(x[d]));
  const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
  for (int64_t d = 0; d < count; ++d) put(d, int8_t(std::nearbyint(x[d] * inverse)));
  return largest * (1.0f / 127.0f);
}

// Key [1, T, G, D] and value [1, T, G, V] in 8 bits from row `start` on, each head of a row with its own scale.
Tensor& write_quantized_rows_out(KernelRuntimeContext& context, const Tensor& key, const Tensor& value, Tensor& keys, Tensor& key_scales,
    Tensor& values, Tensor& value_scales, const Tensor& start, Tensor& out) {
  const QuantizedRows rows = quantized_rows(keys, key_scales, values, value_scales);
  const int64_t T = key.size(1), D = last(key), V = last(value), first = *data<int64_t>(start);
  const bool fits = rows.hold(D, V) && is_float(key) && is_float(value) && key.numel() == T * rows.G * D &&
      value.numel() == T * rows.G * V && first >= 0 && first + T <= rows.R;
  ET_KERNEL_CHECK(context, fits, InvalidArgument, out);
  int8_t *k = data<int8_t>(keys), *v = data<int8_t>(values);
  parallel(rows.G, T * (D + V) * 4, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      for (int64_t t = 0; t < T; ++t) {
        const int64_t row = first + t, from = t * rows.G + head, scale = rows.scale_at(head, row);
        data<float>(key_scales)[scale] =
            round_row(data<float>(key) + from * D, D, [&](int64_t d, int8_t q) { k[rows.key_at(head, row, d)] = q; });
        data<float>(value_scales)[scale] =
            round_row(data<float>(value) + from * V, V, [&](int64_t d, int8_t q) { v[rows.value_at(head, row, d)] = q; });
      }
  });
  return out;
}

EXECUTORCH_LIBRARY(hybridge, "write_rows.out", write_rows_out);
EXECUTORCH_LIBRARY(hybridge, "write_window.out", write_window_out);
EXECUTORCH_LIBRARY(hybridge, "write_quantized_rows.out", write_quantized_rows_out);

}  // namespace
}  // namespace hybridge
