package cases

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/transport"
)

// Case 25: a WRITE with a bad key between two devices, and more requests behind it, signaled and not, from two
// goroutines: the first has its status, each of the others is flushed, once, in order.
func TestCase25_BadKeyThenMore(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		n := newNet(t, netConfig{pairs: []device.QPType{device.RC}, way: 10 * time.Microsecond})
		a, b := n.q[0][0], n.q[0][1]
		write := func(id uint64, key uint32, f device.SendFlags) {
			wr := device.SendWR{ID: id, Op: device.OpWrite, Flags: f, SGE: []device.SGE{a.mr.SGE(0, 8)}, RemoteAddr: b.mr.Addr(), RKey: key}
			if err := a.qp.PostSend(&wr); err != nil {
				t.Errorf("post_send %d: %v", id, err)
			}
		}
		write(1, b.mr.RKey(), device.Signaled)
		time.Sleep(time.Millisecond)
		sameList(t, "good", briefWC(drain(a.scq)), []string{"1 SUCCESS RDMA_WRITE 8"})
		write(2, b.mr.RKey()^0x100, 0)
		done := make(chan struct{})
		go func() { // the NAK is on its way
			defer close(done)
			for i := range uint64(10) {
				write(3+i, b.mr.RKey()^0x100, device.SendFlags(i%2)*device.Signaled)
				time.Sleep(3 * time.Microsecond)
			}
		}()
		<-done
		time.Sleep(time.Millisecond)
		wants := []string{"2 REM_ACCESS_ERR"}
		for i := range 10 {
			wants = append(wants, fmt.Sprintf("%d WR_FLUSH_ERR", 3+i))
		}
		sameList(t, "send completions", briefWC(drain(a.scq)), wants)
		for i := range uint64(9) { // one after the other, each polled
			write(20+i, b.mr.RKey(), 0)
			sameList(t, "flushed", briefWC(drain(a.scq)), []string{fmt.Sprintf("%d WR_FLUSH_ERR", 20+i)})
		}
		want(t, "requester", a.qp.State(), device.StateErr)
		want(t, "responder", b.qp.State(), device.StateErr)
		e, ok := b.ctx.TryAsyncEvent()
		if !ok || e.Type != device.EventQPAccessErr || e.QP != b.qp {
			t.Errorf("event %v", e)
		}
		if e, ok := b.ctx.TryAsyncEvent(); ok {
			t.Errorf("another event %v", e.Type)
		}
		if c := judge(n.rules, n.tape.sorted(0, 1)); c.Broken() > 0 {
			t.Errorf("rules are broken\n%s", findings(c))
		}
	})
}

