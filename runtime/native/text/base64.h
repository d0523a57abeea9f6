// Bytes as text: base64 with padding (RFC 4648).
#ifndef HYBRIDGE_NATIVE_TEXT_BASE64_H
#define HYBRIDGE_NATIVE_TEXT_BASE64_H

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "error.h"

namespace hybridge::text {

inline constexpr std::string_view BASE64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

inline std::string to_base64(std::span<const uint8_t> bytes) {
  std::string text;
  text.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t count = bytes.size() - at < 3 ? bytes.size() - at : 3;
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) bits = bits << 8 | (i < count ? bytes[at + i] : 0);
    for (size_t i = 0; i < 4; ++i) text += i <= count ? BASE64[bits >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

// Throws TextError for a text that is none.
inline std::vector<uint8_t> from_base64(std::string_view text) {
  std::vector<uint8_t> bytes;
  bytes.reserve(text.size() / 4 * 3);
  size_t padding = 0;
  while (padding < 2 && text.size() > padding && text[text.size() - 1 - padding] == '=') ++padding;
  if (text.size() % 4 != 0) throw TextError("this is no base64");
  for (size_t at = 0; at < text.size(); at += 4) {
    const size_t count = at + 4 == text.size() ? 4 - padding : 4;
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; ++i) {
      const size_t value = i < count ? BASE64.find(text[at + i]) : 0;
      if (value == std::string_view::npos) throw TextError("this is no base64");
      bits = bits << 6 | static_cast<uint32_t>(value);
    }
    for (size_t i = 0; i + 1 < count; ++i) bytes.push_back(static_cast<uint8_t>(bits >> (16 - 8 * i)));
  }
  return bytes;
}

}  // namespace hybridge::text

#endif
