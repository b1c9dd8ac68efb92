/* The calls of the C library that are replaced. Each does the usual thing, by the next
 * definition of its name, unless it is about the device or one of our descriptors. */
#include "softnic.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* Every name of this file that the library exports. mmap, read and poll are not among them: the command
 * fd is a memfd and event descriptors are sockets, so the kernel does those. */
#define HOOKS(X) \
    X(open) X(open64) X(openat) X(openat64) \
    X(__open_2) X(__open64_2) X(__openat_2) X(__openat64_2) \
    X(stat) X(stat64) X(lstat) X(lstat64) X(fstat) X(fstat64) X(fstatat) X(fstatat64) \
    X(__xstat) X(__xstat64) X(__lxstat) X(__lxstat64) X(__fxstat) X(__fxstat64) X(__fxstatat) X(__fxstatat64) \
    X(statx) X(access) X(faccessat) X(euidaccess) X(eaccess) \
    X(socket) X(write) X(ioctl) X(close) X(close_range) X(closefrom) \
    X(dup) X(dup2) X(dup3) X(fcntl) X(fcntl64)

enum {
#define X(name) N_##name,
    HOOKS(X)
#undef X
    COUNT
};

static const char *const names[COUNT] = {
#define X(name) #name,
    HOOKS(X)
#undef X
};

/* dlsym by its oldest name, and weak: before glibc 2.34 it was in libdl, which every verbs program
 * has loaded, but a shell may not. Without it the hooks go to the kernel directly. */
#if defined(__GLIBC__) && defined(__x86_64__)
__asm__(".symver softnic_dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver softnic_dlopen,dlopen@GLIBC_2.2.5");
#elif defined(__GLIBC__) && defined(__aarch64__)
__asm__(".symver softnic_dlsym,dlsym@GLIBC_2.17");
__asm__(".symver softnic_dlopen,dlopen@GLIBC_2.17");
#else
#define softnic_dlsym dlsym
#define softnic_dlopen dlopen
#endif
extern void *softnic_dlsym(void *, const char *) __attribute__((weak));
extern void *softnic_dlopen(const char *, int) __attribute__((weak));

static _Atomic(void *) nexts[COUNT]; /* NULL: not looked up yet; nexts itself: there is none */

static void *next_of(int i)
{
    /* What dlsym calls may be hooked too, in its own thread. */
    static __thread int busy __attribute__((tls_model("initial-exec")));
    void *p = atomic_load_explicit(&nexts[i], memory_order_acquire);
    if (!p && !busy) {
        int saved = errno;
        busy = 1;
        p = softnic_dlsym ? softnic_dlsym(RTLD_NEXT, names[i]) : NULL;
        busy = 0;
        errno = saved;
        atomic_store_explicit(&nexts[i], p ? p : (void *)nexts, memory_order_release);
    }
    return p == (void *)nexts ? NULL : p;
}

void *next_symbol(const char *name, const char *library)
{
    if (!softnic_dlsym)
        return NULL;
    void *p = softnic_dlsym(RTLD_NEXT, name);
    void *loaded = p || !softnic_dlopen ? NULL : softnic_dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
    return loaded ? softnic_dlsym(loaded, name) : p;
}

#define NEXT(name) ((__typeof__(&hook_##name))next_of(N_##name))

/* ---- settings */

static char path_setting[256];
static int verbose, quiet;
static struct identity messages; /* what standard error was at the start */
static atomic_int state; /* 0: environment not read yet; 1: the library does nothing; 2: it does */

static int set(const char *name)
{
    const char *v = getenv(name);
    return v && !strcmp(v, "1");
}

static int read_settings(void)
{
    const char *p = getenv("SOFTNIC_SOCKET");
    int now = 1;
    if (p && *p) {
        strncpy(path_setting, p, sizeof path_setting - 1); /* one that is cut here is too long for a socket */
        verbose = set("SOFTNIC_VERBOSE");
        quiet = set("SOFTNIC_QUIET");
        table_init();
        now = 2;
    }
    atomic_store(&state, now);
    return now;
}

int active(void)
{
    int s = atomic_load_explicit(&state, memory_order_acquire);
    return (s ? s : read_settings()) == 2;
}

const char *socket_path(void)
{
    return path_setting;
}

