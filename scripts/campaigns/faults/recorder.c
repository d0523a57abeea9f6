// Preloaded into a writer: keeps a log of all that it does to files below $FAULTS_ROOT, in the order in which it does it.
//
// A line of $FAULTS_LOG is an operation, its numbers and its names, with tabs between; what a write wrote goes to
// $FAULTS_LOG.data. Files are named by their inodes, because names change.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int log_file = -1, data_file = -1;
static char root[PATH_MAX];

__attribute__((constructor)) static void start(void) {
  const char *folder = getenv("FAULTS_ROOT"), *log = getenv("FAULTS_LOG");
  if (!folder || !log || !realpath(folder, root)) return;
  char data[PATH_MAX];
  snprintf(data, sizeof data, "%s.data", log);
  log_file = (int)syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  data_file = (int)syscall(SYS_openat, AT_FDCWD, data, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void note(const char* format, ...) {
  char line[3 * PATH_MAX];
  va_list arguments;
  va_start(arguments, format);
  const int length = vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  if (syscall(SYS_write, log_file, line, length) != length) abort();
}

// The whole path of a name, its links followed but for its last part; 0 where that is not below the root.
static int below(int folder, const char* name, char* path) {
  char joined[PATH_MAX], parent[PATH_MAX];
  if (log_file < 0 || !name) return 0;
  if (name[0] == '/' || folder == AT_FDCWD) {
    snprintf(joined, sizeof joined, "%s", name);
  } else {
    char link[64], place[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const ssize_t length = readlink(link, place, sizeof place - 1);
    if (length < 0) return 0;
    place[length] = 0;
    snprintf(joined, sizeof joined, "%.2000s/%.2000s", place, name);
  }
  char* last = strrchr(joined, '/');
  if (last) *last = 0;
  if (!realpath(last ? (*joined ? joined : "/") : ".", parent)) return 0;
  snprintf(path, PATH_MAX, "%.3000s/%.1000s", parent, last ? last + 1 : joined);
  return strncmp(path, root, strlen(root)) == 0;
}

// The inode of an open file below the root, or 0.
static unsigned long inode(int file) {
  char link[64], place[PATH_MAX];
  if (log_file < 0) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  const ssize_t length = readlink(link, place, sizeof place - 1);
  if (length < 0) return 0;
  place[length] = 0;
  struct stat status;
  return strncmp(place, root, strlen(root)) == 0 && fstat(file, &status) == 0 ? status.st_ino : 0;
}

static void wrote(int file, const void* data, ssize_t count, off_t at) {
  const unsigned long number = inode(file);
  if (!number || count <= 0) return;
  note("write\t%lu\t%ld\t%ld\n", number, (long)at, (long)count);
  if (syscall(SYS_write, data_file, data, count) != count) abort();
}

static int opened(int folder, const char* name, int flags, mode_t mode, int (*open_it)(int, const char*, int, mode_t)) {
  char path[PATH_MAX];
  const int ours = (flags & O_ACCMODE) != O_RDONLY && below(folder, name, path);
  struct stat status;
  if (!ours) return open_it(folder, name, flags, mode);
  pthread_mutex_lock(&turn);
  const int existed = fstatat(folder, name, &status, 0) == 0;
  const int file = open_it(folder, name, flags, mode);
  if (file >= 0 && !existed) note("create\t%lu\t%s\n", inode(file), path);
  if (file >= 0 && existed && (flags & O_TRUNC)) note("truncate\t%lu\t0\n", inode(file));
  pthread_mutex_unlock(&turn);
  return file;
}

static int really_openat(int folder, const char* name, int flags, mode_t mode) {
  return (int)syscall(SYS_openat, folder, name, flags, mode);
}

#define MODE(flags)                               \
  mode_t mode = 0;                                \
  if ((flags) & (O_CREAT | O_TMPFILE)) {          \
    va_list arguments;                            \
    va_start(arguments, flags);                   \
    mode = va_arg(arguments, mode_t);             \
    va_end(arguments);                            \
  }

int open(const char* name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode, really_openat); }
int open64(const char* name, int flags, ...) { MODE(flags) return opened(AT_FDCWD, name, flags, mode, really_openat); }
int openat(int folder, const char* name, int flags, ...) { MODE(flags) return opened(folder, name, flags, mode, really_openat); }
int openat64(int folder, const char* name, int flags, ...) { MODE(flags) return opened(folder, name, flags, mode, really_openat); }

ssize_t write(int file, const void* data, size_t count) {
  if (!inode(file)) return REAL(write)(file, data, count);
  pthread_mutex_lock(&turn);
  struct stat status;
  const off_t at = fcntl(file, F_GETFL) & O_APPEND && fstat(file, &status) == 0 ? status.st_size : lseek(file, 0, SEEK_CUR);
  const ssize_t done = REAL(write)(file, data, count);
  wrote(file, data, done, at);
  pthread_mutex_unlock(&turn);
  return done;
}

static ssize_t placed(int file, const void* data, size_t count, off_t at) {
  pthread_mutex_lock(&turn);
  const ssize_t done = syscall(SYS_pwrite64, file, data, count, at);
  wrote(file, data, done, at);
  pthread_mutex_unlock(&turn);
  return done;
}

ssize_t pwrite(int file, const void* data, size_t count, off_t at) { return placed(file, data, count, at); }
ssize_t pwrite64(int file, const void* data, size_t count, off64_t at) { return placed(file, data, count, at); }

ssize_t writev(int file, const struct iovec* parts, int count) {
  if (!inode(file)) return REAL(writev)(file, parts, count);
  ssize_t total = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t done = write(file, parts[i].iov_base, parts[i].iov_len);
    if (done < 0) return total ? total : done;
    total += done;
    if ((size_t)done < parts[i].iov_len) break;
  }
  return total;
}

// Copies inside the kernel are not seen: callers then read and write themselves.
ssize_t sendfile(int to, int from, off_t* at, size_t count) {
  if (!inode(to)) return syscall(SYS_sendfile, to, from, at, count);
  return errno = EINVAL, -1;
}
ssize_t sendfile64(int to, int from, off64_t* at, size_t count) { return sendfile(to, from, at, count); }
ssize_t copy_file_range(int from, off64_t* in, int to, off64_t* out, size_t count, unsigned flags) {
  if (!inode(to)) return syscall(SYS_copy_file_range, from, in, to, out, count, flags);
  return errno = EXDEV, -1;
}

#define AND_NOTE(call, ...)                       \
  pthread_mutex_lock(&turn);                      \
  const int answer = (int)(call);                 \
  if (answer == 0) note(__VA_ARGS__);             \
  pthread_mutex_unlock(&turn);                    \
  return answer

static int cut(int file, off_t size) { AND_NOTE(syscall(SYS_ftruncate, file, size), "truncate\t%lu\t%ld\n", inode(file), (long)size); }
int ftruncate(int file, off_t size) { return inode(file) ? cut(file, size) : (int)syscall(SYS_ftruncate, file, size); }
int ftruncate64(int file, off64_t size) { return ftruncate(file, size); }

static int synced(int file, long call) {
  if (!inode(file)) return (int)syscall(call, file);
  AND_NOTE(syscall(call, file), "sync\t%lu\n", inode(file));
}
int fsync(int file) { return synced(file, SYS_fsync); }
int fdatasync(int file) { return synced(file, SYS_fdatasync); }

static int renamed(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  char old[PATH_MAX], new[PATH_MAX];
  if (!below(from_folder, from, old) || !below(to_folder, to, new)) {
    return (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
  }
  AND_NOTE(syscall(SYS_renameat2, from_folder, from, to_folder, to, flags), "%s\t%s\t%s\n", flags & 2 ? "exchange" : "rename", old, new);
}
int rename(const char* from, const char* to) { return renamed(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int a, const char* from, int b, const char* to) { return renamed(a, from, b, to, 0); }
int renameat2(int a, const char* from, int b, const char* to, unsigned flags) { return renamed(a, from, b, to, flags); }

int unlinkat(int folder, const char* name, int flags) {
  char path[PATH_MAX];
  if (!below(folder, name, path)) return (int)syscall(SYS_unlinkat, folder, name, flags);
  AND_NOTE(syscall(SYS_unlinkat, folder, name, flags), "remove\t%s\n", path);
}
int unlink(const char* name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char* name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }

int mkdirat(int folder, const char* name, mode_t mode) {
  char path[PATH_MAX];
  struct stat status;
  if (!below(folder, name, path)) return (int)syscall(SYS_mkdirat, folder, name, mode);
  pthread_mutex_lock(&turn);
  const int answer = (int)syscall(SYS_mkdirat, folder, name, mode);
  if (answer == 0 && stat(path, &status) == 0) note("folder\t%lu\t%s\n", (unsigned long)status.st_ino, path);
  pthread_mutex_unlock(&turn);
  return answer;
}
int mkdir(const char* name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }
