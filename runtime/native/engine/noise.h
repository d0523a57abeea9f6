// Random numbers that belong to the places of a text.
#ifndef HYBRIDGE_ENGINE_NOISE_H
#define HYBRIDGE_ENGINE_NOISE_H

#include <cstddef>
#include <cstdint>

namespace hybridge {

// The use of a random number; each use has numbers of its own for the same place.
enum class Stream : uint64_t { draw = 0, accept = 1, draft = 2 };

// SplitMix64's step (Steele, Lea, Flood 2014).
uint64_t mixed(uint64_t value);

// A number in [0, 1) that follows from the seed, the place and the stream alone.
double noise(uint64_t seed, size_t place, Stream stream);

uint64_t drawn_seed();

}  // namespace hybridge

#endif
