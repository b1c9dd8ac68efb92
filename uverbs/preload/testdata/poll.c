/* A program that polls: linked to libibverbs, or with LOADER the one that loads it, as an interpreter does, with a MODULE that is linked to it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>

#define CHECK(x) \
    do { \
        if (!(x)) { \
            printf("line %d: %s\n", __LINE__, #x); \
            exit(1); \
        } \
    } while (0)

#ifndef LOADER
struct context {
    void *device;
    int (*ops[32])(void *, int, void *);
    int command_fd;
};

struct context *ibv_open_device(int *device);

void run(int *yields)
{
    int ours = 0, other = 1, second = 2, found = 0, got = 3;
    struct context *v = ibv_open_device(&ours);
    CHECK(v && v->device == &ours && v->command_fd >= 0);
    for (int round = 0; round < 3; round++) {
        *yields = 0;
        for (int i = 1; i < 32; i++)
            CHECK(v->ops[11](&found, 1, NULL) == 0 && *yields == 0);
        CHECK(v->ops[11](&got, 1, NULL) == 3 && *yields == 0);
        for (int i = 1; i <= 100; i++)
            CHECK(v->ops[11](&found, 1, NULL) == 0 && *yields == i / 32);
        CHECK(v->ops[11](&got, 1, NULL) == 3);
        CHECK(ibv_open_device(&ours) == v); /* again */
    }
    *yields = 0;
    struct context *w = ibv_open_device(&other), *x = ibv_open_device(&second);
    for (int i = 0; i < 100; i++)
        CHECK(w->ops[11](&found, 1, NULL) == 0 && x->ops[11](&found, 1, NULL) == 1000);
    CHECK(*yields == 0);
    CHECK(v->ops[11] != w->ops[11]);
}
#endif

#ifndef MODULE
static int yields;

/* What the library calls. */
long syscall(long n, ...)
{
    static long (*next)(long, ...);
    long a[6];
    va_list l;
    if (!next)
        next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
    va_start(l, n);
    for (int i = 0; i < 6; i++)
        a[i] = va_arg(l, long);
    va_end(l);
    yields += n == SYS_sched_yield;
    return next(n, a[0], a[1], a[2], a[3], a[4], a[5]);
}

int main(int n, char **arg)
{
#ifdef LOADER
    CHECK(n == 2);
    void *m = dlopen(arg[1], RTLD_NOW | RTLD_LOCAL);
    CHECK(m);
    void (*run)(int *) = (void (*)(int *))dlsym(m, "run");
    CHECK(run);
#else
    (void)n;
    (void)arg;
#endif
    run(&yields);
    return 0;
}
#endif
