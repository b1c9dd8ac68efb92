// Package uc is the unreliable connection service: one queue pair as a state
// machine without I/O.
//
// Messages are segmented as on a reliable connection, and nothing is answered: a request
// completes when its last packet has left. What is lost is lost, a message at a time: the
// responder drops what is left of a message that was cut, and takes the next one
// that begins (roce.md B.10).
//
// The device calls a Machine under the queue pair's lock; see package transport for
// the contract. The machine never blocks, never reads a clock and never sends.
package uc
