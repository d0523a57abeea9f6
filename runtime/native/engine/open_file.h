// A file by its descriptor. For POSIX systems.
#ifndef HYBRIDGE_ENGINE_OPEN_FILE_H
#define HYBRIDGE_ENGINE_OPEN_FILE_H

#include <fcntl.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

#include "engine/status.h"

namespace hybridge {

class OpenFile {
 public:
  // A regular file to read. UNREADABLE_FILE for what is none: a pipe, a device or a folder is neither waited for nor
  // read.
  static Result<OpenFile> regular(const char* path);

  OpenFile(const char* path, int flags, mode_t mode = 0) : descriptor_(::open(path, flags | O_CLOEXEC, mode)) {}
  OpenFile(OpenFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile();

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

  struct stat status() const;

  bool write_all(std::span<const uint8_t> data) const;

  bool read_all(std::span<uint8_t> data) const;

  // Moves to a byte of the file, for the next read or write.
  bool seek(size_t place) const;

  // All of a regular file that has at most `most` bytes. UNREADABLE_FILE otherwise.
  static Result<std::string> content(const char* path, size_t most);

  // Waits until its content, or the names in a folder, are on the disk; where a file system has no such thing, it does
  // not.
  bool sync() const;

 private:
  int descriptor_;
};

}  // namespace hybridge

#endif
