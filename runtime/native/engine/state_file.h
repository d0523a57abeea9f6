// A session on disk: its texts, its state, what a caller noted, and a checksum. engine/state_layout.h has the order.
#ifndef HYBRIDGE_ENGINE_STATE_FILE_H
#define HYBRIDGE_ENGINE_STATE_FILE_H

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/fnv1a.h"
#include "engine/open_file.h"
#include "engine/replaced_file.h"

namespace hybridge {

// What a file begins with, in this processor's byte order. It ends with the checksum of what lies between.
struct StateHeader {
  static constexpr std::array<char, 16> FORMAT = {"hybridge-state3"};

  std::array<char, 16> format = FORMAT;
  uint64_t model = 0;
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

// Writes a state piece by piece.
class StateWriter {
 public:
  StateWriter(const OpenFile& file, uint64_t model) : file_(file), checksum_(model) {
    const StateHeader header{.model = model};
    is_written_ = file_.write_all({reinterpret_cast<const uint8_t*>(&header), sizeof(header)});
  }

  void write(std::span<const uint8_t> bytes) {
    checksum_ = fnv1a(bytes.data(), bytes.size(), checksum_);
    is_written_ = is_written_ && file_.write_all(bytes);
  }

  // Writes values after their number.
  template <typename Value>
  void write_counted(std::span<const Value> values) {
    const uint64_t count = values.size();
    write({reinterpret_cast<const uint8_t*>(&count), sizeof(count)});
    write({reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
  }

  // Writes the checksum; false if the file lacks anything.
  bool finish() {
    const uint64_t checksum = checksum_;
    write({reinterpret_cast<const uint8_t*>(&checksum), sizeof(checksum)});
    return is_written_;
  }

 private:
  const OpenFile& file_;
  uint64_t checksum_;
  bool is_written_ = false;
};

// Reads a state piece by piece. Every read is false once one failed; `status` says why.
class StateReader {
 public:
  // UNREADABLE_FILE if it cannot be read; INVALID_SAVED_STATE if it is no saved state of this model.
  static Result<StateReader> open(const std::string& path, uint64_t model) {
    auto file = OpenFile::regular(path.c_str());
    if (!file.ok()) return file.status();
    StateReader reader(path, std::move(*file), model);
    StateHeader header;
    if (!reader.read_exactly(&header, sizeof(header))) return reader.status();
    if (header.format != StateHeader::FORMAT) {
      const bool is_state = std::string_view(header.format.data(), header.format.size()).starts_with("hybridge-state");
      const bool is_older = is_state && header.format < StateHeader::FORMAT;
      return reader.invalid(
          is_older ? "was saved by an older version of hybridge; save it again" : "is no saved state"
      );
    }
    if (header.model != model) return reader.invalid("is of another artifact; load it with that one");
    return reader;
  }

  bool read(void* data, size_t size) {
    if (!read_exactly(data, size)) return false;
    checksum_ = fnv1a(data, size, checksum_);
    return true;
  }

  // Reads values after their number, which is at most `most`.
  template <typename Values>
  bool read_counted(Values& values, size_t most) {
    uint64_t count = 0;
    if (!read(&count, sizeof(count))) return false;
    if (count > std::min(most, left_ / sizeof(values[0]))) return refuse(invalid(DAMAGED));
    values.resize(count);
    return read(values.data(), count * sizeof(values[0]));
  }

  bool skip(size_t size) {
    if (size > left_) return refuse(invalid(DAMAGED));
    std::vector<uint8_t> chunk(std::min(size, CHUNK));
    for (size_t skipped = 0, count = 0; skipped < size; skipped += count) {
      count = std::min(chunk.size(), size - skipped);
      if (!read(chunk.data(), count)) return false;
    }
    return true;
  }

  // Returns whether all was read, and the checksum is right.
  bool finish() {
    const uint64_t wanted = checksum_;
    uint64_t checksum = 0;
    return read_exactly(&checksum, sizeof(checksum)) &&
           ((left_ == 0 && checksum == wanted) || refuse(invalid(DAMAGED)));
  }

  // The byte that is read next; what lies between can be read again from there.
  size_t place() const { return size_ - left_; }
  bool go_back(size_t place) {
    if (!file_.seek(place)) return refuse(unreadable());
    left_ = size_ - place;
    return true;
  }

  const Status& status() const { return status_; }

  // why: after the name of the file.
  Status invalid(const char* why) const { return Status(HYBRIDGE_INVALID_SAVED_STATE, path_ + " " + why); }

 private:
  static constexpr size_t CHUNK = 64 << 10;
  static constexpr const char* DAMAGED = "is damaged; save the state again";

  StateReader(std::string path, OpenFile file, uint64_t model)
      : path_(std::move(path)),
        file_(std::move(file)),
        size_(static_cast<size_t>(file_.status().st_size)),
        left_(size_),
        checksum_(model) {}

  bool read_exactly(void* data, size_t size) {
    if (!status_.ok()) return false;
    if (size > left_) return refuse(invalid(DAMAGED));
    if (!file_.read_all({static_cast<uint8_t*>(data), size})) return refuse(unreadable());
    left_ -= size;
    return true;
  }

  Status unreadable() const { return Status(HYBRIDGE_UNREADABLE_FILE, path_ + " cannot be read to its end"); }

  bool refuse(Status why) {
    status_ = std::move(why);
    return false;
  }

  std::string path_;
  OpenFile file_;
  size_t size_, left_;
  uint64_t checksum_;
  Status status_;
};

// Writes what `content(StateWriter&)` gives. The file appears whole or not at all, and is on the disk then:
// UNWRITABLE_FILE where it cannot be written.
inline Status write_state(const std::string& path, uint64_t model, const std::function<void(StateWriter&)>& content) {
  const auto file = HYBRIDGE_TRY(ReplacedFile::begin(path));
  StateWriter out(file->file(), model);
  content(out);
  return out.finish() ? file->finish() : file->failed();
}

}  // namespace hybridge

#endif
