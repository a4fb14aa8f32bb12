/* Faults at file operations: loaded with LD_PRELOAD, it counts the operations below a folder and strikes at the n-th.

Libraries that write natively (torch, safetensors, tokenizers, pyarrow) call the C library too, so their operations are
counted with those of Python, and fail as a real disk lets them fail. See faults.py. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT, KILL, FULL, EIO_ONCE, READ_ONLY, QUOTA, COPY };
enum { COPIES = 40 }; /* of one run: more would fill the disk */

static char root[PATH_MAX], except[PATH_MAX];
static int mode, log_file = -1;
static long strike, calls;

/* Begin to count; `at` is the operation to strike, from 1, or 0 for none. Operations are listed in the file `log`. */
void fault_arm(const char *folder, const char *ignored, long at, int what, const char *log) {
    strncpy(root, folder, sizeof root - 1);
    strncpy(except, ignored, sizeof except - 1);
    strike = at, mode = what, calls = 0;
    int (*real_open)(const char *, int, ...) = dlsym(RTLD_NEXT, "open");
    if (*log) log_file = real_open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int is_below(const char *path) {
    size_t length = strlen(root);
    return length && !strncmp(path, root, length) && (path[length] == '/' || !path[length]) && strcmp(path, except);
}

static void path_of_descriptor(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length > 0 ? length : 0] = 0;
}

static void absolute(int folder, const char *name, char *path) {
    if (name[0] == '/') {
        snprintf(path, PATH_MAX, "%s", name);
        return;
    }
    char base[PATH_MAX];
    if (folder == AT_FDCWD) {
        if (!getcwd(base, sizeof base)) base[0] = 0;
    } else {
        path_of_descriptor(folder, base);
    }
    snprintf(path, PATH_MAX, "%.2000s/%.2000s", base, name);
}

/* Copy the folder as it is before operation `number`: what a kill at that operation would leave. */
static void copy(long number) {
    char target[PATH_MAX + 24];
    pid_t child;
    snprintf(target, sizeof target, "%s.%ld", root, number);
    char *arguments[] = {"cp", "-a", root, target, NULL}, *environment[] = {NULL};
    if (!posix_spawn(&child, "/bin/cp", NULL, NULL, arguments, environment)) waitpid(child, NULL, 0);
}

/* Return the error of an operation, 0 for none, or -1 for a write of which half still fits. */
static int judge(const char *operation, const char *path, int takes_space) {
    if (!root[0] || !is_below(path)) return 0;
    int saved = errno;
    long now = __atomic_add_fetch(&calls, 1, __ATOMIC_SEQ_CST);
    if (log_file >= 0) dprintf(log_file, "%s %s\n", operation, path + strlen(root));
    errno = saved;
    if (!strike || now < strike) return 0;
    if (mode == KILL && now == strike) kill(getpid(), SIGKILL);
    if (mode == COPY && now < strike + COPIES) copy(now);
    if (mode == FULL && takes_space) return now == strike && takes_space == 2 ? -1 : ENOSPC;
    if (mode == QUOTA && takes_space) return EDQUOT;
    if (mode == EIO_ONCE && now == strike) return EIO;
    if (mode == READ_ONLY) return EROFS;
    return 0;
}

static int judge_name(const char *operation, int folder, const char *name, int takes_space) {
    char path[PATH_MAX];
    if (!root[0] || !name) return 0;
    absolute(folder, name, path);
    return judge(operation, path, takes_space);
}

