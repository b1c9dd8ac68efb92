//go:build linux

package guest

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// withQuirk is the port of a softnic that goes along with the kernel's ICRC of FLUSH (rxe-lab.md S1).
var withQuirk = link.PortOptions{RxeFlushICRC: true}

// flushConn is queue pairs for FLUSH. They serve READs and FLUSHes, 16 deep: one of the kernel's device that serves none
// would kill the kernel (S2).
var flushConn = opsConn{extended: true, flush: true, timeout: 14}

// writeFlush writes size bytes, flushes them, and looks at both completions and at the memory.
func (l *opsLab) writeFlush(t *testing.T, from, to opsEnd, size int, seed uint64, level transport.FlushLevel) {
	t.Helper()
	what := fmt.Sprintf("FLUSH of %d bytes, level %d", size, level)
	data := seeded(seed, make([]byte, size))
	from.put(opsSource, data)
	to.put(opsTarget, filled(0x77, size+8))
	id := l.flushID()
	from.post(opsWR{ID: 1, Op: device.OpWrite, SGE: []span{{opsSource, size}}, Addr: to.addr(opsTarget), Key: to.key()})
	from.post(opsWR{ID: id, Op: device.OpFlush, SGE: []span{{0, size}}, Addr: to.addr(opsTarget), Key: to.key(), Level: level})
	if wc := sent(t, from, "WRITE before a "+what, device.StatusSuccess); wc.ID != 1 {
		t.Errorf("completion of the WRITE before a %s: %+v", what, wc)
	}
	if wc := sent(t, from, what, device.StatusSuccess); wc.ID != id || wc.Op != device.WCFlush {
		t.Errorf("completion of a %s: %+v", what, wc)
	}
	same(t, "what a "+what+" is about", to.get(opsTarget, size), data)
	same(t, "what is behind a "+what, to.get(opsTarget+size, 8), filled(0x77, 8))
}

// TestOpsFlushQuirk is FLUSH between softnic, with the quirk for the kernel's ICRC of it, and the kernel's device, with
// either as the one that requests: its data, its completion, what is behind it, and what is refused.
func TestOpsFlushQuirk(t *testing.T) {
	needGuest(t)
	l := newOpsWith(t, "flushquirk.pcap", withQuirk)
	l.eachNew(t, flushConn, func(t *testing.T, p *opsPair, from, to opsEnd) {
		for i, size := range []int{1, opsMTU, 3000, 65536} {
			for _, level := range []transport.FlushLevel{transport.FlushRange, transport.FlushMR} {
				mark := l.tape.mark()
				l.writeFlush(t, from, to, size, uint64(i), level)
				asks := map[bool]rules.Direction{true: rules.Tx, false: rules.Rx}[from == opsEnd(p.soft)]
				n := 0
				for _, v := range l.tape.seen(mark, asks) {
					if v.BTH().Opcode() == bth.Make(bth.RC, bth.Flush) {
						n++
					}
				}
				if n != 1 {
					t.Errorf("%s's FLUSH was sent %d times", from.who(), n)
				}
			}
		}
		// Several in flight, and other requests behind them.
		to.put(opsTarget, make([]byte, 16))
		to.recv(9, span{opsTarget + 70000, 8})
		var ids []uint64
		for range 8 {
			ids = append(ids, l.flushID())
			from.post(opsWR{ID: ids[len(ids)-1], Op: device.OpFlush, SGE: []span{{0, 4096}}, Addr: to.addr(opsTarget), Key: to.key()})
		}
		from.post(opsWR{ID: 2, Op: device.OpFetchAdd, SGE: []span{{opsSource, 8}}, Addr: to.addr(opsTarget), Key: to.key(), Compare: 3})
		from.post(opsWR{ID: 3, Op: device.OpSend, SGE: []span{{opsSource, 8}}})
		for i, wc := range wcs(t, from, true, 10) {
			if want := append(ids, 2, 3)[i]; wc.Status != device.StatusSuccess || wc.ID != want {
				t.Errorf("%s's completion %d of FLUSHes and what is behind them: %+v, want %#x", from.who(), i, wc, want)
			}
		}
		received(t, to, "SEND behind FLUSHes", device.StatusSuccess)
		same(t, "what a FETCH ADD behind FLUSHes leaves", to.get(opsTarget, 1), []byte{3})
	})
	for _, c := range []struct {
		name  string
		where func(w *opsWR, to opsEnd)
		conn  func(o *opsConn)
		nak   bth.Syndrome
	}{
		{"key", func(w *opsWR, to opsEnd) { w.Key = to.key() ^ 0x100 }, nil, bth.NakRemoteAccess},
		{"range", func(w *opsWR, to opsEnd) { w.Addr = to.addr(opsSize - 63) }, nil, bth.NakRemoteAccess},
		{"closed", func(w *opsWR, to opsEnd) { w.Addr, w.Key = to.region(4096, opsMRAccess) }, nil, bth.NakRemoteAccess},
		{"disabled", func(*opsWR, opsEnd) {}, func(o *opsConn) { o.flush = false }, bth.NakInvalidRequest},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := flushConn
			if c.conn != nil {
				c.conn(&o)
			}
			l.eachNew(t, o, func(t *testing.T, p *opsPair, from, to opsEnd) {
				w := opsWR{ID: l.flushID(), Op: device.OpFlush, SGE: []span{{0, 64}}, Addr: to.addr(opsTarget), Key: to.key()}
				c.where(&w, to)
				mark := l.tape.mark()
				from.post(w)
				status, event := device.StatusRemoteAccess, device.EventQPAccessErr
				if c.nak == bth.NakInvalidRequest {
					status, event = device.StatusRemoteInvalidReq, device.EventQPReqErr
				}
				sent(t, from, "FLUSH", status)
				opsNak(t, l, mark, to, c.nak)
				inState(t, from, "ERR")
				inState(t, to, "ERR")
				if to == opsEnd(p.soft) {
					l.events(t, event)
				}
			})
		})
	}
	if n := l.n.counter("drop_icrc"); n != 0 {
		t.Errorf("softnic drops %d packets for their ICRC", n)
	}
	l.end([]string{"drop_bad-request", "drop_qp-state", "drop_duplicate", "drop_stale-response"})
}
