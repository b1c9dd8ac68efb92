package tap

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"
)

// The frames below were written by hand from the layouts in the RFCs, and their
// checksums computed by a program of another language, not by this package.
// The NIC is 10.8.0.2, fd00:8::2 and 02:53:44:00:00:02, the host 10.8.0.1,
// fd00:8::1 and 02:53:44:00:00:a1.
const (
	arpAsk    = "ffffffffffff 0253440000a1 0806 0001 0800 06 04 0001 0253440000a1 0a080001 000000000000 0a080002"
	arpAnswer = "0253440000a1 025344000002 0806 0001 0800 06 04 0002 025344000002 0a080002 0253440000a1 0a080001"

	arpProbe       = "ffffffffffff 0253440000a1 0806 0001 0800 06 04 0001 0253440000a1 00000000 000000000000 0a080002"
	arpProbeAnswer = "0253440000a1 025344000002 0806 0001 0800 06 04 0002 025344000002 0a080002 0253440000a1 00000000"

	arpOurs       = "ffffffffffff 025344000002 0806 0001 0800 06 04 0001 025344000002 0a080002 000000000000 0a080001"
	arpHostAnswer = "025344000002 0253440000a1 0806 0001 0800 06 04 0002 0253440000a1 0a080001 025344000002 0a080002"

	arpGratuitous = "ffffffffffff 025344000002 0806 0001 0800 06 04 0001 025344000002 0a080002 000000000000 0a080002"

	ndAsk    = "3333ff000002 0253440000a1 86dd 60000000 0020 3a ff fd000008000000000000000000000001 ff0200000000000000000001ff000002 87 00 3894 00000000 fd000008000000000000000000000002 0101 0253440000a1"
	ndAnswer = "0253440000a1 025344000002 86dd 60000000 0020 3a ff fd000008000000000000000000000002 fd000008000000000000000000000001 88 00 d82e 60000000 fd000008000000000000000000000002 0201 025344000002"

	ndProbe       = "3333ff000002 0253440000a1 86dd 60000000 0018 3a ff 00000000000000000000000000000000 ff0200000000000000000001ff000002 87 00 7d9b 00000000 fd000008000000000000000000000002"
	ndProbeAnswer = "333300000001 025344000002 86dd 60000000 0020 3a ff fd000008000000000000000000000002 ff020000000000000000000000000001 88 00 1635 20000000 fd000008000000000000000000000002 0201 025344000002"

	ndOurs       = "3333ff000001 025344000002 86dd 60000000 0020 3a ff fd000008000000000000000000000002 ff0200000000000000000001ff000001 87 00 3934 00000000 fd000008000000000000000000000001 0101 025344000002"
	ndHostAnswer = "025344000002 0253440000a1 86dd 60000000 0020 3a ff fd000008000000000000000000000001 fd000008000000000000000000000002 88 00 d790 60000000 fd000008000000000000000000000001 0201 0253440000a1"

	// TOS b8, ID 4242, an odd length, and Ethernet padding behind it.
	ping4 = "025344000002 0253440000a1 0800 45b8 0023 4242 4000 40 01 e3cd 0a080001 0a080002 08 00 3a77 1234 0007 736f66746e6963 eeeeeeeeeeeeeeeeeeeeee"
	pong4 = "0253440000a1 025344000002 0800 45b8 0023 0000 4000 40 01 2610 0a080002 0a080001 00 00 4277 1234 0007 736f66746e6963"

	// With four bytes of IP options, which the answer leaves out.
	ping4Options = "025344000002 0253440000a1 0800 4600 0028 0000 4000 40 01 23c2 0a080001 0a080002 01010100 08 00 3a56 1234 0007 736f66746e696321"
	pong4Options = "0253440000a1 025344000002 0800 4500 0024 0000 4000 40 01 26c7 0a080002 0a080001 00 00 4256 1234 0007 736f66746e696321"

	ping6 = "025344000002 0253440000a1 86dd 60000000 000f 3a 40 fd000008000000000000000000000001 fd000008000000000000000000000002 80 00 c818 1234 0007 736f66746e6963"
	pong6 = "0253440000a1 025344000002 86dd 60000000 000f 3a 40 fd000008000000000000000000000002 fd000008000000000000000000000001 81 00 c718 1234 0007 736f66746e6963"

	ping6All = "333300000001 0253440000a1 86dd 60000000 000f 3a 01 fe80000000000000005344fffe0000a1 ff020000000000000000000000000001 80 00 80b4 1234 0007 736f66746e6963"
	pong6All = "0253440000a1 025344000002 86dd 60000000 000f 3a 40 fe80000000000000005344fffe000002 fe80000000000000005344fffe0000a1 81 00 3ce2 1234 0007 736f66746e6963"
)

