// A session on disk: its texts, its state, what a caller noted, and a checksum. engine/state_layout.h has the order.
#ifndef HYBRIDGE_ENGINE_STATE_FILE_H
#define HYBRIDGE_ENGINE_STATE_FILE_H

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/open_file.h"
#include "engine/status.h"

namespace hybridge {

// What a file begins with, in this processor's byte order. It ends with the checksum of what lies between.
struct StateHeader {
  static constexpr std::array<char, 16> FORMAT = {"hybridge-state4"};

  std::array<char, 16> format = FORMAT;
  uint64_t model = 0;
};

// The name of an instruction set, with zeros behind it.
using InstructionSet = std::array<char, 16>;

void append(std::vector<uint8_t>& out, const void* data, size_t size);

// Takes `size` bytes off the front of `bytes`; false where it has fewer.
bool read_bytes(std::span<const uint8_t>& bytes, void* data, size_t size);

// Writes a state piece by piece.
class StateWriter {
 public:
  StateWriter(const OpenFile& file, uint64_t model);

  void write(std::span<const uint8_t> bytes);

  // Writes values after their number.
  template <typename Value>
  void write_counted(std::span<const Value> values) {
    const uint64_t count = values.size();
    write({reinterpret_cast<const uint8_t*>(&count), sizeof(count)});
    write({reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
  }

  // Writes the checksum; false if the file lacks anything.
  bool finish();

 private:
  const OpenFile& file_;
  uint64_t checksum_;
  bool is_written_ = false;
};

// Reads a state piece by piece. Every read is false once one failed; `status` says why.
class StateReader {
 public:
  // UNREADABLE_FILE if it cannot be read; INVALID_SAVED_STATE if it is no saved state of this model.
  static Result<StateReader> open(const std::string& path, uint64_t model);

  bool read(void* data, size_t size);

  // Reads values after their number, which is at most `most`.
  template <typename Values>
  bool read_counted(Values& values, size_t most) {
    uint64_t count = 0;
    if (!read(&count, sizeof(count))) return false;
    if (count > std::min(most, left_ / sizeof(values[0]))) return refuse(invalid(DAMAGED));
    values.resize(count);
    return read(values.data(), count * sizeof(values[0]));
  }

  bool skip(size_t size);

  // Returns whether all was read, and the checksum is right.
  bool finish();

  // The byte that is read next; what lies between can be read again from there.
  size_t place() const { return size_ - left_; }
  bool go_back(size_t place);

  // What our kernels ran by where it was saved, such as "avx2"; nothing without them.
  const std::string& instruction_set() const { return instruction_set_; }

  const Status& status() const { return status_; }

  // why: after the name of the file.
  Status invalid(const char* why) const { return Status(HYBRIDGE_INVALID_SAVED_STATE, path_ + " " + why); }

 private:
  static constexpr const char* DAMAGED = "is damaged; save the state again";

  StateReader(std::string path, OpenFile file, uint64_t model);

  bool read_exactly(void* data, size_t size);

  Status unreadable() const { return Status(HYBRIDGE_UNREADABLE_FILE, path_ + " cannot be read to its end"); }

  bool refuse(Status why);

  std::string path_, instruction_set_;
  OpenFile file_;
  size_t size_, left_;
  uint64_t checksum_;
  Status status_;
};

// Writes what `content(StateWriter&)` gives. The file appears whole or not at all, and is on the disk then:
// UNWRITABLE_FILE where it cannot be written.
Status write_state(const std::string& path, uint64_t model, const std::function<void(StateWriter&)>& content);

}  // namespace hybridge

#endif
