// A hash that tells files apart and finds damage; no protection from someone who means harm.
#ifndef HYBRIDGE_ENGINE_FNV1A_H
#define HYBRIDGE_ENGINE_FNV1A_H

#include <cstddef>
#include <cstdint>

namespace hybridge {

constexpr uint64_t FNV_BASIS = 0xcbf29ce484222325, FNV_PRIME = 0x100000001b3;

// FNV-1a by Fowler, Noll and Vo, 64 bits.
inline uint64_t fnv1a(const void* data, size_t size, uint64_t hash = FNV_BASIS) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * FNV_PRIME;
  return hash;
}

}  // namespace hybridge

#endif