// Case 39: the L_Key used as R_Key, rights that a region does not give, and memory that is registered anew while a
// READ of it is answered.
func TestCase39_KeysAndLateReads(t *testing.T) {
	newKeyLab := func(t *testing.T, o device.Options) (*lab, *bytes.Buffer) {
		var log bytes.Buffer
		l := &lab{t: t, dst: peer4, dice: newDice()}
		o.Rand, o.Logger = l.dice, slog.New(slog.NewTextHandler(&log, nil))
		l.end, l.raw = pipe.NewRaw(pipe.Config{Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}})
		l.dev = must(device.Open(l.end, o))
		t.Cleanup(func() { l.dev.Close() })
		l.ctx = l.dev.NewContext()
		l.pd = must(l.ctx.AllocPD())
		l.conn = &rawConn{l.raw}
		l.p = peer.New(l.conn, peer4, nic4)
		return l, &log
	}
	bubble(t, "the L_Key", func(t *testing.T) {
		l, log := newKeyLab(t, device.Options{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		if mr.LKey() == mr.RKey() {
			t.Fatal("the keys are one")
		}
		c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), mr.LKey(), []byte("evil")))
		l.emits("ACKNOWLEDGE 000200 62 m0")
		l.events("QP_ACCESS_ERR")
		wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
		if !strings.Contains(log.String(), "a peer used an L_Key as R_Key") {
			t.Errorf("the log says %q", log.String())
		}
	})
	bubble(t, "one key on request", func(t *testing.T) {
		l, log := newKeyLab(t, device.Options{SameKeys: true})
		c := l.rc(nil)
		mr := l.mr(64, all)
		want(t, "R_Key", mr.RKey(), mr.LKey())
		c.gets(peer.WriteOnly(nicQP, 0x200, mr.Addr(), mr.LKey(), []byte("good")))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		want(t, "log", log.String(), "")
		// A region without a remote right has no R_Key, whatever its number.
		local := l.mr(64, device.LocalWrite)
		c.gets(peer.WriteOnly(nicQP, 0x201, local.Addr(), local.RKey(), []byte("evil")))
		l.emits("ACKNOWLEDGE 000201 62 m1")
	})
	for _, v := range []struct {
		name   string
		access device.Access // all but what is needed
		f      func(mr *device.MR) *peer.Frame
	}{
		{"WRITE", device.LocalWrite | device.RemoteRead | device.RemoteAtomic, func(mr *device.MR) *peer.Frame {
			return peer.WriteOnly(nicQP, 0x200, mr.Addr(), mr.RKey(), []byte("evil"))
		}},
		{"READ", device.LocalWrite | device.RemoteWrite | device.RemoteAtomic, func(mr *device.MR) *peer.Frame {
			return peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 8)
		}},
		{"atomic", all, func(mr *device.MR) *peer.Frame { return peer.FetchAdd(nicQP, 0x200, mr.Addr(), mr.RKey(), 1) }},
		{"local access only", device.LocalWrite, func(mr *device.MR) *peer.Frame { return peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 8) }},
	} {
		bubble(t, "right/"+v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(allOps)
			mr := l.mr(64, v.access)
			c.gets(v.f(mr))
			l.emits("ACKNOWLEDGE 000200 62 m0")
			wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
		})
	}
	bubble(t, "registration", func(t *testing.T) {
		l := newLab(t, labConfig{})
		for _, a := range []device.Access{device.RemoteWrite, device.RemoteAtomic, device.RemoteRead | device.RemoteWrite} {
			_, err := l.pd.RegMR(make([]byte, 8), a)
			errno(t, err, device.EINVAL)
		}
	})
	// The buffer gets a new key and new content in the middle of the answer: none of that is sent.
	bubble(t, "memory used again under a READ", func(t *testing.T) {
		const size = 1 << 20
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		var mr *device.MR
		old := filled(0x11, size)
		mem := &hookedBuffer{b: old, base: 0x40000000}
		mr = must(l.pd.RegMemory(mem, mem.base, size, device.RemoteRead))
		key := mr.RKey()
		done := make(chan error, 1)
		mem.hook = func(n int) {
			if n != 200 {
				return
			}
			go func() {
				if err := mr.Dereg(); err != nil {
					done <- err
					return
				}
				// Nobody reads any more.
				mr = must(l.pd.RegMemory(&hookedBuffer{b: old, base: mem.base}, mem.base, size, device.RemoteRead))
				for i := range old {
					old[i] = 0x22
				}
				done <- nil
			}()
			time.Sleep(time.Millisecond)
		}
		c.gets(peer.ReadRequest(nicQP, 0x200, mem.base, key, size))
		time.Sleep(2 * time.Millisecond)
		got := l.take()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		for i, f := range got[:len(got)-1] {
			if bytes.IndexByte(f.Payload, 0x22) >= 0 {
				t.Fatalf("response %d brings the new content", i)
			}
		}
		last := got[len(got)-1]
		want(t, "the end", brief(last), fmt.Sprintf("ACKNOWLEDGE %06x 62 m1", 0x200+len(got)-1))
		l.events("QP_ACCESS_ERR")
		if mr.RKey() == key {
			t.Error("the new key is the old one")
		}
	})
}

// hookedBuffer is bytes that cannot be touched directly: each read calls the hook first.
type hookedBuffer struct {
	hookMemory
	b    []byte
	base uint64
	n    int
	hook func(n int)
}

func (m *hookedBuffer) ReadV(e []transport.Extent) error {
	for _, x := range e {
		m.n++
		m.hook(m.n)
		copy(x.Buf, m.b[x.VA-m.base:])
	}
	return nil
}
