// Package preload holds libsoftnic.so, the C library that `softnic exec` puts into LD_PRELOAD
// of a verbs program. It gives that program a device that the kernel does not have, by
// carrying a few calls of the C library to a daemon (package uverbs, which has the protocol).
//
// The library is built by `make build` into the folder lib and embedded from there. In a clean
// clone the folder has a placeholder only; then Library says so.
//
// The sources are in src, outside of the Go package, which would not compile with C files
// in it; src/build.sh makes the library, for make and for the tests.
//
// It knows nothing of the verbs interface beyond which file descriptors travel in which
// command, how a doorbell looks, and where a program has the function that polls: a program that polls without end lets the daemon
// have the processor now and then, without which two processors are too few for two programs and two daemons.
package preload
