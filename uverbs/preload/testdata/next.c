/* A library that is preloaded after ours: what comes here was passed on. */
#include <sys/socket.h>

int socket(int domain, int type, int protocol)
{
    (void)type;
    (void)protocol;
    return domain == AF_NETLINK ? 99 : -1;
}
