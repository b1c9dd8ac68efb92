// Package device is the RDMA adapter: a verbs-shaped API over a link.
//
// A program opens a Device on a link endpoint, takes a Context (what a
// process is to a kernel driver), and from it protection domains, memory
// regions, completion queues, queue pairs and address handles. The names are those
// of ibv_*; every method that can fail returns an *OpError that wraps one of the Errno values
// that verbs programs know.
//
//	dev, err := device.Open(endpoint, device.Options{})
//	ctx := dev.NewContext()
//	pd, err := ctx.AllocPD()
//	cq, err := ctx.CreateCQ(device.CQInit{Entries: 64})
//	mr, err := pd.RegMR(make([]byte, 4096), device.LocalWrite)
//	qp, err := pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{SendWR: 16, RecvWR: 16}})
//	err = qp.Connect(psn, remote, device.ConnectOptions{})
//	err = qp.PostSend(&device.SendWR{...})
//
// # Concurrency
//
// All methods may be called from any goroutine, but Device.Close not from a handler. Whoever has work runs the
// engine of a queue pair inline under its lock: the poster, the receive loop.
// A goroutine per queue pair does what nobody else is there for: timers, RNR
// waits, long READ responses, and what other objects do to the queue pair. Locks are
// taken in the order queue pair, shared receive queue, completion queue, event list; no
// lock is held while packets are sent, and packets are never delivered under one.
// Event handlers run on one goroutine per device with no lock held.
//
// # Ownership
//
// Objects belong to their Context. Destroying one that others still use
// gives EBUSY; Context.Close frees everything in order at any moment, also with traffic
// in flight.
//
// # The port
//
// A device has port 1. Its state, addresses and MTU are those of the link. When state or GID table change each Context gets one
// asynchronous event for each change (EventPortErr, EventPortActive, EventGIDChange), and QueryPort and QueryGID tell
// by then what is new; how soon a link knows, and what it cannot see, its package says (link/udp, tap). A link that has
// failed for good is EventDeviceFatal, the last event of all. The P_Key table is that of Options.PKeys.
//
// The package never opens a socket and knows no wire format beyond what
// packages wire and transport tell it.
package device
