// Keys and values in 8 bits, in blocks of 64 rows of a head, laid out so that the sixteen lanes of a vector take
// sixteen rows of keys, or sixteen columns of values, and sums stay in their lanes.
//
// keys:   int8 [R / 64, G, K, 64], K columns, D or up to 3 more. Byte 4 lane + j of vector p * K / 4 + k is column 4 k
// + j of row
//         16 p + lane.
// values: int8 [R / 64, G, C, 64], C columns, V or up to 15 more. Byte 4 lane + j of vector 16 c + k is column 16 c +
// lane of row
//         4 k + j.
// scales: float32 [R / 64, G, 64].
#pragma once

#include "checks.h"
#include "kernel.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

constexpr int64_t BLOCK = 64;

struct QuantizedRows {
  const int8_t* keys;
  const float* key_scales;
  const int8_t* values;
  const float* value_scales;
  int64_t R, G, K, C;

  bool hold(int64_t D, int64_t V) const {
    return R > 0 && K == (D + 3) / 4 * 4 && C == (V + LANES - 1) / LANES * LANES;
  }

  // Returns the start of the head's block with row `row`, in rows of that head.
  int64_t block(int64_t head, int64_t row) const { return (row / BLOCK * G + head) * BLOCK; }

  int64_t key_at(int64_t head, int64_t row, int64_t d) const {
    const int64_t in = row % BLOCK;
    return block(head, row) * K + ((in / LANES * (K / 4) + d / 4) * LANES + in % LANES) * 4 + d % 4;
  }
  int64_t value_at(int64_t head, int64_t row, int64_t v) const {
    const int64_t in = row % BLOCK;
    return block(head, row) * C + ((v / LANES * LANES + in / 4) * LANES + v % LANES) * 4 + in % 4;
  }
  int64_t scale_at(int64_t head, int64_t row) const { return block(head, row) + row % BLOCK; }
};

// The rows that four buffers [1, R / 64, ...] hold; R == 0 where they do not fit together.
inline QuantizedRows quantized_rows(
    const Tensor& keys, const Tensor& key_scales, const Tensor& values, const Tensor& value_scales
) {
  Size N, G, K, C;
  const bool sound = is<int8_t>(keys, 1, N, G, K, BLOCK) && is<int8_t>(values, 1, N, G, C, BLOCK) &&
                     is<float>(key_scales, 1, N, G, BLOCK) && is<float>(value_scales, 1, N, G, BLOCK);
  if (!sound) return {};
  return {
      data<int8_t>(keys), data<float>(key_scales), data<int8_t>(values), data<float>(value_scales), N * BLOCK, G, K, C
  };
}

}  // namespace hybridge::inline INSTRUCTION_SET