var (
	nicMAC  = hw{0x02, 0x53, 0x44, 0, 0, 0x02}
	hostMAC = hw{0x02, 0x53, 0x44, 0, 0, 0xa1}
	nic4    = netip.MustParseAddr("10.8.0.2")
	nic6    = netip.MustParseAddr("fd00:8::2")
	host4   = netip.MustParseAddr("10.8.0.1")
	host6   = netip.MustParseAddr("fd00:8::1")
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// rig is a node with a clock that the test moves and a record of what was sent.
type rig struct {
	*node
	t    testing.TB
	now  time.Time
	sent [][]byte
}

func newRig(t testing.TB, addrs ...string) *rig {
	if addrs == nil {
		addrs = []string{"10.8.0.2/24", "fd00:8::2/64"}
	}
	var prefixes []netip.Prefix
	for _, a := range addrs {
		prefixes = append(prefixes, netip.MustParsePrefix(a))
	}
	r := &rig{t: t, now: time.Unix(1000, 0)}
	r.node = newNode(nicMAC, prefixes, slog.New(slog.DiscardHandler), func(f []byte) { r.sent = append(r.sent, bytes.Clone(f)) })
	return r
}

// in has a frame arrive.
func (r *rig) in(frame string) verdict {
	r.t.Helper()
	return r.input(unhex(r.t, frame))
}

func (r *rig) input(b []byte) verdict {
	f := r.classify(b)
	if f.verdict == control {
		return r.answer(b, f, r.now)
	}
	return f.verdict
}

// wait moves the time, doing on the way what is due.
func (r *rig) wait(d time.Duration) {
	end := r.now.Add(d)
	for at, ok := r.deadline(); ok && !at.After(end); at, ok = r.deadline() {
		r.now = at
		r.tick(at)
	}
	r.now = end
}

// want checks what was sent since the last call.
func (r *rig) want(frames ...string) {
	r.t.Helper()
	got := r.sent
	r.sent = nil
	if len(got) != len(frames) {
		r.t.Fatalf("%d frames sent, want %d: %x", len(got), len(frames), got)
	}
	for i := range frames {
		if w := unhex(r.t, frames[i]); !bytes.Equal(got[i], w) {
			r.t.Fatalf("frame %d\n got %x\nwant %x", i, got[i], w)
		}
	}
}

// send is what Tap.Send does with a frame, of which only the payload matters
// here. It returns the MAC, zero if the frame was held or lost.
func (r *rig) send(dst netip.Addr, payload string) hw {
	src := nic4
	if dst.Is6() {
		src = nic6
	}
	mac, ok, nb := r.resolve(src, dst, r.now)
	if !ok {
		r.hold(nb, append(make([]byte, ethLen), payload...))
		return hw{}
	}
	return mac
}

func TestAnswers(t *testing.T) {
	for _, c := range []struct{ name, in, out string }{
		{"ARP request", arpAsk, arpAnswer},
		{"ARP probe", arpProbe, arpProbeAnswer},
		{"neighbour solicitation", ndAsk, ndAnswer},
		{"duplicate address detection", ndProbe, ndProbeAnswer},
		{"ping", ping4, pong4},
		{"ping with IP options", ping4Options, pong4Options},
		{"ping of IPv6", ping6, pong6},
		{"ping of all nodes", ping6All, pong6All},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if v := r.in(c.in); v != control {
				t.Errorf("verdict %d", v)
			}
			r.want(c.out)

			// With Ethernet padding, and behind a priority tag.
			r.in(c.in + strings.Repeat("00", 18))
			r.want(c.out)
			r.in(c.in[:26] + "8100 e000 " + c.in[26:])
			r.want(c.out)
		})
	}
}

// edit returns a frame with bytes replaced from an offset on, as "14:0806".
func edit(t testing.TB, frame, change string) []byte {
	t.Helper()
	b := unhex(t, frame)
	var at int
	var with string
	if _, err := fmt.Sscanf(strings.Replace(change, ":", " ", 1), "%d %s", &at, &with); err != nil {
		t.Fatal(err)
	}
	copy(b[at:], unhex(t, with))
	return b
}