static int judge_descriptor(const char *operation, int descriptor, int takes_space) {
    char path[PATH_MAX];
    if (!root[0] || descriptor <= 2) return 0;
    path_of_descriptor(descriptor, path);
    return judge(operation, path, takes_space);
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define FAIL(error, value)      \
    do {                        \
        int failed = (error);   \
        if (failed) {           \
            errno = failed;     \
            return value;       \
        }                       \
    } while (0)

#define WRITES(flags) ((flags) & (O_WRONLY | O_RDWR | O_CREAT | O_TRUNC))
#define MODE_ARGUMENT                                    \
    mode_t bits = 0;                                     \
    if (flags & O_CREAT) {                               \
        va_list rest;                                    \
        va_start(rest, flags);                           \
        bits = va_arg(rest, mode_t);                     \
        va_end(rest);                                    \
    }

#define OPEN(name)                                                                                    \
    int name(const char *path, int flags, ...) {                                                      \
        MODE_ARGUMENT                                                                                 \
        if (WRITES(flags)) FAIL(judge_name("open", AT_FDCWD, path, !!(flags & O_CREAT)), -1);         \
        return REAL(name)(path, flags, bits);                                                         \
    }
OPEN(open)
OPEN(open64)

#define OPENAT(name)                                                                                  \
    int name(int folder, const char *path, int flags, ...) {                                          \
        MODE_ARGUMENT                                                                                 \
        if (WRITES(flags)) FAIL(judge_name("open", folder, path, !!(flags & O_CREAT)), -1);           \
        return REAL(name)(folder, path, flags, bits);                                                 \
    }
OPENAT(openat)
OPENAT(openat64)

#define FOPEN(name)                                                                                   \
    FILE *name(const char *path, const char *how) {                                                   \
        if (strpbrk(how, "wa+")) FAIL(judge_name("open", AT_FDCWD, path, 1), NULL);                   \
        return REAL(name)(path, how);                                                                 \
    }
FOPEN(fopen)
FOPEN(fopen64)

ssize_t write(int file, const void *bytes, size_t count) {
    int fault = judge_descriptor("write", file, 2);
    if (fault == -1 && count > 1) return REAL(write)(file, bytes, count / 2);
    FAIL(fault == -1 ? ENOSPC : fault, -1);
    return REAL(write)(file, bytes, count);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    FAIL(judge_descriptor("write", file, 1), -1);
    return REAL(writev)(file, parts, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off64_t offset) {
    FAIL(judge_descriptor("write", file, 1), -1);
    return REAL(pwrite64)(file, bytes, count, offset);
}

ssize_t sendfile(int file, int from, off_t *offset, size_t count) {
    FAIL(judge_descriptor("write", file, 1), -1);
    return REAL(sendfile)(file, from, offset, count);
}

ssize_t sendfile64(int file, int from, off64_t *offset, size_t count) {
    FAIL(judge_descriptor("write", file, 1), -1);
    return REAL(sendfile64)(file, from, offset, count);
}

#define ON_DESCRIPTOR(name, label, takes_space, parameters, arguments)                                \
    int name parameters {                                                                             \
        FAIL(judge_descriptor(label, file, takes_space), -1);                                         \
        return REAL(name) arguments;                                                                  \
    }
ON_DESCRIPTOR(fsync, "fsync", 1, (int file), (file))
ON_DESCRIPTOR(fdatasync, "fsync", 1, (int file), (file))
ON_DESCRIPTOR(ftruncate, "truncate", 1, (int file, off_t size), (file, size))
ON_DESCRIPTOR(ftruncate64, "truncate", 1, (int file, off64_t size), (file, size))

#define ON_NAME(name, label, takes_space, folder, path, parameters, arguments)                        \
    int name parameters {                                                                             \
        FAIL(judge_name(label, folder, path, takes_space), -1);                                       \
        return REAL(name) arguments;                                                                  \
    }
ON_NAME(unlink, "unlink", 0, AT_FDCWD, path, (const char *path), (path))
ON_NAME(unlinkat, "unlink", 0, folder, path, (int folder, const char *path, int flags), (folder, path, flags))
ON_NAME(rmdir, "rmdir", 0, AT_FDCWD, path, (const char *path), (path))
ON_NAME(mkdir, "mkdir", 1, AT_FDCWD, path, (const char *path, mode_t bits), (path, bits))
ON_NAME(mkdirat, "mkdir", 1, folder, path, (int folder, const char *path, mode_t bits), (folder, path, bits))
ON_NAME(chmod, "chmod", 0, AT_FDCWD, path, (const char *path, mode_t bits), (path, bits))
ON_NAME(rename, "rename", 0, AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_NAME(renameat, "rename", 0, folder, to, (int other, const char *from, int folder, const char *to),
        (other, from, folder, to))
