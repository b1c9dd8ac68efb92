package pipe

import (
	"context"
	"encoding/binary"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
)

// Config describes one end of a pipe. The zero value is an end without addresses,
// that sees the IP header, on a link without Ethernet.
type Config struct {
	Name     string           // for people; empty: "pipe"
	MTU      int              // largest IP packet in bytes; 0: 4200, so that an IB MTU of 4096 fits
	Addrs    []netip.Prefix   // addresses of the NIC, in order of precedence
	MAC      net.HardwareAddr // nil: made up from the first address or the name
	Latency  time.Duration    // from the other end to this one, by Clock; 0: none
	Clock    clock.Clock      // when packets arrive; nil: clock.Real. Stepped devices go by one clock with their pipe
	HideIP   bool             // imitate a UDP socket: deliver rebuilt headers and the UDP payload, IP ID unknown
	Ethernet bool             // frames carry Ethernet headers; set at one end it counts for both
	SrcPort  uint16           // UDP source port of all packets; 0: each Path sets its own
	MaxSegs  int              // packets of a burst; 0: 1
	InFlight int              // link.Info.InFlight, that devices share among their queue pairs; 0: not known
	Queue    int              // packets that may wait for Recv, more are lost; 0: 4096
}

// End is one end of a pipe. It implements link.Endpoint; its methods may be called from any goroutine.
type End struct {
	in    *link.Queue
	lost  stats.Counter // sent while down, or the other end was full
	other *End          // nil where the other end is raw
	raw   *link.Queue   // its inbox

	mu    sync.Mutex
	info  link.Info
	watch func()
	hide  bool
}

var _ link.Endpoint = (*End)(nil)

// New returns the two ends of a pipe. Nothing runs, and nothing has to be closed, until a device is opened on an end.
func New(a, b Config) (*End, *End) {
	a.Ethernet = a.Ethernet || b.Ethernet
	b.Ethernet = a.Ethernet
	x, y := newEnd(a), newEnd(b)
	x.other, y.other = y, x
	return x, y
}

func newEnd(c Config) *End {
	e := &End{hide: c.HideIP}
	e.info = link.Info{
		Name: c.Name, MTU: c.MTU, MAC: c.MAC, Addrs: slices.Clone(c.Addrs), Up: true,
		SeesIP: !c.HideIP, Ethernet: c.Ethernet, SrcPort: c.SrcPort, MaxSegs: max(c.MaxSegs, 1), InFlight: c.InFlight,
		IDRule: "written",
	}
	if e.info.Name == "" {
		e.info.Name = "pipe"
	}
	if e.info.MTU == 0 {
		e.info.MTU = 4200
	}
	if e.info.MAC == nil {
		e.info.MAC = makeMAC(&c)
	}
	if c.Queue == 0 {
		c.Queue = 4096
	}
	e.in = link.NewQueue(c.Queue, c.Clock)
	e.in.Latency = c.Latency
	return e
}

func makeMAC(c *Config) net.HardwareAddr {
	if len(c.Addrs) > 0 {
		return link.MakeMAC(c.Addrs[0].Addr())
	}
	h := fnv.New128a()
	h.Write([]byte(c.Name))
	return link.MakeMAC(netip.AddrFrom16([16]byte(h.Sum(nil))))
}

// Info returns what the end is.
func (e *End) Info() link.Info {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.info
	i.Addrs = slices.Clone(i.Addrs)
	return i
}

// Watch has f called after Change, see link.Endpoint.
func (e *End) Watch(f func()) {
	e.mu.Lock()
	e.watch = f
	e.mu.Unlock()
}

// Change lets f change the Info of the end, as a person changes a network interface: MTU,
// addresses, Up. Who watches is told on a goroutine of its own. While an end is
// not Up what is sent at either end is lost.
func (e *End) Change(f func(i *link.Info)) {
	e.mu.Lock()
	up, downs := e.info.Up, e.info.Downs
	f(&e.info)
	e.info.Downs = downs
	if up && !e.info.Up {
		e.info.Downs++
	}
	w := e.watch
	e.mu.Unlock()
	if w != nil {
		go w()
	}
}

func (e *End) up() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.info.Up
}

// Send puts the frames into the queue of the other end. After Close the error is net.ErrClosed.
func (e *End) Send(frames []*link.Frame) error {
	if e.in.Closed() {
		return net.ErrClosed
	}
	up := e.up() && (e.other == nil || e.other.up())
	for _, f := range frames {
		if f.Eth != nil {
			copy(f.Eth[6:], e.info.MAC) // MAC and Ethernet are never changed
			switch {
			case f.Eth[0]&1 != 0: // to a group
			case e.other != nil:
				copy(f.Eth, e.other.info.MAC)
			default:
				copy(f.Eth, rawMAC)
			}
		}
		switch {
		case !up:
			e.lost.Inc()
		case e.other == nil:
			e.raw.Put(0, f.AppendTo)
		case e.other.hide && f.Raw: // nothing for a UDP socket
			e.other.lost.Inc()
		case e.other.hide:
			e.other.in.Put(len(f.Net), func(dst []byte) []byte {
				dst = f.AppendIP(dst)
				forgetID(dst)
				return dst
			})
		default:
			e.other.in.Put(0, f.AppendTo)
		}
	}
	return nil
}

