#include "engine/noise.h"

#include <random>

namespace hybridge {

uint64_t mixed(uint64_t value) {
  value += 0x9e3779b97f4a7c15;
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

uint32_t noise(uint64_t seed, size_t place) {
  return static_cast<uint32_t>(mixed(mixed(seed) ^ static_cast<uint64_t>(place)) >> 32);
}

uint64_t drawn_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace hybridge
