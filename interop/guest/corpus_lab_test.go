//go:build linux

package guest

import (
	"bytes"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/corpus"
	"github.com/softnic/softnic/interop/judge"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
	record "github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/tap"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire/bth"
)

// golden is a file of the corpus (package corpus) in the making: what one run of do puts on the wire, between new queue pairs.
type golden struct {
	name  string // of the file: this and who requests, "softnic" or "rxe"
	only  string // who requests; "": one file for either
	shows string
	conn  opsConn
	rules []string // of impairment; "ask" and "answer" stand for the direction of that at softnic
	both  bool     // a second file, captured at softnic's end, has what it lost, too
	do    func(t *testing.T, p *opsPair, from, to opsEnd)

	breaks   []fault // of the kernel's device
	badICRC  *sight
	noReplay string // of the file of rxe's end
}

// sight finds frames in a capture, as package peer reads it: those of which at reports so, of which there are n.
type sight struct {
	n  int
	at func(l []*peer.Frame, i int) bool
}

// fault is a rule that the kernel's device breaks, and where.
type fault struct {
	rule rules.ID
	row  string
	sight
}

// golden makes the files of g.
func (l *opsLab) golden(t *testing.T, dev string, g golden) {
	t.Helper()
	for _, who := range []string{"softnic", "rxe"} {
		if g.only != "" && g.only != who {
			continue
		}
		t.Run(g.name+"-"+who, func(t *testing.T) {
			outer := l.t
			l.t = t
			defer func() { l.t = outer }()
			p := l.connect(g.conn)
			for _, e := range []opsEnd{p.soft, p.kern} {
				e.put(goldenReads, seeded(3, make([]byte, 8192)))
			}
			from, to := opsEnd(p.soft), opsEnd(p.kern)
			ask, answer := "tx", "rx"
			if who == "rxe" {
				from, to, ask, answer = to, from, answer, ask
			}
			name := g.name + "-" + who
			dump := startCapture(t, options{}, dev, name+".pcap", "udp port 4791 or (vlan and udp port 4791)")
			mark, end := l.tape.mark(), func() {}
			if g.both {
				end = l.atSoftnic(t, name+".pcapng")
			}
			var lines []string
			for _, r := range g.rules {
				dir, rest, _ := strings.Cut(r, " ")
				lines = append(lines, map[string]string{"ask": ask, "answer": answer}[dir]+" "+rest)
			}
			lift := l.impaired(t, 1, lines...)
			g.do(t, p, from, to)
			// What the kernel has sent and softnic not seen yet is on its way: the last ACK may come behind a completion.
			waitFor(t, patience, "softnic to have seen all", func() bool { return l.dumped(dump, mark) })
			lift()
			dump.Stop()
			end()
			e := corpus.Entry{File: name + ".pcap", Shows: g.shows, By: "softnic asks, rxe answers", How: "TestCorpus", At: "rxe", Rxe: l.far,
				Lost: len(g.rules) > 0, NoReplay: g.noReplay}
			if who == "rxe" {
				e.By = "rxe asks, softnic answers"
			}
			if len(lines) > 0 {
				e.How += ", with " + strings.Join(lines, "; ") + " at softnic"
			}
			e.By += ", Linux " + sysfs("/proc/sys/kernel/osrelease")
			if a := l.conns; g.conn.typ == 0 {
				attr := a[len(a)-1].A.Attr
				e.Depth, e.Timeout, e.Retry = attr.Depth, attr.Timeout, attr.RetryCnt
			}
			g.enter(t, e)
			if g.both {
				e.File, e.At, e.NoReplay = name+".pcapng", "softnic", ""
				g.enter(t, e)
			}
			p.close()
		})
	}
}

// dumped reports whether softnic has seen all that the capture has for it, and the capture all that softnic has sent.
func (l *opsLab) dumped(c *capture, mark int) bool {
	time.Sleep(20 * time.Millisecond) // for a packet that the kernel is about to send
	captured, received, _ := c.counts()
	lost := 0
	l.tape.mu.Lock()
	defer l.tape.mu.Unlock()
	for _, x := range l.tape.all[mark:] {
		if x.dir == rules.Tx && x.fate == rules.Lost {
			lost++
		}
	}
	return captured == received-c.early && captured == len(l.tape.all)-mark-lost
}

