package rc

import (
	"math/rand/v2"
	"testing"

	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// TestHostilePeer throws packets of all kinds at a machine that has requests out, with
// PSNs around those that matter. Whatever the peer does, nothing may panic, and in the
// end each request has completed once and in order, and nothing waits or is held.
func TestHostilePeer(t *testing.T) {
	mem := make(arena, 2<<20)
	for seed := range uint64(1000) {
		if why := hostile(mem, rand.New(rand.NewPCG(seed, 3))); why != "" {
			t.Fatalf("seed %d: %s", seed, why)
		}
	}
}

func hostile(mem arena, rnd *rand.Rand) string {
	const requests = 6
	m := newSide(mem, func(s *side, c *Config) {
		s.attr.MaxRdAtomic, s.attr.MaxDestRdAtomic = 4, 1<<rnd.IntN(4)
		s.attr.SQPSN, s.attr.RQPSN = 0xFFFFF0, 0xFFFFFA
		s.recvs.n = 5
		c.Recv.Done = func(*transport.WC, bool) bool { return rnd.IntN(20) > 0 }
	})
	for i := range requests {
		op := []transport.WROp{transport.OpSend, transport.OpRead, transport.OpWrite}[rnd.IntN(3)]
		m.queue = append(m.queue, transport.SendWR{ID: uint64(i), Op: op, Flags: transport.Signaled, SGE: []transport.SGE{{Length: uint32(rnd.IntN(3000))}}})
	}
	now := transport.Time(1)
	m.Doorbell(now)
	for range 60 {
		now += transport.Time(rnd.IntN(100_000_000))
		op := bth.Operation(rnd.IntN(32))
		if rnd.IntN(2) == 0 {
			op = bth.ReadRequest
		}
		psn := []bth.PSN{m.rsp.epsn, m.rsp.epsn.Add(-rnd.IntN(40)), m.req.una.Add(rnd.IntN(20) - 3), bth.PSN(rnd.Uint32() & 0xFFFFFF)}[rnd.IntN(4)]
		payload := make([]byte, []int{0, 256, rnd.IntN(300)}[rnd.IntN(3)])
		va, n := uint64(rnd.IntN(8200))*256, uint32(len(payload))
		if op == bth.ReadRequest {
			payload, n = nil, uint32(rnd.IntN(5000))
			// Every second time one that is asked again, from where it fits.
			if r, _ := m.rsp.saved.find(m.rsp.place(psn)); r != nil && psn.Before(m.rsp.epsn) && rnd.IntN(2) == 0 {
				off := uint64(psn.Sub(r.first)) * 256
				va, n = r.va+off, r.length-uint32(off)
				if rnd.IntN(2) == 0 {
					n = uint32(rnd.IntN(int(n) + 1))
				}
			}
		}
		v := packet(op, psn, va, n, payload)
		if i, ok := v.Info.Offset(bth.HAETH); ok {
			v.IB[i] = []byte{0x1F, 0x60, 0x25, 0x02, byte(rnd.Uint32()), byte(rnd.Uint32())}[rnd.IntN(6)]
			v.IB[i+3] = byte(rnd.IntN(10))
		}
		m.Receive(now, v)
		if rnd.IntN(3) == 0 {
			m.EndBurst(now)
		}
		if d := m.Deadline(); d != 0 && now >= d {
			m.Timer(now)
		}
		if rnd.IntN(3) == 0 {
			m.sent(now)
			m.Pump(now)
		}
	}
	m.EndBurst(now)
	if m.attr.State != transport.Err {
		m.attr.State = transport.Err
		m.Modified(now, 0)
		m.Flush(now)
	}
	for m.tx.Len() > 0 {
		m.sent(now)
		m.Pump(now)
	}
	if len(m.done) != requests || m.req.n != 0 {
		return "not each request has completed once"
	}
	for k, w := range m.done {
		if w.ID != uint64(k) {
			return "completions are out of order"
		}
	}
	switch {
	case m.rsp.pending():
		return "answers wait"
	case m.Deadline() != 0:
		return "a timer runs"
	case m.recvs.n != 0 || m.rsp.held:
		return "a receive was not flushed"
	}
	return ""
}
