// Package pipe is a link in memory: two endpoints, or one endpoint and a raw end where
// a test reads and writes the exact bytes of each frame.
//
// Tests of everything above package link use it, and the program where it has no
// socket to use. It starts no goroutine, waits only on a condition variable and
// on the clock it was given, and so works under a manual clock and inside
// testing/synctest. It never looks into a packet, except to imitate a UDP socket
// (Config.HideIP).
package pipe
