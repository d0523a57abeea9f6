// A session on disk: the bytes of its state, the tokens that they are the state of, and a checksum.
#ifndef HYBRIDGE_NATIVE_STATE_FILE_H
#define HYBRIDGE_NATIVE_STATE_FILE_H

#include <executorch/runtime/core/result.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <span>
#include <string>
#include <vector>

#include <hybridge/fnv1a.h>

namespace hybridge {

using executorch::runtime::Error;
using executorch::runtime::Result;

// texts: the committed tokens, then those of each snapshot slot.
struct SavedState {
  std::vector<uint8_t> bytes;
  std::vector<std::vector<int64_t>> texts;
};

// A block of numbers in front of the rest, in this processor's byte order.
struct StateHeader {
  static constexpr std::array<char, 16> FORMAT = {"hybridge-state1"};

  std::array<char, 16> format = FORMAT;
  uint64_t model = 0, checksum = 0, bytes = 0, texts = 0;
};

inline void append(std::vector<uint8_t>& out, const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  out.insert(out.end(), bytes, bytes + size);
}

// Takes `size` bytes off the front of `in`; false where it has fewer.
inline bool read_bytes(std::span<const uint8_t>& in, void* data, size_t size) {
  if (in.size() < size) return false;
  if (size > 0) std::memcpy(data, in.data(), size);
  in = in.subspan(size);
  return true;
}

// The bytes, then each text behind its length.
inline std::vector<uint8_t> encode_state(const SavedState& state) {
  std::vector<uint8_t> content(state.bytes);
  for (const auto& text : state.texts) {
    const uint64_t length = text.size();
    append(content, &length, sizeof(length));
    append(content, text.data(), text.size() * sizeof(int64_t));
  }
  return content;
}

inline Result<SavedState> decode_state(std::span<const uint8_t> content, size_t bytes, size_t texts) {
  SavedState state{std::vector<uint8_t>(bytes), std::vector<std::vector<int64_t>>(texts)};
  bool whole = read_bytes(content, state.bytes.data(), bytes);
  for (auto& text : state.texts) {
    uint64_t length = 0;
    whole = whole && read_bytes(content, &length, sizeof(length)) && length <= content.size() / sizeof(int64_t);
    text.resize(whole ? length : 0);
    whole = whole && read_bytes(content, text.data(), text.size() * sizeof(int64_t));
  }
  if (!whole) return Error::InvalidExternalData;
  return state;
}

// The file appears whole or not at all: AccessFailed where it cannot be written.
inline Error write_state(const std::string& path, uint64_t model, const SavedState& state) {
  const std::vector<uint8_t> content = encode_state(state);
  const StateHeader header{
      .model = model,
      .checksum = fnv1a(content.data(), content.size(), model),
      .bytes = state.bytes.size(),
      .texts = state.texts.size(),
  };
  const std::string unfinished = path + ".part";
  std::ofstream file(unfinished, std::ios::binary);
  file.write(reinterpret_cast<const char*>(&header), sizeof(header));
  file.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  file.close();
  if (file.good() && std::rename(unfinished.c_str(), path.c_str()) == 0) return Error::Ok;
  std::remove(unfinished.c_str());
  return Error::AccessFailed;
}

// AccessFailed where it cannot be read; InvalidExternalData where it is damaged, or not of this model with so many bytes and
// texts.
inline Result<SavedState> read_state(const std::string& path, uint64_t model, size_t bytes, size_t texts) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Error::AccessFailed;
  const std::vector<char> all((std::istreambuf_iterator<char>(file)), {});
  std::span content(reinterpret_cast<const uint8_t*>(all.data()), all.size());
  StateHeader header;
  const bool is_ours = read_bytes(content, &header, sizeof(header)) && header.format == StateHeader::FORMAT &&
                       header.model == model && header.bytes == bytes && header.texts == texts &&
                       header.checksum == fnv1a(content.data(), content.size(), model);
  if (!is_ours) return Error::InvalidExternalData;
  return decode_state(content, bytes, texts);
}

}  // namespace hybridge

#endif
