//go:build linux

package guest

import (
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// impaired adds rules to softnic's port, and returns a function that says what they have hit and takes them away. Each
// must have hit at least so often.
func (l *opsLab) impaired(t *testing.T, least uint64, rules ...string) (lift func()) {
	t.Helper()
	impair := l.n.dev.Port().Impair()
	for _, rule := range rules {
		if _, err := impair.Add(rule); err != nil {
			t.Fatal(err)
		}
	}
	return func() {
		t.Helper()
		for _, s := range impair.List() {
			t.Logf("%s: %d of %d", s.Rule, s.Hits, s.Matched)
			if s.Hits < least {
				t.Errorf("%s has lost %d packets of %d, want %d", s.Rule, s.Hits, s.Matched, least)
			}
		}
		impair.Clear()
	}
}

// twoPercent loses two packets of a hundred, each way.
func twoPercent(seed int) []string {
	return []string{fmt.Sprintf("tx drop=2%% seed=%d", seed), fmt.Sprintf("rx drop=2%% seed=%d", seed+1)}
}

// opsStream is messages of an unreliable service over a path that loses packets.
type opsStream struct {
	l      *opsLab
	from   opsEnd
	to     []opsEnd // each gets every message; of one end
	qpn    uint32   // where the packets go
	header int      // bytes in front of what is received
	kinds  []opsKind
	// Of what is whole all arrives. Else what follows a message that was cut may be lost with it (row uc-send-cut).
	exact bool
}

type opsKind struct {
	op   device.WROp
	size int // at least 4: a message says which it is
}

// Where the messages of a stream lie: those that are sent, that are received, and that are written.
const (
	streamSlots  = 8
	streamSlot   = 4096
	streamWrites = opsTarget + 2*streamSlots*streamSlot // two ends may receive in one memory
)

// run sends rounds of one message of each kind, in order, and holds against what softnic's port has lost: what arrives is
// right, in order, and once; what was lost in part is not there; and what was not lost is.
func (s *opsStream) run(t *testing.T, rounds int) {
	t.Helper()
	next := make([]uint64, len(s.to)) // the receive that is filled next
	slot := func(k int, id uint64) int { return opsTarget + (k*streamSlots+int(id%streamSlots))*streamSlot }
	for k, to := range s.to {
		for id := range uint64(streamSlots) {
			to.recv(id, span{slot(k, id), streamSlot})
		}
	}
	lost, arrived := 0, 0
	before := true // the message before this one was whole
	for r := range rounds {
		mark := s.l.tape.mark()
		type message struct {
			opsKind
			index   uint32
			data    []byte
			at      int // where it is written
			first   int // its first packet
			packets int
			whole   bool
			sure    bool // it arrives
		}
		var all []*message
		packets := 0
		for k, kind := range s.kinds {
			m := &message{opsKind: kind, index: uint32(r*len(s.kinds) + k), first: packets, packets: max(1, (kind.size+opsMTU-1)/opsMTU)}
			m.data = seeded(uint64(m.index), make([]byte, m.size))
			binary.LittleEndian.PutUint32(m.data, m.index)
			packets += m.packets
			source := opsSource + k*2*streamSlot
			s.from.put(source, m.data)
			w := opsWR{ID: uint64(m.index), Op: m.op, SGE: []span{{source, m.size}}, Imm: m.index, QKey: opsQKey}
			if m.op == device.OpWrite || m.op == device.OpWriteImm {
				m.at = streamWrites + len(all)%4*streamSlot
				s.to[0].put(m.at, make([]byte, streamSlot))
				w.Addr, w.Key = s.to[0].addr(m.at), s.to[0].key()
			}
			all = append(all, m)
			s.from.post(w)
		}
		for i, wc := range wcs(t, s.from, true, len(all)) {
			if wc.Status != device.StatusSuccess || wc.ID != uint64(all[i].index) {
				t.Fatalf("%s's completion %d: %+v", s.from.who(), i, wc)
			}
		}
		var fates []rules.Fate
		waitFor(t, patience, "the packets on the tape", func() bool {
			fates = s.l.tape.fates(mark, answers(s.from), s.qpn)
			return len(fates) >= packets
		})
		if len(fates) != packets {
			t.Fatalf("%s has sent %d packets, want %d", s.from.who(), len(fates), packets)
		}
		var want []*message
		for _, m := range all {
			m.whole = !slices.Contains(fates[m.first:m.first+m.packets], rules.Lost)
			m.sure = m.whole && (s.exact || before)
			if before = m.whole; !m.whole {
				lost++
			}
			if m.whole && m.op != device.OpWrite {
				want = append(want, m)
			}
		}
		for k, to := range s.to {
			limit := patience
			if !s.exact {
				limit = time.Second
			}
			got := to.polled(false, len(want), limit)
			got = append(got, to.polled(false, 1, 10*time.Millisecond)...)
			i := 0 // in want
			for _, wc := range got {
				where := slot(k, next[k])
				if wc.ID != next[k] {
					t.Errorf("%s's receive %d is filled, want %d", to.who(), wc.ID, next[k])
				}
				next[k] = wc.ID + 1
				index := wc.Imm
				if wc.Flags&device.WCWithImm == 0 {
					index = binary.LittleEndian.Uint32(to.get(where+s.header, 4))
				}
				for i < len(want) && want[i].index != index {
					if want[i].sure {
						t.Errorf("round %d: %s has not got message %d, %v of %d bytes", r, to.who(), want[i].index, want[i].op, want[i].size)
					}
					i++
				}
				if i == len(want) {
					t.Fatalf("round %d: %s gets message %d, which was lost, comes twice or out of order: %+v", r, to.who(), index, wc)
				}
				m := want[i]
				i++
				arrived++
				size, at := m.size, where+s.header
				if m.op == device.OpWriteImm {
					at = m.at
				} else {
					size += s.header
				}
				if wc.Status != device.StatusSuccess || wc.Len != size || (wc.Flags&device.WCWithImm != 0) != (m.op != device.OpSend) {
					t.Errorf("round %d: %s's completion of %v of %d bytes: %+v", r, to.who(), m.op, m.size, wc)
				}
				same(t, fmt.Sprintf("message %d, %v", m.index, m.op), to.get(at, m.size), m.data)
				to.recv(wc.ID+streamSlots, span{slot(k, wc.ID+streamSlots), streamSlot})
			}
			for ; i < len(want); i++ {
				if want[i].sure {
					t.Errorf("round %d: %s has not got message %d, %v of %d bytes", r, to.who(), want[i].index, want[i].op, want[i].size)
				}
			}
		}
		// What is written without immediate is there when what comes behind it is, or else there is no telling.
		for k, m := range all {
			if m.op != device.OpWrite {
				continue
			}
			got := s.to[0].get(m.at, streamSlot)
			if m.sure && k+1 < len(all) && all[k+1].sure {
				same(t, fmt.Sprintf("message %d, %v", m.index, m.op), got[:m.size], m.data)
			}
			same(t, "what is behind a WRITE", got[m.size:], make([]byte, streamSlot-m.size))
			for at := 0; at < m.size; at += opsMTU { // packet by packet: all of it or nothing
				end := min(at+opsMTU, m.size)
				if fates[m.first] == rules.Lost || string(got[at:end]) != string(m.data[at:end]) {
					same(t, fmt.Sprintf("what is left of message %d, %v", m.index, m.op), got[at:end], make([]byte, end-at))
				}
			}
		}
	}
	t.Logf("%s to %s: %d messages, %d lost in part or whole, %d received by %d", s.from.who(), s.to[0].who(), rounds*len(s.kinds), lost, arrived, len(s.to))
	if lost == 0 {
		t.Error("nothing was lost")
	}
}

// TestOpsLossUC has softnic lose two packets of a hundred of an unreliable connection, sending and receiving.
func TestOpsLossUC(t *testing.T) {
	needGuest(t)
	l := newOps(t, "lossuc.pcap")
	for _, c := range []struct {
		name  string
		soft  bool // it is softnic that sends
		kinds []opsKind
	}{
		{"rxe", false, []opsKind{{device.OpSend, 2500}, {device.OpSendImm, 1500}, {device.OpWrite, 3000}, {device.OpWriteImm, 2100}, {device.OpSend, 4}, {device.OpWriteImm, 4}}},
		// A WRITE of several packets that is cut would leave the kernel's device deaf (row uc-deaf).
		{"softnic", true, []opsKind{{device.OpSend, 2500}, {device.OpSendImm, 1500}, {device.OpWrite, 1000}, {device.OpWriteImm, 1024}, {device.OpSend, 4}, {device.OpSendImm, 900}}},
		{"softnic-short", true, []opsKind{{device.OpSend, 1000}, {device.OpSendImm, 1024}, {device.OpWrite, 1000}, {device.OpWriteImm, 1024}, {device.OpSend, 4}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := l.connect(opsConn{typ: device.UC})
			defer p.close()
			from, to := opsEnd(p.kern), opsEnd(p.soft)
			if c.soft {
				from, to = to, from
			}
			rule := twoPercent(31)[1]
			if c.soft {
				rule = twoPercent(31)[0]
			}
			lift := l.impaired(t, 5, rule)
			s := &opsStream{l: l, from: from, to: []opsEnd{to}, qpn: to.num(), kinds: c.kinds, exact: c.name != "softnic"}
			s.run(t, 40)
			lift()
			inState(t, to, "RTS")
		})
	}
	l.end([]string{"drop_impaired", "drop_out-of-sequence", "drop_bad-request"})
}

// TestOpsLossUD does so for datagrams, and for those to a multicast group with two members.
func TestOpsLossUD(t *testing.T) {
	needGuest(t)
	const grh = 40
	l := newOps(t, "lossud.pcap")
	kinds := []opsKind{{device.OpSend, 4}, {device.OpSendImm, 1000}, {device.OpSend, opsMTU}, {device.OpSendImm, 4}, {device.OpSend, 700}}
	t.Run("unicast", func(t *testing.T) {
		p := l.connect(opsConn{typ: device.UD})
		defer p.close()
		lift := l.impaired(t, 3, twoPercent(41)...)
		p.each(t, func(t *testing.T, from, to opsEnd) {
			s := &opsStream{l: l, from: from, to: []opsEnd{to}, qpn: to.num(), header: grh, kinds: kinds, exact: true}
			s.run(t, 50)
		})
		lift()
	})
	t.Run("multicast", func(t *testing.T) {
		p, q := l.connect(opsConn{typ: device.UD}), l.connect(opsConn{typ: device.UD})
		defer p.close()
		defer q.close()
		toRxe, toUs := mustAddr("239.129.2.3"), mustAddr("239.1.2.4")
		sender := l.connect(opsConn{typ: device.UD})
		defer sender.close()
		l.v.call(nil, "join", args{"group": groupText(toRxe), "netdev": "sn0"})
		for _, m := range []*opsPair{p, q} {
			m.kern.q.MCast(toRxe, true)
			defer m.kern.q.MCast(toRxe, false)
			if err := m.soft.q.Attach(device.GIDOf(toUs)); err != nil {
				t.Fatal(err)
			}
			defer func() {
				if err := m.soft.q.Detach(device.GIDOf(toUs)); err != nil {
					t.Error(err)
				}
			}()
		}
		var err error
		if sender.soft.ah, err = l.n.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(toRxe), SGIDIndex: l.gid}); err != nil {
			t.Fatal(err)
		}
		sender.kern.ah = l.v.CreateAH(l.vgid, toUs)
		sender.soft.peer, sender.kern.peer = device.MulticastQPN, device.MulticastQPN
		lift := l.impaired(t, 3, twoPercent(43)...)
		for _, s := range []*opsStream{
			{from: sender.soft, to: []opsEnd{p.kern, q.kern}},
			{from: sender.kern, to: []opsEnd{p.soft, q.soft}},
		} {
			t.Run(s.from.who(), func(t *testing.T) {
				s.l, s.qpn, s.header, s.kinds, s.exact = l, device.MulticastQPN, grh, kinds, true
				s.run(t, 40)
			})
		}
		lift()
	})
	l.end([]string{"drop_impaired"})
}

