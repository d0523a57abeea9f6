// SHA-256 (FIPS 180-4), for what must be told apart although somebody wants it not to be.
#ifndef HYBRIDGE_ENGINE_SHA256_H
#define HYBRIDGE_ENGINE_SHA256_H

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace hybridge {

class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  void add(std::span<const uint8_t> bytes);

  // The digest of everything that was added; nothing may be added any more.
  Digest finish();

 private:
  void mix();

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  size_t filled_ = 0;
  uint64_t length_ = 0;
};

// Returns a digest as 64 hexadecimal digits.
std::string hexadecimal(const Sha256::Digest& digest);

}  // namespace hybridge

#endif
