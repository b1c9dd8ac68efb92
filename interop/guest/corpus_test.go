//go:build linux

package guest

import (
	"slices"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// everyRC are the operations of RC that are messages, or bring one.
var everyRC = []device.WROp{device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpRead}

// small is a connection whose messages of 600 bytes are three packets.
var small = opsConn{mtu: 256}

// patient is one that sends again after 67 ms.
var patient = opsConn{mtu: 256, timeout: 14}

// plainFiles are the files of the corpus for which the devices need nothing special.
var plainFiles = []golden{
	{name: "rc-messages", shows: "SEND, SEND with immediate, WRITE, WRITE with immediate and READ, of one packet and of three", conn: small, do: messages(everyRC...)},
	{name: "rc-atomics", shows: "FETCH ADD, COMPARE SWAP (one hits, one misses), ATOMIC WRITE", conn: opsConn{mtu: 256, extended: true}, do: goldenAtomics},
	{name: "rc-send-inv", shows: "SEND with invalidate, of one packet and of three, each behind a WRITE through the window", conn: small, do: goldenInvalidate},
	{name: "uc-messages", shows: "UC SEND, SEND with immediate, WRITE, WRITE with immediate, of one packet and of three", conn: opsConn{typ: device.UC, mtu: 256},
		do: messages(device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm)},
	{name: "uc-cut", shows: "UC: of SENDs of three packets and of one the MIDDLE of the first is lost: softnic loses one message, rxe two", conn: opsConn{typ: device.UC, mtu: 256}, both: true,
		rules: []string{"ask psn=+1 round=1 drop"}, do: goldenCut},
	{name: "ud-messages", shows: "UD SEND and SEND with immediate, with each length of pad", conn: opsConn{typ: device.UD}, do: goldenDatagrams},
	{name: "ipv6-messages", shows: "every message of RC over IPv6", conn: small, do: messages(everyRC...)},

	{name: "nak-sequence", shows: "the second of four WRITEs is lost: NAK sequence, and go-back-N", conn: small, both: true, rules: []string{"ask psn=+1 round=1 drop"},
		do: posted(device.StatusSuccess, 4, func(to opsEnd, i int) opsWR { return write(to, 0, 10) })},
	{name: "nak-invalid", shows: "a WRITE to a queue pair that allows none: NAK invalid request", conn: opsConn{mtu: 256, none: true},
		do: refusedWith(bth.NakInvalidRequest, func(to opsEnd) opsWR { return write(to, 0, 600) })},
	{name: "nak-access", shows: "a WRITE with a wrong R_Key: NAK remote access", conn: small, do: refusedWith(bth.NakRemoteAccess, func(to opsEnd) opsWR {
		w := write(to, 0, 600)
		w.Key ^= 0x100
		return w
	})},
	{name: "nak-operational", shows: "a SEND into a receive with a wrong L_Key: NAK remote operational", conn: small, do: func(t *testing.T, p *opsPair, from, to opsEnd) {
		to.recvBad(7, span{0, 100})
		refusedWith(bth.NakRemoteOp, func(to opsEnd) opsWR { return opsWR{Op: device.OpSend, SGE: []span{{opsSource, 10}}} })(t, p, from, to)
	}},

	{name: "rnr", shows: "a SEND without a receive: RNR NAK, a wait of 164 ms, the SEND again", conn: opsConn{mtu: 256, minRNR: 28}, do: goldenRNR(10)},
	{name: "rnr-behind", only: "softnic", shows: "a SEND of three packets without a receive: RNR NAK, and a sequence NAK that should not be", conn: opsConn{mtu: 256, minRNR: 28}, do: goldenRNR(600),
		breaks: []fault{{rules.RNRSilence, "rnr-sequence-nak", sight{1, nakked(peer.SynNakSequence)}}}},
	{name: "rnr-behind", only: "rxe", shows: "a SEND of three packets without a receive: RNR NAK, and silence to what is behind", conn: opsConn{mtu: 256, minRNR: 28}, do: goldenRNR(600)},

	{name: "rnr-exhausted", shows: "a SEND without a receive, rnr_retry 2: three RNR NAKs, and no more", conn: opsConn{mtu: 256, minRNR: 15, rnr: 2},
		do: posted(device.StatusRNRRetryExceeded, 1, func(to opsEnd, i int) opsWR { return opsWR{Op: device.OpSend, SGE: []span{{opsSource, 10}}} })},
	{name: "retry-exhausted", shows: "the second of two WRITEs is lost as often as it is sent, retry_cnt 2", conn: opsConn{mtu: 256, timeout: 14, retry: 2}, both: true,
		rules: []string{"ask psn=+1 drop"}, do: func(t *testing.T, p *opsPair, from, to opsEnd) {
			posted(device.StatusSuccess, 1, func(to opsEnd, i int) opsWR { return write(to, 0, 10) })(t, p, from, to)
			posted(device.StatusRetryExceeded, 1, func(to opsEnd, i int) opsWR { return write(to, 0, 10) })(t, p, from, to)
		}},
	{name: "send-too-long", only: "softnic", shows: "a SEND of three packets into a receive for two: NAK remote operational", conn: small, do: goldenTooLong(bth.NakRemoteOp)},
	{name: "send-too-long", only: "rxe", shows: "a SEND of three packets into a receive for two: NAK invalid request", conn: small, do: goldenTooLong(bth.NakInvalidRequest)},
	{name: "send-inv-key", shows: "SEND with invalidate of a key that nobody has: an ACK, which counts it if it is softnic's", conn: small, do: func(t *testing.T, p *opsPair, from, to opsEnd) {
		to.recv(7, span{opsTarget, 100})
		from.post(opsWR{Op: device.OpSendInv, SGE: []span{{opsSource, 10}}, Imm: 0xDEAD00})
		sent(t, from, "SEND with invalidate of no key", device.StatusSuccess)
		received(t, to, "SEND with invalidate of no key", device.StatusRemoteInvalidReq)
	}},

	{name: "lost-twice", shows: "the second of four WRITEs is lost, and lost again when it is sent again: NAK, then timeout", conn: patient, both: true,
		rules: []string{"ask psn=+1 count=2 drop"}, do: posted(device.StatusSuccess, 4, func(to opsEnd, i int) opsWR { return write(to, 0, 10) })},
	{name: "ack-lost", shows: "the ACK of a WRITE is lost twice: timeouts, duplicates, each acknowledged again", conn: patient, both: true,
		rules: []string{"answer opcode=ACKNOWLEDGE count=2 drop"}, do: posted(device.StatusSuccess, 1, func(to opsEnd, i int) opsWR { return write(to, 0, 600) })},
	{name: "atomic-again", shows: "the answer to a FETCH ADD is lost: the duplicate brings the same value", conn: patient, both: true,
		rules: []string{"answer opcode=ATOMIC_ACKNOWLEDGE count=1 drop"}, do: posted(device.StatusSuccess, 2, func(to opsEnd, i int) opsWR {
			return opsWR{Op: device.OpFetchAdd, SGE: []span{{opsSource, 8}}, Addr: to.addr(opsTarget), Key: to.key(), Compare: 3}
		})},
	{name: "read-gap", only: "softnic", shows: "the third of six READ responses is lost: implied NAK, resumed with a MIDDLE", conn: patient, both: true,
		rules: []string{"answer psn=+2 round=1 drop"}, do: goldenRead(1500), breaks: []fault{{rules.ReadResponseSequence, "read-again", sight{1, resumed}}}},
	{name: "read-gap", only: "rxe", shows: "the third of six READ responses is lost: timeout, resumed with a FIRST", conn: patient, both: true,
		rules: []string{"answer psn=+2 round=1 drop"}, do: goldenRead(1500)},
	{name: "read-tail", only: "softnic", shows: "the last of six READ responses is lost: timeout, resumed with a LAST", conn: patient, both: true,
		rules: []string{"answer psn=+5 round=1 drop"}, do: goldenRead(1500), breaks: []fault{{rules.ReadResponseSequence, "read-again", sight{1, resumed}}}},
	{name: "read-tail", only: "rxe", shows: "the last of six READ responses is lost: timeout, resumed with an ONLY", conn: patient, both: true,
		rules: []string{"answer psn=+5 round=1 drop"}, do: goldenRead(1500)},

	{name: "psn-wrap", shows: "WRITE, SEND and READ over the wrap of the PSN, of which that with PSN 0 is lost", conn: opsConn{mtu: 256, timeout: 14, psn: 0xFFFFFA}, both: true,
		rules: []string{"ask psn=0x0 round=1 drop"}, do: func(t *testing.T, p *opsPair, from, to opsEnd) {
			for _, op := range []device.WROp{device.OpWrite, device.OpSend, device.OpRead} {
				message(t, from, to, op, 1000)
			}
		}},
	{name: "congestion", shows: "both ends send with the mark for congestion experienced: softnic answers with CNPs, rxe with none", conn: opsConn{mtu: 256, tclass: 3},
		do: messages(device.OpSend, device.OpRead)},
	{name: "mtu-4096", shows: "a WRITE and a READ of 4100 bytes at a path MTU of 4096", conn: opsConn{mtu: 4096}, do: func(t *testing.T, p *opsPair, from, to opsEnd) {
		message(t, from, to, device.OpWrite, 4100)
		message(t, from, to, device.OpRead, 4100)
	}},
	{name: "atomic-write-again", only: "softnic", shows: "an ATOMIC WRITE is lost: the same again", conn: opsConn{mtu: 256, timeout: 14, extended: true},
		rules: []string{"ask round=1 drop"}, both: true, do: posted(device.StatusSuccess, 1, goldenAtomicWrite)},
	{name: "atomic-write-again", only: "rxe", shows: "an ATOMIC WRITE is lost: it comes again with address 0, NAK remote access", conn: opsConn{mtu: 256, timeout: 14, extended: true},
		rules: []string{"ask round=1 drop"}, both: true, do: posted(device.StatusRemoteAccess, 1, goldenAtomicWrite),
		breaks:   []fault{{rules.RetransmissionSame, "atomic-write-retry", sight{1, again(peer.OpAtomicWrite)}}},
		noReplay: "what arrived how often is not in the capture"},
	{name: "rnr-new-request", only: "rxe", shows: "a SEND without a receive: while it has to wait for the RNR NAK, rxe sends the next", conn: opsConn{mtu: 256, minRNR: 28}, do: goldenNewRequest,
		breaks: []fault{
			{rules.RNRWait, "rnr-new-request", sight{1, func(l []*peer.Frame, i int) bool { return i == 2 && l[i].PSN == l[0].PSN+1 }}},
			{rules.AckTimeout, "rnr-new-request", sight{1, func(l []*peer.Frame, i int) bool { return i > 0 && l[i].Op == peer.OpSendOnly && l[i].PSN == l[0].PSN }}},
		}},
	{name: "nak-lost", shows: "the second of four WRITEs is lost, and the sequence NAK for it, too: timeout", conn: patient, both: true,
		rules: []string{"ask psn=+1 round=1 drop", "answer psn=+1 round=1 drop"}, do: posted(device.StatusSuccess, 4, func(to opsEnd, i int) opsWR { return write(to, 0, 10) })},
}

// TestCorpus makes the golden captures of package corpus. Each subtest is one, and shows that what the file is about has happened.
func TestCorpus(t *testing.T) {
	needGuest(t)
	t.Run("plain", func(t *testing.T) {
		l := bareOps(t, link.PortOptions{})
		l.n, l.dev = openTapWith(t, 4200, "corpus.pcap", link.PortOptions{}, l.tee)
		l.dump = startCapture(t, options{}, "sn0", "corpus.pcap", "udp", "port", "4791")
		l.furnish()
		for _, g := range plainFiles {
			if g.name != "ipv6-messages" {
				l.golden(t, "sn0", g)
				continue
			}
			near, far, gid, vgid := l.near, l.far, l.gid, l.vgid
			l.near, l.far = mustAddr("fd00:8::2"), mustAddr("fd00:8::1")
			l.gid, l.vgid = gidIndex(t, l.n.dev, l.near), l.dev.GIDIndex(t, l.far)
			l.golden(t, "sn0", g)
			l.near, l.far, l.gid, l.vgid = near, far, gid, vgid
		}
		l.end([]string{"drop_impaired", "drop_out-of-sequence", "drop_duplicate", "drop_bad-request", "drop_not-ready", "drop_stale-response",
			"drop_early-response", "drop_qp-state", "drop_duplicate-unserved"},
			rules.RNRSilence, rules.ReadResponseSequence, rules.RetransmissionSame, rules.RNRWait, rules.AckTimeout)
	})
	t.Run("injected", func(t *testing.T) {
		l := newOps(t, "corpus-injected.pcap")
		spoilt := sight{1, func(l []*peer.Frame, i int) bool { return l[i].ICRC != nil }}
		for _, g := range []golden{
			{name: "bad-icrc-injected", only: "softnic", shows: "a bit of the MIDDLE of a WRITE is turned over on the wire: rxe drops it, NAK sequence", conn: patient, both: true,
				rules: []string{"ask psn=+1 count=1 corrupt icrc=bad at=-1"}, badICRC: &spoilt,
				do: posted(device.StatusSuccess, 1, func(to opsEnd, i int) opsWR { return write(to, 0, 600) })},
			{name: "bad-icrc-injected", only: "rxe", shows: "a bit of the ACK of a WRITE is turned over on the wire: rxe drops it, timeout", conn: patient, both: true,
				rules: []string{"answer count=1 corrupt icrc=bad at=13"}, badICRC: &spoilt,
				do: posted(device.StatusSuccess, 1, func(to opsEnd, i int) opsWR { return write(to, 0, 12) })},
		} {
			l.golden(t, "sn0", g)
		}
		l.dump.Stop() // the tape has wrong ICRCs: no end
	})
	t.Run("flush", func(t *testing.T) {
		l := newOpsWith(t, "corpus-flushquirk.pcap", withQuirk)
		o := flushConn
		o.mtu = 256
		g := golden{name: "rc-flushquirk", shows: "FLUSH of a range and of a region, each behind a WRITE, with rxe's wrong ICRC", conn: o,
			badICRC: &sight{2, of(peer.OpFlush)}, do: func(t *testing.T, p *opsPair, from, to opsEnd) {
				for i, level := range []transport.FlushLevel{transport.FlushRange, transport.FlushMR} {
					posted(device.StatusSuccess, 1, func(to opsEnd, _ int) opsWR { return write(to, 0, 300*i+10) })(t, p, from, to)
					from.post(opsWR{ID: l.flushID(), Op: device.OpFlush, SGE: []span{{0, 300*i + 10}}, Addr: to.addr(opsTarget), Key: to.key(), Level: level})
					sent(t, from, "FLUSH", device.StatusSuccess)
				}
			}}
		// Who goes by the specification drops the FLUSH: to the checker what is answered was never asked.
		g.only, g.breaks = "softnic", []fault{{rules.ResponseRange, "flush-icrc", sight{3, func(l []*peer.Frame, i int) bool {
			return l[i].Op.IsResponse() && slices.ContainsFunc(l[:i], func(f *peer.Frame) bool { return f.Op == peer.OpFlush })
		}}}}
		l.golden(t, "sn0", g)
		g.only, g.breaks, g.noReplay = "rxe", []fault{{rules.ResponseRange, "flush-icrc", sight{2, of(peer.OpReadRespOnly)}}}, "is not taken (icrc)"
		l.golden(t, "sn0", g)
		l.end([]string{"drop_duplicate", "drop_stale-response"})
	})
	t.Run("vlan", func(t *testing.T) {
		l := newVlanOps(t)
		l.golden(t, "va", golden{name: "vlan", shows: "every message of RC in VLAN 5, from rxe's side of a bridge; rxe's frames with priority 3", conn: small, do: messages(everyRC...)})
		l.end(nil)
	})
}

func goldenAtomics(t *testing.T, p *opsPair, from, to opsEnd) {
	word := func(to opsEnd, op device.WROp, compare, swap uint64) opsWR {
		return opsWR{Op: op, SGE: []span{{opsSource, 8}}, Addr: to.addr(opsTarget), Key: to.key(), Compare: compare, Swap: swap}
	}
	to.put(opsTarget, make([]byte, 8))
	for i, w := range []opsWR{word(to, device.OpFetchAdd, 3, 0), word(to, device.OpCompareSwap, 3, 0x0123456789ABCDEF), word(to, device.OpCompareSwap, 4, 5), word(to, device.OpAtomicWrite, 0, 0)} {
		from.post(w)
		sent(t, from, w.Op.String(), device.StatusSuccess)
		if got := from.get(opsSource, 1)[0]; got != []byte{0, 3, 0xEF, 0xEF}[i] {
			t.Errorf("%v brings %#x", w.Op, got)
		}
	}
}

func goldenAtomicWrite(to opsEnd, i int) opsWR {
	return opsWR{Op: device.OpAtomicWrite, SGE: []span{{opsSource, 8}}, Addr: to.addr(opsTarget), Key: to.key()}
}

func goldenInvalidate(t *testing.T, p *opsPair, from, to opsEnd) {
	for _, size := range []int{10, 600} {
		w := to.window(device.MW2B)
		to.bind(w, opsTarget, 4096, device.RemoteWrite)
		sent(t, to, "bind", device.StatusSuccess)
		from.post(opsWR{Op: device.OpWrite, SGE: []span{{opsSource, size}}, Addr: to.addr(opsTarget), Key: w.rkey})
		sent(t, from, "WRITE through a window", device.StatusSuccess)
		to.recv(4, span{opsTarget + 8192, 2000})
		from.post(opsWR{Op: device.OpSendInv, SGE: []span{{opsSource, size}}, Imm: w.rkey})
		sent(t, from, "SEND with invalidate", device.StatusSuccess)
		if wc := received(t, to, "SEND with invalidate", device.StatusSuccess); wc.Imm != w.rkey {
			t.Errorf("%+v, want that %#x is invalidated", wc, w.rkey)
		}
		to.freeWindow(w)
	}
}

func goldenDatagrams(t *testing.T, p *opsPair, from, to opsEnd) {
	const grh = 40
	for i := range 4 {
		for _, op := range []device.WROp{device.OpSend, device.OpSendImm} {
			data := seeded(uint64(i), make([]byte, 100+i))
			from.put(opsSource, data)
			to.recv(1, span{opsTarget, grh + 200})
			from.post(opsWR{Op: op, SGE: []span{{opsSource, len(data)}}, Imm: 0x01020304, QKey: opsQKey})
			sent(t, from, op.String(), device.StatusSuccess)
			received(t, to, op.String(), device.StatusSuccess)
			same(t, op.String(), to.get(opsTarget+grh, len(data)), data)
		}
	}
}

// goldenRNR sends without a receive, which is there when the RNR NAK has come.
func goldenRNR(size int) func(t *testing.T, p *opsPair, from, to opsEnd) {
	return func(t *testing.T, p *opsPair, from, to opsEnd) {
		mark := p.l.tape.mark()
		from.put(opsSource, seeded(1, make([]byte, size)))
		from.post(opsWR{ID: 1, Op: device.OpSend, SGE: []span{{opsSource, size}}})
		waitFor(t, patience, "an RNR NAK", func() bool { return p.l.rnrs(mark, to) == 1 })
		to.recv(2, span{opsTarget, 4096})
		sent(t, from, "SEND", device.StatusSuccess)
		opsReceived(t, to, device.OpSend, size, 2, 0)
		if n := p.l.rnrs(mark, to); n != 1 {
			t.Errorf("%d RNR NAKs, want one: make it again", n)
		}
	}
}

func goldenRead(size int) func(t *testing.T, p *opsPair, from, to opsEnd) {
	return func(t *testing.T, p *opsPair, from, to opsEnd) { message(t, from, to, device.OpRead, size) }
}

// goldenNewRequest posts a SEND while the one before it has to wait.
func goldenNewRequest(t *testing.T, p *opsPair, from, to opsEnd) {
	mark := p.l.tape.mark()
	send := func(id uint64) { from.post(opsWR{ID: id, Op: device.OpSend, SGE: []span{{opsSource, 10}}}) }
	send(1)
	waitFor(t, patience, "an RNR NAK", func() bool { return p.l.rnrs(mark, to) == 1 })
	time.Sleep(30 * time.Millisecond) // longer than the NAK may be on its way
	send(2)
	for id := range uint64(2) {
		to.recv(id, span{opsTarget, 100})
	}
	for range 2 {
		sent(t, from, "SEND", device.StatusSuccess)
		received(t, to, "SEND", device.StatusSuccess)
	}
}

// goldenCut sends until something arrives behind the message that is cut.
func goldenCut(t *testing.T, p *opsPair, from, to opsEnd) {
	to.recv(1, span{opsTarget, 1000})
	to.recv(2, span{opsTarget, 1000})
	for i, size := range []int{600, 10, 11} {
		from.post(opsWR{ID: uint64(i), Op: device.OpSend, SGE: []span{{opsSource, size}}})
		sent(t, from, "SEND", device.StatusSuccess)
	}
	want := []int{10, 11}
	if to == opsEnd(p.kern) {
		want = want[1:]
	}
	for _, n := range want {
		if wc := received(t, to, "SEND behind one that is cut", device.StatusSuccess); wc.Len != n {
			t.Errorf("%d bytes have arrived, want %d", wc.Len, n)
		}
	}
}

func goldenTooLong(nak bth.Syndrome) func(t *testing.T, p *opsPair, from, to opsEnd) {
	return func(t *testing.T, p *opsPair, from, to opsEnd) {
		to.recv(7, span{opsTarget, 512})
		refusedWith(nak, func(to opsEnd) opsWR { return opsWR{Op: device.OpSend, SGE: []span{{opsSource, 600}}} })(t, p, from, to)
	}
}