// TestOpsLossRNR posts receives late while two packets of a hundred are lost, RNR NAKs and what follows them among them.
func TestOpsLossRNR(t *testing.T) {
	needGuest(t)
	l := newOps(t, "lossrnr.pcap")
	p := l.connect(opsConn{timeout: 14, minRNR: 20})
	defer p.close()
	lift := l.impaired(t, 1, append(twoPercent(51), "tx opcode=ACKNOWLEDGE drop=10% seed=53", "rx opcode=ACKNOWLEDGE drop=10% seed=54")...)
	p.each(t, func(t *testing.T, from, to opsEnd) {
		for r := range 20 {
			op := []device.WROp{device.OpSend, device.OpWriteImm, device.OpSendImm}[r%3]
			mark := l.tape.mark()
			sizes := []int{10, 2500, 5}
			for i, size := range sizes {
				from.put(opsSource+i*4096, seeded(uint64(10*r+i), make([]byte, size)))
				to.put(opsTarget+i*4096, make([]byte, size))
				from.post(opsWR{ID: uint64(i), Op: op, SGE: []span{{opsSource + i*4096, size}}, Imm: uint32(i), Addr: to.addr(opsTarget + i*4096), Key: to.key()})
			}
			waitFor(t, patience, "an RNR NAK", func() bool { return l.rnrs(mark, to) >= 1+r%2 })
			if wc := from.polled(true, 1, time.Millisecond); len(wc) > 0 {
				t.Fatalf("%s's request completes without a receive: %+v", from.who(), wc)
			}
			for i := range sizes {
				to.recv(uint64(10+i), span{opsTarget + i*4096, 4096})
			}
			for i, size := range sizes {
				if wc := sent(t, from, op.String(), device.StatusSuccess); wc.ID != uint64(i) {
					t.Errorf("%s's completion %d: %+v", from.who(), i, wc)
				}
				opsReceived(t, to, op, size, uint64(10+i), uint32(i))
				same(t, op.String()+" after RNR", to.get(opsTarget+i*4096, size), seeded(uint64(10*r+i), make([]byte, size)))
			}
		}
		inState(t, from, "RTS")
		inState(t, to, "RTS")
	})
	lift()
	l.end([]string{"drop_impaired", "drop_not-ready", "drop_out-of-sequence", "drop_duplicate", "drop_stale-response"},
		rules.RNRWait, rules.RNRSilence, rules.AckTimeout, rules.NakOncePerGap)
}

