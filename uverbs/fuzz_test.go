//go:build linux

package uverbs

import (
	"encoding/binary"
	"errors"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// live is a context with some objects, for bytes that nobody has checked. Handles 1 to 8 are a protection
// domain, a completion queue, two connected queue pairs, a memory region, an address handle, a datagram queue pair and a
// shared receive queue.
func (d *daemon) live() *program {
	p := d.open(how{})
	gid, _ := d.dev.QueryGID(1, 1)
	pd, ch := p.pd(), p.channel()
	c := p.cq(20, &ch)
	in := qpInit{typ: device.RC, scq: c, send: 3, recv: 3, inline: 16, sigAll: true}
	a, b := p.qp(pd, in), p.qp(pd, in)
	connect(a, b)
	p.mr(pd, p.ram[:1<<16], allAccess)
	p.ah(pd, gid)
	in.typ = device.UD
	p.qp(pd, in).activate(5)
	p.srq(pd, 3, 1)
	return p
}

// FuzzCommand writes bytes to the command fd: the daemon answers whatever they are, and lives.
func FuzzCommand(f *testing.F) {
	for num, c := range commands {
		f.Add(legacyBytes(num, make([]byte, c.req), c.resp+32))
		b := make([]byte, c.req)
		for i := 8; i+4 <= len(b); i += 4 {
			le.PutUint32(b[i:], uint32(i/4))
		}
		f.Add(legacyBytes(num, b, c.resp+32))
	}
	for num, c := range extended {
		f.Add(ex(num, make([]byte, (c.req+7)&^7), (c.resp+7)&^7, 32))
	}
	f.Add(legacy(cmdModifyQP, (&qp_{handle: 3}).modifyStruct(device.StateErr, device.AttrState), 0))
	f.Add(legacy(cmdCreateQP, qpCommand(1, 9, qpInit{typ: device.RC, scq: &cq_{handle: 2}, rcq: &cq_{handle: 2}, send: 100, recv: 100}), qpRoom))
	d := newDaemon(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > maxRecord {
			return
		}
		d.tb = t
		p := d.live()
		r, err := p.write(b)
		if err != nil {
			t.Fatalf("%v: % x", err, b)
		}
		if r.errno > 133 || r.errno != 0 && len(r.b) > 0 {
			t.Fatalf("errno %d, %d bytes", r.errno, len(r.b))
		}
		if r.fd >= 0 {
			unix.Close(r.fd)
		}
		if r, err = p.write(b); err != nil { // and again
			t.Fatal(err)
		} else if r.fd >= 0 {
			unix.Close(r.fd)
		}
	})
}

// FuzzRecords writes whole records, each led by its length in the input: the connection may end, the daemon lives.
func FuzzRecords(f *testing.F) {
	record := func(kind, arg uint32, body []byte) []byte {
		b := binary.LittleEndian.AppendUint16(nil, uint16(headLen+len(body)))
		for _, v := range []uint32{kind, 1, uint32(len(body)), arg} {
			b = le.AppendUint32(b, v)
		}
		return append(b, body...)
	}
	hello := record(kindHello, Version, make([]byte, helloLen))
	get := record(kindCommand, 0, legacy(cmdGetContext, newStruct("ib_uverbs_get_context"), 8))
	f.Add(append(append([]byte{}, hello...), get...))
	f.Add(append(append(append([]byte{}, record(kindPresent, 0, nil)...), hello...), record(kindDoorbell, 1, make([]byte, 32))...))
	f.Add(append(append(append(append([]byte{}, hello...), get...), record(kindCommand, 0, legacy(cmdCreateCompChannel, newStruct("ib_uverbs_create_comp_channel"), 4))...), record(kindClosed, 1, nil)...))
	f.Add(append(append(append(append([]byte{}, hello...), get...), record(kindUnstored, 0, nil)...), get...))
	f.Add(append(append([]byte{}, hello...), record(99, 1, nil)...))
	f.Add(append(append([]byte{}, hello...), hello...))
	f.Add([]byte{5, 0, 1, 2, 3, 4, 5})
	d := newDaemon(f)
	f.Fuzz(func(t *testing.T, b []byte) {
		d.tb = t
		p := d.dial()
		defer p.close()
		buf := make([]byte, 1<<16)
		for len(b) >= 2 {
			n := min(int(le.Uint16(b)), len(b)-2)
			rec := b[2 : 2+n]
			b = b[2+n:]
			if n > maxRecord+headLen+1 || n == 0 {
				return
			}
			if _, err := p.sock.Write(rec); err != nil {
				if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.ECONNRESET) {
					return
				}
				t.Fatal(err)
			}
			// What is answered has to be read, else both wait.
			if n >= 4 && (le.Uint32(rec) == kindHello || le.Uint32(rec) == kindCommand) {
				k, oob := 0, make([]byte, 256)
				k, on, _, _, err := p.sock.ReadMsgUnix(buf, oob)
				if err != nil {
					if errors.Is(err, net.ErrClosed) || errors.Is(err, syscall.ECONNRESET) || k == 0 {
						return
					}
					t.Fatal(err)
				}
				closeAll(rights(oob[:on]))
				if k >= answerLen && le.Uint32(buf[16:]) > 0 {
					if _, err := p.sock.Read(buf); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	})
}

// The seeds that are kept in files are those that found something.
func TestFuzzSeeds(t *testing.T) {
	for _, n := range []string{"FuzzSendRing", "FuzzRecvRing", "FuzzCQRing", "FuzzCommand", "FuzzRecords"} {
		if l, err := os.ReadDir("testdata/fuzz/" + n); err != nil || len(l) == 0 {
			t.Errorf("%s: %v", n, err)
		}
	}
}
