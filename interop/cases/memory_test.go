package cases

import (
	"errors"
	"sync"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/transport"
)

// farMemory is memory that cannot be touched directly, as that of another process: it is
// read and written with calls, and may be gone.
type farMemory struct {
	mu     sync.Mutex
	b      []byte
	va     uint64
	broken bool
}

var errFar = errors.New("the process is gone")

func (*farMemory) Slices(dst [][]byte, _ uint64, _ int) ([][]byte, bool) { return dst, false }

func (m *farMemory) each(e []transport.Extent, f func(far, near []byte)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.broken {
		return errFar
	}
	for _, x := range e {
		f(m.b[x.VA-m.va:][:len(x.Buf)], x.Buf)
	}
	return nil
}

func (m *farMemory) ReadV(e []transport.Extent) error {
	return m.each(e, func(far, near []byte) { copy(near, far) })
}

func (m *farMemory) WriteV(e []transport.Extent) error {
	return m.each(e, func(far, near []byte) { copy(far, near) })
}

func (*farMemory) Atomic64(uint64, *transport.Atomic) (uint64, error) { return 0, errFar }
func (*farMemory) Store64(uint64, uint64) error                       { return errFar }

// Every way in and out of memory that must be reached by calls, alone and beside
// memory that can be touched.
func TestFarMemory(t *testing.T) {
	const va, n = 0x700000000000, 3000
	setup := func(t *testing.T) (*lab, *conn, *farMemory, *device.MR) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		m := &farMemory{b: pattern(1, 8192), va: va}
		return l, c, m, must(l.pd.RegMemory(m, va, 8192, all))
	}
	bubble(t, "SEND", func(t *testing.T) {
		l, c, m, far := setup(t)
		near := l.mr(4096, 0)
		copy(near.Bytes(), pattern(2, 4096))
		list := []device.SGE{near.SGE(5, 700), far.SGE(11, 1000), near.SGE(1000, 3), far.SGE(3000, 1297)}
		var data []byte
		data = append(data, near.Bytes()[5:705]...)
		data = append(data, m.b[11:1011]...)
		data = append(data, near.Bytes()[1000:1003]...)
		data = append(data, m.b[3000:4297]...)
		c.post(device.SendWR{Op: device.OpSend, SGE: list})
		got := l.emits("SEND_FIRST 000100 [1024]", "SEND_MIDDLE 000101 [1024]", "SEND_LAST 000102 ar [952]")
		wantBytes(t, "payload", payloads(got), data)
	})
	bubble(t, "receive", func(t *testing.T) {
		l, c, m, far := setup(t)
		near := l.mr(4096, all)
		list := []device.SGE{far.SGE(10, 100), near.SGE(7, 1500), far.SGE(5000, 2000)}
		if err := c.qp.PostRecv(&device.RecvWR{ID: 4, SGE: list}); err != nil {
			t.Fatal(err)
		}
		before := string(m.b)
		data := pattern(3, n)
		c.gets(sendOf(0x200, 1024, data)...)
		c.received("4 SUCCESS RECV 3000")
		wantBytes(t, "first entry", m.b[10:110], data[:100])
		wantBytes(t, "second entry", near.Bytes()[7:1507], data[100:1600])
		wantBytes(t, "third entry", m.b[5000:6400], data[1600:])
		want(t, "the rest", string(m.b[:10])+string(m.b[110:5000])+string(m.b[6400:]), before[:10]+before[110:5000]+before[6400:])
	})
	bubble(t, "WRITE and READ as responder", func(t *testing.T) {
		l, c, m, far := setup(t)
		c.gets(peer.ReadRequest(nicQP, 0x200, va+100, far.RKey(), n))
		wantBytes(t, "answer", payloads(l.take()), m.b[100:100+n])
		c.gets(peer.WriteFirst(nicQP, 0x203, va+100, far.RKey(), 1030, filled(9, 1024)), peer.WriteLast(nicQP, 0x204, filled(8, 6)))
		l.emits("ACKNOWLEDGE 000204 1f m2")
		wantBytes(t, "target", m.b[100:1130], append(filled(9, 1024), filled(8, 6)...))
	})
	bubble(t, "READ as requester", func(t *testing.T) {
		_, c, m, far := setup(t)
		c.read(far, n)
		data := pattern(4, n)
		c.gets(readAnswer(0x100, 1, 1024, data)...)
		c.sent("1 SUCCESS RDMA_READ 3000")
		wantBytes(t, "what was read", m.b[:n], data)
	})
	// Memory that has gone away: whoever writes it hears of it as of a bad key.
	bubble(t, "gone/receive", func(t *testing.T) {
		l, c, m, far := setup(t)
		c.recv(1, far, 100)
		m.broken = true
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("data")))
		l.emits("ACKNOWLEDGE 000200 63 m0")
		c.received("1 LOC_PROT_ERR")
	})
	bubble(t, "gone/WRITE", func(t *testing.T) {
		l, c, m, far := setup(t)
		m.broken = true
		c.gets(peer.WriteOnly(nicQP, 0x200, va, far.RKey(), []byte("data")))
		l.emits("ACKNOWLEDGE 000200 62 m0")
		l.events("QP_ACCESS_ERR")
	})
	bubble(t, "gone/READ as requester", func(t *testing.T) {
		l, c, m, far := setup(t)
		c.read(far, 8)
		l.take()
		m.broken = true
		c.gets(peer.ReadRespOnly(nicQP, 0x100, 1, make([]byte, 8)))
		c.sent("1 LOC_PROT_ERR")
	})
	// What cannot be read is not sent, nor anything in its place.
	bubble(t, "gone/SEND", func(t *testing.T) {
		l, c, m, far := setup(t)
		m.broken = true
		c.send(far, 8)
		l.emits()
		u := l.ud(device.StateRTS)
		u.post(device.SendWR{Op: device.OpSend, SGE: sge(far, 8), AH: u.ah(false), RemoteQPN: peerUD})
		l.emits()
	})
}
