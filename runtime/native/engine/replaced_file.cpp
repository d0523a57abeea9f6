#include "engine/replaced_file.h"

#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string_view>
#include <utility>

namespace hybridge {

namespace {

constexpr int MOST_LINKS = 40;  // Linux's own limit

Status refused(const std::string& path, const char* why) {
  return Status(HYBRIDGE_UNWRITABLE_FILE, path + " cannot be written: " + why);
}

const char* kind(mode_t mode) {
  switch (mode & S_IFMT) {
    case S_IFDIR: return "it is a folder, not a file; choose another path";
    case S_IFCHR:
    case S_IFBLK: return "it is a device, not a file; choose another path";
    case S_IFIFO: return "it is a pipe, not a file; choose another path";
    case S_IFSOCK: return "it is a socket, not a file; choose another path";
    case S_IFLNK: return "it became a link meanwhile; try again";
    default: return "it is no file; choose another path";
  }
}

std::string folder(const std::string& path) {
  const size_t slash = path.rfind('/');
  return slash == std::string::npos ? "./" : path.substr(0, slash + 1);
}

std::string hidden(const std::string& path, const char* ending) {
  return folder(path) + "." + path.substr(path.rfind('/') + 1) + ending;
}

// The last link may lead to nothing: its file is yet to be made. Links in a circle are left, and then refused by the
// system.
std::string end_of_links(std::string path) {
  char to[PATH_MAX];
  for (int i = 0; i < MOST_LINKS; ++i) {
    const ssize_t size = ::readlink(path.c_str(), to, sizeof(to));
    if (size <= 0) break;
    const std::string_view next(to, static_cast<size_t>(size));
    path = next.front() == '/' ? std::string(next) : folder(path).append(next);
  }
  return path;
}

OpenFile locked(const std::string& path) {
  while (true) {
    OpenFile lock(path.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK, 0600);
    if (!lock.is_open()) return lock;
    if (!S_ISREG(lock.status().st_mode)) {
      OpenFile none("", O_RDONLY);
      errno = EEXIST;
      return none;
    }
    while (::flock(lock.descriptor(), LOCK_EX) != 0 && errno == EINTR) {}
    if (lock.status().st_nlink > 0) return lock;  // or the writer that had it has just removed it
  }
}

// A file that nobody else has open; what a killed writer has left there is removed.
OpenFile made_anew(const std::string& path) {
  (void)::unlink(path.c_str());
  return OpenFile(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW, 0600);
}

}  // namespace

Result<std::unique_ptr<ReplacedFile>> ReplacedFile::begin(const std::string& path) {
  struct stat found{};
  const bool is_there = ::stat(path.c_str(), &found) == 0;
  if (!is_there && errno != ENOENT) return refused(path, std::strerror(errno));
  if (is_there && !S_ISREG(found.st_mode)) return refused(path, kind(found.st_mode));
  const std::string target = end_of_links(path);
  OpenFile lock = locked(hidden(target, ".lock"));
  if (!lock.is_open()) return refused(path, std::strerror(errno));
  std::unique_ptr<ReplacedFile> begun(new ReplacedFile(target, std::move(lock)));
  if (!begun->file_.is_open()) return refused(path, std::strerror(errno));
  return begun;
}

ReplacedFile::~ReplacedFile() {
  if (!is_placed_) (void)::unlink(partial_.c_str());
  (void)::unlink(lock_path_.c_str());  // while it is locked: who waits for it makes another
}

Status ReplacedFile::failed() const { return refused(target_, std::strerror(errno)); }

Status ReplacedFile::finish() {
  if (!file_.sync()) return failed();
  HYBRIDGE_TRY(take_place());
  is_placed_ = true;
  const OpenFile names(folder(target_).c_str(), O_RDONLY);
  return names.is_open() && names.sync() ? Status() : failed();
}

ReplacedFile::ReplacedFile(std::string target, OpenFile lock)
    : target_(std::move(target)),
      partial_(hidden(target_, ".partial")),
      lock_path_(hidden(target_, ".lock")),
      lock_(std::move(lock)),
      file_(made_anew(partial_)) {}

bool ReplacedFile::rename(bool exchanged) const {
#if defined(__APPLE__)
  return ::renamex_np(partial_.c_str(), target_.c_str(), exchanged ? RENAME_SWAP : RENAME_EXCL) == 0;
#elif defined(RENAME_NOREPLACE) && (!defined(__ANDROID_API__) || __ANDROID_API__ >= 30)
  const unsigned flags = exchanged ? RENAME_EXCHANGE : RENAME_NOREPLACE;
  return ::renameat2(AT_FDCWD, partial_.c_str(), AT_FDCWD, target_.c_str(), flags) == 0;
#else
  (void)exchanged;
  errno = ENOSYS;
  return false;
#endif
}

Status ReplacedFile::take_place() const {
  struct stat found{};
  while (true) {
    if (rename(false)) return Status();
    if (errno == EEXIST && rename(true)) {
      if (::lstat(partial_.c_str(), &found) == 0 && S_ISREG(found.st_mode)) {
        (void)::unlink(partial_.c_str());
        return Status();
      }
      (void)rename(true);
      return refused(target_, kind(found.st_mode));
    }
    if (errno != ENOENT || ::access(partial_.c_str(), F_OK) != 0) break;  // what was there has just gone
  }
  if (errno == EBUSY) return refused(target_, "it is a mount point; choose another path");
  if (errno != ENOSYS && errno != EINVAL && errno != ENOTSUP) return refused(target_, std::strerror(errno));
  // The system, or this file system, has plain renames only.
  if (::lstat(target_.c_str(), &found) == 0 && !S_ISREG(found.st_mode)) return refused(target_, kind(found.st_mode));
  return std::rename(partial_.c_str(), target_.c_str()) == 0 ? Status() : refused(target_, std::strerror(errno));
}

}  // namespace hybridge
