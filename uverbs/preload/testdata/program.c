/* What a verbs program may do to the device, one scenario per run: `program NAME`. The other end
 * is the daemon of preload_test.go, whose commands are these. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    ECHO = 1,      /* a[0] in every word of the response */
    CHANNEL = 17,  /* response {fd, id} */
    CREATE_CQ = 18, /* response: inode of the fd that came along, 0 if none came */
    REQ_NOTIFY = 23,
    POST_SEND = 28,
    FAIL = 100,    /* errno a[0], no response */
    STATE = 101,   /* state byte of handle a[0] becomes a[1] */
    DOORBELLS = 102, /* response {how many, last handle} */
    CLOSED = 103,  /* response {how many, last id} */
    DIE = 104,     /* the connection ends */
    LOCKED = 105,  /* response: pid that holds the record lock */
    STALE = 106,   /* answers of another number first, then as ECHO */
    HINT = 107,    /* a hint with "!" (a[0] = 1) or without */
    MEMORY = 108,  /* response: 1 if the daemon found the cookie of hello through the memory fd */
    SLOW = 109,    /* as ECHO, a[1] milliseconds later */
    CONNECTIONS = 110, /* response: how many there are */
    LOST_FD = 111, /* as CHANNEL, but the id in the response only: no number is stored */
    ARMED = 113,   /* response: the arm word of handle a[0] */
    SET_ARMED = 114, /* it becomes a[1] */
    UNSTORED = 112, /* response: how many answers were reported as not stored */
};