// Recv fills b with what has arrived, see link.Endpoint. After Close the error is net.ErrClosed.
func (e *End) Recv(b *link.Batch, wait bool) error { return e.in.Recv(b, wait) }

// Next returns when the next packet arrives, if one is on its way: for a device that steps.
func (e *End) Next() (time.Time, bool) { return e.in.Next() }

// Counters returns how many packets were lost on the way from this end (link_tx_lost) and to it (link_rx_lost).
func (e *End) Counters() []stats.Value {
	return []stats.Value{
		{Name: "link_tx_lost", Value: e.lost.Load()},
		{Name: "link_rx_lost", Value: e.in.Lost()},
	}
}

// Close closes this end; what the other one sends is lost from then on. It is idempotent, and the error is nil.
func (e *End) Close() error {
	e.in.Close()
	if e.raw != nil {
		e.raw.Close()
	}
	return nil
}

// forgetID makes the IP header of a packet that of a UDP socket's receiver: ID 0, and
// DF, which link/udp takes as set.
func forgetID(ip []byte) {
	if ip[0]>>4 != 4 {
		return
	}
	ip[4], ip[5], ip[6], ip[7] = 0, 0, 0x40, 0
	wire.PutIPChecksum(ip)
}

// rawMAC is the Ethernet address of a raw end.
var rawMAC = net.HardwareAddr{0x02, 0, 0, 0, 0, 0xFE}

// Raw is an end where a script stands in for a NIC: it sees and makes frames as bytes,
// from the Ethernet header on where the pipe has Ethernet, else from the IP header
// on. Its methods may be called from any goroutine.
type Raw struct {
	end *End
	in  *link.Queue
	mu  sync.Mutex // serialises Read
	b   *link.Batch
}

// NewRaw returns an endpoint and the raw end that it talks to.
func NewRaw(c Config) (*End, *Raw) {
	e := newEnd(c)
	e.raw = link.NewQueue(4096, c.Clock)
	return e, &Raw{end: e, in: e.raw, b: link.NewBatch(1)}
}

// Write sends a frame. The endpoint gets the bytes as they are; one that imitates a UDP socket gets only whole UDP datagrams to
// the RoCE port and never sees the rest, as it is with a kernel in between. What finds the queue full, or the end down, is lost
// without an error. After Close the error is net.ErrClosed.
func (r *Raw) Write(frame []byte) error {
	if r.end.in.Closed() {
		return net.ErrClosed
	}
	if !r.end.up() {
		r.end.lost.Inc()
		return nil
	}
	fill := func(dst []byte) []byte { return append(dst, frame...) }
	if !r.end.hide {
		r.end.in.Put(0, fill)
		return nil
	}
	if r.end.info.Ethernet {
		frame = frame[min(wire.EthLen, len(frame)):]
	}
	if n := netLen(frame); n > 0 {
		ib := int(binary.BigEndian.Uint16(frame[n-4:])) - 8
		frame = frame[:n+ib]
		r.end.in.Put(n, func(dst []byte) []byte {
			dst = append(dst, frame...)
			forgetID(dst)
			return dst
		})
	}
	return nil
}

// netLen returns the length of the IP and UDP headers of a packet that a kernel would
// hand to a socket on the RoCE port, else 0.
func netLen(ip []byte) int {
	n := wire.NetLen4
	switch {
	case len(ip) >= wire.NetLen4 && ip[0] == 0x45 && ip[9] == 17 && binary.BigEndian.Uint16(ip[6:])&0x3FFF == 0:
	case len(ip) >= wire.NetLen6 && ip[0]>>4 == 6 && ip[6] == 17:
		n = wire.NetLen6
	default:
		return 0
	}
	udp := ip[n-8:]
	l := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp[2:]) != wire.Port || l < 8 || n-8+l > len(ip) {
		return 0
	}
	return n
}

// Read returns the next frame that the endpoint sent. It waits for one until ctx is
// done; after Close the error is net.ErrClosed. The frame is the caller's.
func (r *Raw) Read(ctx context.Context) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.in.RecvContext(ctx, r.b); err != nil {
		return nil, err
	}
	return slices.Clone(r.b.Packets[0].Frame), nil
}

// TryRead returns the next frame that the endpoint sent, nil if there is none. The frame is the caller's.
func (r *Raw) TryRead() []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.in.Recv(r.b, false); err != nil || len(r.b.Packets) == 0 {
		return nil
	}
	return slices.Clone(r.b.Packets[0].Frame)
}

// Close closes both ends. The error is nil.
func (r *Raw) Close() error { return r.end.Close() }
