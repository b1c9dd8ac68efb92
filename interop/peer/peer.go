package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

// DefaultTimeout is how long Expect waits for a frame unless Peer.Timeout says
// otherwise. Nothing waits that long in a test that passes.
const DefaultTimeout = 5 * time.Second

// historyLen is how many frames a failure message looks back on.
const historyLen = 24

// Peer sends single frames and says what came back. It is for one goroutine, the
// one that runs the test.
type Peer struct {
	Conn Conn
	// Local and Remote are the addresses that Send puts into frames without any.
	Local, Remote netip.Addr
	// SrcPort, when it is not 0, is the UDP source port of every frame that comes
	// from a constructor (those have 0xC000). Behind a UDP socket it is the
	// socket's port.
	SrcPort uint16
	// Timeout is how long Next and Expect wait; 0 means DefaultTimeout.
	Timeout time.Duration
	// CheckICRC, when it is not nil, judges the ICRC of received packets in place of
	// the standard rule.
	CheckICRC func(ipPacket []byte) bool

	history []string
}

// New makes a Peer on a Conn. Behind a UDPConn the source port is that of the
// socket.
func New(conn Conn, local, remote netip.Addr) *Peer {
	p := &Peer{Conn: conn, Local: local, Remote: remote}
	if u, ok := conn.(*UDPConn); ok {
		p.SrcPort = u.LocalAddr().Port()
	}
	return p
}

// Address gives a copy of the frame with the peer's addresses where it has none,
// and the peer's source port where it has that of the constructors.
func (p *Peer) Address(f *Frame) *Frame {
	g := f.Clone()
	if !g.Src.IsValid() {
		g.Src = p.Local
	}
	if !g.Dst.IsValid() {
		g.Dst = p.Remote
	}
	if p.SrcPort != 0 && g.SrcPort == 0xC000 {
		g.SrcPort = p.SrcPort
	}
	return g
}

// Send sends the frames, in order, after Address. A frame that cannot be sent
// fails the test.
func (p *Peer) Send(t testing.TB, frames ...*Frame) {
	t.Helper()
	for _, f := range frames {
		g := p.Address(f)
		p.note("sent", g.String())
		if err := p.Conn.Write(g.Marshal()); err != nil {
			t.Fatalf("peer: sending %v: %v", g, err)
		}
	}
}

// SendRaw sends a packet as it is, from the IP header on.
func (p *Peer) SendRaw(t testing.TB, ipPacket []byte) {
	t.Helper()
	p.note("sent", fmt.Sprintf("raw packet of %d bytes", len(ipPacket)))
	if err := p.Conn.Write(ipPacket); err != nil {
		t.Fatalf("peer: sending a raw packet: %v", err)
	}
}

// Next waits for the next RoCE frame and returns it. It passes over other traffic,
// and fails the test if there is none in time or it is malformed or irregular in
// any way, a wrong ICRC first of all.
func (p *Peer) Next(t testing.TB) *Frame {
	t.Helper()
	timeout := p.Timeout
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	f, err := p.poll(timeout)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		t.Fatalf("peer: no frame within %v%s", timeout, p.recent())
	case err != nil:
		t.Fatalf("peer: %v%s", err, p.recent())
	}
	return f
}

// ExpectSilence fails the test if a RoCE frame comes in within d.
func (p *Peer) ExpectSilence(t testing.TB, d time.Duration) {
	t.Helper()
	f, err := p.poll(d)
	switch {
	case err == nil:
		t.Fatalf("peer: expected silence for %v, got %v%s", d, f, p.recent())
	case !errors.Is(err, os.ErrDeadlineExceeded):
		t.Fatalf("peer: expected silence for %v: %v%s", d, err, p.recent())
	}
}

// poll reads until a RoCE frame is there, and checks it.
func (p *Peer) poll(d time.Duration) (*Frame, error) {
	deadline := time.Now().Add(d)
	for {
		packet, err := p.Conn.Read(deadline)
		if err != nil {
			return nil, err
		}
		f, err := p.judge(packet)
		if errors.Is(err, ErrNotRoCE) {
			continue
		}
		switch {
		case f != nil:
			p.note("got ", f.String())
		default:
			p.note("got ", fmt.Sprintf("%x", packet))
		}
		return f, err
	}
}

// judge parses a packet and checks its ICRC and regularity.
func (p *Peer) judge(packet []byte) (*Frame, error) {
	icrcOK := CheckICRC
	if p.CheckICRC != nil {
		icrcOK = p.CheckICRC
	}
	if r, ok := p.Conn.(HeaderRebuilder); ok && r.RebuildsHeader() {
		packet = withSolvedID(packet)
	}
	f, err := Parse(packet)
	if err != nil {
		return nil, err
	}
	if !icrcOK(packet) {
		covered, found, _ := splitICRC(packet)
		return f, fmt.Errorf("wrong ICRC % x, should be % x, in %v\n%x", found, ICRC(covered), f, packet)
	}
	bad := f.Irregular()
	if p.CheckICRC != nil { // has judged above
		bad = slices.DeleteFunc(bad, func(what string) bool { return what == irregularICRC })
	}
	if len(bad) != 0 {
		return f, fmt.Errorf("irregular frame (%s): %v\n%x", strings.Join(bad, ", "), f, packet)
	}
	return f, nil
}

// withSolvedID gives the packet the identification with which its ICRC is right,
// if there is one.
func withSolvedID(packet []byte) []byte {
	v6, _, ok := ipLayout(packet)
	if !ok || v6 {
		return packet
	}
	id, ok := CheckICRCAnyID(packet)
	if !ok {
		return packet
	}
	solved := append([]byte(nil), packet...)
	solved[4], solved[5] = byte(id>>8), byte(id)
	solved[10], solved[11] = 0, 0
	sum := ^onesSum(0, solved[:20])
	solved[10], solved[11] = byte(sum>>8), byte(sum)
	return solved
}

func (p *Peer) note(dir, line string) {
	p.history = append(p.history, dir+" "+line)
	if len(p.history) > historyLen {
		p.history = p.history[len(p.history)-historyLen:]
	}
}

// recent is the last frames sent and received, for a failure message.
func (p *Peer) recent() string {
	if len(p.history) == 0 {
		return "\nno frames so far"
	}
	return "\nframes so far, oldest first:\n  " + strings.Join(p.history, "\n  ")
}