#define DEVICE "/dev/infiniband/uverbs0"
#define CHECK(x) \
    do { \
        if (!(x)) { \
            fprintf(stderr, "program.c:%d: %s (errno %d)\n", __LINE__, #x, errno); \
            _exit(1); \
        } \
    } while (0)
#define FAILS(x, e) \
    do { \
        errno = 0; \
        CHECK((x) == -1 && errno == (e)); \
    } while (0)

struct request {
    uint32_t word;
    uint16_t in, out; /* in words of 4 bytes */
    uint64_t response;
    uint32_t a[8];
};

static int volatile not_constant = 0; /* makes the fortified headers call __open_2 */

static int dev(void)
{
    int fd = open(DEVICE, O_RDWR | O_CLOEXEC | not_constant);
    CHECK(fd >= 0);
    return fd;
}

static ssize_t ask(int fd, uint32_t word, uint32_t a0, uint32_t a1, void *response, size_t n)
{
    struct request r = {word, sizeof r / 4, (uint16_t)(n / 4), (uint64_t)(uintptr_t)response, {a0, a1}};
    return write(fd, &r, sizeof r);
}

static uint32_t get(int fd, uint32_t word) /* the first word of a response */
{
    uint32_t r[2] = {0, 0};
    CHECK(ask(fd, word, 0, 0, r, sizeof r) == sizeof(struct request));
    return r[0];
}

static void echo(int fd, uint32_t x)
{
    uint32_t r[70];
    memset(r, 0, sizeof r);
    errno = 77;
    CHECK(ask(fd, ECHO, x, 0, r, sizeof r - 4) == sizeof(struct request));
    CHECK(errno == 77);
    for (int i = 0; i < 69; i++)
        CHECK(r[i] == x);
    CHECK(r[69] == 0);
}

static int doorbell(int fd, uint32_t qp)
{
    struct request r = {POST_SEND, 8, 0, 0, {qp}};
    return (int)write(fd, &r, 32);
}

static int notify(int fd, uint32_t cq, uint32_t solicited_only)
{
    struct {
        uint32_t word;
        uint16_t in_words, out_words;
        uint32_t cq, solicited_only;
    } r = {REQ_NOTIFY, 4, 0, cq, solicited_only};
    return (int)write(fd, &r, sizeof r);
}

static int channel(int fd, uint32_t *id)
{
    uint32_t r[2] = {0, 0};
    CHECK(ask(fd, CHANNEL, 0, 0, r, sizeof r) == sizeof(struct request));
    *id = r[1];
    return (int)r[0];
}

static void wait_connections(int fd, uint32_t n)
{
    for (int i = 0; get(fd, CONNECTIONS) != n; i++) {
        CHECK(i < 200);
        usleep(10000);
    }
}

static int in_child(void (*f)(void *), void *arg)
{
    pid_t p = fork();
    CHECK(p >= 0);
    if (p == 0) {
        f(arg);
        _exit(0);
    }
    int status;
    CHECK(waitpid(p, &status, 0) == p);
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* hidden is the number of the first socket at or above 900, or -1. */
static int hidden(void)
{
    struct stat st;
    for (int i = 900; i < 4096; i++)
        if (fstat(i, &st) == 0 && S_ISSOCK(st.st_mode))
            return i;
    return -1;
}

static int is_the_device(const struct stat *st)
{
    return st->st_mode == (S_IFCHR | 0666) && st->st_rdev == makedev(231, 192) && st->st_size == 0;
}

/* ---- scenarios */

static void basic(void)
{
    struct stat st;
    int low = open("/dev/null", O_RDONLY);
    close(low);
    int fd = dev();
    CHECK(fd == low); /* the program sees the number that it would have got */
    CHECK(hidden() >= 900);
    CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC);
    memset(&st, 0xff, sizeof st);
    CHECK(fstat(fd, &st) == 0 && is_the_device(&st));
    FAILS(ioctl(fd, _IOWR(0x1b, 1, char[24]), &st), ENOTTY);
    for (uint32_t i = 1; i < 20; i++)
        echo(fd, i * 0x01010101);
    FAILS(ask(fd, FAIL, EOPNOTSUPP, 0, NULL, 0), EOPNOTSUPP);
    FAILS(ask(fd, FAIL, EBUSY, 0, NULL, 0), EBUSY);
    static char big[(16 << 10) + 1];
    FAILS(write(fd, big, sizeof big), EINVAL);
    CHECK(get(fd, MEMORY) == 1);
    CHECK(get(fd, LOCKED) == (uint32_t)getpid());
    uint32_t stale[4] = {0};
    int before = open("/dev/null", O_RDONLY);
    CHECK(ask(fd, STALE, 5, 0, stale, sizeof stale) == sizeof(struct request) && stale[0] == 5 && stale[3] == 5);
    int after = open("/dev/null", O_RDONLY);
    CHECK(after == before + 1); /* the descriptor of the stale answer was closed */
    CHECK(close(fd) == 0);
    FAILS(write(fd, big, 8), EBADF);
    CHECK(hidden() < 0);
    fd = open(DEVICE, O_RDWR);
    CHECK(fd >= 0 && fcntl(fd, F_GETFD) == 0);
    wait_connections(fd, 1);
}

static void names(void)
{
    struct stat st;
    struct stat64 st64;
    struct statx stx;
#define SAME(call, s) \
    memset(&s, 0xff, sizeof s); \
    CHECK((call) == 0 && is_the_device((struct stat *)&s));
    int fd = dev();
    SAME(stat(DEVICE, &st), st)
    SAME(lstat(DEVICE, &st), st)
    SAME(fstat(fd, &st), st)
    SAME(fstatat(AT_FDCWD, DEVICE, &st, 0), st)
    SAME(fstatat(fd, "", &st, AT_EMPTY_PATH), st)
    SAME(stat64(DEVICE, &st64), st64)
    SAME(lstat64(DEVICE, &st64), st64)
    SAME(fstat64(fd, &st64), st64)
    SAME(fstatat64(3, DEVICE, &st64, 0), st64)
    CHECK(statx(AT_FDCWD, DEVICE, 0, STATX_BASIC_STATS, &stx) == 0);
    CHECK(stx.stx_mode == (S_IFCHR | 0666) && stx.stx_rdev_major == 231 && stx.stx_rdev_minor == 192);
    memset(&stx, 0, sizeof stx);
    CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &stx) == 0 && stx.stx_mode == (S_IFCHR | 0666));

    /* The old forms, which a header of today does not declare. */
