//go:build linux

package uverbs

import (
	"net/netip"
	"testing"

	"github.com/softnic/softnic/device"
)

func mcastCommand(num uint32, gid device.GID, qp uint32, mlid uint16) []byte {
	name := "ib_uverbs_attach_mcast"
	if num == cmdDetachMcast {
		name = "ib_uverbs_detach_mcast"
	}
	return legacy(num, newStruct(name).bytes("gid", gid[:]).put("qp_handle", uint64(qp)).put("mlid", uint64(mlid)), 0)
}

// Attach and detach, with the errors of uverbs_cmd.c:ib_uverbs_attach_mcast and verbs.c:ib_attach_mcast.
func TestMulticastCommands(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	pd, c := p.pd(), p.cq(10, nil)
	q, r := p.qp(pd, qpInit{typ: device.UD, scq: c, send: 3, recv: 3}), p.qp(pd, qpInit{typ: device.RC, scq: c})
	gid := func(s string) device.GID { return device.GIDOf(netip.MustParseAddr(s)) }
	for _, s := range []string{"239.1.2.3", "ff0e::7"} {
		g := gid(s)
		p.fails(eINVAL, mcastCommand(cmdDetachMcast, g, q.handle, 0))
		p.do(mcastCommand(cmdAttachMcast, g, q.handle, 0))
		p.do(mcastCommand(cmdAttachMcast, g, q.handle, 0)) // again
		p.fails(eBUSY, q.destroyCommand())
		p.fails(eINVAL, mcastCommand(cmdDetachMcast, g, q.handle, 0xC000)) // another LID
		p.do(mcastCommand(cmdAttachMcast, g, q.handle, 0xC000))
		p.do(mcastCommand(cmdDetachMcast, g, q.handle, 0))
		p.fails(eBUSY, q.destroyCommand())
		p.do(mcastCommand(cmdDetachMcast, g, q.handle, 0xC000))
		p.fails(eINVAL, mcastCommand(cmdDetachMcast, g, q.handle, 0xC000))
	}
	for _, num := range []uint32{cmdAttachMcast, cmdDetachMcast} {
		p.fails(eINVAL, mcastCommand(num, gid("10.0.0.1"), q.handle, 0))
		p.fails(eINVAL, mcastCommand(num, gid("fe80::1"), q.handle, 0))
		p.fails(eINVAL, mcastCommand(num, device.GID{}, q.handle, 0))
		p.fails(eINVAL, mcastCommand(num, gid("239.1.2.3"), r.handle, 0)) // RC
		for _, h := range []uint32{0, pd, c.handle, 1000, ^uint32(0)} {
			p.fails(eINVAL, mcastCommand(num, gid("239.1.2.3"), h, 0))
		}
	}
	q.destroy()

	// One more than a group takes.
	var l []*qp_
	for range device.MaxMcastQP {
		n := p.qp(pd, qpInit{typ: device.UD, scq: c})
		p.do(mcastCommand(cmdAttachMcast, gid("239.1.2.3"), n.handle, 0))
		l = append(l, n)
	}
	last := p.qp(pd, qpInit{typ: device.UD, scq: c})
	p.fails(eNOMEM, mcastCommand(cmdAttachMcast, gid("239.1.2.3"), last.handle, 0))
	p.do(mcastCommand(cmdDetachMcast, gid("239.1.2.3"), l[0].handle, 0))
	p.do(mcastCommand(cmdAttachMcast, gid("239.1.2.3"), last.handle, 0))
	// The program ends with all that it is attached to: the next finds room.
	p.close()
	p = d.open(how{})
	pd, c = p.pd(), p.cq(10, nil)
	next := p.qp(pd, qpInit{typ: device.UD, scq: c})
	for range 1000 { // the end is handled by a goroutine of the daemon
		if r, err := p.write(mcastCommand(cmdAttachMcast, gid("239.1.2.3"), next.handle, 0)); err != nil {
			t.Fatal(err)
		} else if r.errno == 0 {
			return
		}
	}
	t.Error("what the first program was attached to was not freed")
}
