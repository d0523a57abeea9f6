// The first code of the one-file hybridge-cli: starts the program that it carries, with the shared libraries that it carries.
//
// ExecuTorch's wheel has shared libraries alone, so hybridge-cli is linked to them like any program, and scripts/cross-cli puts
// it into one file with them, the C and C++ libraries and their loader, ld.so. This code copies them into anonymous files of
// memory (memfd), maps ld.so and jumps into it, as the kernel does for a program; ld.so then finds the libraries as preloaded
// ones, by their names. What is carried compressed is decompressed on the way, by Wuffs. Nothing is written to a disk, and nothing of the system is used but Linux (3.17 or later) and /proc.
//
// There is no C library here: the memory, the thread and the streams of this process are ld.so's to set up.
#include <elf.h>
#include <stddef.h>
#include <stdint.h>

#define WUFFS_IMPLEMENTATION
#define WUFFS_CONFIG__STATIC_FUNCTIONS
#define WUFFS_CONFIG__MODULES
#define WUFFS_CONFIG__MODULE__BASE
#define WUFFS_CONFIG__MODULE__DEFLATE
#include "../../third_party/wuffs/wuffs-unsupported-snapshot.c"

#if defined(__x86_64__)
enum { CLOSE = 3, MMAP = 9, MUNMAP = 11, WRITE = 1, TRUNCATE = 77, MEMFD_CREATE = 319, EXIT_GROUP = 231, FACCESSAT = 269 };
#elif defined(__aarch64__)
enum { CLOSE = 57, MMAP = 222, MUNMAP = 215, WRITE = 64, TRUNCATE = 46, MEMFD_CREATE = 279, EXIT_GROUP = 94, FACCESSAT = 48 };
#else
#error "hybridge-cli is for Linux on x86-64 and ARM64"
#endif

enum { READABLE = 1, WRITABLE = 2, EXECUTABLE = 4, SHARED = 1, PRIVATE = 2, FIXED = 16, ANONYMOUS = 32 };  // of mmap
enum { CLOSE_ON_EXEC = 1, MAY_EXECUTE = 16 };                                                  // of memfd_create
enum { ERRORS = 4095 };  // a system call answers with -1 to -4095 if it fails

// What scripts/cross-cli writes into carried.S: name, first byte and end of each file, and its size if it is compressed, else 0; the
// loader first, which is not, then the program, then its libraries, and a null name.
struct carried {
  const char* name;
  const char* begin;
  const char* end;
  size_t size;
};
extern const struct carried carried[];

static long call(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  long result;
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "=a"(result)
                   : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
#else
  register long x8 __asm__("x8") = number;
  register long x0 __asm__("x0") = a;
  register long x1 __asm__("x1") = b;
  register long x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d;
  register long x4 __asm__("x4") = e;
  register long x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#endif
}

static int failed(long result) { return (unsigned long)result >= -(unsigned long)ERRORS; }

__attribute__((optimize("no-tree-loop-distribute-patterns"))) static size_t length(const char* text) {
  size_t count = 0;
  while (text[count] != '\0') count++;
  return count;
}

static _Noreturn void fail(const char* reason) {
  static const char before[] = "Error: hybridge-cli cannot start: ";
  call(WRITE, 2, (long)before, sizeof(before) - 1, 0, 0, 0);
  call(WRITE, 2, (long)reason, (long)length(reason), 0, 0, 0);
  for (;;) call(EXIT_GROUP, 1, 0, 0, 0, 0, 0);
}

// The compiler calls these, for Wuffs too.
#define OWN __attribute__((used, optimize("no-tree-loop-distribute-patterns")))
OWN void* memcpy(void* to, const void* from, size_t count) {
  for (size_t i = 0; i < count; i++) ((char*)to)[i] = ((const char*)from)[i];
  return to;
}
OWN void* memmove(void* to, const void* from, size_t count) {
  if ((uintptr_t)to <= (uintptr_t)from) return memcpy(to, from, count);
  for (size_t i = count; i-- > 0;) ((char*)to)[i] = ((const char*)from)[i];
  return to;
}
OWN void* memset(void* to, int value, size_t count) {
  for (size_t i = 0; i < count; i++) ((char*)to)[i] = (char)value;
  return to;
}