#ifdef __aarch64__
    int ver = 0;
#else
    int ver = 1;
#endif
    static const char *const by_path[] = {"__xstat", "__xstat64", "__lxstat", "__lxstat64"};
    for (int i = 0; i < 4; i++) {
        int (*f)(int, const char *, struct stat *) = dlsym(RTLD_DEFAULT, by_path[i]);
        SAME(f(ver, DEVICE, &st), st)
        CHECK(f(ver, "/dev/null", &st) == 0 && st.st_rdev == makedev(1, 3));
        FAILS(f(ver, "/nowhere", &st), ENOENT);
    }
    static const char *const by_fd[] = {"__fxstat", "__fxstat64"};
    for (int i = 0; i < 2; i++) {
        int (*f)(int, int, struct stat *) = dlsym(RTLD_DEFAULT, by_fd[i]);
        SAME(f(ver, fd, &st), st)
        FAILS(f(ver, 800, &st), EBADF);
    }
    static const char *const at[] = {"__fxstatat", "__fxstatat64"};
    for (int i = 0; i < 2; i++) {
        int (*f)(int, int, const char *, struct stat *, int) = dlsym(RTLD_DEFAULT, at[i]);
        SAME(f(ver, AT_FDCWD, DEVICE, &st, 0), st)
        CHECK(f(ver, AT_FDCWD, "/dev/null", &st, 0) == 0 && st.st_rdev == makedev(1, 3));
    }
    static const char *const opens[] = {"open", "open64", "__open_2", "__open64_2"};
    static const char *const openats[] = {"openat", "openat64", "__openat_2", "__openat64_2"};
    for (int i = 0; i < 4; i++) {
        int (*o)(const char *, int, ...) = dlsym(RTLD_DEFAULT, opens[i]);
        int (*oat)(int, const char *, int, ...) = dlsym(RTLD_DEFAULT, openats[i]);
        int a = o(DEVICE, O_RDWR | O_CLOEXEC), b = oat(AT_FDCWD, DEVICE, O_RDWR | O_CLOEXEC);
        CHECK(a > 0 && b > 0);
        echo(a, 1);
        echo(b, 2);
        CHECK(close(a) == 0 && close(b) == 0);
        CHECK((a = o("/dev/null", O_RDONLY)) > 0 && (b = oat(AT_FDCWD, "/dev/null", O_RDONLY)) > 0);
        CHECK(close(a) == 0 && close(b) == 0);
        FAILS(o("/nowhere", O_RDONLY), ENOENT);
        FAILS(oat(AT_FDCWD, NULL, O_RDONLY), EFAULT);
    }
    int f = open("made", O_CREAT | O_WRONLY, 0640);
    CHECK(f > 0 && fstat(f, &st) == 0 && (st.st_mode & 07777) == 0640 && unlink("made") == 0);

    CHECK(access(DEVICE, R_OK | W_OK) == 0 && faccessat(AT_FDCWD, DEVICE, R_OK, 0) == 0);
    CHECK(euidaccess(DEVICE, R_OK) == 0 && eaccess(DEVICE, R_OK) == 0);
    FAILS(access("/nowhere", R_OK), ENOENT);
    FAILS(faccessat(AT_FDCWD, "/nowhere", R_OK, 0), ENOENT);
    FAILS(eaccess("/nowhere", R_OK), ENOENT);
    char *volatile null = NULL;
    FAILS(stat(null, &st), EFAULT);
    FAILS(access(null, R_OK), EFAULT);
}

/* The refusal must come from the library: the next one would have given a descriptor. */
static void netlink(void)
{
    FAILS(socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, 20), EPROTONOSUPPORT);
    CHECK(socket(AF_NETLINK, SOCK_RAW, 0) == 99);
}