// TestOpsLossAccess has requests refused while two packets of a hundred are lost. The NAK says so, or, where it was
// lost itself, the retries run out, since the responder does not answer any more.
func TestOpsLossAccess(t *testing.T) {
	needGuest(t)
	l := newOps(t, "lossaccess.pcap")
	l.slack = 16 * time.Millisecond // softnic may have seen late what rxe has sent in time
	const good, size = 6, 3000
	o := opsConn{timeout: 14, retry: 3}
	refused := func(t *testing.T, p *opsPair, from, to opsEnd, seed uint64) device.Status {
		t.Helper()
		to.put(opsTarget, make([]byte, good*4096))
		data := make([][]byte, good)
		mark := l.tape.mark()
		for i := range good {
			data[i] = seeded(seed+uint64(i), make([]byte, size))
			from.put(opsSource+i*4096, data[i])
			from.post(opsWR{ID: uint64(i), Op: device.OpWrite, SGE: []span{{opsSource + i*4096, size}}, Addr: to.addr(opsTarget + i*4096), Key: to.key()})
		}
		for id, key := range []uint32{to.key() ^ 0x100, to.key()} {
			from.post(opsWR{ID: uint64(good + id), Op: device.OpWrite, SGE: []span{{opsSource, 100}}, Addr: to.addr(opsTarget), Key: key})
		}
		all := wcs(t, from, true, good+2)
		n := 0
		for n < len(all) && all[n].Status == device.StatusSuccess {
			n++
		}
		if n > good {
			t.Fatalf("%s's WRITE with a wrong key succeeds", from.who())
		}
		end := all[n].Status
		seen := func() bool { return l.tape.refused(mark, to, from.num(), bth.NakRemoteAccess) }
		if end == device.StatusRemoteAccess {
			waitFor(t, patience, "the NAK on the tape", seen)
		}
		naked := seen()
		switch {
		case naked && (n != good || end != device.StatusRemoteAccess):
			t.Errorf("%s's request %d ends with %v, after the NAK of request %d has come", from.who(), n, end, good)
		case !naked && end != device.StatusRetryExceeded:
			t.Errorf("%s's request %d ends with %v, and no NAK has come", from.who(), n, end)
		}
		for i, wc := range all {
			if wc.ID != uint64(i) || i > n && wc.Status != device.StatusFlush {
				t.Errorf("%s's completion %d: %+v", from.who(), i, wc)
			}
		}
		inState(t, from, "ERR")
		inState(t, to, "ERR")
		for i := range n { // and what was not acknowledged may be there
			same(t, "WRITE before one that is refused", to.get(opsTarget+i*4096, size), data[i])
		}
		if to == opsEnd(p.soft) {
			l.events(t, device.EventQPAccessErr)
		}
		return end
	}
	t.Run("random", func(t *testing.T) {
		lift := l.impaired(t, 2, twoPercent(61)...)
		for i := range 12 {
			l.eachNew(t, o, func(t *testing.T, p *opsPair, from, to opsEnd) { refused(t, p, from, to, uint64(100*i)) })
		}
		lift()
	})
	t.Run("request-lost", func(t *testing.T) {
		l.eachNew(t, o, func(t *testing.T, p *opsPair, from, to opsEnd) {
			dir := map[rules.Direction]string{rules.Tx: "tx", rules.Rx: "rx"}[answers(from)]
			lift := l.impaired(t, 1, dir+" opcode=WRITE_ONLY round=1 count=1 drop")
			if got := refused(t, p, from, to, 1); got != device.StatusRemoteAccess {
				t.Errorf("%v", got)
			}
			lift()
		})
	})
	t.Run("nak-lost", func(t *testing.T) {
		l.eachNew(t, o, func(t *testing.T, p *opsPair, from, to opsEnd) {
			dir := map[rules.Direction]string{rules.Tx: "tx", rules.Rx: "rx"}[answers(to)]
			lift := l.impaired(t, 1, fmt.Sprintf("%s opcode=ACKNOWLEDGE psn=+%d drop", dir, good*3-2))
			if got := refused(t, p, from, to, 1); got != device.StatusRetryExceeded {
				t.Errorf("%v", got)
			}
			lift()
		})
	})
	l.end([]string{"drop_impaired", "drop_bad-request", "drop_qp-state", "drop_duplicate", "drop_stale-response", "drop_out-of-sequence"})
}

