/* Which file descriptors are ours, and the lock. */
#include "softnic.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>

/* ---- the lock: a futex whose word is the owner's thread id. One kind guards the table of this
 * process, the other, in the memfd, the exchanges of all processes that share a context. */

#define WAITERS 0x80000000u

/* With all signals blocked no handler can run into the lock that its own thread holds, and
 * pthread_cancel has to wait too. glibc's function would leave that one's signal out. */
void mask_signals(uint64_t *old)
{
    uint64_t all = ~0ull;
    sys(SYS_rt_sigprocmask, SIG_SETMASK, &all, old, 8);
}

void restore_signals(const uint64_t *old)
{
    sys(SYS_rt_sigprocmask, SIG_SETMASK, old, NULL, 8);
}

/* gone: the thread has ended. One that was killed may stay for a parent to wait for, and
 * that parent may be the one who asks. */
static int gone(uint32_t tid)
{
    if (sys(SYS_kill, tid, 0) < 0)
        return errno == ESRCH;
    char text[512];
    snprintf(text, sizeof text, "/proc/%u/stat", tid);
    int fd = (int)sys(SYS_openat, AT_FDCWD, text, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t n = sys(SYS_read, fd, text, sizeof text - 1);
    sys(SYS_close, fd);
    text[n > 0 ? n : 0] = 0;
    char *paren = strrchr(text, ')'); /* tid (name) state ... */
    return paren && (!strncmp(paren, ") Z", 3) || !strncmp(paren, ") X", 3));
}

void lock(lock_word *w)
{
    int saved = errno;
    uint32_t me = (uint32_t)sys(SYS_gettid), want = me;
    for (;;) {
        uint32_t seen = 0;
        if (atomic_compare_exchange_strong(w, &seen, want))
            break;
        if (!(seen & WAITERS)) {
            if (!atomic_compare_exchange_strong(w, &seen, seen | WAITERS))
                continue;
            seen |= WAITERS;
        }
        struct timespec patience = {0, 100 * 1000 * 1000};
        long r = sys(SYS_futex, w, FUTEX_WAIT, seen, &patience, NULL, 0);
        want = me | WAITERS; /* others may wait still */
        if (r < 0 && errno == ETIMEDOUT && gone(seen & ~WAITERS) && atomic_compare_exchange_strong(w, &seen, want))
            break; /* the answer that the dead owner left behind has another sequence number */
    }
    errno = saved;
}

void unlock(lock_word *w)
{
    if (atomic_exchange(w, 0) & WAITERS)
        sys(SYS_futex, w, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---- the table. Looking up takes no lock and allocates nothing: hooks run in signal
 * handlers and in vfork children, which share our memory. All changes are made under the lock. */

#define LEAF 1024
#define ROOT 1024 /* descriptors beyond LEAF*ROOT are not served */

typedef _Atomic(uintptr_t) slot;

static _Atomic(slot *) root[ROOT];
static lock_word guard_word;
static pid_t self;

static void guard(uint64_t *signals)
{
    mask_signals(signals);
    lock(&guard_word);
}

static void unguard(const uint64_t *signals)
{
    unlock(&guard_word);
    restore_signals(signals);
}

static slot *slot_of(int fd)
{
    if (fd < 0 || fd >= LEAF * ROOT)
        return NULL;
    slot *leaf = atomic_load_explicit(&root[fd / LEAF], memory_order_acquire);
    return leaf ? &leaf[fd % LEAF] : NULL;
}

uintptr_t peek(int fd)
{
    slot *s = slot_of(fd);
    return s ? atomic_load_explicit(s, memory_order_acquire) : 0;
}

static void *object(uintptr_t v)
{
    return (void *)(v & ~(uintptr_t)TAG);
}

static void *pages(size_t n)
{
    void *p = (void *)sys(SYS_mmap, NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

int identify(int fd, struct identity *id)
{
    struct stat st;
    if (sys(SYS_fstat, fd, &st) < 0)
        return errno;
    *id = (struct identity){st.st_dev, st.st_ino};
    return 0;
}

/* is_file: fd is still the file that it was. A program may have closed it without the C library,
 * and have got the number again for something else. */
int is_file(int fd, const struct identity *id)
{
    int saved = errno;
    struct identity now = {0, 0};
    int same = identify(fd, &now) == 0 && now.dev == id->dev && now.ino == id->ino;
    errno = saved;
    return same;
}

/* own_process is false in a vfork child: its descriptors are copies, but the table is its parent's. */
int own_process(void)
{
    return sys(SYS_getpid) == self;
}

/* Contexts and events are used again but never unmapped, so that a thread may look at one
 * that another thread gives up: the count that it then finds tells. */
static struct context *free_contexts;
static struct event *free_events;

static void *carve(size_t size)
{
    static char *chunk;
    static size_t left;
    size = (size + 63) & ~(size_t)63;
    if (left < size) {
        chunk = pages(16384);
        left = chunk ? 16384 : 0;
        if (!chunk)
            return NULL;
    }
    left -= size;
    return chunk + left;
}

struct context *new_context(void)
{
    uint64_t signals;
    guard(&signals);
    struct context *c = free_contexts;
    if (c)
        free_contexts = c->next;
    else
        c = carve(sizeof *c);
    unguard(&signals);
    if (c) {
        c->copies = 0;
        c->control = -1;
        c->page = NULL;
        c->creator = (pid_t)sys(SYS_getpid);
        atomic_store(&c->refs, 1);
    }
    return c;
}

struct event *new_event(void)
{
    uint64_t signals;
    guard(&signals);
    struct event *e = free_events;
    if (e)
        free_events = e->next;
    else
        e = carve(sizeof *e);
    unguard(&signals);
    if (e) {
        e->copies = 0;
        e->creator = (pid_t)sys(SYS_getpid);
    }
    return e;
}

static int raise_count(struct context *c)
{
    int n = atomic_load(&c->refs);
    while (n > 0)
        if (atomic_compare_exchange_weak(&c->refs, &n, n + 1))
            return 1;
    return 0;
}

int hold_context(struct context *c, unsigned generation)
{
    if (!raise_count(c))
        return 0;
    if (c->generation == generation)
        return 1;
    put_context(c);
    return 0;
}

void put_context(struct context *c)
{
    if (atomic_fetch_sub(&c->refs, 1) != 1)
        return;
    int saved = errno;
    uint64_t signals;
    if (c->control >= 0) {
        uintptr_t mine = (uintptr_t)c | CONTROL;
        slot *s = slot_of(c->control);
        if (s)
            atomic_compare_exchange_strong(s, &mine, 0);
        if (is_file(c->control, &c->socket))
            sys(SYS_close, c->control);
    }
    if (c->page)
        sys(SYS_munmap, c->page, arenaOff);
    guard(&signals);
    c->generation++;
    c->next = free_contexts;
    free_contexts = c;
    unguard(&signals);
    errno = saved;
}

struct context *acquire(int fd)
{
    for (;;) {
        uintptr_t v = peek(fd);
        if ((v & TAG) != COMMAND)
            return NULL;
        struct context *c = object(v);
        if (!raise_count(c))
            continue; /* closed at this moment: the slot has changed */
        if (peek(fd) == v) {
            if (is_file(fd, &c->memfd))
                return c;
            forget(fd, v);
            put_context(c);
            return NULL;
        }
        put_context(c);
    }
}

/* mark sets the record lock by which the daemon knows that the process that opened the
 * device is still there. Closing any descriptor of a file drops the process's record locks
 * on it, so it is set again after each close. */
static void mark(struct context *c)
{
    struct flock l = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = 0, .l_len = 1};
    for (int i = 0; i < ROOT; i++)
        for (int j = 0; root[i] && j < LEAF; j++)
            if (root[i][j] == ((uintptr_t)c | COMMAND) && is_file(i * LEAF + j, &c->memfd)) {
                sys(SYS_fcntl, i * LEAF + j, F_SETLK, &l);
                return;
            }
}

/* release gives up what stood in a slot, after its descriptor was closed. */
static void release(uintptr_t v)
{
    int saved = errno;
    uint64_t signals;
    if ((v & TAG) == COMMAND) {
        struct context *c = object(v);
        guard(&signals);
        if (--c->copies > 0 && c->creator == sys(SYS_getpid))
            mark(c);
        unguard(&signals);
        put_context(c);
    } else if ((v & TAG) == EVENT) {
        struct event *e = object(v);
        guard(&signals);
        int left = --e->copies;
        unguard(&signals);
        if (left == 0) {
            /* A forked child's copies are its own affair: the parent still listens. */
            if (e->creator == sys(SYS_getpid))
                tell_closed(e);
            guard(&signals);
            e->next = free_events;
            free_events = e;
            unguard(&signals);
        }
    }
    errno = saved;
}

int track(int fd, void *o, int tag)
{
    if (fd < 0 || fd >= LEAF * ROOT)
        return EMFILE;
    uint64_t signals;
    guard(&signals);
    if (!slot_of(fd)) {
        slot *leaf = pages(LEAF * sizeof *leaf);
        if (!leaf) {
            unguard(&signals);
            return ENOMEM;
        }
        atomic_store_explicit(&root[fd / LEAF], leaf, memory_order_release);
    }
    if (tag == COMMAND)
        ((struct context *)o)->copies++;
    else if (tag == EVENT)
        ((struct event *)o)->copies++;
    uintptr_t stale = atomic_exchange(slot_of(fd), (uintptr_t)o | (uintptr_t)tag);
    unguard(&signals);
    release(stale);
    return 0;
}

/* track_copy makes the slot of to what the slot of from is, after dup. */
int track_copy(int from, int to)
{
    uintptr_t v = peek(from);
    struct context *c = NULL;
    if ((v & TAG) == COMMAND && (c = acquire(from)))
        return track(to, c, COMMAND); /* what acquire holds is now the new descriptor's */
    if ((v & TAG) == EVENT)
        return track(to, object(v), EVENT);
    forget(to, peek(to));
    return 0;
}

void forget(int fd, uintptr_t seen)
{
    slot *s = slot_of(fd);
    if (!s || !seen || !own_process())
        return;
    uint64_t signals;
    guard(&signals);
    int taken = atomic_compare_exchange_strong(s, &seen, 0);
    unguard(&signals);
    if (taken)
        release(seen);
}

int close_tracked(int fd)
{
    uintptr_t v = peek(fd);
    if (!own_process())
        return (int)sys(SYS_close, fd);
    if ((v & TAG) == CONTROL && is_file(fd, &((struct context *)object(v))->socket)) {
        errno = EBADF; /* the program never opened it */
        return -1;
    }
    /* The slot first: once the descriptor is closed another thread may get the number. */
    slot *s = slot_of(fd);
    uint64_t signals;
    guard(&signals);
    v = s ? atomic_exchange(s, 0) : 0;
    unguard(&signals);
    int r = (int)sys(SYS_close, fd);
    release(v);
    return r;
}

/* next_used is the lowest descriptor from first to last that has something in its slot, or -1. */
static int next_used(unsigned first, unsigned last)
{
    for (unsigned fd = first; fd <= last && fd < LEAF * ROOT; fd++) {
        if (!root[fd / LEAF])
            fd |= LEAF - 1;
        else if (peek((int)fd))
            return (int)fd;
    }
    return -1;
}

void close_tracked_range(unsigned first, unsigned last)
{
    for (int fd; (fd = next_used(first, last)) >= 0; first = (unsigned)fd + 1)
        if ((peek(fd) & TAG) != CONTROL)
            close_tracked(fd);
}

int first_control(unsigned first, unsigned last)
{
    for (int fd; (fd = next_used(first, last)) >= 0; first = (unsigned)fd + 1)
        if ((peek(fd) & TAG) == CONTROL)
            return fd;
    return -1;
}

/* ---- fork: no thread may hold the table's lock then, for the child has only the thread that forked. */

static uint64_t signals_at_fork;

static void before_fork(void)
{
    uint64_t signals;
    guard(&signals);
    signals_at_fork = signals;
}

static void after_fork_parent(void)
{
    uint64_t signals = signals_at_fork;
    unguard(&signals);
}

static void after_fork_child(void)
{
    self = (pid_t)sys(SYS_getpid);
    uint64_t signals = signals_at_fork;
    guard_word = 0;
    restore_signals(&signals);
}

void table_init(void)
{
    static atomic_int done;
    if (atomic_exchange(&done, 1))
        return;
    self = (pid_t)sys(SYS_getpid);
    pthread_atfork(before_fork, after_fork_parent, after_fork_child);
}
