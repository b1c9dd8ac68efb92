// Package transport is what the transport services share: work requests and
// completions, the seams to memory and queues, the list of packets to send, and the
// contract between an engine and the device that runs it.
//
// An engine (packages rc, uc, ud, raw) is a state machine without I/O: it takes an
// event and a time, and appends packets to a TxList, completions to its Host
// and the next deadline to its caller. It has no goroutine, socket, lock or
// clock. The device calls one engine from one goroutine at a time.
//
// Engines reach memory, queues and completion queues through the interfaces
// here; they never import the device.
package transport

// Time is a point in time in nanoseconds since the device was opened. Zero is
// used as "none" by deadlines; a device starts its clock at 1.
type Time int64
