/* What the files of the library share. Nothing here is exported: the hooks are
 * the only names that a program sees.
 *
 *   hooks.c    the calls of the C library that are replaced
 *   poll.c     how a program polls
 *   context.c  a connection to the daemon, and the exchange of records on it
 *   table.c    which file descriptor stands for what; the lock
 */
#ifndef SOFTNIC_H
#define SOFTNIC_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include "protocol.h"

#ifndef SYS_close_range /* headers before glibc 2.34 */
#define SYS_close_range 436
#endif
#ifndef CLOSE_RANGE_UNSHARE
#define CLOSE_RANGE_UNSHARE 2
#endif

_Static_assert(sizeof(long) == 8, "32-bit programs are not served");

#define DEVICE       "/dev/infiniband/uverbs0"
#define DEVICE_MAJOR 231
#define DEVICE_MINOR 192

/* Everything inside the library goes to the kernel directly: a call through the C library
 * could land in a hook, here or in another preloaded library. */
#define sys(...) syscall(__VA_ARGS__)

/* ---- settings, from the environment */

int         active(void); /* SOFTNIC_SOCKET is set */
const char *socket_path(void);
void        hint(const char *text, size_t n);
void        say_once(atomic_int *said, const char *before, const char *after); /* with the socket's path between */

/* ---- hooks.c */

/* The C names differ from the symbols, so that the headers' prototypes, inline versions and
 * promises (path is not NULL) do not meet ours. */
#define HOOK(result, name, ...) \
    __attribute__((visibility("default"))) result hook_##name(__VA_ARGS__) __asm__(#name); \
    result hook_##name(__VA_ARGS__)

void *next_symbol(const char *name, const char *library); /* the next definition of a name, or that of a library which is loaded */
int   is_command(int fd);

/* ---- table.c */

/* A slot of the table is 0, or a pointer with what it is in the low bits. */
enum { COMMAND = 1, CONTROL = 2, EVENT = 3, TAG = 3 };

struct identity { /* of an open file */
    uint64_t dev, ino;
};

struct context {
    atomic_int      refs; /* file descriptors in the table, and threads that use the context now */
    int             copies; /* file descriptors in the table */
    unsigned        generation;
    int             control; /* the socket */
    pid_t           creator;
    struct identity memfd, socket;
    unsigned char  *page; /* the memfd up to the arena */
    uint64_t        cookie; /* what the daemon finds in our memory */
    struct context *next; /* free list */
};

struct event { /* an event file descriptor: asynchronous events, or a completion channel */
    int             copies;
    pid_t           creator;
    uint32_t        id;
    struct context *context; /* only while its generation is the same */
    unsigned        generation;
    struct event   *next;
};

typedef _Atomic(uint32_t) lock_word;

void mask_signals(uint64_t *old);
void restore_signals(const uint64_t *old);
void lock(lock_word *w);
void unlock(lock_word *w);

uintptr_t peek(int fd); /* the slot of fd; never blocks or allocates */
int       identify(int fd, struct identity *id);
int       is_file(int fd, const struct identity *id);
int       own_process(void);

struct context *new_context(void);
struct event   *new_event(void);
struct context *acquire(int fd); /* a command fd's context, or NULL; put back with put_context */
int             hold_context(struct context *c, unsigned generation);
void            put_context(struct context *c);

int  track(int fd, void *object, int tag); /* 0, or an errno; takes the caller's hold on a context over as the fd's */
int  track_copy(int from, int to);
void forget(int fd, uintptr_t seen); /* if the slot is still what was seen */
int  close_tracked(int fd);
void close_tracked_range(unsigned first, unsigned last);
int  first_control(unsigned first, unsigned last); /* the lowest hidden socket in the range, or -1 */
void table_init(void);

/* ---- context.c */

int     open_device(int flags);
ssize_t command(struct context *c, const void *buf, size_t n);
void    tell_closed(struct event *e);

#endif