// Writes what a file is decompressed into the file of a descriptor.
static void decompress(const struct carried* file, int descriptor) {
  static const char no_memory[] = "there is no memory for its libraries; it takes 25 MB.\n";
  static wuffs_deflate__decoder decoder;
  static uint8_t work[WUFFS_DEFLATE__DECODER_WORKBUF_LEN_MAX_INCL_WORST_CASE];
  if (failed(call(TRUNCATE, descriptor, (long)file->size, 0, 0, 0, 0))) fail(no_memory);
  const long mapped = call(MMAP, 0, (long)file->size, READABLE | WRITABLE, SHARED, descriptor, 0);
  if (failed(mapped)) fail(no_memory);
  wuffs_base__status status = wuffs_deflate__decoder__initialize(&decoder, sizeof(decoder), WUFFS_VERSION, 0);
  if (status.repr == NULL) {
    wuffs_base__io_buffer to = wuffs_base__ptr_u8__writer((uint8_t*)mapped, file->size);
    wuffs_base__io_buffer from = wuffs_base__ptr_u8__reader((uint8_t*)file->begin, (size_t)(file->end - file->begin), true);
    status = wuffs_deflate__decoder__transform_io(&decoder, &to, &from, wuffs_base__make_slice_u8(work, sizeof(work)));
  }
  if (status.repr != NULL) fail("a library in it is damaged; copy the file again.\n");
  call(MUNMAP, mapped, (long)file->size, 0, 0, 0, 0);
}

// Returns the descriptor of a file in memory.
static int in_memory(const struct carried* file) {
  // Linux 6.3 has the second flag, and may be set up to want it.
  long made = call(MEMFD_CREATE, (long)file->name, CLOSE_ON_EXEC | MAY_EXECUTE, 0, 0, 0, 0);
  if (failed(made)) made = call(MEMFD_CREATE, (long)file->name, CLOSE_ON_EXEC, 0, 0, 0, 0);
  if (failed(made)) fail("the system has no files in memory (memfd_create); Linux 3.17 or later has them.\n");
  if (file->size > 0) {
    decompress(file, (int)made);
    return (int)made;
  }
  for (const char* from = file->begin; from < file->end;) {
    const long written = call(WRITE, made, (long)from, file->end - from, 0, 0, 0);
    if (failed(written) || written == 0) fail("there is no memory for its libraries; it takes 25 MB.\n");
    from += written;
  }
  return (int)made;
}

// Maps a program of position-independent code; returns where its first byte is.
static const char* map(const struct carried* file, int descriptor, size_t page) {
  const Elf64_Ehdr* header = (const Elf64_Ehdr*)file->begin;
  const Elf64_Phdr* parts = (const Elf64_Phdr*)(file->begin + header->e_phoff);
  size_t end = 0;
  for (int i = 0; i < header->e_phnum; i++) {
    if (parts[i].p_type == PT_LOAD && parts[i].p_vaddr + parts[i].p_memsz > end) end = parts[i].p_vaddr + parts[i].p_memsz;
  }
  const long base = call(MMAP, 0, (long)end, 0, PRIVATE | ANONYMOUS, -1, 0);
  if (failed(base)) fail("there is no memory for its loader.\n");
  for (int i = 0; i < header->e_phnum; i++) {
    const Elf64_Phdr part = parts[i];
    if (part.p_type != PT_LOAD) continue;
    const int access = (part.p_flags & PF_R ? READABLE : 0) | (part.p_flags & PF_W ? WRITABLE : 0) |
                       (part.p_flags & PF_X ? EXECUTABLE : 0);
    const size_t before = part.p_vaddr % page;  // bytes of the page before the part; the file has as many
    const size_t filled = part.p_filesz + before, wanted = part.p_memsz + before;
    const long begin = base + (long)(part.p_vaddr - before);
    if (part.p_filesz > 0 &&
        failed(call(MMAP, begin, (long)filled, access, PRIVATE | FIXED, descriptor, (long)(part.p_offset - before)))) {
      fail("the system does not let it run code from memory.\n");
    }
    if (wanted <= filled) continue;
    // Zeros follow, to the end of the last page from the file, whose rest ld.so takes its first memory from; and pages more.
    const size_t whole = (filled + page - 1) / page * page;
    for (volatile char* each = (char*)begin + filled; each < (char*)begin + whole; each++) *each = 0;
    if (wanted <= whole) continue;
    const long more = begin + (long)whole;
    if (failed(call(MMAP, more, (long)(wanted - whole), access, PRIVATE | FIXED | ANONYMOUS, -1, 0))) {
      fail("there is no memory for its loader.\n");
    }
  }
  return (const char*)base;
}

// Writes the path of a descriptor; returns the end of it.
static char* write_path(char* to, int descriptor) {
  for (const char* from = "/proc/self/fd/"; *from != '\0';) *to++ = *from++;
  char digits[10];
  int count = 0;
  do digits[count++] = (char)('0' + descriptor % 10);
  while ((descriptor /= 10) > 0);
  while (count > 0) *to++ = digits[--count];
  *to = '\0';
  return to;
}

