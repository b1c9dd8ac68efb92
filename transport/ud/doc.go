// Package ud is the unreliable datagram service: one queue pair as a state
// machine without I/O.
//
// A datagram is one packet of at most the port's MTU, sent once, to where the
// request's address handle points. A receive gets 40 bytes of GRH area and
// then the payload. There is no PSN check, no answer and no retry.
//
// The device calls a Machine under the queue pair's lock; see package transport for
// the contract. The machine never blocks, never reads a clock and never sends.
package ud