/* All names now: in a vfork child or a signal handler it would be no time for dlsym. */
__attribute__((constructor)) static void start(void)
{
    active();
    identify(2, &messages);
    for (int i = 0; i < COUNT; i++)
        next_of(i);
}

void hint(const char *text, size_t n)
{
    char line[1024] = "softnic: ";
    size_t at = strlen(line);
    int important = n > 0 && text[0] == '!';
    if (n == 0 || quiet || (!important && !verbose))
        return;
    if (!is_file(2, &messages)) /* the program has put something else there */
        return;
    text += important;
    n -= (size_t)important;
    if (n > sizeof line - at - 1)
        n = sizeof line - at - 1;
    memcpy(line + at, text, n);
    line[at + n] = '\n';
    int saved = errno;
    sys(SYS_write, 2, line, at + n + 1);
    errno = saved;
}

void say_once(atomic_int *said, const char *before, const char *after)
{
    char text[512];
    if (atomic_exchange(said, 1))
        return;
    strcpy(text, before);
    strcat(text, path_setting);
    strcat(text, after);
    hint(text, strlen(text));
}

/* ---- open */

static int is_device(const char *path)
{
    return path && path[0] == '/' && !strcmp(path, DEVICE) && active();
}

#define MODE_OF(flags) \
    mode_t mode = 0; \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) { \
        va_list l; \
        va_start(l, flags); \
        mode = va_arg(l, mode_t); \
        va_end(l); \
    }

#define OPEN(name) \
    HOOK(int, name, const char *path, int flags, ...) \
    { \
        MODE_OF(flags) \
        if (is_device(path)) \
            return open_device(flags); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(path, flags, mode) : (int)sys(SYS_openat, AT_FDCWD, path, flags, mode); \
    }

#define OPENAT(name) \
    HOOK(int, name, int dir, const char *path, int flags, ...) \
    { \
        MODE_OF(flags) \
        if (is_device(path)) \
            return open_device(flags); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(dir, path, flags, mode) : (int)sys(SYS_openat, dir, path, flags, mode); \
    }

#define OPEN_2(name) /* the fortified form: no mode */ \
    HOOK(int, name, const char *path, int flags) \
    { \
        if (is_device(path)) \
            return open_device(flags); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(path, flags) : (int)sys(SYS_openat, AT_FDCWD, path, flags, 0); \
    }

#define OPENAT_2(name) \
    HOOK(int, name, int dir, const char *path, int flags) \
    { \
        if (is_device(path)) \
            return open_device(flags); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(dir, path, flags) : (int)sys(SYS_openat, dir, path, flags, 0); \
    }

OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)
OPEN_2(__open_2)
OPEN_2(__open64_2)
OPENAT_2(__openat_2)
OPENAT_2(__openat64_2)

/* ---- stat. On 64-bit systems struct stat, stat64 and the kernel's are one. */

static int fake_stat(struct stat *st)
{
    memset(st, 0, sizeof *st);
    st->st_ino = 1;
    st->st_nlink = 1;
    st->st_mode = S_IFCHR | 0666;
    st->st_rdev = makedev(DEVICE_MAJOR, DEVICE_MINOR);
    st->st_blksize = 4096;
    return 0;
}

int is_command(int fd)
{
    struct context *c = (peek(fd) & TAG) == COMMAND ? acquire(fd) : NULL;
    if (c)
        put_context(c);
    return c != NULL;
}

/* at_device: what the *at calls name is the device. */
static int at_device(int dir, const char *path, int flags)
{
    return is_device(path) || (flags & AT_EMPTY_PATH && path && !*path && is_command(dir));
}

#define STAT(name, flags) \
    HOOK(int, name, const char *path, struct stat *st) \
    { \
        if (is_device(path)) \
            return fake_stat(st); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(path, st) : (int)sys(SYS_newfstatat, AT_FDCWD, path, st, flags); \
    }

#define FSTAT(name) \
    HOOK(int, name, int fd, struct stat *st) \
    { \
        if (is_command(fd)) \
            return fake_stat(st); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(fd, st) : (int)sys(SYS_fstat, fd, st); \
    }

#define FSTATAT(name) \
    HOOK(int, name, int dir, const char *path, struct stat *st, int flags) \
    { \
        if (at_device(dir, path, flags)) \
            return fake_stat(st); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(dir, path, st, flags) : (int)sys(SYS_newfstatat, dir, path, st, flags); \
    }