// TestOpsLossFlush has FLUSHes, with the quirk, and what they are about on a path that loses packets.
func TestOpsLossFlush(t *testing.T) {
	needGuest(t)
	l := newOpsWith(t, "lossflushquirk.pcap", withQuirk)
	o := flushConn
	o.retry = 3
	for _, c := range []struct {
		name  string
		soft  bool // softnic requests
		rules []string
		level transport.FlushLevel
	}{
		// The kernel's device does not answer a FLUSH that it had: its answers come through here (row flush-duplicate).
		{"softnic", true, []string{"tx drop=2% seed=71", "tx opcode=FLUSH drop=10% seed=72", "rx opcode=ACKNOWLEDGE drop=5% seed=73"}, transport.FlushRange},
		// It sends a FLUSH again with address 0, which a whole region is not asked for by (row atomic-write-retry).
		{"rxe", false, []string{"rx drop=2% seed=74", "rx opcode=FLUSH drop=10% seed=75", "tx drop=5% seed=76"}, transport.FlushMR},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := l.connect(o)
			defer p.close()
			from, to := opsEnd(p.soft), opsEnd(p.kern)
			if !c.soft {
				from, to = to, from
			}
			lift := l.impaired(t, 1, c.rules...)
			for i := range 50 {
				l.writeFlush(t, from, to, []int{1, 1000, 3000}[i%3], uint64(i), c.level)
			}
			lift()
		})
	}
	lost := func(t *testing.T, soft bool, rule string) (got device.Status) {
		t.Helper()
		p := l.connect(o)
		defer p.close()
		from, to := opsEnd(p.soft), opsEnd(p.kern)
		if !soft {
			from, to = to, from
		}
		lift := l.impaired(t, 1, rule)
		from.post(opsWR{ID: l.flushID(), Op: device.OpFlush, SGE: []span{{0, 64}}, Addr: to.addr(opsTarget), Key: to.key()})
		got = wcs(t, from, true, 1)[0].Status
		lift()
		if !soft && got == device.StatusRemoteAccess {
			l.events(t, device.EventQPAccessErr)
		}
		return got
	}
	t.Run("answer-lost", func(t *testing.T) {
		got := lost(t, true, "rx opcode=READ_RESPONSE_ONLY count=1 drop")
		deviation(t, "flush-duplicate", got == device.StatusRetryExceeded, "softnic's FLUSH whose answer was lost ends with %v", got)
		if got := lost(t, false, "tx opcode=READ_RESPONSE_ONLY count=1 drop"); got != device.StatusSuccess {
			t.Errorf("rxe's FLUSH whose answer was lost ends with %v", got)
		}
	})
	t.Run("request-lost", func(t *testing.T) {
		if got := lost(t, true, "tx opcode=FLUSH count=1 drop"); got != device.StatusSuccess {
			t.Errorf("softnic's FLUSH that was lost ends with %v", got)
		}
		got := lost(t, false, "rx opcode=FLUSH count=1 drop")
		deviation(t, "atomic-write-retry", got == device.StatusRemoteAccess, "rxe's FLUSH that was lost ends with %v", got)
	})
	l.end([]string{"drop_impaired", "drop_duplicate", "drop_out-of-sequence", "drop_stale-response", "drop_early-response", "drop_bad-request", "drop_qp-state"}, rules.RetransmissionSame)
	deviation(t, "atomic-write-retry", l.breaks(rules.RetransmissionSame), "it keeps retransmission-same")
}
