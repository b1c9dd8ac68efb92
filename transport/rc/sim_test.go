package rc

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
)

// flight is a packet on the simulated wire; seq orders those that arrive together.
type flight struct {
	at  transport.Time
	seq int
	to  int
	v   *wire.View
}

type flights []flight

func (f flights) Len() int { return len(f) }
func (f flights) Less(i, j int) bool {
	return f[i].at < f[j].at || f[i].at == f[j].at && f[i].seq < f[j].seq
}
func (f flights) Swap(i, j int) { f[i], f[j] = f[j], f[i] }
func (f *flights) Push(x any)   { *f = append(*f, x.(flight)) }
func (f *flights) Pop() any {
	o := *f
	x := o[len(o)-1]
	*f = o[:len(o)-1]
	return x
}

// network is what the simulated wire does, as probabilities, and the ACK timeout code.
type network struct {
	loss, dup, reorder float64
	timeout            uint8
}

// TestSimulatedPairs lets two machines send to each other over a bad wire in virtual
// time, with random windows, READ depths and receives that come late. A connection with
// timers survives everything that the wire does: each request completes once, in order,
// with success, and consumes one receive if it has to. Without timers it does so as long
// as nothing is lost.
func TestSimulatedPairs(t *testing.T) {
	mem := make(arena, 1<<20)
	for _, n := range []network{
		{},
		{dup: 0.05},
		{reorder: 0.05, timeout: 8},
		{loss: 0.02, timeout: 8},
		{loss: 0.02, dup: 0.02, reorder: 0.02, timeout: 8},
		{loss: 0.01, timeout: 4},
	} {
		for seed := range uint64(100) {
			if why := simulate(mem, seed, n); why != "" {
				t.Errorf("%+v, seed %d: %s", n, seed, why)
				break
			}
		}
	}
}

func simulate(mem arena, seed uint64, net network) string {
	const total = 40
	rnd := rand.New(rand.NewPCG(seed, 77))
	late := rnd.IntN(2) == 0 // receives are posted late: RNR NAKs
	var s [2]*side
	var consuming [2]int // requests posted that need a receive
	for i := range s {
		s[i] = newSide(mem, func(s *side, c *Config) {
			a := &s.attr
			a.QPN, a.DestQPN = uint32(i), uint32(1-i)
			a.Timeout, a.MinRNRTimer = net.timeout, 5
			a.MaxRdAtomic, a.MaxDestRdAtomic = 1<<rnd.IntN(4), 8
			a.SQPSN, a.RQPSN = 0xFFFFF0, 100
			if i == 1 {
				a.SQPSN, a.RQPSN = a.RQPSN, a.SQPSN
			}
			s.recvs.n = 1000
			if late {
				s.recvs.n = 2
			}
			if rnd.IntN(2) == 0 {
				c.Window = 8 + rnd.IntN(60)
			}
		})
	}
	var air flights
	var posted, checked [2]int
	now, seq := transport.Time(1), 0
	send := func(i int) {
		for s[i].tx.Len() > 0 {
			for _, v := range s[i].sent(now) {
				copies := 1
				if rnd.Float64() < net.loss {
					copies = 0
				} else if rnd.Float64() < net.dup {
					copies = 2
				}
				for range copies {
					d := transport.Time(1000)
					if rnd.Float64() < net.reorder {
						d += transport.Time(rnd.IntN(200_000))
					}
					seq++
					heap.Push(&air, flight{now + d, seq, 1 - i, v})
				}
			}
			s[i].Pump(now)
		}
	}
	for range 200_000 {
		for i, m := range s {
			for posted[i] < total && rnd.IntN(20) == 0 {
				op := []transport.WROp{transport.OpSend, transport.OpSendImm, transport.OpWrite, transport.OpWriteImm, transport.OpRead, transport.OpRead}[rnd.IntN(6)]
				wr := transport.SendWR{ID: uint64(posted[i]), Op: op, Flags: transport.Signaled, SGE: []transport.SGE{{Length: uint32(rnd.IntN(1 << rnd.IntN(16)))}}}
				if rnd.IntN(8) == 0 {
					wr.Flags |= transport.Fence
				}
				if op != transport.OpWrite && op != transport.OpRead {
					consuming[i]++
				}
				m.queue = append(m.queue, wr)
				posted[i]++
				m.Doorbell(now)
			}
			if late && rnd.IntN(40) == 0 {
				m.recvs.n++
			}
			send(i)
		}
		for i, m := range s {
			for k := checked[i]; k < len(m.done); k++ {
				w := m.done[k]
				if w.ID != uint64(k) || w.Status != transport.StatusSuccess {
					return fmt.Sprintf("side %d, completion %d: request %d, %v", i, k, w.ID, w.Status)
				}
			}
			checked[i] = len(m.done)
			if m.attr.State != transport.RTS {
				return fmt.Sprintf("side %d is in %v", i, m.attr.State)
			}
		}
		if len(s[0].done) == total && len(s[1].done) == total {
			for i, m := range s {
				if m.recvs.taken != consuming[1-i] {
					return fmt.Sprintf("side %d completed %d receives for %d messages", i, m.recvs.taken, consuming[1-i])
				}
			}
			return ""
		}
		next := transport.Time(0)
		if len(air) > 0 {
			next = air[0].at
		}
		for _, m := range s {
			if d := m.Deadline(); d != 0 && (next == 0 || d < next) {
				next = d
			}
		}
		if next == 0 {
			next = now + 1000
		}
		now = max(now, next)
		var hit [2]bool
		for len(air) > 0 && air[0].at <= now {
			f := heap.Pop(&air).(flight)
			s[f.to].Receive(now, f.v)
			hit[f.to] = true
			if rnd.IntN(3) == 0 { // a burst ends here
				break
			}
		}
		for i, m := range s {
			if hit[i] {
				m.EndBurst(now)
			}
			if d := m.Deadline(); d != 0 && now >= d {
				m.Timer(now)
			}
			m.Pump(now)
		}
	}
	return fmt.Sprintf("stalled: %d and %d of %d complete", len(s[0].done), len(s[1].done), total)
}
