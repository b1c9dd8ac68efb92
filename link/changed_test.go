package link_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/linktest"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// ipSum reports whether the checksum of an IPv4 header is right; IPv6 has none.
func ipSum(ip []byte) bool {
	if ip[0]>>4 != 4 {
		return true
	}
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	for sum > 0xFFFF {
		sum = sum>>16 + sum&0xFFFF
	}
	return sum == 0xFFFF
}

func counter(l []stats.Value, name string) uint64 {
	for _, v := range l {
		if v.Name == name {
			return v.Value
		}
	}
	return ^uint64(0)
}

// roads that a packet may travel; what rules do to its bytes is the same for all.
var roads = []struct {
	name     string
	src, dst string
	cfg      pipe.Config
}{
	{"IPv4", addrA, addrB, pipe.Config{}},
	{"IPv6", "fd00::1", "fd00::2", pipe.Config{}},
	{"Ethernet", addrA, addrB, pipe.Config{Ethernet: true}},
	{"bursts", addrA, addrB, pipe.Config{MaxSegs: 8}},
	{"socket", addrA, addrB, pipe.Config{SrcPort: 4791}},
}

// strip takes the Ethernet header off.
func strip(c pipe.Config, f []byte) []byte {
	if c.Ethernet {
		return f[14:]
	}
	return f
}

func netLen(ip []byte) int {
	if ip[0]>>4 == 4 {
		return 28
	}
	return 48
}

// changed are rules, each for the second of three SEND ONLY with payload "packet N", and what becomes of its bytes. Offsets are
// from the BTH on.
var changed = []struct {
	rule string
	at   int
	byte byte // what is there then
	bad  bool // the ICRC
}{
	{"corrupt at=13 xor=0x20", 13, 'a' ^ 0x20, true},
	{"corrupt at=-1 xor=0xff", 19, '2' ^ 0xFF, true},
	{"corrupt at=13 xor=0x20 icrc=good", 13, 'A', false},
	{"set=psn:+0x10", 11, 0x12, false},
	{"set=ackreq:1 icrc=bad", 8, 0x80, true},
	{"set=becn:1 icrc=bad", 4, 0x40, false}, // which the ICRC does not cover
}

func TestChangeTx(t *testing.T) {
	for _, w := range roads {
		for _, c := range changed {
			for _, captured := range []bool{false, true} {
				for _, delay := range []bool{false, true} {
					t.Run(fmt.Sprint(w.name, c.rule, captured, delay), func(t *testing.T) {
						synctest.Test(t, func(t *testing.T) {
							e, raw := pipe.NewRaw(w.cfg)
							sink := new(linktest.Sink)
							l := []string{"tx psn=0x2 " + c.rule}
							if delay {
								l = append(l, "tx psn=0x2 delay=1ms")
							}
							o := link.PortOptions{Impair: rules(t, l...)}
							if captured {
								o.Capture = sink
							}
							p := linktest.Port(t, e, o)
							pkts := linktest.Sends(linktest.Path(w.src, w.dst), 17, 1, 3)
							if err := p.Send(pkts); err != nil {
								t.Fatal(err)
							}
							for i, pk := range pkts { // a program's memory is not a rule's
								if want := fmt.Sprintf("packet %d", i+1); string(pk.Data[0]) != want || pk.BTH().PSN() != bth.PSN(i+1) || pk.BTH().AckReq() {
									t.Fatalf("packet %d has become %q, % x", i+1, pk.Data[0], pk.BTH())
								}
							}
							time.Sleep(2 * time.Millisecond)
							synctest.Wait()
							place := 1
							if delay {
								place = 2
							}
							var all [][]byte
							for {
								f := raw.TryRead()
								if f == nil {
									break
								}
								all = append(all, f)
							}
							if len(all) != 3 {
								t.Fatalf("%d frames", len(all))
							}
							for i, f := range all {
								ip := strip(w.cfg, f)
								ib := ip[netLen(ip):]
								if !ipSum(ip) {
									t.Errorf("frame %d: IP checksum", i)
								}
								good, is := linktest.ICRC(ip)
								if hit := i == place; (good != is) != (hit && c.bad) || (ib[c.at] == c.byte) != hit {
									t.Errorf("frame %d: ICRC %08x, right is %08x; % x", i, is, good, ib)
								}
							}
							if n := counter(p.Counters(), "tx_changed"); n != 1 {
								t.Errorf("tx_changed %d", n)
							}
							if !captured {
								return
							}
							sent, impaired := 0, 0
							for _, r := range sink.Take() {
								if r.Fault == wire.Impaired {
									impaired++
									if r.Bytes[r.HeadAt+13] != 'a' || r.BTH().PSN() != 2 || r.BTH().AckReq() || r.BTH().BECN() {
										t.Errorf("before the change: % x", r.Bytes)
									}
									continue
								}
								if !bytes.Equal(strip(w.cfg, r.Bytes), strip(w.cfg, all[sent])) {
									t.Errorf("record %d: % x, on the wire % x", sent, r.Bytes, all[sent])
								}
								if hit := sent == place; strings.Contains(r.Note, c.rule) != hit {
									t.Errorf("record %d: note %q", sent, r.Note)
								}
								sent++
							}
							if sent != 3 || impaired != 1 {
								t.Errorf("%d records, %d impaired", sent, impaired)
							}
						})
					})
				}
			}
		}
	}
}

