// Rows of keys and values into their buffers, in place.
#include "checks.h"
#include "kernel.h"
#include "quantized_rows.h"
#include "vector.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace hybridge {
namespace {

bool is_sequence(const Tensor& x) { return x.dim() > 1 && x.size(0) == 1 && x.numel() > 0 && is_dense(x); }

// rows [1, T, ...] and buffer [1, R, ...], a row of either with as many numbers as one of the other.
bool fit(const Tensor& rows, const Tensor& buffer) {
  return is_sequence(rows) && is_sequence(buffer) && rows.numel() / rows.size(1) == buffer.numel() / buffer.size(1);
}

// They have one dtype, any.
bool agree(const Tensor& rows, const Tensor& buffer) {
  return rows.scalar_type() == buffer.scalar_type() && fit(rows, buffer);
}

void round_to(half* to, const float* from, int64_t count) {
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store(to + i, to_half(load<f32x16>(from + i)));
  for (; i < count; ++i) to[i] = half(from[i]);
}

// buffer[start + t] = rows[t], which a float16 buffer rounds.
Tensor& write_rows_out(
    KernelRuntimeContext& context, const Tensor& rows, Tensor& buffer, const Tensor& start, Tensor& out
) {
  int64_t first;
  const bool rounds = is_dense_of<float>(rows) && is_dense_of<half>(buffer);
  REQUIRE(rounds ? fit(rows, buffer) : agree(rows, buffer));
  REQUIRE(reads(start, first) && fits(first, rows.size(1), buffer.size(1)));
  const int64_t width = rows.numel() / rows.size(1);
  if (rounds) {
    round_to(data<half>(buffer) + first * width, data<float>(rows), rows.numel());
  } else {
    const int64_t bytes = rows.nbytes() / rows.size(1);
    std::memmove(
        static_cast<uint8_t*>(buffer.mutable_data_ptr()) + first * bytes, rows.const_data_ptr(), rows.nbytes()
    );
  }
  return out;
}

// ring[(start + t) % R] = rows[t] for the newest of the first `count` rows.
Tensor& write_window_out(
    KernelRuntimeContext& context, const Tensor& rows, Tensor& ring, const Tensor& start, const Tensor& count,
    Tensor& out
) {
  int64_t first, real;
  REQUIRE(agree(rows, ring));
  REQUIRE(reads(count, real, 0, rows.size(1)));
  REQUIRE(reads(start, first, 0, std::numeric_limits<int64_t>::max() - real));
  const int64_t width = rows.nbytes() / rows.size(1), R = ring.size(1);
  const auto* from = static_cast<const uint8_t*>(rows.const_data_ptr());
  auto* to = static_cast<uint8_t*>(ring.mutable_data_ptr());
  for (int64_t t = std::max<int64_t>(0, real - R); t < real; ++t)
    std::memmove(to + (first + t) % R * width, from + t * width, width);
  return out;
}

// The nearest whole number; 0 beyond a byte, where the rows are in memory that their own buffer is in, too, and change
// meanwhile.
int8_t rounded(float x) {
  const float nearest = std::nearbyint(x);
  return std::fabs(nearest) <= 127.0f ? int8_t(nearest) : int8_t(0);
}

// put(d, q) for each number of x, rounded to 8 bits with the scale that is returned: max |x| / 127. A row with a number
// that is not finite is all 0 with a scale of NaN; one whose numbers are too small for the inverse of their scale is
// all 0.
template <typename F>
float round_row(const float* x, int64_t count, const F& put) {
  int32_t bits = 0;  // of the largest; NaN and infinity have larger ones than any number
  for (int64_t d = 0; d < count; ++d) bits = std::max(bits, std::bit_cast<int32_t>(x[d]) & 0x7fffffff);
  const float largest = std::bit_cast<float>(bits), inverse = 127.0f / largest;
  const bool finite = std::isfinite(largest), rounds = finite && std::isfinite(inverse);
  for (int64_t d = 0; d < count; ++d) put(d, rounds ? rounded(x[d] * inverse) : int8_t(0));
  return finite ? largest * (1.0f / 127.0f) : std::numeric_limits<float>::quiet_NaN();
}

// Key [1, T, G, D] and value [1, T, G, V] in 8 bits from row `start` on, each head of a row with its own scale.
Tensor& write_quantized_rows_out(
    KernelRuntimeContext& context, const Tensor& key, const Tensor& value, Tensor& keys, Tensor& key_scales,
    Tensor& values, Tensor& value_scales, const Tensor& start, Tensor& out
) {
  Size T, G, D, V;
  int64_t first;
  REQUIRE(is<float>(key, 1, T, G, D));
  REQUIRE(is<float>(value, 1, T, G, V));
  const QuantizedRows rows = quantized_rows(keys, key_scales, values, value_scales);
  REQUIRE(rows.hold(D, V) && rows.G == G);
  REQUIRE(reads(start, first) && fits(first, T, rows.R));
  int8_t *k = data<int8_t>(keys), *v = data<int8_t>(values);
  parallel(rows.G, T * (D + V) * 4, [&](int64_t begin, int64_t end) {
    for (int64_t head = begin; head < end; ++head)
      for (int64_t t = 0; t < T; ++t) {
        const int64_t row = first + t, from = t * rows.G + head, scale = rows.scale_at(head, row);
        data<float>(key_scales)[scale] = round_row(data<float>(key) + from * D, D, [&](int64_t d, int8_t q) {
          k[rows.key_at(head, row, d)] = q;
        });
        data<float>(value_scales)[scale] = round_row(data<float>(value) + from * V, V, [&](int64_t d, int8_t q) {
          v[rows.value_at(head, row, d)] = q;
        });
      }
  });
  return out;
}

HYBRIDGE_KERNEL("write_rows.out", write_rows_out);
HYBRIDGE_KERNEL("write_window.out", write_window_out);
HYBRIDGE_KERNEL("write_quantized_rows.out", write_quantized_rows_out);

}  // namespace
}  // namespace hybridge
