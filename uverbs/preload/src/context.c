/* A connection to the daemon: one open of the device. */
#include "softnic.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>

#define PATIENCE 10 /* seconds */
#define HIDDEN_FROM 1000 /* where the sockets are put, so that a program does not meet them */

struct head {
    uint32_t kind, seq, length, arg;
};

struct answer {
    uint32_t seq, error;
    uint64_t address;
    uint32_t length, fd_at, fd_id, hint_length;
    char     hint[maxHint];
};

_Static_assert(sizeof(struct head) == headLen, "head");
_Static_assert(sizeof(struct answer) == answerLen + maxHint, "answer");

/* The file descriptors that commands name. The word is the first of the command: its number, and
 * bit 31 for the extended form. */
static const struct {
    uint32_t word;
    uint32_t offset; /* of an int32; -1 means none */
} named_fd[] = {
    {18, 32}, /* CREATE_CQ: comp_channel */
    {18 | 1u << 31, 40},
};

#define POST_SEND      28
#define POST_SEND_LEN  32
#define POST_SEND_QP   16 /* offset of the queue pair's handle */

/* struct ib_uverbs_req_notify_cq behind its header. */
struct req_notify_cq {
    uint32_t word;
    uint16_t in_words, out_words;
    uint32_t cq, solicited_only;
};

#define REQ_NOTIFY_CQ 23

struct shared { /* by all processes that have the context; at the start of the memfd */
    lock_word        lock;
    _Atomic uint32_t seq;
};

_Static_assert(sizeof(struct shared) <= lockExtent, "shared");

/* ---- records */

static int send_record(int control, struct head h, const void *p, int fd)
{
    struct iovec iov[2] = {{&h, sizeof h}, {(void *)p, h.length}};
    union {
        struct cmsghdr c;
        char           room[CMSG_SPACE(sizeof fd)];
    } u;
    struct msghdr m = {.msg_iov = iov, .msg_iovlen = h.length ? 2 : 1};
    if (fd >= 0) {
        memset(&u, 0, sizeof u);
        u.c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof fd)};
        memcpy(CMSG_DATA(&u.c), &fd, sizeof fd);
        m.msg_control = &u;
        m.msg_controllen = sizeof u.room;
    }
    while (sys(SYS_sendmsg, control, &m, MSG_NOSIGNAL) < 0) {
        if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN)
            return EIO;
        if (errno != EINTR)
            return errno;
    }
    return 0;
}

/* patient waits for a record. A daemon that is silent for so long does not come back, and the program waits with all
 * signals blocked. */
static int patient(int control)
{
    for (int left = PATIENCE; left > 0; left--) {
        struct pollfd p = {.fd = control, .events = POLLIN};
        struct timespec second = {1, 0};
        long n = sys(SYS_ppoll, &p, 1, &second, NULL, 8);
        if (n > 0 || (n < 0 && errno != EINTR))
            return 1;
    }
    return 0;
}

/* receive takes one record into iov. *fd is the descriptor that came along, or -1. */
static ssize_t receive(int control, struct iovec *iov, int *fd, int cloexec, int *flags)
{
    union {
        struct cmsghdr c;
        char           room[CMSG_SPACE(sizeof *fd)];
    } u;
    struct msghdr m;
    ssize_t n;
    if (!patient(control)) {
        sys(SYS_shutdown, control, SHUT_RDWR); /* an answer that comes late is nobody's */
        *fd = -1;
        errno = EIO;
        return -1;
    }
    do {
        m = (struct msghdr){.msg_iov = iov, .msg_iovlen = 1, .msg_control = &u, .msg_controllen = CMSG_LEN(sizeof *fd)};
        n = sys(SYS_recvmsg, control, &m, cloexec);
    } while (n < 0 && errno == EINTR);
    *fd = -1;
    *flags = m.msg_flags;
    struct cmsghdr *c = n < 0 ? NULL : CMSG_FIRSTHDR(&m);
    if (c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(c), sizeof *fd);
    return n;
}

