/* Programs that poll a completion queue do not enter the kernel, and a completion comes from the daemon, which has to run for it:
 * where processors are few, a program that polls without end keeps the daemon from what it polls for. So after some polls that found nothing
 * the program lets others run, if any want to. */
#include "softnic.h"

#include <dlfcn.h>

/* The beginning of struct ibv_context, as programs have it compiled in (infiniband/verbs.h, ibv_poll_cq). */
struct verbs_context {
    void *device;
    void *ops[32];
    int   command_fd;
};

enum { POLL_CQ = 11 }; /* of ops */

typedef int (*poll_function)(void *cq, int n, void *wc);
typedef struct verbs_context *(*open_function)(void *device);

/* EMPTY polls take about a microsecond, as letting others run does when nobody wants to. */
enum { EMPTY = 32 };

static _Atomic(poll_function) provider_poll;

static int poll_cq(void *cq, int n, void *wc)
{
    static __thread unsigned empty __attribute__((tls_model("initial-exec")));
    int got = atomic_load_explicit(&provider_poll, memory_order_relaxed)(cq, n, wc);
    if (got)
        empty = 0;
    else if (++empty % EMPTY == 0)
        sys(SYS_sched_yield);
    return got;
}

/* The library may be loaded where RTLD_NEXT does not look: by a module of an interpreter. */
static open_function library_open(void)
{
    static _Atomic(open_function) found;
    open_function f = atomic_load_explicit(&found, memory_order_acquire);
    if (!f) {
        f = (open_function)next_symbol("ibv_open_device", "libibverbs.so.1");
        atomic_store_explicit(&found, f, memory_order_release);
    }
    return f;
}

HOOK(struct verbs_context *, ibv_open_device, void *device)
{
    open_function next = library_open();
    if (!next) {
        errno = ENOSYS;
        return NULL;
    }
    struct verbs_context *v = next(device);
    if (!v || !active() || !is_command(v->command_fd))
        return v;
    poll_function now = (poll_function)v->ops[POLL_CQ], first = NULL;
    if (now && now != poll_cq &&
        (atomic_compare_exchange_strong(&provider_poll, &first, now) || first == now)) /* of two kinds, the other polls as it is */
        v->ops[POLL_CQ] = (void *)poll_cq;
    return v;
}