/* The forms of glibc before 2.33; ver has one value on 64-bit systems. */
#define XSTAT(name, flags) \
    HOOK(int, name, int ver, const char *path, struct stat *st) \
    { \
        if (is_device(path)) \
            return fake_stat(st); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(ver, path, st) : (int)sys(SYS_newfstatat, AT_FDCWD, path, st, flags); \
    }

#define FXSTAT(name) \
    HOOK(int, name, int ver, int fd, struct stat *st) \
    { \
        if (is_command(fd)) \
            return fake_stat(st); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(ver, fd, st) : (int)sys(SYS_fstat, fd, st); \
    }

#define FXSTATAT(name) \
    HOOK(int, name, int ver, int dir, const char *path, struct stat *st, int flags) \
    { \
        if (at_device(dir, path, flags)) \
            return fake_stat(st); \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(ver, dir, path, st, flags) : (int)sys(SYS_newfstatat, dir, path, st, flags); \
    }

STAT(stat, 0)
STAT(stat64, 0)
STAT(lstat, AT_SYMLINK_NOFOLLOW)
STAT(lstat64, AT_SYMLINK_NOFOLLOW)
FSTAT(fstat)
FSTAT(fstat64)
FSTATAT(fstatat)
FSTATAT(fstatat64)
XSTAT(__xstat, 0)
XSTAT(__xstat64, 0)
XSTAT(__lxstat, AT_SYMLINK_NOFOLLOW)
XSTAT(__lxstat64, AT_SYMLINK_NOFOLLOW)
FXSTAT(__fxstat)
FXSTAT(__fxstat64)
FXSTATAT(__fxstatat)
FXSTATAT(__fxstatat64)

HOOK(int, statx, int dir, const char *path, int flags, unsigned mask, struct statx *st)
{
    if (at_device(dir, path, flags)) {
        memset(st, 0, sizeof *st);
        st->stx_mask = STATX_BASIC_STATS;
        st->stx_blksize = 4096;
        st->stx_nlink = 1;
        st->stx_ino = 1;
        st->stx_mode = S_IFCHR | 0666;
        st->stx_rdev_major = DEVICE_MAJOR;
        st->stx_rdev_minor = DEVICE_MINOR;
        return 0;
    }
    __typeof__(&hook_statx) next = NEXT(statx);
    return next ? next(dir, path, flags, mask, st) : (int)sys(SYS_statx, dir, path, flags, mask, st);
}

HOOK(int, access, const char *path, int how)
{
    if (is_device(path))
        return 0;
    __typeof__(&hook_access) next = NEXT(access);
    return next ? next(path, how) : (int)sys(SYS_faccessat, AT_FDCWD, path, how);
}

HOOK(int, faccessat, int dir, const char *path, int how, int flags)
{
    if (is_device(path))
        return 0;
    __typeof__(&hook_faccessat) next = NEXT(faccessat);
    return next ? next(dir, path, how, flags) : (int)sys(SYS_faccessat, dir, path, how);
}

