#include "engine/open_file.h"

#include <unistd.h>

#include <cerrno>

namespace hybridge {

namespace {

Status unreadable(const char* path) {
  return Status(HYBRIDGE_UNREADABLE_FILE, std::string(path) + " does not exist, cannot be read, or is no regular file");
}

}  // namespace

Result<OpenFile> OpenFile::regular(const char* path) {
  OpenFile file(path, O_RDONLY | O_NONBLOCK | O_NOCTTY);
  struct stat status{};
  if (!file.is_open() || ::fstat(file.descriptor(), &status) != 0 || !S_ISREG(status.st_mode)) return unreadable(path);
  return file;
}

OpenFile::~OpenFile() {
  if (is_open()) ::close(descriptor_);
}

struct stat OpenFile::status() const {
  struct stat status{};
  (void)::fstat(descriptor_, &status);
  return status;
}

bool OpenFile::write_all(std::span<const uint8_t> data) const {
  while (!data.empty()) {
    const ssize_t written = ::write(descriptor_, data.data(), data.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    data = data.subspan(static_cast<size_t>(written));
  }
  return true;
}

bool OpenFile::read_all(std::span<uint8_t> data) const {
  while (!data.empty()) {
    const ssize_t got = ::read(descriptor_, data.data(), data.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    data = data.subspan(static_cast<size_t>(got));
  }
  return true;
}

bool OpenFile::seek(size_t place) const { return ::lseek(descriptor_, static_cast<off_t>(place), SEEK_SET) >= 0; }

Result<std::string> OpenFile::content(const char* path, size_t most) {
  const auto file = regular(path);
  if (!file.ok()) return file.status();
  if (static_cast<size_t>(file->status().st_size) > most) {
    return Status(HYBRIDGE_UNREADABLE_FILE, std::string(path) + " has more than " + std::to_string(most >> 20) + " MB");
  }
  std::string bytes(static_cast<size_t>(file->status().st_size), '\0');
  if (!file->read_all({reinterpret_cast<uint8_t*>(bytes.data()), bytes.size()})) return unreadable(path);
  return bytes;
}

bool OpenFile::sync() const { return ::fsync(descriptor_) == 0 || errno == EINVAL; }

}  // namespace hybridge
