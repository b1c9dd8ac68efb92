package cases

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/transport"
)

// Case 15, requester: an error NAK in the middle of a READ response stream.
func TestCase15_NakInsideRead(t *testing.T) {
	for _, v := range []struct {
		syn    peer.Syndrome
		status string
	}{
		{peer.SynNakAccess, "REM_ACCESS_ERR"}, {peer.SynNakInvalid, "REM_INV_REQ_ERR"}, {peer.SynNakOperation, "REM_OP_ERR"},
	} {
		for _, at := range []uint32{0x200, 0x201, 0x203} { // at the first response too, and at the last
			bubble(t, fmt.Sprintf("requester/%02x at %06x", uint8(v.syn), at), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.rc(func(o *rcOptions) { o.SQPSN = 0x200 })
				mr := l.mr(4096, all)
				data := pattern(1, 4096)
				c.read(mr, 4096)
				c.send(mr, 8)
				l.take()
				c.gets(readAnswer(0x200, 1, 1024, data)[:at-0x200]...)
				c.gets(nak(at, v.syn))
				c.sent("1 "+v.status, "2 WR_FLUSH_ERR")
				c.state(device.StateErr)
				c.send(mr, 8)
				c.sent("3 WR_FLUSH_ERR")
				l.p.ExpectSilence(t, 10*time.Second) // no retry
				l.counts("completer_retry_err=0")
				l.events() // the error is the peer's
			})
		}
	}
	bubble(t, "requester/60 at 201", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SQPSN = 0x200 })
		mr := l.mr(4096, all)
		data := pattern(1, 4096)
		c.read(mr, 4096)
		l.take()
		c.gets(peer.ReadRespFirst(nicQP, 0x200, 1, data[:1024]), nak(0x201, peer.SynNakSequence))
		l.emits(fmt.Sprintf("READ_REQUEST 000201 ar va=%x+3072", remoteVA+1024))
		c.gets(readAnswer(0x201, 1, 1024, data[1024:])...)
		c.sent("1 SUCCESS RDMA_READ 4096")
		wantBytes(t, "what was read", mr.Bytes(), data)
		l.counts("packet_seq_err=1", "rcvd_seq_err=1")
	})
	// A NAK names the first PSN that is not answered (rxe-lab.md C3). One that names a later
	// PSN of the READ says that answers were lost: they are asked for again.
	bubble(t, "requester/62 behind a gap", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SQPSN = 0x200 })
		mr := l.mr(4096, all)
		c.read(mr, 4096)
		l.take()
		c.gets(nak(0x202, peer.SynNakAccess))
		l.emits("READ_REQUEST 000200 ar va=10000+4096")
		c.sent()
		c.state(device.StateRTS)
		c.gets(nak(0x200, peer.SynNakAccess))
		c.sent("1 REM_ACCESS_ERR")
	})
}

// hookMemory is memory that cannot be touched directly: it is read with ReadV, which calls
// the hook first. Its bytes are a function of the address.
type hookMemory struct {
	mu    sync.Mutex
	reads int
	gone  bool // no byte is to be read any more
	stale int  // bytes that were
	hook  func(reads int)
}

func (*hookMemory) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

func (m *hookMemory) ReadV(e []transport.Extent) error {
	for _, x := range e { // one per response
		m.mu.Lock()
		m.reads++
		n := m.reads
		m.mu.Unlock()
		if m.hook != nil {
			m.hook(n)
		}
		m.mu.Lock()
		for i := range x.Buf {
			x.Buf[i] = hookByte(x.VA + uint64(i))
		}
		if m.gone {
			m.stale += len(x.Buf)
		}
		m.mu.Unlock()
	}
	return nil
}

func hookByte(va uint64) byte { return byte(va) ^ byte(va>>8)*7 ^ byte(va>>16)*13 }

func (*hookMemory) WriteV([]transport.Extent) error { return nil }

func (*hookMemory) Atomic64(uint64, *transport.Atomic) (uint64, error) { return 0, device.EINVAL }
func (*hookMemory) Store64(uint64, uint64) error                       { return device.EINVAL }

