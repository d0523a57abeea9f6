// Products of a panel's rows (panels.h) and some tokens in whole numbers, for each instruction set in a file of its
// own. It has
//
//   tile_size(left)     how many of `left` tokens go together
//   together(T)         columns of a token that lie side by side in a tile of T tokens, see at()
//   FEW                 for how many tokens scales are decoded where they are used, not once for all
//   usual_group(code)   columns of a group that is compiled as a constant, or 0
//   SIGNED              what is added to signed bytes before they are multiplied; see offset()
//   masked(code, T)     whether a tile of T tokens has magnitudes of activations, and a mask behind each four of them:
//                       -1 for those below zero, with which a weight w becomes -1 - w; see offset()
//   begins_with_pairs(weight)  see offset()
//   IntegerTile<Code, T>
//     ROWS              rows of a panel that go together: 16, or 8 where registers do not hold the sums of more
//     start(offsets)    begins the sums of a group of columns, one number for each token; start(), needed if there are
//                       usual groups, begins them at 0
//     add(w, x, K, table)     adds K columns, whole units (panels.h); w is at the first of the rows
//     finish(scale, steps)    adds the group's sums to the totals: times the scale of a row and the step of a token
//     raise(minimum, sums)    adds the minimum of a row times a number of a token to the totals
//     store(to)         the totals, float [T, 16]
//   scale(lane) and minimum(lane) give those of a register of rows, counted from the tile's first.
//
// All compilers keep sums and totals in registers only where each has an index that is a constant: hence UNROLLED and
// INLINE.
#pragma once

#if defined(__ARM_FEATURE_MATMUL_INT8)
#include "products_i8mm.h"
#elif defined(__ARM_FEATURE_DOTPROD)
#include "products_dotprod.h"
#elif defined(__AVX2__) && !defined(__AVX512VNNI__)
#include "products_avx2.h"
#else
#include "products_lanes.h"
#endif

namespace hybridge::inline INSTRUCTION_SET {

// Returns the place of column k of token t in a group of `columns` of a tile of T tokens.
constexpr int64_t at(int64_t k, int64_t t, int64_t T, int64_t columns) {
  const int64_t width = together(T), first = k / width * width;
  return first * T + t * std::min(width, columns - first) + k - first;
}

// Bytes of a rounded activation in a tile of T tokens; two tokens have as many as any tile.
constexpr int64_t quantum_bytes(int code, int64_t T = 2) { return masked(code, T) ? 2 : 1; }

// Sums of a token's rounded activations in a group, column k in lane k % 16: of all, and of those below zero.
struct QuantaSums {
  i32x16 all, below_zero;
};

// What a group's sums of products lack: a weight has an offset when it is multiplied. Or in 16 bits each, what those
// lack of the first two of four columns, and of the others.
INLINE int32_t offset(const Panels& w, int64_t T, const QuantaSums& sums) {
  if (masked(w.code, T)) return -sum(sums.below_zero);
  const int32_t each = is_signed(w.code) ? SIGNED : w.zero(), all = -each * sum(sums.all);
  if (!begins_with_pairs(w)) return all;
  constexpr int32_t ones[] = {-1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0, -1, -1, 0, 0};
  const int32_t first = -each * sum(sums.all & load<i32x16>(ones));
  return int32_t(uint32_t(all - first) << 16 | uint16_t(first));
}

}  // namespace hybridge::inline INSTRUCTION_SET
