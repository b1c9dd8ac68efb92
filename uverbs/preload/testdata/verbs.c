/* In the place of libibverbs: a device is an int, 0 for softnic's, 1 for that of another kind, 2 for softnic's by another provider. */
#include <fcntl.h>

struct context {
    void *device;
    void *ops[32];
    int   command_fd;
};

static int poll1(void *cq, int n, void *wc)
{
    (void)n;
    (void)wc;
    return *(int *)cq;
}

static int poll2(void *cq, int n, void *wc)
{
    return poll1(cq, n, wc) + 1000;
}

struct context *ibv_open_device(int *device)
{
    static struct context c[3];
    struct context *v = &c[*device];
    v->device = device;
    v->ops[11] = *device == 2 ? (void *)poll2 : (void *)poll1;
    v->command_fd = open(*device == 1 ? "/dev/null" : "/dev/infiniband/uverbs0", O_RDWR | O_CLOEXEC);
    return v;
}