// enter finds what is wrong in a file, and leaves its line beside it.
func (g golden) enter(t *testing.T, e corpus.Entry) {
	t.Helper()
	var l []*peer.Frame
	err := judge.Packets(jobFile(t, e.File), func(p judge.Packet) error {
		f, err := p.Parse()
		l = append(l, f)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	numbers := func(s sight) (out []int) {
		for i := range l {
			if s.at(l, i) {
				out = append(out, i+1)
			}
		}
		if len(out) != s.n {
			t.Errorf("%s: frames %v, want %d of them", e.File, out, s.n)
		}
		return out
	}
	if g.badICRC != nil {
		e.BadICRC = numbers(*g.badICRC)
	}
	for _, f := range g.breaks {
		e.Breaks = append(e.Breaks, corpus.Break{Rule: f.rule.String(), Row: f.row, Packets: numbers(f.sight)})
	}
	b, err := e.Line()
	if err == nil {
		err = os.WriteFile(jobFile(t, e.File+".jsonl"), b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// of is every frame with the opcode.
func of(op peer.Op) func(l []*peer.Frame, i int) bool {
	return func(l []*peer.Frame, i int) bool { return l[i].Op == op }
}

// again is every frame with the opcode whose PSN was there before.
func again(op peer.Op) func(l []*peer.Frame, i int) bool {
	return func(l []*peer.Frame, i int) bool {
		return l[i].Op == op && slices.ContainsFunc(l[:i], func(f *peer.Frame) bool { return f.Op == op && f.PSN == l[i].PSN })
	}
}

// nakked is every NAK of the syndrome.
func nakked(s peer.Syndrome) func(l []*peer.Frame, i int) bool {
	return func(l []*peer.Frame, i int) bool { return l[i].Op == peer.OpAck && l[i].AETH.Syndrome == s }
}

// resumed is the response that answers the second READ request.
func resumed(l []*peer.Frame, i int) bool {
	asked := 0
	for _, f := range l[:i] {
		if f.Op == peer.OpReadRequest {
			asked++
			if asked == 2 && f.PSN == l[i].PSN {
				return l[i].Op.IsResponse()
			}
		}
	}
	return false
}

// atSoftnic captures at softnic's own end until end is called.
func (l *opsLab) atSoftnic(t *testing.T, name string) (end func()) {
	t.Helper()
	f, err := os.Create(jobFile(t, name))
	if err != nil {
		t.Fatal(err)
	}
	w, err := record.NewWriter(f, l.n.dev.Port().Info(), record.Options{})
	if err != nil {
		t.Fatal(err)
	}
	detach := l.tee.Attach(w)
	return func() {
		detach()
		for _, err := range []error{w.Close(), f.Close()} {
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// newVlanOps is newOps with the kernel's device on a VLAN, and softnic behind a bridge that takes the tag off.
func newVlanOps(t *testing.T) *opsLab {
	t.Helper()
	l := bareOps(t, link.PortOptions{})
	newVeth(t, 1500, vethEnd{Name: "va", MAC: "02:00:00:00:05:01"}, vethEnd{Name: "vb", MAC: "02:00:00:00:05:02"})
	ep, err := tap.Open(tap.Config{Name: "sn0", MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.2/24")}, Plain: true})
	if err != nil {
		t.Fatal(err)
	}
	l.n = openNICWith(t, ep, "corpus-vlan.pcap", link.PortOptions{}, l.tee)
	for _, c := range []string{
		"link add link va name va.5 type vlan id 5 egress-qos-map 0:3", "addr add 10.8.0.1/24 dev va.5", "link set va.5 up",
		"link add link vb name vb.5 type vlan id 5", "link set vb.5 up",
		"link add br5 type bridge", "link set vb.5 master br5", "link set sn0 master br5", "link set br5 up",
	} {
		run(t, "ip", strings.Fields(c)...)
	}
	t.Cleanup(func() {
		for _, c := range []string{"link del br5", "link del va.5", "link del vb.5"} {
			tidy(t, "ip", strings.Fields(c)...)
		}
	})
	l.dev = addRxe(t, "rxe0", "va")
	l.dump = startCapture(t, options{}, "va", "corpus-vlan.pcap", "vlan and udp port 4791")
	l.furnish()
	return l
}

// Where a READ of the corpus reads, which nothing ever changes, and where it writes to: what a program writes is not in a capture.
const (
	goldenReads  = opsTarget + 16384
	goldenResult = opsSource + 16384
)

// message moves size bytes with one operation. The memory of the responder is changed by the message alone.
func message(t *testing.T, from, to opsEnd, op device.WROp, size int) {
	t.Helper()
	from.put(opsSource, seeded(uint64(op), make([]byte, size)))
	w := opsWR{ID: 1, Op: op, SGE: []span{{opsSource, size}}, Imm: 0x89ABCDEF, Addr: to.addr(opsTarget), Key: to.key()}
	source, target := opsSource, opsTarget
	switch op {
	case device.OpRead:
		w.SGE, w.Addr = []span{{goldenResult, size}}, to.addr(goldenReads)
		from.post(w)
		sent(t, from, "READ", device.StatusSuccess)
		same(t, "READ", from.get(goldenResult, size), to.get(goldenReads, size))
		return
	case device.OpSend, device.OpSendImm, device.OpWriteImm:
		to.recv(2, span{target, size})
	}
	from.post(w)
	sent(t, from, op.String(), device.StatusSuccess)
	switch {
	case op != device.OpWrite:
		opsReceived(t, to, op, size, 2, w.Imm)
	case unreliable(from, to): // that it was sent does not say that it has arrived
		waitFor(t, patience, "the WRITE to arrive", func() bool { return bytes.Equal(to.get(target, size), from.get(source, size)) })
	}
	same(t, op.String(), to.get(target, size), from.get(source, size))
}

// unreliable reports whether the connection of which one of the ends is softnic's is UC.
func unreliable(ends ...opsEnd) bool {
	for _, e := range ends {
		if s, ok := e.(*softEnd); ok {
			return s.q.Type() == device.UC
		}
	}
	return false
}

// messages has every operation of the list run, of one packet and of three, at a path MTU of 256.
func messages(ops ...device.WROp) func(t *testing.T, p *opsPair, from, to opsEnd) {
	return func(t *testing.T, _ *opsPair, from, to opsEnd) {
		t.Helper()
		for _, op := range ops {
			for _, size := range []int{10, 600} {
				message(t, from, to, op, size)
			}
		}
	}
}

// write is a WRITE of size bytes.
func write(to opsEnd, id uint64, size int) opsWR {
	return opsWR{ID: id, Op: device.OpWrite, SGE: []span{{opsSource, size}}, Addr: to.addr(opsTarget), Key: to.key()}
}

// posted posts requests and waits until all have completed with the status.
func posted(want device.Status, n int, wr func(to opsEnd, i int) opsWR) func(t *testing.T, p *opsPair, from, to opsEnd) {
	return func(t *testing.T, p *opsPair, from, to opsEnd) {
		t.Helper()
		from.put(opsSource, seeded(1, make([]byte, 4096)))
		to.put(opsTarget, seeded(2, make([]byte, 4096)))
		for i := range n {
			w := wr(to, i)
			w.ID = uint64(i)
			from.post(w)
		}
		for i, wc := range wcs(t, from, true, n) {
			if wc.Status != want || wc.ID != uint64(i) {
				t.Fatalf("%s's completion %d: %+v, want %v", from.who(), i, wc, want)
			}
		}
	}
}

// refusedWith is posted for one request that is refused with a NAK, whose syndrome is held against the tape.
func refusedWith(nak bth.Syndrome, wr func(to opsEnd) opsWR) func(t *testing.T, p *opsPair, from, to opsEnd) {
	status := map[bth.Syndrome]device.Status{bth.NakInvalidRequest: device.StatusRemoteInvalidReq, bth.NakRemoteAccess: device.StatusRemoteAccess,
		bth.NakRemoteOp: device.StatusRemoteOp}[nak]
	return func(t *testing.T, p *opsPair, from, to opsEnd) {
		t.Helper()
		mark := p.l.tape.mark()
		posted(status, 1, func(to opsEnd, _ int) opsWR { return wr(to) })(t, p, from, to)
		opsNak(t, p.l, mark, to, nak)
	}
}
