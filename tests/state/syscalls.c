/* Makes one system call on files below a folder fail, do half, or be the last of the process.
 *
 * Loaded before the C library. Nothing happens before arm() was called; then calls are counted
 * from 0, all kinds together. Calls on other files are not counted.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum how { FAIL = 0, HALVE = 1, KILL_BEFORE = 2, KILL_AFTER = 3 };

static char below[4096];
static long planned = -1, counted = 0;
static int is_armed = 0, is_sticky = 0, error_number = 0;
static enum how planned_how = FAIL;
static char names[1 << 16];
static size_t names_length = 0;

void wkvm_arm(const char *folder, long at, int how, int error, int sticky)
{
    snprintf(below, sizeof below, "%s", folder);
    planned = at, planned_how = how, error_number = error, is_sticky = sticky;
    counted = 0, names_length = 0, names[0] = 0;
    is_armed = 1;
}

void wkvm_disarm(void) { is_armed = 0; }

/* What was counted, one name for each, with spaces between them. */
const char *wkvm_names(void) { return names; }

static int is_below(int fd, const char *path)
{
    char link[64], where[4096];
    ssize_t length;
    size_t n = strlen(below);

    if (path != NULL && path[0] == '/')
        return strncmp(path, below, n) == 0;
    if (fd < 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    length = readlink(link, where, sizeof where - 1);
    if (length < 0)
        return 0;
    where[length] = 0;
    return strncmp(where, below, n) == 0;
}

/* Counts a call. Returns 1 if it is to go wrong; kills the process if it is to be the last. */
static int strikes(const char *name, int fd, const char *path)
{
    long at;
    int saved = errno;

    if (!is_armed || !is_below(fd, path)) {
        errno = saved;
        return 0;
    }
    errno = saved;
    at = counted++;
    if (names_length + strlen(name) + 2 < sizeof names)
        names_length += snprintf(names + names_length, sizeof names - names_length, "%s ", name);
    if (at != planned && !(is_sticky && at > planned && planned >= 0))
        return 0;
    if (planned_how == KILL_BEFORE)
        kill(getpid(), SIGKILL);
    return 1;
}

static void done(int struck)
{
    if (struck && planned_how == KILL_AFTER)
        kill(getpid(), SIGKILL);
}

#define REAL(result, name, ...)                                                                    \
    static result (*real)(__VA_ARGS__);                                                            \
    if (real == NULL)                                                                              \
        real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define FAILS(struck) ((struck) && planned_how == FAIL)
#define HALF(struck, n) ((struck) && planned_how == HALVE && (n) > 1 ? (n) / 2 : (n))

#define SIMPLE(result, name, label, fd, path, parameters, arguments, ...)                          \
    result name parameters                                                                         \
    {                                                                                              \
        int struck;                                                                                \
        result value;                                                                              \
        REAL(result, name, __VA_ARGS__);                                                           \
        struck = strikes(label, fd, path);                                                         \
        if (FAILS(struck)) {                                                                       \
            errno = error_number;                                                                  \
            return (result)-1;                                                                     \
        }                                                                                          \
        value = real arguments;                                                                    \
        done(struck);                                                                              \
        return value;                                                                              \
    }

SIMPLE(int, fsync, "fsync", fd, NULL, (int fd), (fd), int)
SIMPLE(int, fdatasync, "fdatasync", fd, NULL, (int fd), (fd), int)
SIMPLE(int, ftruncate, "ftruncate", fd, NULL, (int fd, off_t n), (fd, n), int, off_t)
SIMPLE(int, ftruncate64, "ftruncate", fd, NULL, (int fd, off64_t n), (fd, n), int, off64_t)
SIMPLE(int, rename, "rename", -1, a, (const char *a, const char *b), (a, b), const char *, const char *)
SIMPLE(int, renameat, "rename", d, a, (int d, const char *a, int e, const char *b), (d, a, e, b), int,
       const char *, int, const char *)
SIMPLE(int, unlink, "unlink", -1, a, (const char *a), (a), const char *)
SIMPLE(int, unlinkat, "unlink", d, a, (int d, const char *a, int f), (d, a, f), int, const char *, int)
SIMPLE(int, mkdir, "mkdir", -1, a, (const char *a, mode_t m), (a, m), const char *, mode_t)
SIMPLE(int, mkdirat, "mkdir", d, a, (int d, const char *a, mode_t m), (d, a, m), int, const char *,
       mode_t)
SIMPLE(ssize_t, write, "write", fd, NULL, (int fd, const void *b, size_t n),
       (fd, b, HALF(struck, n)), int, const void *, size_t)
SIMPLE(ssize_t, pwrite, "pwrite", fd, NULL, (int fd, const void *b, size_t n, off_t at),
       (fd, b, HALF(struck, n), at), int, const void *, size_t, off_t)
SIMPLE(ssize_t, pwrite64, "pwrite", fd, NULL, (int fd, const void *b, size_t n, off64_t at),
       (fd, b, HALF(struck, n), at), int, const void *, size_t, off64_t)
SIMPLE(ssize_t, read, "read", fd, NULL, (int fd, void *b, size_t n), (fd, b, HALF(struck, n)), int,
       void *, size_t)
SIMPLE(ssize_t, pread, "pread", fd, NULL, (int fd, void *b, size_t n, off_t at),
       (fd, b, HALF(struck, n), at), int, void *, size_t, off_t)
SIMPLE(ssize_t, pread64, "pread", fd, NULL, (int fd, void *b, size_t n, off64_t at),
       (fd, b, HALF(struck, n), at), int, void *, size_t, off64_t)
SIMPLE(void *, mmap, "mmap", fd, NULL, (void *a, size_t n, int p, int f, int fd, off_t at),
       (a, n, p, f, fd, at), void *, size_t, int, int, int, off_t)
SIMPLE(void *, mmap64, "mmap", fd, NULL, (void *a, size_t n, int p, int f, int fd, off64_t at),
       (a, n, p, f, fd, at), void *, size_t, int, int, int, off64_t)

/* Half of a vector: its first buffer alone, or half of that. */
static ssize_t half(int fd, const struct iovec *v, int n, off64_t at, int is_read)
{
    if (n > 1)
        n = n / 2;
    else {
        size_t length = v[0].iov_len > 1 ? v[0].iov_len / 2 : v[0].iov_len;
        static ssize_t (*read_at)(int, void *, size_t, off64_t);
        static ssize_t (*append)(int, const void *, size_t);
        if (read_at == NULL) {
            read_at = (ssize_t(*)(int, void *, size_t, off64_t))dlsym(RTLD_NEXT, "pread64");
            append = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
        }
        return is_read ? read_at(fd, v[0].iov_base, length, at) : append(fd, v[0].iov_base, length);
    }
    static ssize_t (*reads)(int, const struct iovec *, int, off64_t);
    static ssize_t (*writes)(int, const struct iovec *, int);
    if (reads == NULL) {
        reads = (ssize_t(*)(int, const struct iovec *, int, off64_t))dlsym(RTLD_NEXT, "preadv64");
        writes = (ssize_t(*)(int, const struct iovec *, int))dlsym(RTLD_NEXT, "writev");
    }
    return is_read ? reads(fd, v, n, at) : writes(fd, v, n);
}

ssize_t writev(int fd, const struct iovec *v, int n)
{
    REAL(ssize_t, writev, int, const struct iovec *, int);
    int struck = strikes("writev", fd, NULL);
    ssize_t value;
    if (FAILS(struck)) {
        errno = error_number;
        return -1;
    }
    value = struck && planned_how == HALVE ? half(fd, v, n, 0, 0) : real(fd, v, n);
    done(struck);
    return value;
}

/* Python asks for preadv2, without flags. */
ssize_t preadv64v2(int fd, const struct iovec *v, int n, off64_t at, int flags)
{
    REAL(ssize_t, preadv64v2, int, const struct iovec *, int, off64_t, int);
    int struck = strikes("preadv", fd, NULL);
    ssize_t value;
    if (FAILS(struck)) {
        errno = error_number;
        return -1;
    }
    value = struck && planned_how == HALVE ? half(fd, v, n, at, 1) : real(fd, v, n, at, flags);
    done(struck);
    return value;
}

ssize_t preadv2(int fd, const struct iovec *v, int n, off_t at, int flags)
{
    return preadv64v2(fd, v, n, at, flags);
}

ssize_t preadv64(int fd, const struct iovec *v, int n, off64_t at)
{
    return preadv64v2(fd, v, n, at, 0);
}

ssize_t preadv(int fd, const struct iovec *v, int n, off_t at)
{
    return preadv64v2(fd, v, n, at, 0);
}

/* Returns the error instead of setting it. */
int posix_fallocate64(int fd, off64_t at, off64_t n)
{
    REAL(int, posix_fallocate64, int, off64_t, off64_t);
    int struck = strikes("fallocate", fd, NULL), value;
    if (FAILS(struck))
        return error_number;
    value = real(fd, at, n);
    done(struck);
    return value;
}

int posix_fallocate(int fd, off_t at, off_t n) { return posix_fallocate64(fd, at, n); }

#define OPENS(name)                                                                                \
    int name(const char *path, int flags, ...)                                                     \
    {                                                                                              \
        mode_t mode = 0;                                                                           \
        int struck, value;                                                                         \
        va_list more;                                                                              \
        REAL(int, name, const char *, int, ...);                                                   \
        va_start(more, flags);                                                                     \
        if (flags & (O_CREAT | O_TMPFILE))                                                         \
            mode = va_arg(more, mode_t);                                                           \
        va_end(more);                                                                              \
        struck = strikes("open", -1, path);                                                        \
        if (FAILS(struck)) {                                                                       \
            errno = error_number;                                                                  \
            return -1;                                                                             \
        }                                                                                          \
        value = real(path, flags, mode);                                                           \
        done(struck);                                                                              \
        return value;                                                                              \
    }

OPENS(open)
OPENS(open64)

#define OPENS_AT(name)                                                                             \
    int name(int fd, const char *path, int flags, ...)                                             \
    {                                                                                              \
        mode_t mode = 0;                                                                           \
        int struck, value;                                                                         \
        va_list more;                                                                              \
        REAL(int, name, int, const char *, int, ...);                                              \
        va_start(more, flags);                                                                     \
        if (flags & (O_CREAT | O_TMPFILE))                                                         \
            mode = va_arg(more, mode_t);                                                           \
        va_end(more);                                                                              \
        struck = strikes("open", fd, path);                                                        \
        if (FAILS(struck)) {                                                                       \
            errno = error_number;                                                                  \
            return -1;                                                                             \
        }                                                                                          \
        value = real(fd, path, flags, mode);                                                       \
        done(struck);                                                                              \
        return value;                                                                              \
    }

OPENS_AT(openat)
OPENS_AT(openat64)
