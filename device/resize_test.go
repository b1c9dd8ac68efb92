package device_test

import (
	"bytes"
	"strings"
	"sync"
	"testing"

	"github.com/softnic/softnic/device"
)

// TestResizeCQ: what is there stays, in order; no queue is shorter than what it holds.
func TestResizeCQ(t *testing.T) {
	a, _ := twoHosts(t, 1500, device.Options{}, device.Options{})
	cq, err := a.ctx.CreateCQ(device.CQInit{Entries: 4})
	if err != nil {
		t.Fatal(err)
	}
	q, err := a.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{SendWR: 64, RecvWR: 64}})
	if err != nil {
		t.Fatal(err)
	}
	if err := q.Activate(1, 1); err != nil {
		t.Fatal(err)
	}
	if err := q.Modify(&device.QPAttr{State: device.StateErr}, device.AttrState); err != nil {
		t.Fatal(err)
	}
	id := uint64(0)
	flush := func(n int) { // each makes a completion at once
		t.Helper()
		for range n {
			id++
			if err := q.PostRecv(&device.RecvWR{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
	next := uint64(1)
	poll := func(n int) {
		t.Helper()
		wc := make([]device.WC, 64)
		if got := cq.Poll(wc); got != n {
			t.Fatalf("%d completions, want %d", got, n)
		}
		for _, w := range wc[:n] {
			if w.ID != next {
				t.Errorf("completion %d, want %d", w.ID, next)
			}
			next++
		}
	}
	flush(3)
	poll(3)
	flush(4) // they wrap
	for _, n := range []int{0, -1, device.MaxCQE + 1, 3} {
		errno(t, "wrong", cq.Resize(n), device.EINVAL)
	}
	if cq.Cap() != 4 {
		t.Errorf("it holds %d", cq.Cap())
	}
	for _, n := range []int{7, 4, 5} {
		if err := cq.Resize(n); err != nil || cq.Cap() != n {
			t.Fatalf("%v, it holds %d, want %d", err, cq.Cap(), n)
		}
	}
	flush(1)
	poll(5)
	flush(5)
	if e, ok := a.ctx.TryAsyncEvent(); ok {
		t.Errorf("event %v", e.Type)
	}
	flush(1)
	if e, ok := a.ctx.TryAsyncEvent(); !ok || e.Type != device.EventCQErr {
		t.Errorf("event %v %v when one too many came", e.Type, ok)
	}
	poll(5)
	errno(t, "wrong", cq.ReplaceRing(nil), device.EINVAL)
	if err := q.Destroy(); err != nil {
		t.Fatal(err)
	}
	if _, err := cq.Destroy(); err != nil {
		t.Fatal(err)
	}
	errno(t, "wrong", cq.Resize(8), device.EINVAL)
}

// TestResizeSRQ: what is there stays, in order; it is not shorter than what it holds, nor than its limit.
func TestResizeSRQ(t *testing.T) {
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	s, err := b.pd.CreateSRQ(device.SRQInit{MaxWR: 4, Limit: 2})
	if err != nil {
		t.Fatal(err)
	}
	x := a.qp(device.RC, 16)
	y, err := b.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: b.cq, RecvCQ: b.cq, SRQ: s, Cap: device.Cap{SendWR: 4}})
	if err != nil {
		t.Fatal(err)
	}
	connect(t, x, y, 1, device.ConnectOptions{})
	post := func(id uint64, want device.Errno) {
		t.Helper()
		if err := s.PostRecv(&device.RecvWR{ID: id}); want == 0 && err != nil || want != 0 && device.ErrnoOf(err) != want {
			t.Fatalf("receive %d: %v, want %v", id, err, want)
		}
	}
	send := func(id uint64) {
		t.Helper()
		if err := x.PostSend(&device.SendWR{Op: device.OpSend}); err != nil {
			t.Fatal(err)
		}
		if wc := b.ok(device.WCRecv); wc.ID != id {
			t.Errorf("receive %d is taken, want %d", wc.ID, id)
		}
	}
	for i := range uint64(4) {
		post(1+i, 0)
	}
	post(0, device.ENOMEM)
	send(1)
	post(5, 0)
	for _, n := range []int{0, -1, device.MaxSRQWR + 1, 1, 3} {
		errno(t, "wrong", s.Resize(n), device.EINVAL)
	}
	if in := s.Query(); in.MaxWR != 4 || in.Limit != 2 {
		t.Errorf("%+v", in)
	}
	if err := s.Resize(6); err != nil {
		t.Fatal(err)
	}
	post(6, 0)
	post(7, 0)
	post(0, device.ENOMEM)
	for i := range uint64(4) {
		send(2 + i)
	}
	if err := s.SetLimit(5); err != nil { // possible since it has become longer
		t.Fatal(err)
	}
	errno(t, "wrong", s.Resize(4), device.EINVAL)
	if err := s.SetLimit(0); err != nil {
		t.Fatal(err)
	}
	errno(t, "wrong", s.Resize(1), device.EINVAL)
	if err := s.Resize(2); err != nil {
		t.Fatal(err)
	}
	if in := s.Query(); in.MaxWR != 2 {
		t.Errorf("%+v", in)
	}
	post(0, device.ENOMEM)
	send(6)
	send(7)
	errno(t, "wrong", s.ReplaceRing(4, nil), device.EINVAL)
	if err := y.Destroy(); err != nil {
		t.Fatal(err)
	}
	if err := s.Destroy(); err != nil {
		t.Fatal(err)
	}
	errno(t, "wrong", s.Resize(8), device.EINVAL)
}

// TestRereg: the keys stay, and lead to what was registered last.
func TestRereg(t *testing.T) {
	a, b := twoHosts(t, 1500, device.Options{}, device.Options{})
	x, y := a.qp(device.RC, 16), b.qp(device.RC, 16)
	connect(t, x, y, 1, device.ConnectOptions{})
	src := a.mr(64)
	copy(src.Bytes(), "some bytes")
	first, second := make([]byte, 64), make([]byte, 32)
	mr, err := b.pd.RegMR(first, device.LocalWrite|device.RemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	lkey, rkey := mr.LKey(), mr.RKey()
	write := func(va uint64, n int, want device.Status) {
		t.Helper()
		if err := x.PostSend(&device.SendWR{Op: device.OpWrite, Flags: device.Signaled, SGE: []device.SGE{src.SGE(0, n)}, RemoteAddr: va, RKey: rkey}); err != nil {
			t.Fatal(err)
		}
		if wc := a.wait(); wc.Status != want {
			t.Fatalf("WRITE of %d bytes: %v, want %v", n, wc.Status, want)
		}
	}
	write(mr.Addr(), 10, device.StatusSuccess)
	other, err := b.ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := a.ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	mem := device.NewMemory(second)
	gone, err := b.ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	if err := gone.Dealloc(); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{
		"no flags":        mr.Rereg(0, nil, nil, 0, 0, 0),
		"unknown flags":   mr.Rereg(8, nil, nil, 0, 0, 0),
		"no memory":       mr.Rereg(device.ReregTranslation, nil, nil, 0, 10, 0),
		"wraps":           mr.Rereg(device.ReregTranslation, nil, mem, ^uint64(0), 10, 0),
		"no domain":       mr.Rereg(device.ReregPD, nil, nil, 0, 0, 0),
		"another context": mr.Rereg(device.ReregPD, foreign, nil, 0, 0, 0),
		"rights":          mr.Rereg(device.ReregAccess, nil, nil, 0, 0, device.RemoteWrite),
		"all wrong":       mr.Rereg(device.ReregAccess|device.ReregPD, gone, nil, 0, 0, device.RemoteWrite),
	} {
		if device.ErrnoOf(err) != device.EINVAL || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
	write(mr.Addr(), 10, device.StatusSuccess) // nothing has changed
	if err := mr.Rereg(device.ReregTranslation, nil, mem, 0x1000, 32, 0); err == nil {
		t.Error("Go memory at another address than its own")
	}
	if err := mr.Rereg(device.ReregTranslation, nil, mem, addr(second), 32, 0); err != nil {
		t.Fatal(err)
	}
	if mr.LKey() != lkey || mr.RKey() != rkey || mr.Addr() != addr(second) || mr.Len() != 32 || &mr.Bytes()[0] != &second[0] {
		t.Errorf("keys %#x %#x, %d bytes at %#x", mr.LKey(), mr.RKey(), mr.Len(), mr.Addr())
	}
	write(mr.Addr(), 10, device.StatusSuccess)
	if !bytes.Equal(second[:10], first[:10]) {
		t.Errorf("%q", second)
	}
	if err := mr.Rereg(device.ReregAccess|device.ReregPD, other, nil, 0, 0, device.LocalWrite); err != nil {
		t.Fatal(err)
	}
	errno(t, "wrong", other.Dealloc(), device.EBUSY)
	write(mr.Addr(), 10, device.StatusRemoteAccess)
	if err := mr.Rereg(device.ReregPD, b.pd, nil, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := other.Dealloc(); err != nil {
		t.Error(err)
	}
	if err := mr.Dereg(); err != nil {
		t.Fatal(err)
	}
	errno(t, "wrong", mr.Rereg(device.ReregAccess, nil, nil, 0, 0, 0), device.EINVAL)
}

// TestReregAndAsk asks a region where it is while others register it anew and end it. It is the race detector that looks.
func TestReregAndAsk(t *testing.T) {
	h := lone(t, device.Options{})
	other, err := h.ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		m := h.mr(64)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if e := m.SGE(8, 8); m.Addr() == 0 || m.Len() < 32 || len(m.Bytes()) < 32 || e.LKey != m.LKey() {
					t.Errorf("%d bytes at %#x", m.Len(), m.Addr())
				}
			})
		}
		b := make([]byte, 32)
		wg.Go(func() {
			err := m.Rereg(device.ReregTranslation|device.ReregPD, other, device.NewMemory(b), addr(b), 32, 0)
			if err != nil && device.ErrnoOf(err) != device.EINVAL { // it had ended
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := m.Dereg(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
	if err := other.Dealloc(); err != nil {
		t.Error(err)
	}
	if err := h.pd.Dealloc(); err != nil {
		t.Error(err)
	}
}