static void inert(void)
{
    struct stat st;
    CHECK(socket(AF_NETLINK, SOCK_RAW, 20) == 99);
    FAILS(stat(DEVICE, &st), ENOENT);
    FAILS(access(DEVICE, R_OK), ENOENT);
    FAILS(open(DEVICE, O_RDWR), ENOENT);
    int a = open("/dev/null", O_WRONLY), b = dup(a);
    CHECK(write(b, "x", 1) == 1 && dup2(a, b) == b && close_range((unsigned)a, ~0u, 0) == 0);
    FAILS(write(b, "x", 1), EBADF);
}

static void nodaemon(void)
{
    FAILS(open(DEVICE, O_RDWR | O_CLOEXEC), ENODEV);
    FAILS(open(DEVICE, O_RDWR | O_CLOEXEC), ENODEV);
    CHECK(hidden() < 0);
}

static void tell_nothing(void *arg)
{
    close(*(int *)arg);
}

static void events(void)
{
    uint32_t id, id2, r[2];
    char text[8] = "";
    int fd = dev();
    errno = 77;
    int ch = channel(fd, &id);
    CHECK(errno == 77 && ch > fd && fcntl(ch, F_GETFD) == FD_CLOEXEC);
    CHECK(read(ch, text, sizeof text) == 5 && !strcmp(text, "event")); /* the fake sends one */
    CHECK(in_child(tell_nothing, &ch));
    CHECK(get(fd, CLOSED) == 0);

    int copy = dup(ch);
    CHECK(close(ch) == 0);
    CHECK(get(fd, CLOSED) == 0); /* a copy is left */
    CHECK(close(copy) == 0);
    CHECK(ask(fd, CLOSED, 0, 0, r, sizeof r) > 0 && r[0] == 1 && r[1] == id);

    ch = channel(fd, &id);
    int ch2 = channel(fd, &id2);
    CHECK(id != id2 && dup2(ch, ch2) == ch2); /* closes ch2's */
    CHECK(ask(fd, CLOSED, 0, 0, r, sizeof r) > 0 && r[0] == 2 && r[1] == id2);
    CHECK(close_range((unsigned)ch, (unsigned)ch2, 0) == 0);
    CHECK(ask(fd, CLOSED, 0, 0, r, sizeof r) > 0 && r[0] == 3 && r[1] == id);

    /* A number that cannot be stored: nothing is left open, and the daemon hears of it. */
    int lowest = dup(0);
    close(lowest);
    FAILS(ask(fd, CHANNEL, 0, 0, (void *)8, 8), EFAULT);
    CHECK(get(fd, UNSTORED) == 1);
    FAILS(ask(fd, LOST_FD, 0, 0, r, 4), EFAULT);
    CHECK(get(fd, UNSTORED) == 2);
    CHECK(dup(0) == lowest && close(lowest) == 0);
    struct rlimit l, old;
    getrlimit(RLIMIT_NOFILE, &old);
    l = old;
    l.rlim_cur = (rlim_t)fd + 1;
    CHECK(setrlimit(RLIMIT_NOFILE, &l) == 0);
    FAILS(ask(fd, CHANNEL, 0, 0, r, 8), EMFILE);
    CHECK(setrlimit(RLIMIT_NOFILE, &old) == 0);
    CHECK(get(fd, UNSTORED) == 3 && get(fd, CLOSED) == 3);
    echo(fd, 6);

    /* After the context, an event descriptor is only closed. */
    ch = channel(fd, &id);
    CHECK(close(fd) == 0);
    int other = dev();
    CHECK(close(ch) == 0 && get(other, CLOSED) == 0);
}

/* Where CREATE_CQ has its channel. */
static uint64_t named(int fd, uint32_t word, size_t offset, int32_t channel)
{
    uint32_t body[20] = {word, 0};
    uint64_t ino = 1, at = (uint64_t)(uintptr_t)&ino;
    uint16_t out = 2;
    memcpy((char *)body + 6, &out, 2);
    memcpy((char *)body + 8, &at, 8);
    memcpy((char *)body + offset, &channel, 4);
    if (write(fd, body, sizeof body) != sizeof body)
        return 0;
    return ino;
}

