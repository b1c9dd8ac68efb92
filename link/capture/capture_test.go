package capture

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

const addrA, addrB = "10.0.0.1", "10.0.0.2"

// packet is a packet of a file.
type packet struct {
	name    string // of the interface
	when    time.Time
	data    []byte
	flags   byte
	comment string
}

// file is what the test reads back, with nothing of the writer's code.
type file struct {
	names   []string
	packets []packet
	stats   map[string][2]uint64 // received, dropped
	words   []string             // comments of statistics
}

func parse(tb testing.TB, b []byte) (f file) {
	tb.Helper()
	f.stats = make(map[string][2]uint64)
	for len(b) > 0 {
		typ, n := le.Uint32(b), int(le.Uint32(b[4:]))
		if n%4 != 0 || n > len(b) || int(le.Uint32(b[n-4:])) != n {
			tb.Fatalf("block of type %x: length %d", typ, n)
		}
		body := b[8 : n-4]
		b = b[n:]
		options := func(at int) map[uint16][]byte {
			m := make(map[uint16][]byte)
			for o := body[at:]; len(o) >= 4; {
				code, n := le.Uint16(o), int(le.Uint16(o[2:]))
				m[code] = o[4 : 4+n]
				o = o[4+(n+3)/4*4:]
			}
			return m
		}
		switch typ {
		case 0x0A0D0D0A:
		case 1:
			o := options(8)
			f.names = append(f.names, string(o[2]))
			if !bytes.Equal(o[9], []byte{9}) || len(o[3]) == 0 {
				tb.Fatalf("interface options %v", o)
			}
		case 6:
			c := int(le.Uint32(body[12:]))
			o := options(20 + (c+3)/4*4)
			ns := int64(uint64(le.Uint32(body[4:]))<<32 | uint64(le.Uint32(body[8:])))
			f.packets = append(f.packets, packet{f.names[le.Uint32(body)], time.Unix(0, ns), body[20 : 20+c], o[2][0], string(o[1])})
		case 5:
			o := options(12)
			f.stats[f.names[le.Uint32(body)]] = [2]uint64{le.Uint64(o[4]), le.Uint64(o[5])}
			if w := string(o[1]); w != "" {
				f.words = append(f.words, w)
			}
		default:
			tb.Fatalf("block of type %x", typ)
		}
	}
	return f
}

// check reads a file with gopacket and, where it is installed, with tshark.
func check(tb testing.TB, b []byte, n int, linkType layers.LinkType) {
	tb.Helper()
	r, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.NgReaderOptions{WantMixedLinkType: true})
	if err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		_, ci, err := r.ReadPacketData()
		if err != nil {
			tb.Fatalf("gopacket, packet %d: %v", i, err)
		}
		if x, err := r.Interface(ci.InterfaceIndex); err != nil || x.LinkType != linkType {
			tb.Fatalf("gopacket: interface %+v, %v", x, err)
		}
	}
	if _, _, err := r.ReadPacketData(); !errors.Is(err, io.EOF) {
		tb.Fatalf("gopacket: %v, want the end", err)
	}
	if _, err := exec.LookPath("tshark"); err != nil {
		tb.Log("not checked with tshark: ", err)
		return
	}
	name := filepath.Join(tb.TempDir(), "test.pcapng")
	if err := os.WriteFile(name, b, 0o600); err != nil {
		tb.Fatal(err)
	}
	var out, errs strings.Builder
	// The test's payloads are not what tshark guesses they are.
	c := exec.Command("tshark", "--disable-protocol", "rpcordma", "-r", name, "-T", "fields",
		"-e", "frame.protocols", "-e", "_ws.malformed", "-e", "infiniband.bth.opcode")
	c.Stdout, c.Stderr = &out, &errs
	err = c.Run()
	complaints := slices.DeleteFunc(strings.Split(strings.TrimSpace(errs.String()), "\n"), func(l string) bool {
		return l == "" || strings.HasPrefix(l, "Running as user")
	})
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if err != nil || len(complaints) > 0 || len(lines) != n {
		tb.Fatalf("tshark: %v, %q, %d packets, want %d", err, complaints, len(lines), n)
	}
	for i, l := range lines {
		if strings.Contains(l, "alformed") || !strings.Contains(l, "infiniband") {
			tb.Fatalf("tshark, packet %d: %s", i, l)
		}
	}
}

