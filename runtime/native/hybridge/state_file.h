// A session on disk: the bytes of its state, the tokens that they are the state of, what a caller noted, and a checksum.
#ifndef HYBRIDGE_NATIVE_STATE_FILE_H
#define HYBRIDGE_NATIVE_STATE_FILE_H

#include <executorch/runtime/core/result.h>

#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <hybridge/fnv1a.h>
#include <hybridge/open_file.h>

namespace hybridge {

// texts: the committed tokens, then those of each snapshot slot.
struct SavedState {
  std::vector<uint8_t> bytes;
  std::vector<std::vector<int64_t>> texts;
  std::string note = {};
};

// A block of numbers in front of the rest, in this processor's byte order.
struct StateHeader {
  static constexpr std::array<char, 16> FORMAT = {"hybridge-state2"};

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

constexpr size_t LONGEST_NOTE = 64 << 20;

// The bytes, then each text behind its length, then the note behind its own.
inline std::vector<uint8_t> encode_state(const SavedState& state) {
  std::vector<uint8_t> content(state.bytes);
  for (const auto& text : state.texts) {
    const uint64_t length = text.size();
    append(content, &length, sizeof(length));
    append(content, text.data(), text.size() * sizeof(int64_t));
  }
  const uint64_t length = state.note.size();
  append(content, &length, sizeof(length));
  append(content, state.note.data(), state.note.size());
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
  uint64_t length = 0;
  whole = whole && read_bytes(content, &length, sizeof(length)) && length <= std::min(content.size(), LONGEST_NOTE);
  state.note.resize(whole ? length : 0);
  whole = whole && read_bytes(content, state.note.data(), state.note.size());
  if (!whole || !content.empty()) return Error::InvalidExternalData;
  return state;
}

// An empty file at `path` for this process's user, which no other writer has meanwhile. What a killed one has left there is
// used up. Not open where it cannot be had.
inline OpenFile claim(const std::string& path) {
  while (true) {
    OpenFile file(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (!file.is_open()) return file;
    const struct stat found = file.status();
    if (found.st_nlink == 0) continue;  // who had it has just removed it, and the name may be another writer's by now
    if (found.st_uid != ::geteuid() || found.st_nlink > 1) {  // put there to read along, or to be written through
      if (std::remove(path.c_str()) != 0 && errno != ENOENT) return OpenFile("", O_RDONLY);
      continue;
    }
    (void)::fchmod(file.descriptor(), 0600);
    while (::flock(file.descriptor(), LOCK_EX) != 0 && errno == EINTR) {
    }
    struct stat there {};
    const struct stat mine = file.status();
    const bool is_there = ::lstat(path.c_str(), &there) == 0 && there.st_dev == mine.st_dev && there.st_ino == mine.st_ino;
    if (!is_there) continue;  // who had it has renamed it
    if (!S_ISREG(mine.st_mode) || ::ftruncate(file.descriptor(), 0) != 0) return OpenFile("", O_RDONLY);
    return file;
  }
}

// The file appears whole or not at all, and is on the disk then: AccessFailed where it cannot be written.
inline Error write_state(const std::string& path, uint64_t model, const SavedState& state) {
  const std::vector<uint8_t> content = encode_state(state);
  const StateHeader header{
      .model = model,
      .checksum = fnv1a(content.data(), content.size(), model),
      .bytes = state.bytes.size(),
      .texts = state.texts.size(),
  };
  const std::string unfinished = path + ".part";
  const OpenFile file = claim(unfinished);
  if (!file.is_open()) return Error::AccessFailed;
  const bool written = file.write_all({reinterpret_cast<const uint8_t*>(&header), sizeof(header)}) &&
                       file.write_all(content) && file.sync() && std::rename(unfinished.c_str(), path.c_str()) == 0;
  if (!written) {
    std::remove(unfinished.c_str());
    return Error::AccessFailed;
  }
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  return OpenFile(folder.c_str(), O_RDONLY).sync() ? Error::Ok : Error::AccessFailed;
}

// Reads a state file. AccessFailed if it cannot be read; InvalidExternalData if it is damaged, or not of this model with this
// number of bytes and texts, none longer than `longest`.
inline Result<SavedState> read_state(
    const std::string& path, uint64_t model, size_t bytes, size_t texts, size_t longest) {
  const auto file = OpenFile::regular(path.c_str());
  if (!file.ok()) return file.error();
  const auto size = static_cast<uint64_t>(file->status().st_size);
  const size_t most = sizeof(StateHeader) + bytes + texts * sizeof(int64_t) * (1 + longest) + sizeof(uint64_t) + LONGEST_NOTE;
  if (size > most) return Error::InvalidExternalData;
  std::vector<uint8_t> all(size);
  if (!file->read_all(all)) return Error::AccessFailed;
  std::span<const uint8_t> content(all);
  StateHeader header;
  const bool is_ours = read_bytes(content, &header, sizeof(header)) && header.format == StateHeader::FORMAT &&
                       header.model == model && header.bytes == bytes && header.texts == texts &&
                       header.checksum == fnv1a(content.data(), content.size(), model);
  if (!is_ours) return Error::InvalidExternalData;
  return decode_state(content, bytes, texts);
}

}  // namespace hybridge

#endif