static void create_cq(void)
{
    struct stat st;
    uint32_t id;
    int fd = dev(), ch = channel(fd, &id);
    CHECK(fstat(ch, &st) == 0 && st.st_ino > 1);
    CHECK(named(fd, CREATE_CQ, 32, ch) == st.st_ino);
    CHECK(named(fd, CREATE_CQ, 32, -1) == 0);
    CHECK(named(fd, CREATE_CQ | 1u << 31, 40, ch) == st.st_ino);
    CHECK(named(fd, CREATE_CQ | 1u << 31, 40, -1) == 0);
    CHECK(named(fd, ECHO, 32, ch) == (uint64_t)0); /* no other command sends any */
    errno = 0;
    CHECK(named(fd, CREATE_CQ, 32, 800) == 0 && errno == EBADF);
    CHECK(named(fd, CREATE_CQ, 32, ch) == st.st_ino);
}

static void copies(void)
{
    uint32_t id;
    int fd = dev(), other = dev();
    int d1 = dup(fd), d2 = fcntl(fd, F_DUPFD, 50), d3 = fcntl(fd, F_DUPFD_CLOEXEC, 60);
    CHECK(d1 > 0 && d2 == 50 && d3 == 60);
    CHECK(dup2(fd, 70) == 70 && dup3(fd, 71, O_CLOEXEC) == 71 && dup2(fd, fd) == fd);
    FAILS(dup3(fd, fd, 0), EINVAL);
    FAILS(dup2(800, fd), EBADF);
    int all[] = {fd, d1, d2, d3, 70, 71};
    for (int i = 0; i < 6; i++) {
        struct stat st;
        CHECK(fstat(all[i], &st) == 0 && is_the_device(&st));
        echo(all[i], (uint32_t)i + 1);
        CHECK(close(all[i]) == 0);
        if (i < 5) /* closing a copy would have dropped the record lock */
            CHECK(get(all[i + 1], LOCKED) == (uint32_t)getpid());
    }
    wait_connections(other, 1);

    /* A copy over another context's only descriptor ends that context. */
    int third = dev();
    wait_connections(other, 2);
    CHECK(dup2(other, third) == third);
    wait_connections(third, 1);
    CHECK(close(other) == 0);
    /* Something else over a command fd. */
    int fourth = dev(), null = open("/dev/null", O_WRONLY);
    CHECK(dup2(null, fourth) == fourth && write(fourth, "plain", 5) == 5);
    wait_connections(third, 1);

    /* The hidden socket is not the program's to close, but may be replaced. */
    int h = hidden();
    FAILS(close(h), EBADF);
    echo(third, 9);
    int ch = channel(third, &id);
    CHECK(dup2(null, h) == h);
    FAILS(ask(third, ECHO, 1, 0, &id, 4), EIO);
    CHECK(write(h, "still ours", 10) == 10 && close(h) == 0);
    CHECK(close(ch) == 0 && close(third) == 0);
}

static void ranges(void)
{
    uint32_t id;
    int fd = dev(), ch = channel(fd, &id), keep = dev();
    CHECK(close_range((unsigned)fd, ~0u, CLOSE_RANGE_CLOEXEC) == 0);
    echo(fd, 1);
    CHECK(close_range((unsigned)fd, (unsigned)ch, 0) == 0);
    FAILS(close(fd), EBADF);
    wait_connections(keep, 1);
    /* All but what it knows: the hidden socket stays. */
    CHECK(close_range((unsigned)keep + 1, ~0u, 0) == 0);
    echo(keep, 2);
    FAILS(close_range(9, 8, 0), EINVAL);
    void (*from)(int) = dlsym(RTLD_DEFAULT, "closefrom");
    int null = fcntl(0, F_DUPFD, keep + 1);
    CHECK(null > keep);
    from(keep + 1);
    FAILS(close(null), EBADF);
    echo(keep, 3);
    from(keep);
    FAILS(close(keep), EBADF);
    CHECK(hidden() < 0);
    keep = dev();
    wait_connections(keep, 1);
}