func TestMarkTx(t *testing.T) {
	for _, w := range roads {
		for rule, want := range map[string]byte{"ecn=ce": 3, "ecn=ect0": 2, "ecn=ect1": 1, "ecn=not-ect": 0} {
			e, raw := pipe.NewRaw(w.cfg)
			p := linktest.Port(t, e, link.PortOptions{Impair: rules(t, "tx psn=0x2 "+rule)})
			path := linktest.Path(w.src, w.dst)
			path.TClass = 0xB4 | 1
			if err := p.Send(linktest.Sends(path, 17, 1, 3)); err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				ip := strip(w.cfg, raw.TryRead())
				tc := ip[1]
				if ip[0]>>4 == 6 {
					tc = ip[0]<<4 | ip[1]>>4
				}
				ecn := byte(1)
				if i == 1 {
					ecn = want
				}
				if good, is := linktest.ICRC(ip); good != is || tc != 0xB4|ecn || !ipSum(ip) {
					t.Errorf("%s, %s, frame %d: traffic class %#x, want %#x; ICRC %08x, want %08x", w.name, rule, i, tc, 0xB4|ecn, is, good)
				}
			}
			if path.TClass != 0xB5 {
				t.Error("the path of others has changed")
			}
		}
	}
}

func TestChangeRx(t *testing.T) {
	for _, w := range append(roads, struct {
		name     string
		src, dst string
		cfg      pipe.Config
	}{"no IP header", addrA, addrB, pipe.Config{HideIP: true}}) {
		for _, c := range append(changed, struct {
			rule string
			at   int
			byte byte
			bad  bool
		}{"ecn=ce", 13, 'a', false}) {
			for _, delay := range []bool{false, true} {
				t.Run(fmt.Sprint(w.name, c.rule, delay), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						e, raw := pipe.NewRaw(w.cfg)
						sink := new(linktest.Sink)
						l := []string{"rx psn=0x2 " + c.rule}
						if delay {
							l = append(l, "rx psn=0x2 delay=1ms")
						}
						p := linktest.Port(t, e, link.PortOptions{Impair: rules(t, l...), Capture: sink})
						for i, pk := range linktest.Sends(linktest.Path(w.dst, w.src), 17, 1, 3) {
							f := linktest.Frame(pk)
							if i == 1 { // as some senders have it
								wire.PutUDPChecksum(f[:netLen(f)], f[netLen(f):])
							}
							if w.cfg.Ethernet {
								eth := make([]byte, 14)
								wire.PutEthernet(eth, [6]byte{2}, [6]byte{4}, pk.Path.EtherType())
								f = append(eth, f...)
							}
							raw.Write(f)
						}
						n := 0
						for source := range 2 {
							b := link.NewBatch(8)
							if err := p.Sources()[source].Recv(b, false); err != nil {
								t.Fatal(err)
							}
							p.Parse(b)
							for i := range b.Packets {
								pk := &b.Packets[i]
								if pk.Fault == wire.Impaired {
									continue
								}
								hit := source == 0 && n == 1 && !delay || source == 1
								want := wire.OK
								if hit && c.bad {
									want = wire.ICRC
								}
								ib := pk.View.IB
								if pk.Fault != want || (ib[c.at] == c.byte) != (hit || c.rule == "ecn=ce") {
									t.Errorf("packet %d: %v, want %v; % x", n, pk.Fault, want, ib)
								}
								if ce := pk.View.TClass()&3 == 3; ce != (hit && c.rule == "ecn=ce") || !ipSum(pk.View.Net) {
									t.Errorf("packet %d: marked %v; % x", n, ce, pk.View.Net)
								}
								n++
							}
							p.Done(b)
							time.Sleep(2 * time.Millisecond)
							synctest.Wait()
						}
						if n != 3 || counter(p.Counters(), "rx_changed") != 1 {
							t.Errorf("%d packets, %v", n, p.Counters())
						}
						noted, impaired := 0, 0
						for _, r := range sink.Take() {
							if strings.Contains(r.Note, c.rule) && r.Fault != wire.Impaired {
								noted++
							}
							if r.Fault == wire.Impaired {
								if was := r.Bytes[r.HeadAt:]; was[13] != 'a' || was[11] != 2 || was[8] != 0 || was[4] != 0 || was[19] != '2' {
									t.Errorf("before the change: % x", was)
								}
								impaired++
							}
						}
						if noted != 1 || impaired != 1 {
							t.Errorf("%d records name the rule, %d are impaired", noted, impaired)
						}
					})
				})
			}
		}
	}
}

