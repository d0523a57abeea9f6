// Rows of keys and values into their buffers, in place.
#include "kernel.h"

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

// The same rounded to 8 bits, each head of a row with its own scale: max |x| / 127.
Tensor& write_quantized_rows_out(KernelRuntimeContext& context, const Tensor& rows, Tensor& buffer, Tensor& scales, const Tensor& start, Tensor& out) {
  const int64_t D = last(rows), heads = rows.numel() / D, each = heads / rows.size(1), first = *data<int64_t>(start);
  const bool fits = is_float(rows) && buffer.scalar_type() == ScalarType::Char && is_float(scales) && first >= 0 &&
      first + rows.size(1) <= buffer.size(1) && buffer.numel() == buffer.size(1) * each * D && scales.numel() == buffer.size(1) * each;
  ET_KERNEL_CHECK(context, fits, InvalidArgument, out);
  const float* x = data<float>(rows);
  int8_t* to = data<int8_t>(buffer) + first * each * D;
  for (int64_t head = 0; head < heads; ++head, x += D, to += D) {
    float largest = 0.0f;
    for (int64_t d = 0; d < D; ++d) largest = std::max(largest, std::fabs(x[d]));
    const float inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
    for (int64_t d = 0; d < D; ++d) to[d] = int8_t(std::nearbyint(x[d] * inverse));
    data<float>(scales)[first * each + head] = largest * (1.0f / 127.0f);
  }
  return out;
}

EXECUTORCH_LIBRARY(hybridge, "write_rows.out", write_rows_out);
EXECUTORCH_LIBRARY(hybridge, "write_quantized_rows.out", write_quantized_rows_out);

}  // namespace
}  // namespace hybridge