var infoA = link.Info{Name: "test", MAC: link.MakeMAC(netip.MustParseAddr(addrA)), Addrs: []netip.Prefix{netip.MustParsePrefix(addrA + "/24"), netip.MustParsePrefix("2001:db8::1/64")}}

func create(tb testing.TB, w io.Writer, info link.Info, o Options) *Writer {
	tb.Helper()
	c, err := NewWriter(w, info, o)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

// sent is a packet as a port records it.
func sent(psn int, when time.Time) *link.Record {
	p := linktest.Send(linktest.Path(addrA, addrB), 17, bth.PSN(psn), []byte("abc"))
	f := linktest.Frame(p)
	return &link.Record{When: when, Net: f[:28], Head: f[28:]}
}

func with(r *link.Record, f func(r *link.Record)) *link.Record { f(r); return r }

func TestWriter(t *testing.T) {
	var buf bytes.Buffer
	c := create(t, &buf, infoA, Options{})
	now := time.Unix(1700000000, 123456789)
	for i, r := range []*link.Record{
		sent(0, now),
		with(sent(1, now), func(r *link.Record) { r.Cause, r.Round = wire.RetrySequence, 2 }),
		with(sent(2, now), func(r *link.Record) { r.Cause = wire.Replay }),
		with(sent(3, now), func(r *link.Record) { r.Dir = link.Rx }),
		with(sent(4, now), func(r *link.Record) { r.Dir, r.Fault = link.Rx, wire.OutOfSequence }),
		with(sent(5, now), func(r *link.Record) { r.Fault, r.Note = wire.Impaired, "tx drop" }),
		with(sent(6, now), func(r *link.Record) { r.Dir, r.Fault, r.Note = link.Rx, wire.Impaired, "rx drop" }),
		with(sent(7, now), func(r *link.Record) { r.Fault, r.Note = wire.TooLong, "exceeds the MTU of the link" }),
		with(sent(8, now), func(r *link.Record) { r.Note, r.Cause = "tx duplicate", wire.RetryTimeout }),
	} {
		r.When = r.When.Add(time.Duration(i))
		c.Capture(r)
	}
	for range 2 {
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	c.Capture(sent(9, now)) // too late, and harmless
	f := parse(t, buf.Bytes())
	if w := []string{"tx", "rx", "dropped", "impaired"}; !slices.Equal(f.names, w) {
		t.Fatalf("interfaces %q", f.names)
	}
	for i, w := range []packet{
		{name: "tx", flags: 2},
		{name: "tx", flags: 2, comment: "retransmission 2 (retry-nak)"},
		{name: "tx", flags: 2, comment: "replay"},
		{name: "rx", flags: 1},
		{name: "dropped", flags: 1, comment: "out-of-sequence"},
		{name: "impaired", flags: 2, comment: "impaired: tx drop"},
		{name: "impaired", flags: 1, comment: "impaired: rx drop"},
		{name: "dropped", flags: 2, comment: "too-long: exceeds the MTU of the link"},
		{name: "tx", flags: 2, comment: "tx duplicate; retransmission 1 (retry-timeout)"},
	} {
		w.when, w.data = now.Add(time.Duration(i)), sent(i, now).AppendTo(nil)
		if g := f.packets[i]; g.name != w.name || g.flags != w.flags || g.comment != w.comment || !g.when.Equal(w.when) || !bytes.Equal(g.data, w.data) {
			t.Errorf("packet %d: %+v\nwant %+v", i, g, w)
		}
	}
	if w := map[string][2]uint64{"tx": {4, 0}, "rx": {1, 0}, "dropped": {2, 0}, "impaired": {2, 0}}; fmt.Sprint(f.stats) != fmt.Sprint(w) || f.words != nil {
		t.Errorf("statistics %v %q, want %v", f.stats, f.words, w)
	}
	check(t, buf.Bytes(), 9, layers.LinkTypeRaw)
}

// Two NICs in one file, over the whole way: Ethernet, every opcode that tshark should know, and
// packets dropped on purpose.
func TestWriterOnPorts(t *testing.T) {
	var buf bytes.Buffer
	ea, eb := pipe.New(pipe.Config{Name: "a", Ethernet: true, Addrs: []netip.Prefix{netip.MustParsePrefix(addrA + "/24")}},
		pipe.Config{Name: "b", Addrs: []netip.Prefix{netip.MustParsePrefix(addrB + "/24")}})
	c := create(t, &buf, ea.Info(), Options{})
	second, err := c.Add("b", eb.Info())
	if err != nil {
		t.Fatal(err)
	}
	rules, err := impair.New("tx nth=5 drop")
	if err != nil {
		t.Fatal(err)
	}
	a, err := link.NewPort(ea, link.PortOptions{Capture: c, Impair: rules})
	if err != nil {
		t.Fatal(err)
	}
	b, err := link.NewPort(eb, link.PortOptions{Capture: second})
	if err != nil {
		t.Fatal(err)
	}
	path := linktest.Path(addrA, addrB)
	n := 0
	for o := range 256 {
		i := bth.Opcode(o).Info()
		if !i.Known() || bth.Opcode(o).Service() == bth.RD || bth.Opcode(o).Operation() >= bth.Flush || bth.Opcode(o).Service() == bth.CNP {
			continue // not in RoCE, or not known to every tshark
		}
		var data []byte
		if i.Has(bth.HasPayload) {
			data = make([]byte, 256)
		}
		pk := linktest.Packet(path, bth.Opcode(o), 17, bth.PSN(o), data)
		if at, ok := i.Offset(bth.HDETH); ok {
			bth.DETH(pk.Head[at:]).Put(0x11111111, 18) // from QP 0 it would be a MAD
		}
		if err := a.Send([]*wire.Packet{pk}); err != nil {
			t.Fatal(err)
		}
		n++
	}
	batch := link.NewBatch(200)
	if err := b.Sources()[0].Recv(batch, false); err != nil {
		t.Fatal(err)
	}
	b.Parse(batch)
	batch.Packets[0].Fault = wire.NoQP
	b.Done(batch)
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f := parse(t, buf.Bytes())
	count := map[string]int{}
	for _, p := range f.packets {
		count[p.name]++
		if w, g := linktest.ICRC(p.data[14:]); w != g {
			t.Errorf("%s: ICRC %08x, want %08x", p.name, g, w)
		}
		if (p.name == "impaired") != strings.HasPrefix(p.comment, "impaired: tx nth=5 drop") {
			t.Errorf("%s: %s", p.name, p.comment)
		}
	}
	w := map[string]int{"tx": n - n/5, "impaired": n / 5, "b/dropped": 1, "b/rx": n - n/5 - 1}
	if fmt.Sprint(count) != fmt.Sprint(w) {
		t.Errorf("%v, want %v", count, w)
	}
	if !slices.IsSortedFunc(f.packets, func(a, b packet) int { return a.when.Compare(b.when) }) {
		t.Error("not in order of time")
	}
	check(t, buf.Bytes(), len(f.packets), layers.LinkTypeEthernet)
}

// A record that comes late for its time is put in its place, within bounds, and the file can be followed.
func TestWriterOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var w slow
		c := create(t, &w, infoA, Options{})
		ms := func(n int) time.Time { return time.Now().Add(time.Duration(n) * time.Millisecond) }
		start := ms(0)
		for _, at := range []int{20, 3, 1, 2, 21, 18} {
			c.Capture(sent(at, start.Add(time.Duration(at)*time.Millisecond)))
		}
		shown := func() (l []int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			for _, p := range parse(t, w.buf.Bytes()).packets {
				l = append(l, int(bth.BTH(p.data[28:]).PSN()))
			}
			return l
		}
		for _, w := range []struct {
			after time.Duration
			want  []int
		}{
			{49 * time.Millisecond, nil},
			{2 * time.Millisecond, []int{1, 2, 3}},
			{50 * time.Millisecond, []int{1, 2, 3, 18, 20, 21}},
		} {
			time.Sleep(w.after)
			synctest.Wait()
			if g := shown(); !slices.Equal(g, w.want) {
				t.Fatalf("after %v: %v, want %v", w.after, g, w.want)
			}
		}
		c.Capture(sent(22, ms(0)))
		if err := c.Flush(); err != nil {
			t.Fatal(err)
		}
		if g := shown(); len(g) != 7 {
			t.Fatalf("after Flush: %v", g)
		}
		c.Close()
	})
}

