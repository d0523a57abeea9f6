// A program's file, mapped: all sessions read the same pages, and the system may drop what is not in use. For POSIX
// systems.
#ifndef HYBRIDGE_ENGINE_MAPPED_FILE_H
#define HYBRIDGE_ENGINE_MAPPED_FILE_H

#include <sys/mman.h>
#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "engine/open_file.h"

namespace hybridge {

class MappedFile {
 public:
  // UNREADABLE_FILE where it is no file that can be read.
  static Result<std::unique_ptr<MappedFile>> open(const char* path) {
    auto file = OpenFile::regular(path);
    if (!file.ok()) return file.status();
    const auto size = static_cast<size_t>(file->status().st_size);
    void* data = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->descriptor(), 0) : MAP_FAILED;
    if (data == MAP_FAILED)
      return Status(HYBRIDGE_UNREADABLE_FILE, std::string(path) + " is empty or cannot be mapped");
    return std::unique_ptr<MappedFile>(new MappedFile(static_cast<uint8_t*>(data), size, std::move(*file)));
  }

  ~MappedFile() { ::munmap(data_, size_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }

  // Sets the function that is asked whether the bytes are the same after the file was touched; without it they count as
  // changed.
  void ask(std::function<bool()> is_same) const { is_same_ = std::move(is_same); }

  // Returns whether the file is as it was: a mapping changes with its file, and ends where that is cut off.
  bool is_unchanged() const {
    const struct stat now = file_.status();
    const timespec time = changed(now), before = changed(opened_);
    const bool is_touched = now.st_size != opened_.st_size || time.tv_sec != before.tv_sec ||
                            time.tv_nsec != before.tv_nsec;
    if (is_touched && (is_same_ == nullptr || !is_same_())) return false;
    opened_ = now;
    return true;
  }

 private:
  MappedFile(uint8_t* data, size_t size, OpenFile file)
      : data_(data), size_(size), file_(std::move(file)), opened_(file_.status()) {}

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