func TestNoAnswer(t *testing.T) {
	fix4 := func(b []byte) []byte { // IP checksum
		b[24], b[25] = 0, 0
		be.PutUint16(b[24:], fold(sum(b[14:34], 0)))
		return b
	}
	fix6 := func(b []byte) []byte { // ICMPv6 checksum
		sealICMPv6(b[14:54], b[54:])
		return b
	}
	for _, c := range []struct {
		name  string
		frame []byte
		want  verdict
	}{
		{"to another station", edit(t, arpAsk, "0:0253440000bb"), foreign},
		{"our own come back", edit(t, arpAsk, "6:025344000002"), foreign},
		{"source is a group", edit(t, arpAsk, "6:0353440000a1"), foreign},
		{"source is zero", edit(t, arpAsk, "6:000000000000"), malformed},
		{"another EtherType", edit(t, arpAsk, "12:88cc"), ignored},
		{"VLAN 5", unhex(t, arpAsk[:26]+"8100 0005 "+arpAsk[26:]), ignored},
		{"VLAN tag cut off", unhex(t, arpAsk[:26]+"8100 00"), malformed},

		{"ARP for another", edit(t, arpAsk, "38:0a080003"), control},
		{"ARP hardware type", edit(t, arpAsk, "14:0006"), malformed},
		{"ARP protocol type", edit(t, arpAsk, "16:86dd"), malformed},
		{"ARP hardware length", edit(t, arpAsk, "18:08"), malformed},
		{"ARP protocol length", edit(t, arpAsk, "19:10"), malformed},
		{"ARP operation", edit(t, arpAsk, "20:0003"), malformed},
		{"ARP from a group", edit(t, arpAsk, "22:ffffffffffff"), malformed},
		{"ARP from nobody", edit(t, arpAsk, "22:000000000000"), malformed},
		{"ARP sender is our MAC", edit(t, arpAsk, "22:025344000002"), ignored},
		{"ARP reply", edit(t, arpAsk, "20:0002"), control},

		{"ND hop limit", edit(t, ndAsk, "21:fe"), malformed},
		{"ND checksum", edit(t, ndAsk, "56:3895"), malformed},
		{"ND code", fix6(edit(t, ndAsk, "55:01")), malformed},
		{"ND for another", fix6(edit(t, ndAsk, "77:03")), ignored},
		{"ND target is a group", fix6(edit(t, ndAsk, "62:ff02")), malformed},
		{"ND option of length 0", fix6(edit(t, ndAsk, "79:00")), malformed},
		{"ND option too long", fix6(edit(t, ndAsk, "79:02")), malformed},
		{"ND MAC is a group", fix6(edit(t, ndAsk, "80:03")), malformed},
		{"ND from a group", fix6(edit(t, ndAsk, "22:ff02")), malformed},
		{"ND probe with a MAC", fix6(edit(t, ndAsk, "22:00000000000000000000000000000000")), malformed},
		{"ND probe to our address", fix6(edit(t, ndProbe, "38:fd000008000000000000000000000002")), malformed},
		{"router solicitation", fix6(edit(t, ndAsk, "54:85")), ignored},
		{"IPv6 payload longer than the frame", edit(t, ndAsk, "18:0021"), malformed},

		{"ping: IP checksum", edit(t, ping4, "24:e3ce"), malformed},
		{"ping: ICMP checksum", edit(t, ping4, "36:3a78"), malformed},
		{"ping: code", edit(t, ping4, "35:01"), malformed}, // the checksum is wrong then
		{"ping: first fragment", fix4(edit(t, ping4, "20:2000")), ignored},
		{"ping: later fragment", fix4(edit(t, ping4, "20:0001")), ignored},
		{"ping from ourselves", fix4(edit(t, ping4, "26:0a080002")), ignored},
		{"ping from a group", fix4(edit(t, ping4, "26:e0000001")), ignored},
		{"ping from the broadcast address", fix4(edit(t, ping4, "26:ffffffff")), ignored},
		{"ping from nobody", fix4(edit(t, ping4, "26:00000000")), ignored},
		{"ping of a group", fix4(edit(t, ping4, "30:e0000001")), ignored},
		{"ping of another", fix4(edit(t, ping4, "30:0a080003")), ignored},
		{"total length beyond the frame", fix4(edit(t, ping4, "16:0100")), malformed},
		{"total length below the header", fix4(edit(t, ping4, "16:0013")), malformed},
		{"header length below 20", edit(t, ping4, "14:44"), malformed},
		{"header length beyond the packet", edit(t, ping4, "14:4f"), malformed},
		{"IPv6 in an IPv4 frame", edit(t, ping4, "14:65"), malformed},
		{"IPv4 in an IPv6 frame", edit(t, ping6, "14:40"), malformed},
		{"ping of IPv6 from ourselves", fix6(edit(t, ping6, "22:fd000008000000000000000000000002")), ignored},
		{"ping of IPv6 from nobody", fix6(edit(t, ping6, "22:00000000000000000000000000000000")), ignored},
		{"ping of IPv6: code", fix6(edit(t, ping6, "55:01")), malformed},
		{"ping of another group", fix6(edit(t, ping6All, "53:02")), ignored},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if v := r.input(c.frame); v != c.want {
				t.Errorf("verdict %d, want %d", v, c.want)
			}
			r.want()
		})
	}
}