// slow is a writer that can be stopped and looked at.
type slow struct {
	mu  sync.Mutex
	buf bytes.Buffer
	err error
}

func (s *slow) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return 0, s.err
	}
	return s.buf.Write(b)
}

// What cannot be written in time is counted in the file and in the log.
func TestWriterLoses(t *testing.T) {
	var w slow
	var log strings.Builder
	c := create(t, &w, infoA, Options{Limit: 10000, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	w.mu.Lock() // the disk hangs
	for i := range 1000 {
		c.Capture(sent(i, time.Now()))
	}
	w.mu.Unlock()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	f := parse(t, w.buf.Bytes())
	st, lost := f.stats["tx"], c.Lost()
	if lost == 0 || st[0] != 1000 || st[1] != lost || len(f.packets) != 1000-int(lost) {
		t.Fatalf("%d lost, %d in the file, statistics %v", lost, len(f.packets), f.stats)
	}
	if w := fmt.Sprintf("%d packets are missing: they could not be written in time", lost); !slices.Contains(f.words, w) {
		t.Errorf("comments %q, want %q", f.words, w)
	}
	if s := log.String(); strings.Count(s, "cannot keep up") != 1 || !strings.Contains(s, fmt.Sprintf("packets=%d", lost)) {
		t.Errorf("log %s", s)
	}
	check(t, w.buf.Bytes(), len(f.packets), layers.LinkTypeRaw)
}

func TestWriterError(t *testing.T) {
	w := slow{err: io.ErrClosedPipe}
	if _, err := NewWriter(&w, infoA, Options{}); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
	w.err = nil
	c := create(t, &w, infoA, Options{})
	c.Capture(sent(1, time.Now()))
	w.err = io.ErrClosedPipe
	if err := c.Flush(); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
	c.Capture(sent(2, time.Now()))
	if _, err := c.Add("b", infoA); !errors.Is(err, io.ErrClosedPipe) {
		t.Fatal(err)
	}
	if err := c.Close(); !errors.Is(err, io.ErrClosedPipe) || c.Lost() != 1 {
		t.Fatal(err, c.Lost())
	}
}

func TestLog(t *testing.T) {
	var buf bytes.Buffer
	l, err := NewLog(&buf, infoA)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Unix(1700000000, 5)
	ack := linktest.Packet(linktest.Path(addrB, addrA), bth.Make(bth.RC, bth.Acknowledge), 18, 7, nil)
	bth.AETH(ack.Head[bth.Len:]).Put(bth.NakSequence, 3)
	frame := linktest.Frame(ack)
	for _, r := range []*link.Record{
		with(sent(2, now), func(r *link.Record) { r.When = now.Add(2) }),
		{When: now.Add(1), Dir: link.Rx, Net: frame[:28], Head: frame[28:]},
		with(sent(3, now), func(r *link.Record) { r.When, r.Cause = now.Add(3), wire.RetryRNR }),
		with(sent(4, now), func(r *link.Record) { r.When, r.Fault = now.Add(4), wire.Impaired }),
		with(sent(5, now), func(r *link.Record) { r.When, r.Fault = now.Add(5), wire.TooLong }),
		with(sent(6, now), func(r *link.Record) { r.When, r.Dir, r.Fault = now.Add(6), link.Rx, wire.Duplicate }),
		{When: now.Add(7), Dir: link.Rx, Net: []byte{1, 2, 3}, Fault: wire.Malformed},
		with(sent(8, now), func(r *link.Record) { r.When, r.Head[0] = now.Add(8), 0x15 }),
	} {
		l.Capture(r)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	want := `{"addr":["10.0.0.1","2001:db8::1"]}
{"dir":"rx","op":"RC_ACKNOWLEDGE","qpn":18,"psn":7,"syndrome":96,"cause":"ok","time":1700000000000000006}
{"dir":"tx","op":"RC_SEND_ONLY","qpn":17,"psn":2,"cause":"first","time":1700000000000000007}
{"dir":"tx","op":"RC_SEND_ONLY","qpn":17,"psn":3,"cause":"retry-rnr","time":1700000000000000008}
{"dir":"impaired","op":"RC_SEND_ONLY","qpn":17,"psn":4,"cause":"first","time":1700000000000000009}
{"dir":"dropped","op":"RC_SEND_ONLY","qpn":17,"psn":5,"cause":"first","time":1700000000000000010}
{"dir":"rx","op":"RC_SEND_ONLY","qpn":17,"psn":6,"cause":"duplicate","time":1700000000000000011}
{"dir":"rx","cause":"malformed","time":1700000000000000012}
{"dir":"tx","op":"OPCODE_15","qpn":17,"psn":8,"cause":"first","time":1700000000000000013}
`
	if buf.String() != want {
		t.Errorf("log\n%swant\n%s", buf.String(), want)
	}
	for d := json.NewDecoder(&buf); d.More(); {
		var v map[string]any
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
	}
}

// A log loses nothing, however little it may keep.
func TestLogBlocks(t *testing.T) {
	var buf bytes.Buffer
	l, err := NewLog(&buf, link.Info{})
	if err != nil {
		t.Fatal(err)
	}
	l.spool.limit = 1000
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for i := range 500 {
				l.Capture(sent(i, time.Now()))
			}
		})
	}
	wg.Wait()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(buf.String(), "\n"); n != 2001 {
		t.Errorf("%d lines", n)
	}
}

