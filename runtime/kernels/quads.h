// Four columns of a register of rows at a time, out of panels (panels.h) of 4 to 8 bits.
#pragma once

#include "panels.h"
#include "vector.h"

namespace hybridge::inline INSTRUCTION_SET {

template <int Lines>
INLINE void fetch_lines(const uint8_t* w) {
  __builtin_prefetch(w);
  if constexpr (Lines > 1) fetch_lines<Lines - 1>(w + 64);
}

// Fetches as many lines of 64 bytes as are read now of a tile of T tokens from where those will be read that come next.
template <int Lines, int Code, int T>
INLINE void fetch_ahead(const uint8_t* w) {
  w += ahead(T == 1 ? panels_at_once(Code) : 1);
#if defined(__aarch64__)  // clang would compute the addresses of now from these, one by one, if it saw how they hang
                          // together
  asm("" : "+r"(w));
#endif
  fetch_lines<Lines>(w);
}

// Bytes with their bits moved up, or down where `up` is negative; what comes in from a neighbour is for a mask to take
// out.
template <typename V>
INLINE V moved(V v, int up) {
  return by_register([up](u8xr part) { return (u8xr)(up > 0 ? (u32xr)part << up : (u32xr)part >> -up); }, v);
}

// The upper four bits of each byte. ARM shifts bytes, which need no mask then.
template <typename V>
INLINE V upper_half(V v) {
#if defined(__aarch64__)
  return v >> 4;
#else
  return moved(v, -4) & uint8_t(15);
#endif
}

// Looks up the table at each number of 0..15.
template <typename V>
INLINE V look_up(V table, V numbers) {
  return by_register(
      [](u8xr from, u8xr at) {
#if defined(__AVX512BW__)
        return (u8xr)_mm512_shuffle_epi8((__m512i)from, (__m512i)at);
#elif defined(__AVX2__)
        return (u8xr)_mm256_shuffle_epi8((__m256i)from, (__m256i)at);
#elif defined(__aarch64__)
        return (u8xr)vqtbl1q_u8((uint8x16_t)from, (uint8x16_t)at);
#else
        u8xr found;
        for (int i = 0; i < REGISTER; ++i) found[i] = from[at[i]];
        return found;
#endif
      },
      table, numbers
  );
}

// The upper bits of a unit's numbers, or the table, in every 16 bytes.
template <int Code, typename V>
INLINE V beside(const uint8_t* unit, const int8_t* table) {
  if constexpr (Code == TABLE) {
    uint8_t bytes[sizeof(V)];
    UNROLLED for (size_t i = 0; i < sizeof(V) / 16; ++i) std::memcpy(bytes + 16 * i, table, 16);
    return load<V>(bytes);
  } else if constexpr (Code == 5 || Code == 6) {
    return load<V>(unit + 64 * (unit_of(Code) / 8));
  } else {
    return V{};
  }
}

// The index-th four columns of a unit: bytes 0..15, 0..31, 0..63, or signed ones for 8 bits and tables.
template <int Code, typename V>
INLINE V quad(const uint8_t* unit, V beside, int index) {
  if constexpr (Code == 8) return load<V>(unit + 64 * index);
  V both = load<V>(unit + 64 * (index / 2));
  V numbers = index % 2 ? upper_half(both) : both & uint8_t(15);
  if constexpr (Code == 5 || Code == 6) {
    constexpr int upper = Code - 4;
    numbers = numbers | (moved(beside, 4 - index * upper) & uint8_t(((1 << upper) - 1) << 4));
  }
  if constexpr (Code == TABLE) numbers = look_up(beside, numbers);
  return numbers;
}

}  // namespace hybridge::inline INSTRUCTION_SET