// Jumps into a program, whose stack begins with what the kernel puts there.
static _Noreturn void jump(const char* entry, long* stack) {
#if defined(__x86_64__)
  __asm__ volatile("mov %0, %%rsp\n xor %%edx, %%edx\n xor %%ebp, %%ebp\n jmp *%1"
                   :
                   : "c"(stack), "a"(entry)  // neither of the registers that it clears
                   : "memory", "rdx");
#else
  register long* x16 __asm__("x16") = stack;
  register const char* x17 __asm__("x17") = entry;
  __asm__ volatile("mov sp, %0\n mov x0, xzr\n mov x29, xzr\n mov x30, xzr\n br %1" : : "r"(x16), "r"(x17) : "memory");
#endif
  __builtin_unreachable();
}

// first: the stack at the start: the number of arguments, the arguments, the environment and the auxiliary vector.
_Noreturn __attribute__((used)) void hybridge_start(long* first) {
  static char program[32], preloaded[1024];
  const long count = first[0];
  char** arguments = (char**)(first + 1);
  char** environment = arguments + count + 1;
  size_t variables = 0, entries = 0, page = 4096;
  while (environment[variables] != NULL) variables++;
  Elf64_auxv_t* auxiliary = (Elf64_auxv_t*)(environment + variables + 1);
  while (auxiliary[entries].a_type != AT_NULL) entries++;
  for (size_t i = 0; i < entries; i++) {
    if (auxiliary[i].a_type == AT_PAGESZ) page = auxiliary[i].a_un.a_val;
  }

  const int loader = in_memory(&carried[0]);
  write_path(program, in_memory(&carried[1]));
  if (failed(call(FACCESSAT, -1, (long)program, 0, 0, 0, 0))) fail("there is no /proc here; mount -t proc proc /proc\n");
  char* end = preloaded;
  for (const struct carried* each = carried + 2; each->name != NULL; each++) {
    if (end > preloaded) *end++ = ':';
    end = write_path(end, in_memory(each));
  }
  const char* base = map(&carried[0], loader, page);
  call(CLOSE, loader, 0, 0, 0, 0, 0);
  const Elf64_Ehdr* header = (const Elf64_Ehdr*)carried[0].begin;
  const char* entry = base + header->e_entry;

  // ld.so's own arguments, then the program and what it is given. Its libraries are nowhere but among the preloaded ones.
  char* words[] = {
      (char*)carried[1].name, "--inhibit-cache", "--library-path", "/proc/self/fd", "--preload", preloaded, "--argv0",
      count > 0 ? arguments[0] : (char*)carried[1].name, program,
  };
  const size_t more = sizeof(words) / sizeof(words[0]), given = count > 0 ? (size_t)count - 1 : 0;
  const size_t size = 1 + more + given + 1 + variables + 1 + 2 * (entries + 1);
  long stack[size + 1];  // one more, so that it can begin at a multiple of 16
  long* to = (uintptr_t)stack % 16 == 0 ? stack : stack + 1;
  long* const begin = to;
  *to++ = (long)(more + given);
  for (size_t i = 0; i < more; i++) *to++ = (long)words[i];
  for (size_t i = 0; i <= given; i++) *to++ = i < given ? (long)arguments[1 + i] : 0;
  for (size_t i = 0; i < variables; i++) {
    // What is set for the system's loader and libraries, as Termux does on Android, is not for these.
    const char* each = environment[i];
    if (each[0] != 'L' || each[1] != 'D' || each[2] != '_') *to++ = (long)each;
  }
  *to++ = 0;
  for (size_t i = 0; i <= entries; i++) {
    long value = (long)auxiliary[i].a_un.a_val;
    switch (auxiliary[i].a_type) {
      case AT_PHDR: value = (long)(base + header->e_phoff); break;
      case AT_PHNUM: value = header->e_phnum; break;
      case AT_ENTRY: value = (long)entry; break;
      case AT_BASE: value = 0; break;  // as where the kernel starts ld.so itself
    }
    *to++ = (long)auxiliary[i].a_type;
    *to++ = value;
  }
  jump(entry, begin);
}

#if defined(__x86_64__)
__asm__(".globl _start\n_start:\n xor %ebp, %ebp\n mov %rsp, %rdi\n and $-16, %rsp\n call hybridge_start\n");
#else
__asm__(".globl _start\n_start:\n mov x29, xzr\n mov x30, xzr\n mov x0, sp\n bl hybridge_start\n");
#endif