// Every frame that is cut off anywhere is dropped.
func TestCutOff(t *testing.T) {
	for _, frame := range []string{arpAsk, ndAsk, ndProbe, ping4Options, ping6, roce4, roce6} {
		b := unhex(t, frame)
		if frame == roce4 || frame == roce6 { // package wire looks at the rest
			b = b[:len(b)-4]
		}
		for n := range len(b) {
			r := newRig(t)
			if v := r.input(b[:n:n]); v != malformed {
				t.Errorf("%d bytes of %s: verdict %d", n, frame, v)
			}
			r.want()
		}
	}
}

// The first bytes of UDP packets to port 4791.
const (
	roce4 = "025344000002 0253440000a1 0800 4500 0020 0000 4000 40 11 0000 0a080001 0a080002 c000 12b7 000c 0000 00000000"
	roce6 = "025344000002 0253440000a1 86dd 60000000 000c 11 40 fd000008000000000000000000000001 fd000008000000000000000000000002 c000 12b7 000c 0000 00000000"
)

func TestDeliver(t *testing.T) {
	for _, c := range []struct {
		name, frame, change string
		want                verdict
	}{
		{"IPv4", roce4, "0:0253", deliver},
		{"IPv6", roce6, "0:0253", deliver},
		{"to the link-local address", roce6, "38:fe80000000000000005344fffe000002", deliver},
		{"to an IPv4 group", roce4, "30:ef010203", deliver},
		{"to an IPv6 group", roce6, "38:ff0e", deliver},
		{"in a multicast frame", roce4, "0:01005e010203", deliver},
		{"wrong IP checksum: wire says so", roce4, "24:1234", deliver},
		{"total length beyond the frame: wire says so", roce4, "16:0100", deliver},
		{"first fragment: wire says so", roce4, "20:2000", deliver},
		{"later fragment", roce4, "20:2001", ignored},
		{"to another address", roce4, "30:0a080003", ignored},
		{"to another IPv6 address", roce6, "53:03", ignored},
		{"to the broadcast address", roce4, "30:0a0800ff", ignored},
		{"to another port", roce4, "36:12b8", ignored},
		{"TCP", roce4, "23:06", ignored},
		{"to another MAC", roce4, "0:0253440000bb", foreign},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			if v := r.input(edit(t, c.frame, c.change)); v != c.want {
				t.Errorf("verdict %d, want %d", v, c.want)
			}
			r.want()
		})
	}
	r := newRig(t)
	if v := r.in(roce4[:26] + "8100 0000 " + roce4[26:]); v != deliver {
		t.Errorf("behind a priority tag: verdict %d", v)
	}
}

// An echo of the largest MTU fits.
func TestPingMaxMTU(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		r := newRig(t)
		var b []byte
		if v6 {
			b = append(unhex(t, ping6)[:62], make([]byte, MaxMTU-48)...)
			be.PutUint16(b[18:], MaxMTU-40)
			sealICMPv6(b[14:54], b[54:])
		} else {
			b = append(unhex(t, ping4)[:42], make([]byte, MaxMTU-28)...)
			be.PutUint16(b[16:], MaxMTU)
			b[24], b[25], b[36], b[37] = 0, 0, 0, 0
			be.PutUint16(b[24:], fold(sum(b[14:34], 0)))
			be.PutUint16(b[36:], fold(sum(b[34:], 0)))
		}
		if r.input(b); len(r.sent) != 1 || len(r.sent[0]) != ethLen+MaxMTU {
			t.Fatalf("IPv6 %v: %d answers", v6, len(r.sent))
		}
		if !r.selfCheck(r.sent[0]) {
			t.Errorf("IPv6 %v: wrong checksum", v6)
		}
	}
}

func TestAnnounce(t *testing.T) {
	r := newRig(t)
	r.announce()
	if len(r.sent) != 3 { // and one for the link-local address
		t.Fatalf("%d frames", len(r.sent))
	}
	r.sent = r.sent[:2]
	r.want(arpGratuitous, ndProbeAnswer)
}

