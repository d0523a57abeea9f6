// How weights lie in memory: panels of 16 rows, one row a lane, so that a product needs no sum across lanes.
//
// 4 bits: uint8 [N / 16, K / 8, 64]; byte 4 lane + j of a block of 8 columns has column j in its low and 4 + j in its high half, both + 8.
// 8 bits: int8 [N / 16, K / 4, 64]; byte 4 lane + j of a block of 4 columns has column j, -127..127.
// 32 bits: float32 [N / 16, K, 16].
// Scales of the former two: float16 [N / 16, K / group, 16]. Rows past N are zero.
#pragma once

#include "kernel.h"
#include "vector.h"

namespace hybridge {

struct Panels {
  const uint8_t* packed;
  const half* scales;  // null for 32 bits
  int64_t N, K, group;
  int bits;

  int64_t count() const { return (N + LANES - 1) / LANES; }
  int64_t groups() const { return K / group; }
  int64_t bytes() const { return K * LANES * bits / 8; }
  const uint8_t* panel(int64_t index) const { return packed + index * bytes(); }
  const half* panel_scales(int64_t index) const { return scales + index * groups() * LANES; }

  // One weight, for embeddings.
  float value(int64_t row, int64_t k) const {
    const int64_t lane = row % LANES;
    if (bits == 32) return reinterpret_cast<const float*>(panel(row / LANES))[k * LANES + lane];
    const uint8_t byte = panel(row / LANES)[(bits == 4 ? k / 8 : k / 4) * 64 + 4 * lane + k % 4];
    const int quantum = bits == 8 ? int8_t(byte) : (k % 8 < 4 ? byte & 15 : byte >> 4) - 8;
    return quantum * float(panel_scales(row / LANES)[k / group * LANES + lane]);
  }
};

// The weights [N, K] that `packed` and `scales` hold; K == 0 where they do not fit together.
inline Panels panels(const Tensor& packed, const std::optional<Tensor>& scales, int64_t N, int64_t K) {
  const ScalarType type = packed.scalar_type();
  const int bits = type == ScalarType::Byte ? 4 : type == ScalarType::Char ? 8 : 32;
  const int64_t groups = scales ? std::max<int64_t>(1, scales->size(1)) : 1;
  Panels p{static_cast<const uint8_t*>(packed.const_data_ptr()), nullptr, N, K, K / groups, bits};
  if (scales) p.scales = static_cast<const half*>(scales->const_data_ptr());
  const bool scaled = scales && scales->scalar_type() == ScalarType::Half && K % groups == 0 && p.group % 8 == 0 &&
      scales->numel() == p.count() * groups * LANES;
  const bool whole = size_t(p.count() * p.bytes()) == packed.nbytes();
  if (!whole || !(bits == 32 ? type == ScalarType::Float && !scales : scaled)) p.K = 0;
  return p;
}

}  // namespace hybridge
