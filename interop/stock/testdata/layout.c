#include <infiniband/verbs.h>
#include <stddef.h>

_Static_assert(offsetof(struct ibv_context, ops.poll_cq) == (1 + 11) * sizeof(void *), "poll_cq");
_Static_assert(offsetof(struct ibv_context, cmd_fd) == (1 + 32) * sizeof(void *), "cmd_fd");
