// Random numbers that belong to the places of a text.
#ifndef HYBRIDGE_ENGINE_NOISE_H
#define HYBRIDGE_ENGINE_NOISE_H

#include <cstddef>
#include <cstdint>

namespace hybridge {

// SplitMix64's step (Steele, Lea, Flood 2014).
uint64_t mixed(uint64_t value);

// 32 random bits that follow from the seed and the place of a token in its text alone.
uint32_t noise(uint64_t seed, size_t place);

// A number in (0, 1) that follows from the noise of a place and a token alone; kernels/choose.cpp and
// `CoreKernels.draw` compute the same.
//
// A two-round 32-bit mixer (Wellons, hash-prospector) whose multipliers are below 2^31: no product overflows an int64.
inline double noise_of_token(uint32_t noise, int64_t token) {
  uint32_t x = noise + static_cast<uint32_t>(token) * 0x9e3779b1u;
  x = (x ^ (x >> 16)) * 0x21f0aaadu;
  x = (x ^ (x >> 15)) * 0x735a2d97u;
  return (static_cast<double>(x ^ (x >> 15)) + 0.5) * 0x1p-32;
}

uint64_t drawn_seed();

}  // namespace hybridge

#endif
