package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
)

// Options are the settings of an endpoint. In the zero value all is as the comments say.
type Options struct {
	Clock      clock.Clock  // for arrival times; nil: clock.Real
	Logger     *slog.Logger // nil: silent
	SkipVerify bool         // do not verify how the host numbers IP packets; link.Info.IDRule is "unverified" then
	Buffer     int          // bytes asked for each socket buffer; 0: 8 MiB
	Plain      bool         // each packet is a datagram of its own from end to end: no UDP_SEGMENT and UDP_GRO, and a UDP checksum of 0
}

// minMTU is the least MTU of a network interface that has room for an IB MTU: 256 bytes and
// the 80 that headers are reckoned at.
const minMTU = 256 + 80

// watchEvery is how often the interface is looked at while somebody watches. Netlink
// would tell at once; it is kept out of here (design: only tap uses it), and a
// changed MTU shows as EMSGSIZE in the counters at once anyway.
const watchEvery = 3 * time.Second

// Endpoint is the link. It implements link.Endpoint.
type Endpoint struct {
	socket // the part that differs between systems

	addr netip.AddrPort
	clk  clock.Clock
	log  *slog.Logger
	name string // of the interface; empty if unknown

	mu     sync.Mutex
	info   link.Info
	watch  func()
	timer  *time.Timer
	closed bool

	members members // multicast groups
	count   counters
}

var _ link.Endpoint = (*Endpoint)(nil)

// counters count what the host refused or lost.
type counters struct {
	refused, noBuffer, tooLong, denied, unreachable, failed, wrongSource stats.Counter
	rxTruncated, rxLost                                                  stats.Counter
}

// Counters returns the endpoint's counters, in packets.
func (e *Endpoint) Counters() []stats.Value {
	c := &e.count
	return []stats.Value{
		{Name: "link_tx_no_buffer", Value: c.noBuffer.Load()},       // ENOBUFS
		{Name: "link_tx_refused", Value: c.refused.Load()},          // ECONNREFUSED: nobody on the peer's port
		{Name: "link_tx_too_long", Value: c.tooLong.Load()},         // EMSGSIZE: exceeds the MTU of the path
		{Name: "link_tx_denied", Value: c.denied.Load()},            // EPERM: a packet filter
		{Name: "link_tx_unreachable", Value: c.unreachable.Load()},  // no route, no neighbour, or the other IP version
		{Name: "link_tx_failed", Value: c.failed.Load()},            // any other error
		{Name: "link_tx_wrong_source", Value: c.wrongSource.Load()}, // source address is not the socket's
		{Name: "link_rx_truncated", Value: c.rxTruncated.Load()},    // longer than any RoCE packet
		{Name: "link_rx_lost", Value: c.rxLost.Load()},              // the socket's receive buffer was full
	}
}

