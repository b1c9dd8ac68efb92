// Package raw is the raw packet service: one queue pair, as a state machine without I/O, that sends
// and receives whole Ethernet frames.
//
// A request's gather list is a frame, header included; it leaves as it is, and completes when it has
// left. A receive gets one frame as it came. There is no transport header, no GRH area, no key and no
// connection.
//
// The device calls a Machine under the queue pair's lock; see package transport for
// the contract. It hands frames to Deliver, and never calls Receive with anything of use: no RoCE packet is for
// a raw queue pair. The machine never looks into a frame, never blocks, never reads a clock and never sends.
package raw
