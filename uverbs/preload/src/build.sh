#!/bin/sh
# build.sh OUT: makes the preload library. CC names another compiler, CPPFLAGS adds to its
# options. `make build` and the test of the package call it.
set -e
out=$(realpath -m "$1")
cd "$(dirname "$0")"
# No debug information and no path gets in: the same sources and compiler give the same bytes.
CC=${CC:-gcc}
command -v ${CC%% *} >/dev/null || {
    echo "softnic: the preload library needs a C compiler: apt-get install gcc libc6-dev" >&2
    exit 1
}
exec $CC -std=gnu11 -O2 -Wall -Wextra -Werror -fPIC -fvisibility=hidden -U_FORTIFY_SOURCE $CPPFLAGS \
    -shared -s -Wl,-z,relro,-z,now,-z,defs -o "$out" hooks.c poll.c context.c table.c
