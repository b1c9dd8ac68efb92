package link

import (
	"net"
	"net/netip"
	"time"

	"github.com/softnic/softnic/wire"
)

// Endpoint is the I/O end of a port: it sends framed packets and receives raw
// ones, in batches.
//
// Send and Recv may be called at the same time from different goroutines;
// neither is called by two goroutines at once (the port sees to that).
// Close makes a blocked Recv return net.ErrClosed, and all later calls too.
type Endpoint interface {
	// Info returns what the endpoint is and can do now.
	Info() Info

	// Watch has f called, on a goroutine of its own, whenever Info changed
	// (addresses, MTU, link state). Several changes may be one call. One f at a time; nil ends it.
	// What an endpoint cannot see, or sees late, its package says.
	Watch(f func())

	// Send transmits the frames in order and keeps none of them. A frame that
	// the network refuses (no neighbour, buffer full) is lost as on any wire; it is counted by
	// the endpoint. The error is for conditions that the caller must know of: net.ErrClosed.
	Send(frames []*Frame) error

	// Recv fills b with packets that have arrived, at most cap(b.Packets) of
	// them. With wait it blocks until there is one; without it returns with an
	// empty batch. The packets stay valid until the next Recv with this batch.
	Recv(b *Batch, wait bool) error

	// Close frees everything. It is idempotent.
	Close() error
}

// Info describes an endpoint.
type Info struct {
	Name     string           // for people: "udp 127.0.0.1:4791", "tap sn0"
	Netdev   string           // network interface, empty if there is none
	MTU      int              // largest IP packet in bytes
	MAC      net.HardwareAddr // 6 bytes; made up where the link has none
	Addrs    []netip.Prefix   // addresses of the NIC, in order of precedence, without link-local of the MAC
	Up       bool             // carrier
	Downs    int              // how often Up has become false, so that who is told late knows of each time
	SeesIP   bool             // received packets carry their IP header
	Ethernet bool             // frames carry an Ethernet header
	SrcPort  uint16           // UDP source port of every packet; 0 where each Path sets its own
	MaxSegs  int              // packets of one burst that share one system call and count IP IDs from 0; at least 1
	InFlight int              // bytes that may be under way to an endpoint such as this without being lost in its buffers; 0: not known
	IDRule   string           // how the IP ID of sent packets is known: "written", "verified", "unverified", "broken"
}

// Frame is one framed packet: Eth, Net and IB, in this order.
//
// A burst is a frame with Segment 0 and those after it up to the next Segment 0: they
// share a Path, all but the last have the same length, and there are at most
// Info.MaxSegs of them. Their IBs stand one behind the other in memory, see Burst.
type Frame struct {
	*wire.Packet
	Eth     []byte // 14 bytes where Info.Ethernet; addresses are filled in by the endpoint, that of a multicast group by the port
	Net     []byte // IP and UDP header
	IB      []byte // from the BTH to the ICRC, of which Packet has the parts; all of an Ethernet frame with Raw
	Segment int    // index in the burst, from 0: the IPv4 ID
	Raw     bool   // IB is sent as it is: no headers, no Path, never in a burst

	buf  [wire.EthLen + wire.MaxNetLen]byte
	note string // impairment rule that touched it
}

// Burst returns the IBs of the frames of a burst, or of one, as one piece.
func Burst(frames []*Frame) []byte {
	n := 0
	for _, f := range frames {
		n += len(f.IB)
	}
	return frames[0].IB[:n]
}

// Packet is one received packet, raw.
type Packet struct {
	Frame   []byte     // whole, from Ethernet (Info.Ethernet) or from IP on; nil when Net and IB are given
	Net, IB []byte     // IP and UDP header and the UDP payload: from links that do not see the IP header, and that take bursts apart
	Eth     []byte     // with those two: the Ethernet header, from links that see it
	When    time.Time  // arrival
	View    wire.View  // filled by Port.Parse
	Fault   wire.Fault // why it is not taken; OK: nothing against it so far
	Other   bool       // what a Diverter brings in; Parse gives it NotRoCE and does not look at it

	passed bool   // receive impairment has been applied
	was    []byte // what it was before a rule changed it, for the capture; empty: as it is
	wasNet int    // how much of that is before the BTH
	held   bool   // and it is not to be captured as it is now, but when it goes on
	note   string // impairment rule that touched it
}

// Batch is a reusable set of received packets; the zero value is not usable, see NewBatch.
type Batch struct {
	Packets []Packet // as many as the last Recv found

	scratch any       // buffers of the endpoint that fills it
	bufs    [][]byte  // buffers of the Queue that filled it, to be given back
	owner   *Queue    // that queue
	arrived time.Time // the oldest of Packets, as the sink was told; zero: it was not
	later   []later   // what Port.Done is to put into the loop
	aside   []aside   // what Port.Parse has taken out of Packets, for the capture
	rec     Record    // for Port.Done, so that it need not be allocated
	checker wire.Checker
}

// NewBatch returns a batch for up to n packets, 1 or more.
func NewBatch(n int) *Batch {
	return &Batch{Packets: make([]Packet, 0, n), bufs: make([][]byte, 0, n)}
}

// Add adds an empty packet, for which there must be room, to be filled in place: a Packet is five cache lines.
func (b *Batch) Add() *Packet {
	n := len(b.Packets)
	b.Packets = b.Packets[:n+1]
	p := &b.Packets[n]
	*p = Packet{}
	return p
}

// Scratch returns the buffers that an endpoint keeps with a batch, made by
// alloc at first use. A batch serves one endpoint only, beside any number of queues.
func (b *Batch) Scratch(alloc func() any) any {
	if b.scratch == nil {
		b.scratch = alloc()
	}
	return b.scratch
}
