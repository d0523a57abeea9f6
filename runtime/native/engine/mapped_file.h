// A program's file, mapped: all sessions read the same pages, and the system may drop what is not in use. For POSIX
// systems.
#ifndef HYBRIDGE_ENGINE_MAPPED_FILE_H
#define HYBRIDGE_ENGINE_MAPPED_FILE_H

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "engine/open_file.h"
#include "engine/status.h"

namespace hybridge {

class MappedFile {
 public:
  // UNREADABLE_FILE where it is no file that can be read.
  static Result<std::unique_ptr<MappedFile>> open(const char* path);

  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }

  // Sets the function that is asked whether the bytes are the same after the file was touched; without it they count as
  // changed.
  void ask(std::function<bool()> is_same) const { is_same_ = std::move(is_same); }

  // Returns whether the file is as it was: a mapping changes with its file, and ends where that is cut off.
  bool is_unchanged() const;

 private:
  MappedFile(uint8_t* data, size_t size, OpenFile file);

  // When the content was changed last.
#ifdef __APPLE__
  static timespec changed(const struct stat& status) { return status.st_mtimespec; }
#else
  static timespec changed(const struct stat& status) { return status.st_mtim; }
#endif

  uint8_t* data_;
  size_t size_;
  OpenFile file_;
  mutable struct stat opened_;
  mutable std::function<bool()> is_same_;
};

}  // namespace hybridge

#endif