func TestDefend(t *testing.T) {
	r := newRig(t)
	claim := "ffffffffffff 0253440000a1 0806 0001 0800 06 04 0002 0253440000a1 0a080002 0253440000a1 0a080002"
	r.in(claim)
	r.want(arpGratuitous)
	r.wait(defendEvery - time.Millisecond)
	r.in(claim) // not again so soon: two that both defend would never end
	r.want()
	r.wait(time.Millisecond)
	r.in(claim)
	r.want(arpGratuitous)

	// An advertisement for our address from another.
	theirs := unhex(t, ndProbeAnswer)
	copy(theirs[6:], hostMAC[:])
	copy(theirs[80:], hostMAC[:])
	sealICMPv6(theirs[14:54], theirs[54:])
	r.input(theirs)
	r.want(ndProbeAnswer)
	if n := r.count.conflicts.Load(); n != 4 {
		t.Errorf("%d conflicts counted, want 4", n)
	}
	if len(r.table) != 0 {
		t.Error("a neighbour was learned with our own address")
	}
}

func TestResolve4(t *testing.T) {
	r := newRig(t)
	if r.send(host4, "one") != (hw{}) {
		t.Fatal("sent to a neighbour that nobody knows")
	}
	r.send(host4, "two")
	r.want(arpOurs)
	r.in(arpHostAnswer)
	head := "0253440000a1 000000000000 0000"
	r.want(head+hex.EncodeToString([]byte("one")), head+hex.EncodeToString([]byte("two")))
	if m := r.send(host4, "three"); m != hostMAC {
		t.Fatalf("MAC %s", m)
	}
	if _, ok := r.deadline(); ok {
		t.Error("a request is still out")
	}
}

func TestResolve6(t *testing.T) {
	r := newRig(t)
	r.send(host6, "one")
	r.want(ndOurs)
	r.in(ndHostAnswer)
	r.want("0253440000a1 000000000000 0000" + hex.EncodeToString([]byte("one")))
	if m := r.send(host6, "two"); m != hostMAC {
		t.Fatalf("MAC %s", m)
	}
}

// Who asks us is known, and needs not be asked.
func TestLearnFromRequest(t *testing.T) {
	r := newRig(t)
	r.in(arpAsk)
	r.in(ndAsk)
	r.sent = nil
	if r.send(host4, "") != hostMAC || r.send(host6, "") != hostMAC {
		t.Error("not learned")
	}
	r.want()

	r = newRig(t)
	r.input(edit(t, arpAsk, "38:0a080003")) // asks another
	r.input(edit(t, arpAsk, "28:0b000001")) // asks us, from another network
	r.in(arpProbe)
	r.in(arpHostAnswer) // nobody asked
	r.in(ndHostAnswer)
	if len(r.table) != 0 {
		t.Errorf("learned %d neighbours", len(r.table))
	}
}

func TestGiveUp(t *testing.T) {
	r := newRig(t)
	for i := range maxHeld + 4 {
		r.send(host4, fmt.Sprint(i))
	}
	if n := r.count.noNeighbour.Load(); n != 4 {
		t.Errorf("%d frames lost at once, want 4", n)
	}
	r.want(arpOurs)
	r.wait(askEvery - 1)
	r.want()
	r.wait(1)
	r.want(arpOurs)
	r.wait(askEvery)
	r.want(arpOurs)
	r.wait(askEvery)
	r.want()
	if n := r.count.noNeighbour.Load(); n != maxHeld+4 {
		t.Errorf("%d frames lost, want %d", n, maxHeld+4)
	}
	if n := r.count.unanswered.Load(); n != 1 {
		t.Errorf("%d neighbours given up", n)
	}
	if len(r.table) != 0 || len(r.waiting) != 0 || r.unknown != 0 {
		t.Errorf("left: %d, %d, %d", len(r.table), len(r.waiting), r.unknown)
	}
	if _, ok := r.deadline(); ok {
		t.Error("still a deadline")
	}
	r.in(arpHostAnswer) // too late
	r.want()
	r.send(host4, "again")
	r.want(arpOurs)
}

// The answer to the last request still counts, and brings what was held.
func TestLateAnswer(t *testing.T) {
	r := newRig(t)
	r.send(host4, "x")
	r.wait(askTimes*askEvery - 1)
	r.sent = nil
	r.in(arpHostAnswer)
	if len(r.sent) != 1 {
		t.Fatalf("%d frames", len(r.sent))
	}
}

