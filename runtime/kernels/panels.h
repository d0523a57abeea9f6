// How weights lie in memory: panels of 16 rows, one row a lane, so that a product needs no sum across lanes.
//
// 4 bits: uint8 [N / 16, K / 8, 64]; byte 4 lane + j of a block of 8 columns has column j in its low and 4 + j in its high half, both + 8.
// 8 bits: int8 [N / 16, K / 4, 64]; byte 4 lane + j of a block of 4 columns has column j, -127..127.
// 32 bits: float32 [N / 16, K, 16].
// Scales of the former two: float16 [N / 16, K / group, 16]. Rows past N are zero.
#pragma once

#include "checks.h"
#include "kernel.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

constexpr int64_t AHEAD = 1024;  // bytes: processors fetch what follows by themselves, but not beyond a page, and not soon enough

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

constexpr int64_t MOST_SUMMED = 1 << 17;  // products of a group's bytes: more would not fit a sum of 32 bits

// The weights [N, K] that `packed` and `scales` hold; K == 0 where they do not fit together.
inline Panels panels(const Tensor& packed, const std::optional<Tensor>& scales, int64_t N, int64_t K) {
  const int64_t count = N > 0 ? (N - 1) / LANES + 1 : 0;
  const auto* memory = static_cast<const uint8_t*>(packed.const_data_ptr());
  if (!scales) return {memory, nullptr, N, is<float>(packed, count, K, LANES) ? K : 0, K, 32};
  Size groups;
  const int bits = packed.scalar_type() == ScalarType::Byte ? 4 : 8;
  const bool sound = is<half>(*scales, count, groups, LANES) && K % groups == 0 && K / groups % 8 == 0 && K / groups <= MOST_SUMMED &&
      (bits == 4 ? is<uint8_t>(packed, count, K / 8, 64) : is<int8_t>(packed, count, K / 4, 64));
  return {memory, static_cast<const half*>(scales->const_data_ptr()), N, sound ? K : 0, sound ? K / groups : 0, bits};
}

}  // namespace hybridge::inline INSTRUCTION_SET