static void in_forked_child(void *arg)
{
    int fd = *(int *)arg;
    for (uint32_t i = 0; i < 300; i++)
        echo(fd, 0x10000 + i);
    CHECK(get(fd, LOCKED) == (uint32_t)getppid());
    uint32_t id;
    int ch = channel(fd, &id), own = dev();
    echo(own, 3);
    CHECK(close(ch) == 0 && get(fd, CLOSED) == 1); /* its own */
    CHECK(close(own) == 0 && close(fd) == 0);
    FAILS(write(fd, &id, 4), EBADF);
}

static void forks(void)
{
    int fd = dev();
    pid_t p = fork();
    if (p == 0) {
        in_forked_child(&fd);
        _exit(0);
    }
    for (uint32_t i = 0; i < 300; i++)
        echo(fd, 0x20000 + i);
    int status;
    CHECK(waitpid(p, &status, 0) == p && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    echo(fd, 4);
    CHECK(get(fd, LOCKED) == (uint32_t)getpid());
    wait_connections(fd, 1);

    /* A vfork child has its own descriptors, but our memory. */
    p = vfork();
    if (p == 0) {
        close(fd);
        close_range(3, ~0u, 0);
        _exit(0);
    }
    CHECK(waitpid(p, &status, 0) == p && status == 0);
    echo(fd, 5);

    /* A process that is killed in the middle of a command leaves the lock and an answer behind, and
     * stays for us to wait for. */
    uint32_t r[2];
    p = fork();
    if (p == 0) {
        ask(fd, SLOW, 1, 300, r, sizeof r);
        _exit(0);
    }
    usleep(100000);
    CHECK(kill(p, SIGKILL) == 0);
    echo(fd, 6);
    CHECK(waitpid(p, &status, 0) == p && WIFSIGNALED(status));
}

static int shared_fd;

static void *worker(void *arg)
{
    uint32_t me = (uint32_t)(uintptr_t)arg, id;
    for (uint32_t i = 0; i < 150; i++) {
        echo(shared_fd, me << 16 | i);
        CHECK(doorbell(shared_fd, 7) == 32);
        if (i % 50 == 0) {
            int fd = dev(), ch = channel(fd, &id);
            echo(fd, me);
            CHECK(close(ch) == 0 && close(fd) == 0);
        }
    }
    return NULL;
}

static void threads(void)
{
    pthread_t t[6];
    shared_fd = dev();
    CHECK(ask(shared_fd, STATE, 7, 1, NULL, 0) > 0);
    for (uintptr_t i = 0; i < 6; i++)
        CHECK(pthread_create(&t[i], NULL, worker, (void *)(i + 1)) == 0);
    for (int i = 0; i < 6; i++)
        CHECK(pthread_join(t[i], NULL) == 0);
    CHECK(get(shared_fd, DOORBELLS) == 6 * 150);
    wait_connections(shared_fd, 1);
}

static volatile int handled;

static void handler(int sig)
{
    (void)sig;
    echo(shared_fd, 0xabcdef);
    int fd = dup(shared_fd);
    CHECK(fd > 0 && close(fd) == 0);
    handled++;
}

static void signals(void)
{
    shared_fd = dev();
    signal(SIGALRM, handler);
    struct itimerval t = {{0, 1000}, {0, 1000}}, off = {{0, 0}, {0, 0}};
    CHECK(setitimer(ITIMER_REAL, &t, NULL) == 0);
    for (uint32_t i = 0; i < 100000 && handled < 100; i++) {
        echo(shared_fd, i);
        int fd = dup(shared_fd);
        CHECK(fd > 0 && close(fd) == 0);
    }
    CHECK(setitimer(ITIMER_REAL, &off, NULL) == 0);
    CHECK(handled >= 100);
}

static void doorbells(void)
{
    uint32_t r[2];
    int fd = dev();
    FAILS(doorbell(fd, 3), EINVAL);
    errno = 77;
    CHECK(ask(fd, STATE, 3, 1, NULL, 0) > 0);
    CHECK(doorbell(fd, 3) == 32 && errno == 77);
    CHECK(ask(fd, DOORBELLS, 0, 0, r, sizeof r) > 0 && r[0] == 1 && r[1] == 3);
    /* The daemon looks at the ring by itself. */
    CHECK(ask(fd, STATE, 3, 2, NULL, 0) > 0);
    errno = 77;
    CHECK(doorbell(fd, 3) == 32 && errno == 77);
    CHECK(get(fd, DOORBELLS) == 1);
    CHECK(ask(fd, STATE, 3, 1, NULL, 0) > 0);
    CHECK(doorbell(fd, 3) == 32);
    CHECK(get(fd, DOORBELLS) == 2);
    /* A handle without a state byte, another length: ordinary commands, which the fake daemon refuses. */
    FAILS(doorbell(fd, 65536 - 4096), ENOSYS);
    struct request q = {POST_SEND, 9, 0, 0, {3}};
    FAILS(write(fd, &q, 36), ENOSYS);
    CHECK(get(fd, DOORBELLS) == 2);
    /* The last handle that has one. */
    FAILS(doorbell(fd, 65535 - 4096), EINVAL);
}

static uint32_t armed(int fd, uint32_t cq)
{
    uint32_t r = 99;
    CHECK(ask(fd, ARMED, cq, 0, &r, sizeof r) > 0);
    return r;
}

static void arming(void)
{
    int fd = dev();
    /* No completion queue, and handles without a word: ordinary commands, which the fake daemon refuses. */
    for (uint32_t state = 0; state < 3; state++) {
        CHECK(ask(fd, STATE, 5, state, NULL, 0) > 0);
        FAILS(notify(fd, 5, 0), ENOSYS);
    }
    FAILS(notify(fd, 65536 - 4096, 0), ENOSYS);
    CHECK(armed(fd, 5) == 0);
    CHECK(ask(fd, STATE, 5, 3, NULL, 0) > 0);
    errno = 77;
    CHECK(notify(fd, 5, 1) == 16 && errno == 77 && armed(fd, 5) == 1);
    CHECK(notify(fd, 5, 0) == 16 && armed(fd, 5) == 2);
    CHECK(notify(fd, 5, 1) == 16 && armed(fd, 5) == 2); /* takes nothing back */
    CHECK(ask(fd, SET_ARMED, 5, 0, NULL, 0) > 0);       /* an event */
    CHECK(notify(fd, 5, 7) == 16 && armed(fd, 5) == 1);
    CHECK(armed(fd, 4) == 0 && armed(fd, 6) == 0);
    /* The last handle that has one. */
    CHECK(ask(fd, STATE, 65535 - 4096, 3, NULL, 0) > 0);
    CHECK(notify(fd, 65535 - 4096, 0) == 16 && armed(fd, 65535 - 4096) == 2);
    /* A header that says something else. */
    uint32_t w[4] = {REQ_NOTIFY, 3, 5, 0}, out[4] = {REQ_NOTIFY, 4 | 1 << 16, 5, 0}, other[4] = {REQ_NOTIFY + 1, 4, 5, 0};
    FAILS(write(fd, w, sizeof w), ENOSYS);
    FAILS(write(fd, out, sizeof out), ENOSYS);
    FAILS(write(fd, other, sizeof other), ENOSYS);
    CHECK(armed(fd, 5) == 1);
    FAILS(notify(-1, 5, 0), EBADF);
}

static void death(void)
{
    uint32_t r[2];
    int fd = dev();
    CHECK(ask(fd, STATE, 3, 1, NULL, 0) > 0);
    FAILS(ask(fd, DIE, 0, 0, r, sizeof r), EIO);
    FAILS(ask(fd, ECHO, 0, 0, r, sizeof r), EIO);
    FAILS(doorbell(fd, 3), EIO);
    CHECK(close(fd) == 0);
    fd = dev();
    echo(fd, 1);
}

static void stale(void)
{
    struct stat st;
    int fd = dev(), null = open("/dev/null", O_WRONLY);
    /* Closed behind the library's back, and the number in use again. */
    CHECK(syscall(SYS_close, fd) == 0 && syscall(SYS_dup3, null, fd, 0) == fd);
    CHECK(fstat(fd, &st) == 0 && st.st_rdev == makedev(1, 3));
    CHECK(write(fd, "12345678", 8) == 8);
    CHECK(hidden() < 0); /* the context went when that was noticed */
    FAILS(ioctl(fd, TIOCGWINSZ, &st), ENOTTY);
    int other = dev();
    wait_connections(other, 1);
    /* The hidden socket too. */
    int h = hidden();
    CHECK(syscall(SYS_dup3, null, h, 0) == h);
    FAILS(ask(other, ECHO, 1, 0, &st, 4), EIO);
    CHECK(close(other) == 0 && write(h, "x", 1) == 1); /* not closed with it */
    CHECK(close(h) == 0);
    other = dev();
    CHECK(syscall(SYS_close, other) == 0);
    int next = dev(); /* gets the same number while the old entry stands */
    CHECK(next == other);
    echo(next, 2);
    wait_connections(next, 1);
}

static void pointers(void)
{
    int fd = dev();
    uint32_t r[2];
    char *page = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FAILS(ask(fd, ECHO, 1, 0, (void *)16, 8), EFAULT);
    FAILS(ask(fd, ECHO, 1, 0, (void *)(1ull << 63), 8), EFAULT); /* never user memory */
    FAILS(ask(fd, ECHO, 1, 0, page, 8), EFAULT);
    FAILS(ask(fd, FAIL, EBUSY, 0, page, 8), EBUSY); /* there is no answer to be stored */
    echo(fd, 1);
    CHECK(get(fd, UNSTORED) == 3);
    CHECK(mprotect(page, 4096, PROT_NONE) == 0);
    FAILS(write(fd, page, 48), EFAULT);
    char *volatile nowhere = NULL;
    FAILS(write(fd, nowhere, 32), EFAULT);
    FAILS(write(fd, nowhere + 16, 5), EFAULT);
    CHECK(ask(fd, ECHO, 2, 0, r, sizeof r) > 0 && r[1] == 2);
}

static void hints(void)
{
    int fd = dev();
    FAILS(ask(fd, HINT, 1, 0, NULL, 0), EINVAL);
    FAILS(ask(fd, HINT, 0, 0, NULL, 0), EINVAL);
}

static void lowlimit(void)
{
    struct rlimit l = {40, 40};
    CHECK(setrlimit(RLIMIT_NOFILE, &l) == 0);
    int a = dev(), b = dev();
    echo(a, 1);
    echo(b, 2);
    FAILS(close(39), EBADF); /* where the first socket is */
    FAILS(close(38), EBADF);
    CHECK(close(a) == 0 && close(b) == 0);
    FAILS((int)syscall(SYS_fcntl, 39, F_GETFD), EBADF);
    int fd;
    while ((fd = open("/dev/null", O_RDONLY)) >= 0)
        ;
    FAILS(open(DEVICE, O_RDWR), EMFILE);
}

int main(int n, char **arg)
{
    static const struct {
        const char *name;
        void (*run)(void);
    } all[] = {
        {"basic", basic}, {"names", names}, {"netlink", netlink}, {"inert", inert}, {"nodaemon", nodaemon},
        {"events", events}, {"create_cq", create_cq}, {"copies", copies}, {"ranges", ranges}, {"forks", forks},
        {"threads", threads}, {"signals", signals}, {"doorbells", doorbells}, {"arming", arming}, {"death", death}, {"stale", stale},
        {"pointers", pointers}, {"hints", hints}, {"lowlimit", lowlimit},
    };
    for (size_t i = 0; n == 2 && i < sizeof all / sizeof *all; i++)
        if (!strcmp(arg[1], all[i].name)) {
            all[i].run();
            return 0;
        }
    return 2;
}
