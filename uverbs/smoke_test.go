//go:build linux

package uverbs

import (
	"bytes"
	"testing"

	"github.com/softnic/softnic/device"
)

// Two programs of one daemon exchange data.
func TestConnection(t *testing.T) {
	d := newDaemon(t)
	a, b := pair(d, 1<<20)
	exchange(t, a, b)
}

// And of two.
func TestTwoDaemons(t *testing.T) {
	da, db := twoDaemons(t)
	a, b := newSide(da.open(how{}), device.RC, 1<<20), newSide(db.open(how{}), device.RC, 1<<20)
	connect(a.q, b.q)
	exchange(t, a, b)
}

// exchange does a SEND, a WRITE with immediate data, and a READ, and looks at the bytes.
func exchange(t *testing.T, a, b *side) {
	t.Helper()
	half := len(a.buf) / 2
	for i := range half {
		a.buf[i] = byte(i*7 + i>>8)
	}
	b.q.recv(1, sge(b.buf[:1000], b.m), sge(b.buf[1000:half], b.m))
	a.q.post(request_{id: 2, op: device.OpSendImm, imm: 0x01020304, sge: sges(sge(a.buf[:half], a.m))})
	w := b.c.expect(1, device.StatusSuccess)
	if w.op != device.WCRecv || w.len != uint32(half) || w.qpn != b.q.num || w.imm != 0x04030201 || w.flags&uint32(device.WCWithImm) == 0 || w.portNum != 1 {
		t.Fatalf("%+v", w)
	}
	if w := a.c.expect(2, device.StatusSuccess); w.op != device.WCSend || w.qpn != a.q.num {
		t.Fatalf("%+v", w)
	}
	if !bytes.Equal(a.buf[:half], b.buf[:half]) {
		t.Fatal("other bytes were received")
	}
	clear(b.buf)
	b.q.recv(3)
	a.q.post(request_{id: 4, op: device.OpWriteImm, imm: 9, sge: sges(sge(a.buf[:half], a.m)), remote: addressOf(b.buf[half:]), rkey: b.m.rkey})
	if w := b.c.expect(3, device.StatusSuccess); w.op != device.WCRecvImm {
		t.Fatalf("%+v", w)
	}
	a.c.expect(4, device.StatusSuccess)
	if !bytes.Equal(a.buf[:half], b.buf[half:]) {
		t.Fatal("other bytes were written")
	}
	a.q.post(request_{id: 5, op: device.OpRead, sge: sges(sge(a.buf[half:], a.m)), remote: addressOf(b.buf[half:]), rkey: b.m.rkey})
	a.c.expect(5, device.StatusSuccess)
	if !bytes.Equal(a.buf[half:], b.buf[half:]) {
		t.Fatal("other bytes were read")
	}
	a.q.post(request_{id: 6, op: device.OpWrite, inline: []byte("inline"), remote: addressOf(b.buf[7:]), rkey: b.m.rkey})
	a.c.expect(6, device.StatusSuccess)
	if string(b.buf[7:13]) != "inline" {
		t.Fatal("other bytes were written inline")
	}
}
