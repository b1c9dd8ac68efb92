// Package device is the RDMA adapter: a verbs-shaped API over a link.
//
// A program opens a [Device] on a link endpoint, takes a [Context] (what a process is
// to a kernel driver), and from it protection domains, memory regions, completion
// queues, queue pairs and address handles. The names are those of ibv_*, and a man page of rdma-core says of its function
// what holds here too, unless the comment of the method says otherwise.
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
// # Objects
//
//	object       made by                verbs                    what it is
//	Device       Open                   the adapter              one port on one link
//	Context      Device.NewContext      ibv_open_device          the owner of all that follows
//	PD           Context.AllocPD        ibv_alloc_pd             whose keys are good for whose queue pairs
//	MR           PD.RegMR, RegMemory    ibv_reg_mr               memory with an L_Key and an R_Key
//	MW           PD.AllocMW             ibv_alloc_mw             an R_Key for a part of an MR, by work request
//	FastMR       PD.AllocMR             ib_alloc_mr (kernel)     a region that gets its memory by work request
//	CQ           Context.CreateCQ       ibv_create_cq            where completions come
//	CompChannel  ...CreateCompChannel   ibv_create_comp_channel  where events of many CQs come
//	QP           PD.CreateQP            ibv_create_qp            a send queue and a receive queue
//	SRQ          PD.CreateSRQ           ibv_create_srq           one receive queue for many QPs
//	AH           PD.CreateAH            ibv_create_ah            where datagrams go
//	XRCD         Context.AllocXRCD      ibv_open_xrcd            SRQs that XRC targets may fill
//
// There is an example of each, and more under [QP] (Modify, Attach), [CQ] (Wait), [Device] (Step, Port) and [Context] (AsyncEvent).
//
// # Devices and links
//
// A device stands on a [link.Endpoint]: a UDP socket (package link/udp), a TAP interface (tap), or one end of a cable in memory
// (link/pipe), where two devices make a network inside one test. Open takes the endpoint over, [Device.Close] closes it.
// A device has port 1. Its state, addresses and MTU are those of the link ([Device.QueryPort], [Device.QueryGID]). A GID is an IP
// address: entry 0 of the table is the link-local address of the MAC, entry 1 the first IPv4 address, if there is one. The P_Key table
// is that of [Options].PKeys. What differs between adapters is a [Profile].
//
// # Ownership
//
// Objects belong to their Context, and stand on each other: a queue pair on a PD, two CQs and perhaps an SRQ, a region on a PD.
// What others still use cannot be destroyed (EBUSY; EINVAL for a region with windows). [Context.Close] frees everything in
// order at any moment, also with traffic in flight. An object that was destroyed refuses what it is asked for with EINVAL; a
// closed Context makes nothing any more (EIO).
//
// # The life of a queue pair
//
// A queue pair begins in RESET. [QP.Modify] takes it to INIT, where receives can be posted, to RTR, where it receives, and to
// RTS, where it sends: three calls, with attributes that depend on the service. [QP.Connect] makes them for RC, UC and XRC,
// [QP.Activate] for the others. Each side of a connection must know the other's GID, queue pair number and first PSN;
// [QP.Address] has them, and the program carries them over ([Remote]).
//
// An error takes a reliable connection to ERR: what is outstanding completes with [StatusFlush], and so does what is
// posted from then on. The way back is by RESET. UC, datagrams and raw packets go to SQE over a failed send, and back to
// RTS by Modify. SQD stops the send queue between two requests, for changing attributes.
//
// # Posting and polling
//
// A work request is copied when it is posted, with its lists and inline data; the memory that its SGEs name is used until it
// completes. Requests end in the order in which they were posted to the queue pair. One that ends makes a completion: a receive
// always, a send if it is [Signaled], the queue pair is SigAll, or it fails. Its place in the queue is free again, completion
// or not. A queue without a free place is ENOMEM.
//
// [CQ.Poll] takes completions, [CQ.Wait] waits for them. [CQ.Arm] asks for an event instead: it comes to the [CompChannel] of
// the queue or to its Handler. A completion queue that overflows loses completions, raises [EventCQErr] once, and takes the queue
// pair to ERR with [EventQPFatal]: make it as long as all that can be outstanding on it.
//
// # Memory and keys
//
// [PD.RegMR] makes a region of a slice. Its addresses are those of the bytes in this process ([AddrOf]), unless it is
// [ZeroBased]. The slice is not copied: the program and peers touch the same bytes, and what is read while a peer may write is
// a data race as with any hardware. The L_Key goes into SGEs, the R_Key to peers. Keys are random. [MR.Dereg] waits until no
// access runs; after it no key of the region is good for anything.
//
// Memory of another kind (a file, another process) is a [Memory] for [PD.RegMemory]; [MapFile] makes one that FLUSH can persist.
//
// # Events
//
// What nobody asked for is an [AsyncEvent]: to the Handler of the queue pair if it has one, else to the list of the Context, from where
// [Context.AsyncEvent] takes it. When state or GID table of the port change each Context gets one
// event for each change (EventPortErr, EventPortActive, EventGIDChange), and QueryPort and QueryGID tell
// by then what is new; how soon a link knows, and what it cannot see, its package says (link/udp, tap). A link that has
// failed for good is EventDeviceFatal, the last event of the port.
//
// # Concurrency
//
// All methods may be called from any goroutine, with two exceptions: Device.Close not from a handler, and
// [MR.Rereg] not while another goroutine calls a method of that MR. Whoever has work runs the
// engine of a queue pair inline under its lock: the poster, and who receives. That is, on a link that lets it
// (link/udp), whoever polls or waits for completions, and a goroutine of the device when nobody does; then, acknowledgements
// may wait for what the program posts in answer, or for its next look, so that a program that polls has to destroy its queue pairs
// or close the device before it exits: what it held would be lost, and its peer would find no acknowledgement.
// A goroutine per queue pair does what nobody else is there for: timers, RNR
// waits, long READ responses, and what other objects do to the queue pair. Locks are
// taken in the order queue pair, shared receive queue, completion queue, event list; no
// lock is held while packets are sent, and packets are never delivered under one.
//
// Event handlers (the Handler of a CQ or of a queue pair) run one at a time on one goroutine per device with no lock held: they
// may call the device, and hold up other handlers while they run. What is called at once and under locks must neither block nor
// call the device: CQInit.Notify, QPInit.StateChanged, the f of [Context.OnAsyncEvent], rings, the Logger.
//
// Under testing/synctest a device is idle when all its goroutines wait, so that timers run in fake time. A device with
// [Options].Stepped has no goroutines at all: [Device.Step] does what is due.
//
// # In tests
//
// Two devices on a link/pipe, inside testing/synctest, are a network under fake time, with losses by rule (link/impair):
// TestExampleTwoNICs in example_synctest_test.go is made to be copied.
//
//	synctest.Test(t, func(t *testing.T) {
//		x, y := pipe.New(pipe.Config{Addrs: ...}, pipe.Config{Addrs: ...})
//		loss, err := impair.New("tx opcode=SEND_ONLY count=1 drop")
//		a, err := device.Open(x, device.Options{Link: link.PortOptions{Impair: loss}})
//		b, err := device.Open(y, device.Options{})
//		defer a.Close() // in the bubble
//		defer b.Close()
//		...
//	})
//
// # Errors
//
// An error of a method of Device or of its objects is an [*OpError]: one line that says which verb, on which object, why.
// [ErrnoOf] finds the [Errno] that a verbs program would see. Each method says which there are; where it makes something, EIO
// from a Context that is closed, and EINVAL for what it stands on having been destroyed or being of another Context, go without
// saying. What waits ([CQ.Wait], [CompChannel.Get], [Context.AsyncEvent]) fails with EIO when that is destroyed, and with the
// error of its context.Context, which errors.Is finds. A request that was taken and then fails is no error of a method but a
// completion with a [Status].
//
// The package never opens a socket and knows no wire format beyond what
// packages wire and transport tell it.
package device
