// A program's file, mapped: all sessions read the same pages, and the system may drop what is not in use. For POSIX systems.
#ifndef HYBRIDGE_NATIVE_MAPPED_FILE_H
#define HYBRIDGE_NATIVE_MAPPED_FILE_H

#include <executorch/runtime/core/data_loader.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <memory>

namespace hybridge {

class MappedFile final : public executorch::runtime::DataLoader {
 public:
  using Error = executorch::runtime::Error;
  using FreeableBuffer = executorch::runtime::FreeableBuffer;
  template <typename T>
  using Result = executorch::runtime::Result<T>;

  // AccessFailed where the file cannot be read.
  static Result<std::unique_ptr<executorch::runtime::DataLoader>> open(const char* path) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return Error::AccessFailed;
    struct stat status {};
    const bool sized = ::fstat(file, &status) == 0 && status.st_size > 0;
    const size_t size = sized ? static_cast<size_t>(status.st_size) : 0;
    void* data = sized ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
    ::close(file);  // the mapping stays
    if (data == MAP_FAILED) return Error::AccessFailed;
    return std::unique_ptr<executorch::runtime::DataLoader>(new MappedFile(static_cast<uint8_t*>(data), size));
  }

  ~MappedFile() override { ::munmap(data_, size_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo&) const override {
    if (!holds(offset, size)) return Error::InvalidArgument;
    return FreeableBuffer(data_ + offset, size, nullptr);
  }

  Error load_into(size_t offset, size_t size, const SegmentInfo&, void* buffer) const override {
    if (!holds(offset, size)) return Error::InvalidArgument;
    std::memcpy(buffer, data_ + offset, size);
    return Error::Ok;
  }

  Result<size_t> size() const override { return size_; }

 private:
  MappedFile(uint8_t* data, size_t size) : data_(data), size_(size) {}

  bool holds(size_t offset, size_t size) const { return offset <= size_ && size <= size_ - offset; }

  uint8_t* data_;
  size_t size_;
};

}  // namespace hybridge

#endif