func TestNewMAC(t *testing.T) {
	moved := hw{0x02, 0x53, 0x44, 0, 0, 0xcc}
	r := newRig(t)
	r.in(arpAsk)
	r.in(ndAsk)
	r.sent = nil

	// A gratuitous ARP.
	r.in("ffffffffffff 0253440000cc 0806 0001 0800 06 04 0001 0253440000cc 0a080001 000000000000 0a080001")
	if m := r.send(host4, ""); m != moved {
		t.Errorf("IPv4: MAC %s", m)
	}
	na := func(flags byte) []byte { // unsolicited
		b := unhex(t, ndHostAnswer)
		copy(b, "\x33\x33\x00\x00\x00\x01")
		copy(b[6:], moved[:])
		a := allNodes.As16()
		copy(b[38:], a[:])
		b[58] = flags
		copy(b[80:], moved[:])
		sealICMPv6(b[14:54], b[54:])
		return b
	}
	r.input(na(0))
	if m := r.send(host6, ""); m != hostMAC {
		t.Errorf("without override: MAC %s", m)
	}
	if v := r.input(na(naOverride | naSolicited)); v != malformed {
		t.Errorf("solicited, to a group: verdict %d", v)
	}
	r.input(na(naOverride))
	if m := r.send(host6, ""); m != moved {
		t.Errorf("with override: MAC %s", m)
	}
	r.want()
}

func TestStale(t *testing.T) {
	r := newRig(t)
	r.in(arpAsk)
	r.wait(staleAfter)
	r.sent = nil
	if r.send(host4, "") != hostMAC {
		t.Fatal("forgotten")
	}
	r.want()
	r.wait(1)
	for range 2 {
		if r.send(host4, "") != hostMAC {
			t.Fatal("not used while asked for again")
		}
	}
	unicast := "0253440000a1" + arpOurs[12:]
	r.want(unicast)
	r.in(arpHostAnswer)
	r.wait(10 * askEvery)
	if r.send(host4, "") != hostMAC {
		t.Fatal("forgotten")
	}
	r.want()

	// Nobody answers.
	r.wait(staleAfter)
	r.send(host4, "")
	r.wait(2 * askEvery)
	r.want(unicast, arpOurs, arpOurs)
	r.wait(askEvery)
	if r.send(host4, "held") != (hw{}) {
		t.Error("used although nobody answers")
	}
	r.want(arpOurs)

	// IPv6: to the neighbour alone, then to its group.
	r.in(ndAsk)
	r.wait(staleAfter + 1)
	r.sent = nil
	if r.send(host6, "") != hostMAC {
		t.Fatal("forgotten")
	}
	first := r.sent[0]
	if dst := ip6Addr(first[38:]); hw(first[:6]) != hostMAC || dst != host6 {
		t.Errorf("asked %x, %s", first[:6], dst)
	}
	r.sent = nil
	r.wait(askEvery)
	r.want(ndOurs)
	// An answer without the option, as a unicast solicitation may get.
	short := unhex(t, ndHostAnswer)[:78]
	be.PutUint16(short[18:], ndLen)
	sealICMPv6(short[14:54], short[54:])
	r.input(short)
	if _, ok := r.deadline(); ok {
		t.Error("still asking")
	}
}

func TestNextHop(t *testing.T) {
	far4, far6 := netip.MustParseAddr("192.0.2.7"), netip.MustParseAddr("2001:db8::7")
	r := newRig(t)
	if r.nextHop(far4) != far4 || r.nextHop(far6) != far6 {
		t.Error("without a gateway the destination is to be on the link")
	}
	r.gateway4, r.gateway6 = host4, host6
	near := netip.MustParseAddr("10.8.0.77")
	peer := netip.MustParseAddr("fe80::1")
	for dst, hop := range map[netip.Addr]netip.Addr{far4: host4, far6: host6, near: near, peer: peer, host4: host4} {
		if got := r.nextHop(dst); got != hop {
			t.Errorf("to %s by %s, want %s", dst, got, hop)
		}
	}
	r.send(far4, "x")
	r.want(arpOurs)
	r.in(arpHostAnswer)
	if len(r.sent) != 1 || r.send(far4, "") != hostMAC {
		t.Error("not sent to the gateway")
	}
}

// The request carries an address of ours, whatever the packet claims.
func TestAsker(t *testing.T) {
	r := newRig(t, "10.8.0.2/24", "10.8.1.2/24")
	for src, want := range map[string]string{"10.8.1.2": "10.8.1.2", "192.0.2.1": "10.8.0.2", "fd00:8::2": "10.8.0.2"} {
		if got := r.asker(netip.MustParseAddr(src), host4); got.String() != want {
			t.Errorf("%s: asks as %s, want %s", src, got, want)
		}
	}
	if got := r.asker(nic6, host6); got != r.linkLocal {
		t.Errorf("asks as %s", got)
	}
	if got := newRig(t, "fd00:8::2/64").asker(nic4, host4); !got.IsUnspecified() {
		t.Errorf("asks as %s", got)
	}
}

