#include "engine/mapped_file.h"

#include <sys/mman.h>

#include <string>

namespace hybridge {

Result<std::unique_ptr<MappedFile>> MappedFile::open(const char* path) {
  auto file = OpenFile::regular(path);
  if (!file.ok()) return file.status();
  const auto size = static_cast<size_t>(file->status().st_size);
  void* data = size > 0 ? ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file->descriptor(), 0) : MAP_FAILED;
  if (data == MAP_FAILED) return Status(HYBRIDGE_UNREADABLE_FILE, std::string(path) + " is empty or cannot be mapped");
  return std::unique_ptr<MappedFile>(new MappedFile(static_cast<uint8_t*>(data), size, std::move(*file)));
}

MappedFile::~MappedFile() { ::munmap(data_, size_); }

bool MappedFile::is_unchanged() const {
  const struct stat now = file_.status();
  const timespec time = changed(now), before = changed(opened_);
  const bool is_touched = now.st_size != opened_.st_size || time.tv_sec != before.tv_sec ||
                          time.tv_nsec != before.tv_nsec;
  if (is_touched && (is_same_ == nullptr || !is_same_())) return false;
  opened_ = now;
  return true;
}

MappedFile::MappedFile(uint8_t* data, size_t size, OpenFile file)
    : data_(data), size_(size), file_(std::move(file)), opened_(file_.status()) {}

}  // namespace hybridge
