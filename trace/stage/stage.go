package stage

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
)

// Options say what NIC there is to be.
type Options struct {
	Addr    netip.Addr // its address, IPv4 or IPv6
	LinkMTU int        // largest IP packet in bytes; 0: 4400, so that an IB MTU of 4096 fits with all headers
	Profile string     // see device.ProfileByName; "": ibta
	PKeys   []uint16   // the P_Key table; nil: the default one
	// RxeFlushICRC: the peer is rdma_rxe, see link.PortOptions.
	RxeFlushICRC bool

	// Sent is called for every packet that the NIC sends, from its IP header on; it keeps no reference.
	Sent func(packet []byte)
	// Taken is called for every packet that the NIC has looked at: what came of it. nil: nobody wants to know.
	Taken func(f wire.Fault)
}

// NIC is a device under virtual time, with one context, protection domain, completion queue and XRC domain.
type NIC struct {
	Device *device.Device
	Ctx    *device.Context
	PD     *device.PD
	CQ     *device.CQ // of everything that is made here
	XRCD   *device.XRCD

	end     *end
	numbers numbers
	taken   func(wire.Fault)
	start   time.Time
	now     time.Duration
}

// epoch is when the time of every NIC begins; any moment would do.
var epoch = time.Unix(0, 0)

// New opens a NIC; its time is 0.
func New(o Options) (*NIC, error) {
	if o.LinkMTU == 0 {
		o.LinkMTU = 4400
	}
	n := &NIC{start: epoch, taken: o.Taken, numbers: numbers{rest: rand.NewChaCha8([32]byte{})}}
	clk := clock.NewManual(n.start)
	n.end = newEnd(o.Addr, o.LinkMTU, clk, o.Sent)
	dev, err := device.Open(n.end, device.Options{
		Clock: clk, Rand: &n.numbers, Stepped: true, Profile: o.Profile, PKeys: o.PKeys,
		SameKeys: true, // one number is drawn for a region, and is its R_Key
		Link:     link.PortOptions{Capture: (*verdicts)(n), RxeFlushICRC: o.RxeFlushICRC},
	})
	if err != nil {
		return nil, err
	}
	n.Device, n.Ctx = dev, dev.NewContext()
	if n.PD, err = n.Ctx.AllocPD(); err == nil {
		n.CQ, err = n.Ctx.CreateCQ(device.CQInit{Entries: device.MaxCQE})
	}
	if err == nil {
		n.XRCD, err = n.Ctx.AllocXRCD()
	}
	if err != nil {
		_ = dev.Close()
		return nil, err
	}
	return n, nil
}

// Close ends the NIC.
func (n *NIC) Close() error { return n.Device.Close() }

// Now returns the time, from 0 on.
func (n *NIC) Now() time.Duration { return n.now }

// Receive has a packet, from its IP header on, arrive at the NIC. The NIC looks at it in the next Step.
func (n *NIC) Receive(packet []byte) { n.end.put(packet) }

// Step has the NIC do what is due now. It returns when there is something to do even if nothing
// arrives; ok is false for never.
func (n *NIC) Step() (next time.Duration, ok bool) {
	t, ok := n.Device.Step(n.start.Add(n.now))
	return t.Sub(n.start), ok
}

// Advance moves the time to t, or to the next moment before t at which the NIC has something to do, and has it do
// that. It reports whether t was reached. A time that has passed changes nothing.
func (n *NIC) Advance(t time.Duration) (reached bool) {
	next, ok := n.Step()
	if t <= n.now {
		return true
	}
	reached = !ok || next >= t
	if reached {
		next = t
	}
	n.now = max(n.now, next)
	n.Step()
	return reached
}

// Run moves the time to t, and has the NIC do on the way what is due.
func (n *NIC) Run(t time.Duration) {
	for !n.Advance(t) {
	}
}

// SGIDIndex returns the entry of the GID table that has the NIC's address.
func (n *NIC) SGIDIndex() (int, error) {
	addr := n.end.info.Addrs[0].Addr()
	for i := range device.GIDTableLen {
		if g, err := n.Device.QueryGID(1, i); err == nil && g.Addr() == addr {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%s is in no entry of the GID table", addr)
}

// numbers is what the device draws: first those that were chosen, then a fixed sequence.
type numbers struct {
	next []byte
	rest *rand.ChaCha8
}

func (r *numbers) draw(v uint32) { r.next = binary.BigEndian.AppendUint32(r.next, v) }
func (r *numbers) clear()        { r.next = nil }

// Read implements io.Reader.
func (r *numbers) Read(b []byte) (int, error) {
	if len(r.next) == 0 {
		return r.rest.Read(b)
	}
	k := copy(b, r.next)
	r.next = r.next[k:]
	return k, nil
}

// verdicts tells what came of received packets.
type verdicts NIC

// Capture implements link.Sink.
func (v *verdicts) Capture(r *link.Record) {
	if r.Dir == link.Rx && v.taken != nil {
		v.taken(r.Fault)
	}
}