func TestGroups(t *testing.T) {
	r := newRig(t)
	for dst, want := range map[string]string{
		"239.129.2.3":  "01:00:5e:01:02:03", // 23 bits
		"224.0.0.1":    "01:00:5e:00:00:01",
		"ff0e::1:2:3":  "33:33:00:02:00:03",
		"ff02::ffff:7": "33:33:ff:ff:00:07",
	} {
		if m := r.send(netip.MustParseAddr(dst), ""); m.String() != want {
			t.Errorf("%s: %s, want %s", dst, m, want)
		}
	}
	for _, dst := range []string{"10.8.0.2", "0.0.0.0", "255.255.255.255", "127.0.0.1", "::", "::1", "::ffff:10.8.0.1", "fd00:8::2"} {
		if m := r.send(netip.MustParseAddr(dst), ""); m != (hw{}) {
			t.Errorf("%s: %s", dst, m)
		}
	}
	r.want()
	if n := r.count.noNeighbour.Load(); n != 8 {
		t.Errorf("%d lost, want 8", n)
	}
}

func TestTableLimits(t *testing.T) {
	r := newRig(t, "10.0.0.2/8")
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }
	// As many strangers as may be asked for, and one more.
	for i := range maxUnknown + 1 {
		r.send(addr(i+1), "x")
	}
	if len(r.sent) != maxUnknown || r.count.noNeighbour.Load() != 1 {
		t.Errorf("%d asked for, %d lost", len(r.sent), r.count.noNeighbour.Load())
	}
	r.wait(askTimes * askEvery)
	if len(r.table) != 0 || r.unknown != 0 {
		t.Fatalf("%d, %d left", len(r.table), r.unknown)
	}

	// More requests than the table holds: the ones in use stay.
	for i := range maxNeighbours + 100 {
		r.learn(addr(i+1), hw{2, 0, 0, 0, byte(i >> 8), byte(i)}, true, r.now)
		r.wait(1)
		if r.send(addr(1), "") == (hw{}) {
			t.Fatalf("the neighbour in use went, after %d", i)
		}
	}
	if len(r.table) != maxNeighbours {
		t.Errorf("%d neighbours", len(r.table))
	}
	if r.table[addr(2)] != nil {
		t.Error("the oldest is still there")
	}
	// A new destination finds room.
	r.sent = nil
	r.send(addr(9000), "x")
	if len(r.sent) != 1 || len(r.table) != maxNeighbours {
		t.Errorf("%d sent, %d neighbours", len(r.sent), len(r.table))
	}
}

// selfCheck reports whether a frame that we sent would be accepted by our own
// strict parsers.
func (n *node) selfCheck(frame []byte) bool {
	if len(frame) < ethLen || hw(frame[6:12]) != n.mac {
		return false
	}
	b := frame[ethLen:]
	switch be.Uint16(frame[12:]) {
	case typeARP:
		_, ok := parseARP(b)
		return ok && len(b) == arpLen
	case typeIPv4:
		p, ok := parseIP4(b)
		return ok && len(p) == len(b) && fold(sum(p.payload(), 0)) == 0
	case typeIPv6:
		p, ok := parseIP6(b)
		if !ok || len(p) != len(b) || fold(sum(p.payload(), pseudo6(p, len(p.payload())))) != 0 {
			return false
		}
		if k := p.payload()[0]; k == ndSolicit || k == ndAdvertise {
			_, ok = parseND(p, p.payload())
		}
		return ok
	}
	return false
}

// seeds are frames of every kind, for the fuzzers.
var seeds = []string{
	arpAsk, arpAnswer, arpProbe, arpHostAnswer, arpGratuitous, ndAsk, ndProbe, ndHostAnswer, ndProbeAnswer,
	ping4, ping4Options, ping6, ping6All, roce4, roce6,
}

func FuzzFrame(f *testing.F) {
	for _, s := range seeds {
		f.Add(unhex(f, s), true, true)
		f.Add(unhex(f, s[:26]+"8100 0000 "+s[26:]), false, false)
	}
	f.Fuzz(func(t *testing.T, frame []byte, asking, repaired bool) {
		r := newRig(t)
		if repaired { // so that the fuzzer gets beyond the checksums
			repair(frame)
		}
		if asking { // so that answers matter
			r.send(host4, "held")
			r.send(host6, "held")
			r.sent = nil
		}
		before := bytes.Clone(frame)
		r.input(frame)
		if !bytes.Equal(frame, before) {
			t.Error("the frame was changed")
		}
		answers := 0
		for _, s := range r.sent {
			if bytes.HasSuffix(s, []byte("held")) {
				continue
			}
			if answers++; answers > 1 {
				t.Error("more than one answer to a frame")
			}
			if !r.selfCheck(s) {
				t.Errorf("sent %x", s)
			}
			if len(s) > max(len(frame)+28, 86) {
				t.Errorf("%d bytes sent for %d", len(s), len(frame))
			}
		}
		for ip, nb := range r.table {
			if r.own[ip] || nb.known && (!nb.mac.unicast() || nb.mac == r.mac) {
				t.Errorf("learned %s at %s", ip, nb.mac)
			}
		}
		r.wait(10 * askEvery)
		if len(r.waiting) != 0 || r.unknown != 0 {
			t.Errorf("still waiting: %d, %d", len(r.waiting), r.unknown)
		}
	})
}

