package capture

import (
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
)

// Options are the settings of a Writer or a Log. The zero value is fine.
type Options struct {
	Logger *slog.Logger // hears of lost records and of errors; nil: nobody
	Limit  int          // bytes that may wait to be written, beyond which records are lost; 0: 32 MiB
}

// The interfaces of a NIC in a file, in this order.
const (
	ifTx = iota
	ifRx
	ifDropped
	ifImpaired
	ifCount
)

var interfaces = [ifCount]struct{ name, description string }{
	ifTx:       {"tx", "sent by"},
	ifRx:       {"rx", "received and accepted by"},
	ifDropped:  {"dropped", "dropped by, the comment says why:"},
	ifImpaired: {"impaired", "lost, held back or doubled on purpose by an impairment rule of"},
}

// Writer writes a pcapng file: for each NIC the interfaces tx, rx, dropped and impaired, for
// each packet its direction and, as a comment, the verdict: why it was dropped, or
// which retransmission it is. It is a link.Sink, for its first NIC.
//
// Records are written in order of time, of the same time those received first, some ten milliseconds after they came, in a
// form that can be followed. A packet that impairment held back is there twice, as impaired when it was
// held back and as sent or received when it went on; one that it changed likewise, as impaired how it was.
type Writer struct {
	nic
	spool spool
	log   *slog.Logger
	said  atomic.Bool // the loss was logged

	mu   sync.Mutex
	nics []*nic // in order of their interfaces
}

// nic is the sink of one NIC.
type nic struct {
	w          *Writer
	first      uint32 // ID of its first interface
	seen, lost [ifCount]atomic.Uint64
}

// NewWriter begins a file on w, which it does not close, for the packets of a NIC whose
// link has the Info given. The error is that of writing its head.
func NewWriter(w io.Writer, info link.Info, o Options) (*Writer, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	c := &Writer{log: o.Logger}
	c.spool.w, c.spool.limit = w, o.Limit
	if o.Limit == 0 {
		c.spool.limit = defaultLimit
	}
	c.nics = []*nic{&c.nic}
	c.nic.w = c
	if err := c.spool.direct(c.describe(section(nil, "softnic"), "", &info)); err != nil {
		return nil, fmt.Errorf("capture: cannot write: %w", err)
	}
	return c, nil
}

// Add adds a NIC to the file and returns its sink; its interfaces are called name/tx and so on. The error is that
// of writing.
func (c *Writer) Add(name string, info link.Info) (link.Sink, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := &nic{w: c, first: uint32(ifCount * len(c.nics))}
	if err := c.spool.direct(c.describe(nil, name+"/", &info)); err != nil {
		return nil, fmt.Errorf("capture: cannot write: %w", err)
	}
	c.nics = append(c.nics, n)
	return n, nil
}

func (c *Writer) describe(b []byte, prefix string, i *link.Info) []byte {
	typ := uint16(linkRaw)
	if i.Ethernet {
		typ = linkEthernet
	}
	for _, x := range interfaces {
		b = iface(b, typ, prefix+x.name, x.description+" softnic on "+i.Name, i.MAC, i.Addrs)
	}
	return b
}

// Capture takes a packet.
func (n *nic) Capture(r *link.Record) {
	i, flags := ifRx, byte(flagInbound)
	if r.Dir == link.Tx {
		i, flags = ifTx, flagOutbound
	}
	switch r.Fault {
	case wire.OK:
	case wire.Impaired:
		i = ifImpaired
	default:
		i = ifDropped
	}
	when, size, words := r.When, r.Len(), comment(r)
	ok := n.w.spool.put(when, r.Dir == link.Tx, func(b []byte) []byte {
		b, start := packetHead(b, n.first+uint32(i), when.UnixNano(), size)
		b = r.AppendTo(b)
		return packetTail(b, start, size, flags, words)
	})
	n.seen[i].Add(1)
	if !ok {
		n.lost[i].Add(1)
		if !n.w.said.Swap(true) {
			n.w.log.Warn("the capture cannot keep up: packets are missing from it", "err", n.w.spool.error())
		}
	}
}

// Arrived implements link.OrderedSink.
func (n *nic) Arrived(when time.Time) { n.w.spool.arrived(when) }

// Handled implements link.OrderedSink.
func (n *nic) Handled(when time.Time) { n.w.spool.handled(when) }

// comment says what a packet's comment is; the ordinary packet has none.
func comment(r *link.Record) string {
	s := ""
	switch {
	case r.Fault != wire.OK:
		s = r.Fault.String()
	case r.Dir == link.Rx:
	case r.Cause == wire.Replay || r.Cause == wire.Notify:
		s = r.Cause.String()
	}
	if r.Note != "" {
		s = join(s, ": ", r.Note)
	}
	if r.Dir == link.Tx && r.Cause.Retry() {
		s = join(s, "; ", fmt.Sprintf("retransmission %d (%v)", max(r.Round, 1), r.Cause))
	}
	return s
}

func join(a, sep, b string) string {
	if a == "" {
		return b
	}
	return a + sep + b
}

// Lost returns how many packets are missing from the file, of all its NICs.
func (c *Writer) Lost() (n uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, x := range c.nics {
		for i := range x.lost {
			n += x.lost[i].Load()
		}
	}
	return n
}

// Flush writes what was captured until now. The error is the first of all writing.
func (c *Writer) Flush() error {
	c.spool.flush(true)
	return c.spool.error()
}

// Close writes the rest, and last for each interface how many packets it had and how many
// of them are missing. The error is the first of all writing. It is idempotent.
func (c *Writer) Close() error {
	err := c.spool.close(func() (b []byte) {
		c.mu.Lock()
		defer c.mu.Unlock()
		now := time.Now().UnixNano()
		for _, n := range c.nics {
			for i := range n.seen {
				words, lost := "", n.lost[i].Load()
				if lost > 0 {
					words = fmt.Sprintf("%d packets are missing: they could not be written in time", lost)
				}
				b = statistic(b, n.first+uint32(i), now, n.seen[i].Load(), lost, words)
			}
		}
		return b
	})
	if lost := c.Lost(); lost > 0 {
		c.log.Warn("packets are missing from the capture", "packets", lost)
	}
	if err != nil {
		return fmt.Errorf("capture: cannot write: %w", err)
	}
	return nil
}