#define EUIDACCESS(name) \
    HOOK(int, name, const char *path, int how) \
    { \
        if (is_device(path)) \
            return 0; \
        __typeof__(&hook_##name) next = NEXT(name); \
        return next ? next(path, how) : (int)sys(SYS_faccessat, AT_FDCWD, path, how); \
    }

EUIDACCESS(euidaccess)
EUIDACCESS(eaccess)

/* ---- commands */

/* libibverbs asks the kernel's RDMA netlink first, and if that answers, with whatever
 * devices, never looks into the tree that has ours. */
HOOK(int, socket, int domain, int type, int protocol)
{
    if (domain == AF_NETLINK && protocol == NETLINK_RDMA && active()) {
        errno = EPROTONOSUPPORT;
        return -1;
    }
    __typeof__(&hook_socket) next = NEXT(socket);
    return next ? next(domain, type, protocol) : (int)sys(SYS_socket, domain, type, protocol);
}

HOOK(ssize_t, write, int fd, const void *buf, size_t n)
{
    struct context *c = (peek(fd) & TAG) == COMMAND ? acquire(fd) : NULL;
    if (c) {
        ssize_t r = command(c, buf, n);
        put_context(c);
        return r;
    }
    __typeof__(&hook_write) next = NEXT(write);
    return next ? next(fd, buf, n) : (ssize_t)sys(SYS_write, fd, buf, n);
}

/* ENOTTY makes libibverbs use write for everything. */
HOOK(int, ioctl, int fd, unsigned long request, ...)
{
    va_list l;
    va_start(l, request);
    void *arg = va_arg(l, void *);
    va_end(l);
    if (is_command(fd)) {
        errno = ENOTTY;
        return -1;
    }
    __typeof__(&hook_ioctl) next = NEXT(ioctl);
    return next ? next(fd, request, arg) : (int)sys(SYS_ioctl, fd, request, arg);
}

/* ---- close and dup */

HOOK(int, close, int fd)
{
    if (peek(fd))
        return close_tracked(fd);
    __typeof__(&hook_close) next = NEXT(close);
    return next ? next(fd) : (int)sys(SYS_close, fd);
}

int hook_close_range(unsigned first, unsigned last, int flags) __asm__("close_range");

static int real_close_range(unsigned first, unsigned last, int flags)
{
    __typeof__(&hook_close_range) next = NEXT(close_range);
    return next ? next(first, last, flags) : (int)sys(SYS_close_range, first, last, flags);
}

/* The hidden sockets of descriptors outside the range stay: a program that keeps its device
 * and closes all that it does not know goes on with it. */
HOOK(int, close_range, unsigned first, unsigned last, int flags)
{
    if (!active() || flags & ~CLOSE_RANGE_UNSHARE || first > last || !own_process())
        return real_close_range(first, last, flags); /* CLOSE_RANGE_CLOEXEC closes nothing */
    close_tracked_range(first, last);
    for (int keep; (keep = first_control(first, last)) >= 0; first = (unsigned)keep + 1) {
        if ((unsigned)keep > first && real_close_range(first, (unsigned)keep - 1, flags) < 0)
            return -1;
        if ((unsigned)keep == last)
            return 0;
    }
    return real_close_range(first, last, flags);
}

HOOK(void, closefrom, int first)
{
    first = first < 0 ? 0 : first;
    if (active() && own_process() && first_control((unsigned)first, ~0u) >= 0) {
        hook_close_range((unsigned)first, ~0u, 0);
        return;
    }
    __typeof__(&hook_closefrom) next = NEXT(closefrom);
    if (next)
        next(first);
    else
        sys(SYS_close_range, first, ~0u, 0);
}

/* copied brings the table up to date after from was copied to the descriptor to. */
static int copied(int from, int to)
{
    if (to < 0 || to == from || !(peek(from) | peek(to)) || !own_process())
        return to;
    int saved = errno;
    int e = track_copy(from, to);
    if (e) {
        sys(SYS_close, to);
        to = -1;
    }
    errno = e ? e : saved;
    return to;
}

HOOK(int, dup, int fd)
{
    __typeof__(&hook_dup) next = NEXT(dup);
    return copied(fd, next ? next(fd) : (int)sys(SYS_dup, fd));
}

HOOK(int, dup2, int fd, int to)
{
    __typeof__(&hook_dup2) next = NEXT(dup2);
    if (next)
        return copied(fd, next(fd, to));
    if (fd == to) /* dup3 refuses that; dup2 does not */
        return sys(SYS_fcntl, fd, F_GETFD) < 0 ? -1 : to;
    return copied(fd, (int)sys(SYS_dup3, fd, to, 0));
}

HOOK(int, dup3, int fd, int to, int flags)
{
    __typeof__(&hook_dup3) next = NEXT(dup3);
    return copied(fd, next ? next(fd, to, flags) : (int)sys(SYS_dup3, fd, to, flags));
}

#define FCNTL(name) \
    HOOK(int, name, int fd, int cmd, ...) \
    { \
        va_list l; \
        va_start(l, cmd); \
        void *arg = va_arg(l, void *); \
        va_end(l); \
        __typeof__(&hook_##name) next = NEXT(name); \
        int r = next ? next(fd, cmd, arg) : (int)sys(SYS_fcntl, fd, cmd, arg); \
        return cmd == F_DUPFD || cmd == F_DUPFD_CLOEXEC ? copied(fd, r) : r; \
    }

FCNTL(fcntl)
FCNTL(fcntl64)