// repair makes the checksums of an untagged IP packet right.
func repair(frame []byte) {
	if len(frame) < ethLen+ip4Len {
		return
	}
	b := frame[ethLen:]
	switch n := int(b[0]&15) * 4; be.Uint16(frame[12:]) {
	case typeIPv4:
		total := int(be.Uint16(b[2:]))
		if n < ip4Len || total < n+echoLen || total > len(b) {
			return
		}
		b[10], b[11], b[n+2], b[n+3] = 0, 0, 0, 0
		be.PutUint16(b[10:], fold(sum(b[:n], 0)))
		be.PutUint16(b[n+2:], fold(sum(b[n:total], 0)))
	case typeIPv6:
		if p, ok := parseIP6(b); ok && len(p.payload()) >= 4 {
			sealICMPv6(p, p.payload())
		}
	}
}

func FuzzARP(f *testing.F) {
	f.Add(unhex(f, arpAsk)[ethLen:])
	f.Add(unhex(f, arpHostAnswer)[ethLen:])
	f.Fuzz(func(t *testing.T, b []byte) {
		a, ok := parseARP(b)
		if !ok {
			return
		}
		out := putARP(make([]byte, 64), a.op(), broadcast, a.senderMAC(), a.senderIP(), hw(a[18:24]), a.targetIP())
		if !bytes.Equal(out[ethLen:], b[:arpLen]) {
			t.Errorf("read and written again:\n got %x\nwant %x", out[ethLen:], b[:arpLen])
		}
	})
}

func FuzzND(f *testing.F) {
	for _, s := range []string{ndAsk, ndProbe, ndHostAnswer, ndProbeAnswer} {
		f.Add(unhex(f, s)[ethLen:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		p, ok := parseIP6(b)
		if !ok {
			return
		}
		m, ok := parseND(p, p.payload())
		if !ok {
			return
		}
		if m.target.IsMulticast() || m.hasMAC && !m.mac.unicast() || m.kind == ndSolicit && m.hasMAC && p.src().IsUnspecified() {
			t.Errorf("accepted %x", b)
		}
	})
}

func FuzzIP(f *testing.F) {
	for _, s := range []string{ping4, ping4Options, roce4} {
		f.Add(unhex(f, s)[ethLen:])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if p, ok := parseIP4(b); ok {
			if len(p) > len(b) || len(p.payload()) > len(p)-ip4Len {
				t.Errorf("%d bytes of payload in %d", len(p.payload()), len(b))
			}
			_, _, _ = p.src(), p.dst(), p.fragment()
		}
		if p, ok := parseIP6(b); ok && ip6Len+len(p.payload()) != len(p) {
			t.Error("lengths differ")
		}
	})
}

func TestChecksum(t *testing.T) {
	// The example of RFC 1071 section 3: the sum is ddf2.
	b := unhex(t, "0001 f203 f4f5 f6f7")
	if got := fold(sum(b, 0)); got != ^uint16(0xddf2) {
		t.Errorf("%04x", got)
	}
	// Split anywhere at an even place, and with an odd end.
	long := slices.Repeat([]byte{0xff, 0xfe, 0x80}, 3001)
	whole := fold(sum(long, 0))
	for i := 0; i < len(long); i += 500 {
		if got := fold(sum(long[i:], sum(long[:i], 0))); got != whole {
			t.Errorf("split at %d: %04x, want %04x", i, got, whole)
		}
	}
	var slow uint32
	for i, c := range long {
		slow += uint32(c) << (8 * (1 - i%2))
		slow = slow>>16 + slow&0xffff
	}
	if whole != ^uint16(slow) {
		t.Errorf("%04x, want %04x", whole, ^uint16(slow))
	}
}

func TestAddresses(t *testing.T) {
	if got := nicMAC.linkLocal().String(); got != "fe80::53:44ff:fe00:2" {
		t.Error(got)
	}
	// RFC 4291 section 2.7.1.
	if got := solicitedNode(netip.MustParseAddr("4037::1:800:200e:8c6c")).String(); got != "ff02::1:ff0e:8c6c" {
		t.Error(got)
	}
}