// A request that a rule answers goes nowhere, and its sender gets a NAK as if from where it was going.
func TestForgedAnswer(t *testing.T) {
	for _, w := range roads {
		sink := new(linktest.Sink)
		e, raw := pipe.NewRaw(w.cfg)
		p := linktest.Port(t, e, link.PortOptions{
			Impair: rules(t, "tx psn=0x2 answer=rnr:5", "rx psn=0x7 answer=nak-access"), Capture: sink,
			Forge: func(qpn uint32, psn bth.PSN, out bool) (link.Forged, bool) {
				if out {
					return link.Forged{To: qpn, MSN: uint32(psn) + 0x110000}, true
				}
				return link.Forged{To: qpn + 1, MSN: uint32(psn) + 0x220000}, qpn == 0x22
			},
		})
		pkts := linktest.Sends(linktest.Path(w.src, w.dst), 17, 1, 3)
		for _, pk := range pkts {
			pk.QPN = 0x33
		}
		if err := p.Send(pkts); err != nil {
			t.Fatal(err)
		}
		for _, psn := range []bth.PSN{1, 3} {
			if ip := strip(w.cfg, raw.TryRead()); bth.BTH(ip[netLen(ip):]).PSN() != psn {
				t.Fatalf("%s: sent % x, want PSN %v", w.name, ip, psn)
			}
		}
		check := func(what string, ip []byte, src, dst string, qpn uint32, psn bth.PSN, syn, msn byte) {
			t.Helper()
			n := netLen(ip)
			ib := ip[n:]
			a := linktest.Path(src, dst)
			if good, is := linktest.ICRC(ip); good != is || !ipSum(ip) {
				t.Errorf("%s, %s: ICRC %08x, want %08x", w.name, what, is, good)
			}
			if from, to := ip[12:16], ip[16:20]; n == 28 && (!bytes.Equal(from, a.Src.AsSlice()) || !bytes.Equal(to, a.Dst.AsSlice())) {
				t.Errorf("%s, %s: from %v to %v", w.name, what, from, to)
			}
			if b := bth.BTH(ib); len(ib) != 20 || b.Opcode() != 0x11 || b.DestQP() != qpn || b.PSN() != psn || ib[12] != syn || !bytes.Equal(ib[13:16], []byte{msn, 0, byte(psn)}) {
				t.Errorf("%s, %s: % x", w.name, what, ib)
			}
		}
		b := link.NewBatch(8)
		if err := p.Sources()[1].Recv(b, false); err != nil {
			t.Fatal(err)
		}
		p.Parse(b)
		if len(b.Packets) != 1 || b.Packets[0].Fault != wire.OK {
			t.Fatalf("%s: %d packets come back", w.name, len(b.Packets))
		}
		v := &b.Packets[0].View
		check("to itself", append(bytes.Clone(v.Net), v.IB...), w.dst, w.src, 0x33, 2, 0x25, 0x11)
		p.Done(b)

		for _, qpn := range []uint32{0x22, 0x44} { // nobody knows where the second is connected to
			f := linktest.Frame(linktest.Send(linktest.Path(w.dst, w.src), qpn, 7, []byte("x")))
			if w.cfg.Ethernet {
				eth := make([]byte, 14)
				wire.PutEthernet(eth, [6]byte{2}, [6]byte{4}, linktest.Path(w.dst, w.src).EtherType())
				f = append(eth, f...)
			}
			raw.Write(f)
		}
		if got := linktest.Drain(t, p, 0); len(got) != 2 || got[0].Fault != wire.Impaired || got[1].Fault != wire.Impaired {
			t.Errorf("%s: %v", w.name, got)
		}
		check("to the peer", strip(w.cfg, raw.TryRead()), w.src, w.dst, 0x23, 7, 0x62, 0x22)
		if f := raw.TryRead(); f != nil {
			t.Errorf("%s: % x", w.name, f)
		}
		if n := counter(p.Counters(), "forged"); n != 2 {
			t.Errorf("%s: forged %d", w.name, n)
		}
		var notes []string
		for _, r := range sink.Take() {
			if r.Note != "" {
				notes = append(notes, fmt.Sprint(r.Dir, " ", r.Fault, " ", r.QPN, " ", r.Note))
			}
		}
		if want := "0 impaired 51 tx psn=0x2 answer=rnr:5; 1 ok 51 tx psn=0x2 answer=rnr:5; 0 ok 34 rx psn=0x7 answer=nak-access; " +
			"1 impaired 34 rx psn=0x7 answer=nak-access; 1 impaired 68 rx psn=0x7 answer=nak-access"; strings.Join(notes, "; ") != want {
			t.Errorf("%s: %s, want\n%s", w.name, strings.Join(notes, "; "), want)
		}
	}
}

