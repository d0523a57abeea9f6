#include "engine/noise.h"

#include <random>

namespace hybridge {

uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

double noise(uint64_t seed, size_t place, Stream stream) {
  constexpr double UNIT = 1.0 / 9007199254740992.0;  // 2^-53
  const uint64_t of_stream = mixed(mixed(seed) + static_cast<uint64_t>(stream));
  return static_cast<double>(mixed(of_stream ^ static_cast<uint64_t>(place)) >> 11) * UNIT;
}

uint64_t drawn_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace hybridge
