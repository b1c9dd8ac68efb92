package device_test

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
)

// program is the other side of rings: what a program that shares its queues with the device
// has posted and polls.
type program struct {
	mu       sync.Mutex
	sends    []device.SendWR
	recvs    []device.RecvWR
	fetched  int // sends taken and not retired
	retired  int
	cleared  int
	wcs      []device.WC
	inTime   []bool // for each send completion: its place was free when it was published
	room     int
	notified int
}

type (
	sends program
	recvs program
	wcs   program
)

func (p *sends) Fetch(wr *device.SendWR) (device.Status, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.sends) == 0 {
		return 0, false
	}
	wr.CopyFrom(&p.sends[0])
	p.sends = p.sends[1:]
	p.fetched++
	return 0, true
}

func (p *sends) Retire(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.fetched -= n
	p.retired += n
}

func (p *sends) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sends, p.fetched = nil, 0
	p.cleared++
}

func (p *recvs) Fetch(wr *device.RecvWR) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.recvs) == 0 {
		return false
	}
	wr.CopyFrom(&p.recvs[0])
	p.recvs = p.recvs[1:]
	return true
}

func (p *recvs) Retire(int) {}

func (p *recvs) Clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.recvs = nil
}

func (p *wcs) Push(wc *device.WC) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.wcs) >= p.room {
		return false
	}
	p.wcs = append(p.wcs, *wc)
	p.inTime = append(p.inTime, p.retired >= len(p.wcs))
	return true
}

func (p *wcs) Armed() device.Armed { return device.ArmedNone }
func (p *wcs) Disarm()             {}

func (p *program) post(wr ...device.SendWR) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sends = append(p.sends, wr...)
}

func (p *program) take() []device.WC {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.wcs
	p.wcs = nil
	return l
}

// ringQP makes a queue pair whose queues and completion queue are rings of p.
func (h *host) ringQP(p *program, typ device.QPType) (*device.QP, *device.CQ) {
	h.t.Helper()
	cq, err := h.ctx.CreateCQ(device.CQInit{Entries: 1, Ring: (*wcs)(p), Notify: func() { p.notified++ }})
	if err != nil {
		h.t.Fatal(err)
	}
	q, err := h.pd.CreateQP(device.QPInit{Type: typ, SendCQ: cq, RecvCQ: cq, SendRing: (*sends)(p), RecvRing: (*recvs)(p),
		Cap: device.Cap{SendWR: 8, RecvWR: 8, SendSGE: 2, RecvSGE: 2, Inline: 32}})
	if err != nil {
		h.t.Fatal(err)
	}
	return q, cq
}

// TestRings sends from rings to an ordinary queue pair: what the validator refuses of a caller is
// a completion here, and a place is free before the completion that frees it is seen.
func TestRings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t, 0, device.Options{}, device.Options{})
		p := &program{room: 100}
		qa, cq := a.ringQP(p, device.RC)
		qb := b.qp(device.RC, 16)
		if err := qa.Doorbell(); device.ErrnoOf(err) != device.EINVAL {
			t.Errorf("doorbell in RESET: %v", err)
		}
		connect(t, qa, qb, 1, device.ConnectOptions{})
		if err := qa.PostSend(&device.SendWR{}); device.ErrnoOf(err) != device.EINVAL {
			t.Errorf("PostSend on a ring: %v", err)
		}
		if err := qa.PostRecv(&device.RecvWR{}); device.ErrnoOf(err) != device.EINVAL {
			t.Errorf("PostRecv on a ring: %v", err)
		}
		ma, mb := a.mr(100), b.mr(100)
		cq.Arm(false)
		for i := range 3 {
			p.post(device.SendWR{ID: uint64(i), Op: device.OpWrite, Flags: device.Signaled, SGE: []device.SGE{ma.SGE(0, 100)}, RemoteAddr: mb.Addr(), RKey: mb.RKey()})
		}
		if err := qa.Doorbell(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for i, wc := range p.take() {
			if wc.ID != uint64(i) || wc.Status != device.StatusSuccess || !p.inTime[i] {
				t.Errorf("completion %d: %+v, place free: %v", i, wc, p.inTime[i])
			}
		}
		if p.retired != 3 || p.notified != 1 {
			t.Errorf("%d retired, %d events", p.retired, p.notified)
		}

		p.post(device.SendWR{ID: 7, Op: 99, Flags: device.Signaled}, device.SendWR{ID: 8, Op: device.OpWrite})
		if err := qa.Doorbell(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		l := p.take()
		if len(l) != 2 || l[0].ID != 7 || l[0].Status != device.StatusLocalQPOp || l[1].ID != 8 || l[1].Status != device.StatusFlush {
			t.Fatalf("completions %+v", l)
		}

		// In ERR a receive that is posted rings no doorbell, and is flushed all the same.
		p.mu.Lock()
		p.recvs = append(p.recvs, device.RecvWR{ID: 9})
		p.mu.Unlock()
		time.Sleep(20 * time.Millisecond)
		if l := p.take(); len(l) != 1 || l[0].ID != 9 || l[0].Status != device.StatusFlush {
			t.Errorf("receive posted in ERR: %+v", l)
		}
		if err := qa.Modify(&device.QPAttr{State: device.StateReset}, device.AttrState); err != nil {
			t.Fatal(err)
		}
		if p.cleared != 1 {
			t.Errorf("RESET cleared the send ring %d times", p.cleared)
		}
		if err := qa.Destroy(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRingOverrun: a completion that finds no room in a ring is an event, and ends the
// queue pair.
func TestRingOverrun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := twoHosts(t, 0, device.Options{}, device.Options{})
		p := &program{room: 1}
		qa, cq := a.ringQP(p, device.RC)
		var events []device.EventType
		a.ctx.OnAsyncEvent(func(e device.AsyncEvent) {
			if e.QP == qa || e.CQ == cq {
				events = append(events, e.Type)
			}
		})
		connect(t, qa, b.qp(device.RC, 16), 1, device.ConnectOptions{})
		wr := device.SendWR{Op: device.OpWrite, Flags: device.Signaled}
		p.post(wr, wr)
		if err := qa.Doorbell(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if len(p.take()) != 1 || qa.State() != device.StateErr {
			t.Errorf("state %v", qa.State())
		}
		if len(events) != 2 || events[0] != device.EventCQErr || events[1] != device.EventQPFatal {
			t.Errorf("events %v", events)
		}
	})
}

// TestWatch hears of a new address until it is stopped.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		end, _ := pipe.New(pipe.Config{Name: "a"}, pipe.Config{Name: "b"})
		h := newHost(t, end, device.Options{})
		var seen []device.GID
		stop := h.dev.Watch(func() {
			g, _ := h.dev.QueryGID(1, 1)
			seen = append(seen, g)
		})
		add := func(cidr string) {
			end.Change(func(i *link.Info) { i.Addrs = append(i.Addrs, netip.MustParsePrefix(cidr)) })
			synctest.Wait()
		}
		add("10.0.0.1/24")
		stop()
		add("10.0.0.2/24")
		if len(seen) != 1 || seen[0].String() != "::ffff:10.0.0.1" {
			t.Errorf("heard %v", seen)
		}
	})
}