// ParseAddr reads the address of a NIC: an IP address of the host, with or without a
// port. Without one it is the RoCE port, 4791. The error is one line. Whether the host has the address shows in Open.
func ParseAddr(s string) (netip.AddrPort, error) {
	a, err := netip.ParseAddr(strings.Trim(s, "[]"))
	if err == nil {
		return netip.AddrPortFrom(a.Unmap(), wire.Port), nil
	}
	host, port, err := net.SplitHostPort(s)
	if err == nil {
		if a, err = netip.ParseAddr(host); err == nil {
			n, perr := strconv.ParseUint(port, 10, 16)
			if perr != nil || n == 0 {
				return netip.AddrPort{}, fmt.Errorf("udp: %q: the port is 1 ... 65535, and %d if none is given", s, wire.Port)
			}
			return netip.AddrPortFrom(a.Unmap(), uint16(n)), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("udp: %q is not an IP address of this host, with or without :PORT", s)
}

// isBroadcast reports whether a is the first or the last address of an IPv4 network
// that the host is on: the kernel would let a socket have it.
func isBroadcast(a netip.Addr) bool {
	if !a.Is4() {
		return false
	}
	if a == netip.AddrFrom4([4]byte{255, 255, 255, 255}) {
		return true
	}
	nets, _ := net.InterfaceAddrs()
	for _, n := range nets {
		p, err := netip.ParsePrefix(n.String())
		if err != nil || !p.Addr().Is4() || p.Bits() > 30 || !p.Contains(a) {
			continue
		}
		host := uint32(1)<<(32-p.Bits()) - 1
		b := a.As4()
		if v := binary.BigEndian.Uint32(b[:]) & host; v == 0 || v == host {
			return true
		}
	}
	return false
}

// Open opens the socket on an address of the host, whose port is 4791 unless both ends agree on another; 0 has the host choose.
// The error is one line that says what to do: no address of one station, or none of this host, a port that is taken (rdma_rxe
// takes 4791 of the whole host), a network interface whose MTU is below 336.
func Open(addr netip.AddrPort, o Options) (*Endpoint, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Buffer == 0 {
		o.Buffer = 8 << 20
	}
	a := addr.Addr().Unmap()
	addr = netip.AddrPortFrom(a, addr.Port())
	if !a.IsValid() || a.IsUnspecified() || a.IsMulticast() {
		return nil, fmt.Errorf("udp: %v is no address to send from: name one address of this host; have: %s", a, hostAddrs())
	}
	if isBroadcast(a) {
		return nil, fmt.Errorf("udp: %v is a network's own or its broadcast address: name one address of this host; have: %s", a, hostAddrs())
	}
	e := &Endpoint{addr: addr, clk: clock.Or(o.Clock), log: o.Logger}
	if err := e.open(addr, o.Buffer); err != nil {
		return nil, openError(addr, err)
	}
	e.addr = netip.AddrPortFrom(a, e.port()) // asked for port 0 in tests
	e.info = link.Info{
		Name: "udp " + e.addr.String(), MAC: link.MakeMAC(a), SrcPort: e.addr.Port(), MaxSegs: e.segments(o.Plain), InFlight: e.inFlight(),
	}
	e.look(&e.info)
	e.name = e.info.Netdev
	if err := checkMTU(&e.info); err != nil {
		e.close()
		return nil, err
	}
	e.info.IDRule = "unverified"
	switch {
	case a.Is6():
		e.info.IDRule = "written" // IPv6 has no ID
	case !o.SkipVerify:
		if e.info.IDRule = idRule(a); e.info.IDRule == ruleBroken {
			e.log.Warn("this host numbers IP packets in its own way: only other softnic NICs on UDP sockets will accept our ICRC; use --tap for others",
				"address", a.String())
		}
	}
	return e, nil
}

func checkMTU(i *link.Info) error {
	if i.MTU >= minMTU {
		return nil
	}
	return fmt.Errorf("udp: the MTU of %s is %d, and the smallest IB MTU with its headers needs %d: raise it (ip link set %[1]s mtu 1500)",
		i.Netdev, i.MTU, minMTU)
}

// ruleBroken is the IDRule of a host that was seen to send other IDs than 0.
const ruleBroken = "broken"

// Info returns what the endpoint is and can do now.
func (e *Endpoint) Info() link.Info {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.info
	i.Addrs = slices.Clone(i.Addrs)
	return i
}

// Watch has f called when the MTU or the state of the network interface changed, which is looked at every three seconds:
// an interface that was down for less may not have been seen down. The address is that of the socket, and does not
// change; an interface that has lost it is down.
func (e *Endpoint) Watch(f func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.watch = f
	switch {
	case f == nil || e.closed:
		if e.timer != nil {
			e.timer.Stop()
			e.timer = nil
		}
	case e.timer == nil:
		e.timer = time.AfterFunc(watchEvery, e.poll)
	}
}

// poll runs on the goroutine of the timer.
func (e *Endpoint) poll() {
	e.mu.Lock()
	i := e.info
	e.mu.Unlock()
	e.look(&i) // asks the kernel: not under the lock
	e.mu.Lock()
	var f func()
	if e.timer != nil {
		if i.MTU != e.info.MTU || i.Up != e.info.Up {
			if e.info.Up && !i.Up {
				e.info.Downs++
			}
			e.info.MTU, e.info.Up = i.MTU, i.Up
			f = e.watch
		}
		e.timer.Reset(watchEvery)
	}
	e.mu.Unlock()
	if f != nil {
		f()
	}
}

// look fills in what the network interface that owns the address tells.
func (e *Endpoint) look(i *link.Info) {
	a := e.addr.Addr()
	ifi, prefix := owner(a)
	i.Addrs = []netip.Prefix{prefix}
	if ifi == nil {
		// Bound, and yet on no interface: the whole prefix is routed to this host, or the
		// interface has lost the address.
		i.Up = e.name == ""
		i.MTU = max(i.MTU, 1500)
		return
	}
	i.Netdev, i.Up = ifi.Name, ifi.Flags&net.FlagUp != 0
	i.MTU = min(ifi.MTU, 65535) // loopback has 65536, one more than IP can say
}

// owner returns the interface that has the address, nil if there is none, and the
// address with the length of its network's prefix.
func owner(a netip.Addr) (*net.Interface, netip.Prefix) {
	var found *net.Interface
	prefix := netip.PrefixFrom(a.WithZone(""), a.BitLen())
	ifs, _ := net.Interfaces()
	for n := range ifs {
		ifi := &ifs[n]
		addrs, _ := ifi.Addrs()
		for _, x := range addrs {
			p, ok := toPrefix(x)
			switch {
			case !ok || a.Zone() != "" && a.Zone() != ifi.Name:
			case p.Addr() == a.WithZone(""):
				return ifi, p
			case ifi.Flags&net.FlagLoopback != 0 && p.Contains(a):
				// every address of the loopback network is the host's
				found, prefix = ifi, netip.PrefixFrom(a, p.Bits())
			}
		}
	}
	return found, prefix
}

func toPrefix(a net.Addr) (netip.Prefix, bool) {
	n, ok := a.(*net.IPNet)
	if !ok {
		return netip.Prefix{}, false
	}
	ip, ok := netip.AddrFromSlice(n.IP)
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(ip.Unmap(), bits), ok
}

// hostAddrs lists the addresses of the host for people.
func hostAddrs() string {
	var l []string
	ifs, _ := net.Interfaces()
	for _, ifi := range ifs {
		addrs, _ := ifi.Addrs()
		for _, x := range addrs {
			if p, ok := toPrefix(x); ok && !p.Addr().IsLinkLocalUnicast() {
				l = append(l, ifi.Name+" "+p.Addr().String())
			}
		}
	}
	if l == nil {
		return "none"
	}
	return strings.Join(l, ", ")
}

// Close closes the socket, and ends Recv with net.ErrClosed. It is idempotent.
func (e *Endpoint) Close() error {
	e.Watch(nil)
	e.mu.Lock()
	was := e.closed
	e.closed = true
	e.mu.Unlock()
	if was {
		return nil
	}
	e.members.close()
	return e.close()
}

// closedError makes net.ErrClosed of the errors of a closed socket.
func closedError(err error) error {
	if errors.Is(err, net.ErrClosed) {
		return net.ErrClosed
	}
	return err
}