/* answer waits for the answer with the number seq. Others are of a process that shared the
 * connection and ended before it took them. The result is an errno of the exchange, not of the command. */
static int answer(int control, uint32_t seq, struct answer *a, int *fd, int cloexec)
{
    for (;;) {
        struct iovec iov = {a, sizeof *a};
        int flags;
        ssize_t n = receive(control, &iov, fd, cloexec, &flags);
        if (n <= 0)
            return EIO;
        if (n >= answerLen && a->seq == seq && a->hint_length <= (size_t)n - answerLen) {
            if (flags & MSG_CTRUNC)
                return *fd < 0 ? EMFILE : EIO;
            return 0;
        }
        if (*fd >= 0)
            sys(SYS_close, *fd);
    }
}

/* ---- opening */

/* connect_hidden gives a connection whose number is as high as the limit allows, or -errno. */
static int connect_hidden(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const char *path = socket_path();
    if (strlen(path) >= sizeof a.sun_path)
        return -ENAMETOOLONG;
    strcpy(a.sun_path, path);
    int fd = (int)sys(SYS_socket, AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    while (sys(SYS_connect, fd, &a, sizeof a) < 0)
        if (errno != EINTR) {
            int e = errno;
            sys(SYS_close, fd);
            return -e;
        }
    struct rlimit l = {0, 0};
    sys(SYS_prlimit64, 0, RLIMIT_NOFILE, NULL, &l);
    int from = l.rlim_cur > HIDDEN_FROM ? HIDDEN_FROM : (int)l.rlim_cur - 1;
    for (; from > fd; from--) {
        int high = (int)sys(SYS_fcntl, fd, F_DUPFD_CLOEXEC, from);
        if (high >= 0) {
            sys(SYS_close, fd);
            return high;
        }
    }
    return fd;
}

static uint64_t random64(void)
{
    struct timespec now;
    sys(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    uint64_t x = (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 30 ^ (uint64_t)sys(SYS_gettid) << 44;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9; /* splitmix64: only so that two processes differ */
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return x ^ x >> 31;
}

/* hello fills in c and gives the command fd, or -errno. */
static int hello(struct context *c, int flags)
{
    c->control = connect_hidden();
    if (c->control < 0) {
        static atomic_int said;
        int e = c->control;
        if (e == -EMFILE || e == -ENFILE || e == -ENOMEM)
            return e;
        say_once(&said, "!no softnic answers on ", ": start `softnic run`, or use `softnic exec`");
        return -ENODEV;
    }
    int e = identify(c->control, &c->socket);
    if (e == 0)
        e = track(c->control, c, CONTROL);
    if (e)
        return -e;

    c->cookie = random64();
    uint64_t body[2] = {(uint64_t)(uintptr_t)&c->cookie, c->cookie};
    _Static_assert(sizeof body == helloLen, "hello");
    uint32_t seq = (uint32_t)random64();
    int mem = (int)sys(SYS_openat, AT_FDCWD, "/proc/self/mem", O_RDWR | O_CLOEXEC); /* not in a program that may not be traced */
    e = send_record(c->control, (struct head){kindHello, seq, sizeof body, Version}, body, mem);
    if (mem >= 0)
        sys(SYS_close, mem);
    if (e)
        return -e;

    struct answer a;
    int fd;
    e = answer(c->control, seq, &a, &fd, flags & O_CLOEXEC ? MSG_CMSG_CLOEXEC : 0);
    if (e == 0)
        hint(a.hint, a.hint_length);
    if (e == 0 && a.error)
        e = (int)a.error;
    if (e == 0 && fd < 0)
        e = EIO;
    struct stat st;
    if (e == 0 && (sys(SYS_fstat, fd, &st) < 0 || st.st_size < arenaOff))
        e = EIO;
    if (e == 0) {
        c->memfd = (struct identity){st.st_dev, st.st_ino};
        void *p = (void *)sys(SYS_mmap, NULL, arenaOff, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (p == MAP_FAILED)
            e = errno;
        else
            c->page = p;
    }
    if (e) {
        if (fd >= 0)
            sys(SYS_close, fd);
        return -e;
    }
    atomic_store(&((struct shared *)c->page)->seq, seq);
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    sys(SYS_fcntl, fd, F_SETLK, &l);
    return fd;
}

int open_device(int flags)
{
    int saved = errno;
    struct context *c = new_context();
    if (!c) {
        errno = ENOMEM;
        return -1;
    }
    int fd = hello(c, flags);
    int e = fd < 0 ? -fd : track(fd, c, COMMAND);
    if (e) {
        if (fd >= 0)
            sys(SYS_close, fd);
        put_context(c);
        errno = e;
        return -1;
    }
    errno = saved;
    return fd;
}

/* ---- commands */

static void closed(struct context *c, uint32_t id)
{
    if (is_file(c->control, &c->socket))
        send_record(c->control, (struct head){kindClosed, 0, 0, id}, NULL, -1);
}

void tell_closed(struct event *e)
{
    struct context *c = e->context;
    if (!hold_context(c, e->generation))
        return; /* the daemon has freed the event with the context */
    closed(c, e->id);
    put_context(c);
}

/* store_fd makes the descriptor that came with an answer the program's. */
static int store_fd(struct context *c, const struct answer *a, int fd)
{
    /* Only into what was just written: another address might not be writable. */
    if (a->length < sizeof(int32_t) || a->fd_at > a->length - sizeof(int32_t))
        return EFAULT;
    struct event *e = new_event();
    if (!e)
        return ENOMEM;
    e->id = a->fd_id;
    e->context = c;
    e->generation = c->generation;
    int err = track(fd, e, EVENT);
    if (err == 0) {
        int32_t number = fd;
        memcpy((char *)(uintptr_t)a->address + a->fd_at, &number, sizeof number);
    }
    return err;
}

/* exchange sends a command and takes its answer. The result is an errno; refused tells that it is the daemon's. */
static int exchange(struct context *c, const void *buf, size_t n, int named, struct answer *a, int *refused)
{
    struct shared *s = (struct shared *)c->page;
    uint32_t seq = atomic_fetch_add(&s->seq, 1) + 1;
    a->hint_length = 0;
    int e = send_record(c->control, (struct head){kindCommand, seq, (uint32_t)n, c->creator == sys(SYS_getpid) ? 0 : argFork}, buf, named);
    if (e)
        return e;

    int fd, none, flags;
    e = answer(c->control, seq, a, &fd, MSG_CMSG_CLOEXEC);
    if (e == EIO)
        return e;
    if (e == 0 && a->length) {
        /* Straight to where the program wants it: the kernel tells whether that is memory. */
        struct iovec iov = {(void *)(uintptr_t)a->address, a->length};
        ssize_t got = receive(c->control, &iov, &none, MSG_CMSG_CLOEXEC, &flags);
        if (got < 0 && errno == EFAULT)
            e = EFAULT;
        else if (got != (ssize_t)a->length)
            e = EIO;
    }
    if (e == 0) {
        e = (int)a->error;
        *refused = e != 0;
    }
    if (e == 0 && a->fd_at != noFD)
        e = fd < 0 ? EIO : store_fd(c, a, fd);
    if (e && fd >= 0)
        sys(SYS_close, fd);
    if (e && !*refused)
        send_record(c->control, (struct head){kindUnstored, seq, 0, 0}, NULL, -1); /* what was made nobody can name */
    return e;
}

/* readable asks the kernel, by a call that fails for another reason when it is. NULL it would not look at. */
static int readable(const void *p)
{
    return p && (sys(SYS_rt_sigprocmask, -1, p, NULL, 8) == 0 || errno != EFAULT);
}

static int fd_named_in(const unsigned char *p, size_t n)
{
    uint32_t word;
    int32_t fd;
    if (n < sizeof word || !readable(p))
        return -1;
    memcpy(&word, p, sizeof word);
    for (size_t i = 0; i < sizeof named_fd / sizeof *named_fd; i++)
        if (named_fd[i].word == word && n >= named_fd[i].offset + sizeof fd && readable(p + named_fd[i].offset)) {
            memcpy(&fd, p + named_fd[i].offset, sizeof fd);
            return fd;
        }
    return -1;
}

/* doorbell: 1 if the command was one and is done, 0 if it has to go the long way, or -errno. It reads the
 * command without asking whether it may: that would cost more than the rest. */
static int doorbell(struct context *c, const unsigned char *p)
{
    uint32_t word, qp;
    memcpy(&word, p, sizeof word);
    memcpy(&qp, p + POST_SEND_QP, sizeof qp);
    if (word != POST_SEND || qp >= maxStates)
        return 0;
    /* Either the daemon sees what was posted when it looks for the last time, or we see that it does not look any more. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    switch (__atomic_load_n(&c->page[stateOff + qp], __ATOMIC_ACQUIRE)) {
    case stateQuiet:
        return 1;
    case stateShut:
        return -EINVAL;
    case stateOpen:
        if (!is_file(c->control, &c->socket))
            return -EIO;
        int e = send_record(c->control, (struct head){kindDoorbell, 0, POST_SEND_LEN, qp}, p, -1);
        return e ? -e : 1;
    }
    return 0;
}

/* arm is doorbell for a request to be told of the next completion: the daemon looks at the word whenever it has added one. */
static int arm(struct context *c, const unsigned char *p)
{
    struct req_notify_cq r;
    memcpy(&r, p, sizeof r);
    if (r.word != REQ_NOTIFY_CQ || r.in_words * 4 != sizeof r || r.out_words || r.cq >= maxStates ||
        __atomic_load_n(&c->page[stateOff + r.cq], __ATOMIC_ACQUIRE) != stateCQ)
        return 0;
    uint32_t *word = (uint32_t *)(c->page + armOff) + r.cq;
    uint32_t want = r.solicited_only ? armSolicited : armAny;
    uint32_t old = __atomic_load_n(word, __ATOMIC_SEQ_CST);
    while (old < want && !__atomic_compare_exchange_n(word, &old, want, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
        ;
    /* Either the daemon sees this when it has added a completion, or the program sees the completion when it looks next. */
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    return 1;
}

/* in_memory: commands that need no answer, as doorbell. */
static int in_memory(struct context *c, const void *buf, size_t n)
{
    if ((uintptr_t)buf < 4096)
        return 0;
    switch (n) {
    case POST_SEND_LEN:
        return doorbell(c, buf);
    case sizeof(struct req_notify_cq):
        return arm(c, buf);
    }
    return 0;
}

/* command is write on a command fd. */
ssize_t command(struct context *c, const void *buf, size_t n)
{
    int saved = errno;
    int refused = 0;
    int e = in_memory(c, buf, n);
    if (e == 0 && n > maxRecord)
        e = -EINVAL;
    if (e == 0) {
        struct answer a;
        struct shared *s = (struct shared *)c->page;
        int named = fd_named_in(buf, n);
        uint64_t signals;
        a.hint_length = 0;
        mask_signals(&signals);
        lock(&s->lock);
        e = is_file(c->control, &c->socket) ? -exchange(c, buf, n, named, &a, &refused) : -EIO;
        unlock(&s->lock);
        restore_signals(&signals);
        if (a.hint_length)
            hint(a.hint, a.hint_length);
    }
    if (e == -EIO && !refused) {
        static atomic_int said;
        say_once(&said, "!the softnic on ", " does not answer any more");
    }
    errno = e < 0 ? -e : saved;
    return e < 0 ? -1 : (ssize_t)n;
}