// Case 15, responder: the program deregisters the memory while an 8 MiB READ is
// answered from it. The answer stops, with NAK 62 at the next response.
func TestCase15_DeregUnderRead(t *testing.T) {
	const size = 8 << 20
	for _, at := range []int{1, 100, 400} { // response during which the program calls dereg_mr
		bubble(t, fmt.Sprintf("responder/during response %d", at), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mem := &hookMemory{}
			mr := must(l.pd.RegMemory(mem, 0x40000000, size, device.RemoteRead))
			done := make(chan error, 1)
			mem.hook = func(n int) {
				if n != at {
					return
				}
				go func() {
					err := mr.Dereg()
					mem.mu.Lock()
					mem.gone = true
					mem.mu.Unlock()
					done <- err
				}()
				// Dereg has taken the keys away when it waits for us.
				time.Sleep(time.Millisecond)
			}
			c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), size))
			time.Sleep(2 * time.Millisecond)
			got := l.take()
			if err := <-done; err != nil {
				t.Fatalf("dereg_mr: %v", err)
			}
			n := len(got) - 1
			if n < at || n > at+64 { // a burst that had been put together may still leave
				t.Fatalf("%d responses are out, dereg_mr came at %d", n, at)
			}
			for i, f := range got[:n] {
				op := peer.OpReadRespMiddle
				if i == 0 {
					op = peer.OpReadRespFirst
				}
				want(t, "opcode", f.Op, op)
				want(t, "psn", f.PSN, 0x200+uint32(i))
				for k, b := range f.Payload {
					if b != hookByte(0x40000000+uint64(i)*1024+uint64(k)) {
						t.Fatalf("response %d: byte %d is %02x", i, k, b)
					}
				}
			}
			want(t, "the end", brief(got[n]), fmt.Sprintf("ACKNOWLEDGE %06x 62 m1", 0x200+n))
			c.state(device.StateErr)
			l.events("QP_ACCESS_ERR")
			l.p.ExpectSilence(t, time.Second)
			want(t, "bytes read after dereg_mr returned", mem.stale, 0)
		})
	}
	// A connection that goes to ERR for another reason is silent: the answer ends without a NAK.
	for _, why := range []string{"the program goes to ERR", "a request of its own fails"} {
		bubble(t, "responder/"+why, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.RetryCnt, o.Timeout = 0, 1 })
			mem := &hookMemory{}
			mr := must(l.pd.RegMemory(mem, 0x40000000, size, device.RemoteRead))
			done := make(chan struct{})
			mem.hook = func(n int) {
				if n == 100 {
					go func() {
						defer close(done)
						if why == "the program goes to ERR" {
							c.to(device.StateErr)
						} else {
							c.send(nil, 0) // and no answer in 8 µs
						}
					}()
					time.Sleep(time.Millisecond)
				}
				if n == 300 {
					// The request that fails has left by now; its timer does not run out before that.
					time.Sleep(time.Millisecond)
				}
			}
			c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), size))
			<-done
			time.Sleep(2 * time.Millisecond)
			c.state(device.StateErr)
			got := l.take()
			// The queue pair's goroutine sends four bursts before it looks at its timers.
			if len(got) < 100 || len(got) > 300+5*64 {
				t.Fatalf("%d responses, the state was changed at 100, or 300", len(got))
			}
			for _, f := range got {
				if f.Op == peer.OpAck {
					t.Fatalf("sent %v", f)
				}
			}
			l.events()
			l.p.ExpectSilence(t, time.Second)
		})
	}
	// The NAK of the case is the last frame also when other requests wait behind the READ.
	bubble(t, "responder/requests behind the READ", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Microsecond})
		c := l.rc(nil)
		mem := &hookMemory{}
		mr := must(l.pd.RegMemory(mem, 0x40000000, size, device.RemoteRead))
		mem.hook = func(n int) {
			if n == 100 {
				go func() { _ = mr.Dereg() }()
				time.Sleep(time.Millisecond)
			}
		}
		c.recv(1, nil, 0)
		c.recv(2, nil, 0)
		c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), size), peer.SendOnly(nicQP, 0x200+size/1024, nil))
		time.Sleep(2 * time.Millisecond)
		got := l.take()
		last := got[len(got)-1]
		want(t, "the end", brief(last), fmt.Sprintf("ACKNOWLEDGE %06x 62 m2", 0x200+len(got)-1))
		// The SEND was executed; its answer is never sent.
		c.received("1 SUCCESS RECV 0", "2 WR_FLUSH_ERR")
		l.events("QP_ACCESS_ERR")
	})
}