// Where time stands still, a capture has a forged answer behind the request and before what is sent because of it.
func TestForgedAnswerTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sink := new(linktest.Sink)
		e, _ := pipe.NewRaw(roads[0].cfg)
		p := linktest.Port(t, e, link.PortOptions{
			Impair: rules(t, "tx psn=0x2 answer=nak-sequence"), Capture: sink,
			Forge: func(qpn uint32, _ bth.PSN, _ bool) (link.Forged, bool) { return link.Forged{To: qpn}, true },
		})
		start := time.Now()
		for range 2 {
			pkts := linktest.Sends(linktest.Path(roads[0].src, roads[0].dst), 17, 1, 3)
			for _, pk := range pkts {
				pk.QPN = 0x33
			}
			if err := p.Send(pkts); err != nil {
				t.Fatal(err)
			}
			b := link.NewBatch(8)
			if err := p.Sources()[1].Recv(b, false); err != nil || len(b.Packets) != 1 {
				t.Fatal(len(b.Packets), err)
			}
			p.Parse(b)
			p.Done(b)
		}
		var got []string
		for _, r := range sink.Take() {
			got = append(got, fmt.Sprintf("%d %v +%d", r.Dir, r.Fault, r.When.Sub(start)))
		}
		want := "0 ok +0, 0 impaired +0, 0 ok +0, 1 ok +1, 0 ok +1, 0 impaired +1, 0 ok +1, 1 ok +2"
		if s := strings.Join(got, ", "); s != want {
			t.Errorf("%s, want\n%s", s, want)
		}
	})
}
