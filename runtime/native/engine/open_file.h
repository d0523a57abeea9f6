// A file by its descriptor. For POSIX systems.
#ifndef HYBRIDGE_ENGINE_OPEN_FILE_H
#define HYBRIDGE_ENGINE_OPEN_FILE_H

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
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
  static Result<OpenFile> regular(const char* path) {
    OpenFile file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
    struct stat status{};
    if (!file.is_open() || ::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode))
      return unreadable(path);
    return file;
  }

  OpenFile(const char* path, int flags, mode_t mode = 0) : descriptor_(::open(path, flags | O_CLOEXEC, mode)) {}
  OpenFile(OpenFile&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  OpenFile& operator=(OpenFile&&) = delete;
  ~OpenFile() {
    if (is_open()) ::close(descriptor_);
  }

  bool is_open() const { return descriptor_ >= 0; }
  int descriptor() const { return descriptor_; }

  struct stat status() const {
    struct stat status{};
    (void)::fstat(descriptor_, &status);
    return status;
  }

  bool write_all(std::span<const uint8_t> data) const {
    while (!data.empty()) {
      const ssize_t written = ::write(descriptor_, data.data(), data.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) return false;
      data = data.subspan(static_cast<size_t>(written));
    }
    return true;
  }

  bool read_all(std::span<uint8_t> data) const {
    while (!data.empty()) {
      const ssize_t got = ::read(descriptor_, data.data(), data.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return false;
      data = data.subspan(static_cast<size_t>(got));
    }
    return true;
  }

  // Moves to a byte of the file, for the next read or write.
  bool seek(size_t place) const { return ::lseek(descriptor_, static_cast<off_t>(place), SEEK_SET) >= 0; }

  // All of a regular file that has at most `most` bytes. UNREADABLE_FILE otherwise.
  static Result<std::string> content(const char* path, size_t most) {
    const auto file = regular(path);
    if (!file.ok()) return file.status();
    if (static_cast<size_t>(file->status().st_size) > most) {
      return Status(
          HYBRIDGE_UNREADABLE_FILE, std::string(path) + " has more than " + std::to_string(most >> 20) + " MB"
      );
    }
    std::string bytes(static_cast<size_t>(file->status().st_size), '\0');
    if (!file->read_all({reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()})) return unreadable(path);
    return bytes;
  }

  // Waits until its content, or the names in a folder, are on the disk; where a file system has no such thing, it does
  // not.
  bool sync() const { return ::fsync(descriptor_) == 0 || errno == EINVAL; }

 private:
  static Status unreadable(const char* path) {
    return Status(
        HYBRIDGE_UNREADABLE_FILE, std::string(path) + " does not exist, cannot be read, or is no regular file"
    );
  }

  int descriptor_;
};

}  // namespace hybridge

#endif
