// A file that takes the place of another, whole or not at all. For POSIX systems.
//
// Every file that the core writes is written by this. Python's are written by runtime/files.py, by the same rules: it
// must work where this core is not compiled yet. What is unfinished has a hidden name beside the target, and one writer
// at a time: a lock, which the system releases when a process ends. The next writer removes what a killed one left.
#ifndef HYBRIDGE_ENGINE_REPLACED_FILE_H
#define HYBRIDGE_ENGINE_REPLACED_FILE_H

#include <memory>
#include <string>

#include "engine/open_file.h"
#include "engine/status.h"

namespace hybridge {

class ReplacedFile {
 public:
  // Begins to write the file at the end of the links at `path`, for this process's user only; another writer of it is
  // waited for. UNWRITABLE_FILE if that cannot be, or is anything but a regular file, here and below.
  static Result<std::unique_ptr<ReplacedFile>> begin(const std::string& path);

  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;

  ~ReplacedFile();

  const OpenFile& file() const { return file_; }

  // Returns the error of a write that has just failed.
  Status failed() const;

  // Puts the file at its target, on the disk. Until then nothing has changed there.
  Status finish();

 private:
  ReplacedFile(std::string target, OpenFile lock);

  // Returns whether the system has renamed the file in one step: over nothing, or in exchange with what is there.
  bool rename(bool exchanged) const;

  // Something else may have come to the target since it was looked at, so it is looked at again where nobody can change
  // it.
  Status take_place() const;

  const std::string target_, partial_, lock_path_;
  const OpenFile lock_, file_;
  bool is_placed_ = false;
};

}  // namespace hybridge

#endif