// Case 59: captures start and stop a thousand times under load, and each has whole packets.
func TestTee(t *testing.T) {
	always, tee := new(linktest.Sink), new(Tee)
	stay := tee.Attach(always)
	e, _ := pipe.New(pipe.Config{}, pipe.Config{})
	p, err := link.NewPort(e, link.PortOptions{Capture: tee})
	if err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan bool), make(chan int)
	go func() {
		pkts := []*wire.Packet{linktest.Send(linktest.Path(addrA, addrB), 17, 1, []byte("abc"))}
		for n := 0; ; n++ {
			select {
			case <-stop:
				done <- n
				return
			default:
				p.Send(pkts)
			}
		}
	}()
	for range 1000 {
		var buf bytes.Buffer
		c := create(t, &buf, infoA, Options{})
		detach := tee.Attach(c)
		detach()
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
		parse(t, buf.Bytes())
	}
	close(stop)
	n := <-done
	stay()
	p.Close()
	if got := len(always.Take()); got != n {
		t.Errorf("%d packets sent, %d captured", n, got)
	}
	var one countSink
	tee = NewTee(&one, &one)
	tee.Attach(&one)()
	tee.Capture(sent(1, time.Now()))
	if one != 2 {
		t.Errorf("%d calls, want 2", one)
	}
}

type countSink int

func (c *countSink) Capture(*link.Record) { *c++ }

func TestCaptureDoesNotAllocate(t *testing.T) {
	c := create(t, io.Discard, infoA, Options{})
	l, err := NewLog(io.Discard, infoA)
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	r := sent(1, now)
	for name, f := range map[string]func(){
		"writer": func() { c.Capture(r); c.spool.flush(true) },
		"log":    func() { l.Capture(r); l.spool.flush(true) },
	} {
		for range 10 {
			f()
		}
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

func BenchmarkWriter(b *testing.B) {
	for _, size := range []int{8, 1024, 4096} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			c := create(b, io.Discard, infoA, Options{})
			r := sent(1, time.Now())
			r.Head = make([]byte, size)
			b.ReportAllocs()
			for b.Loop() {
				c.Capture(r)
			}
			b.StopTimer()
			c.Close()
			b.ReportMetric(100*float64(c.Lost())/float64(b.N), "%lost")
		})
	}
}
