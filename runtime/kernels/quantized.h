// How quantized weights lie in memory: panels of 16 rows, one row a lane, so that a product needs no sum across lanes.
//
// 4 bits: [N / 16, K / 8, 64]; byte 4 lane + j of a block of 8 columns has column j in its low and 4 + j in its high half, both + 8.
// 8 bits: [N / 16, K / 4, 64]; byte 4 lane + j of a block of 4 columns has column j, signed.
// Scales: float16 [N / 16, K / group, 16]. Rows past N are zero.
#pragma once

#include "vector.h"

namespace hybridge {

struct Panels {
  const uint8_t* packed;
  const _Float16* scales;
  int64_t N, K, group;
  int bits;

  int64_t count() const { return (N + LANES - 1) / LANES; }
  int64_t bytes() const { return K * LANES * bits / 8; }
  const uint8_t* panel(int64_t index) const { return packed + index * bytes(); }
  const _Float16* panel_scales(int64_t index) const { return scales + index * (K / group) * LANES; }

  // One weight, for embeddings.
  int value(int64_t row, int64_t k) const {
    const uint8_t* block = panel(row / LANES) + (bits == 4 ? k / 8 : k / 4) * 64;
    const uint8_t byte = block[4 * (row % LANES) + k % 4];
    if (bits == 8) return int8_t(byte);
    return int(k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
  }

  float scale(int64_t row, int64_t k) const { return float(panel_scales(row / LANES)[k / group * LANES + row % LANES]); }
};

}  // namespace hybridge
