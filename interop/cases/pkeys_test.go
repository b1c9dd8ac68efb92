package cases

import (
	"fmt"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// table is a P_Key table with two partitions, the second as limited and as full member.
var table = []uint16{0x8123, 0x0456, 0x8456}

// pkeyCases are P_Keys of packets, and the entries of table that go with them (roce.md A.11): the same partition, and not
// limited to limited.
var pkeyCases = []struct {
	pkey uint16
	with [3]bool
}{
	{0x8123, [3]bool{true, false, false}},
	{0x0123, [3]bool{true, false, false}},
	{0x8456, [3]bool{false, true, true}},
	{0x0456, [3]bool{false, false, true}},
	{0xFFFF, [3]bool{}},
	{0x7FFF, [3]bool{}},
	{0x8457, [3]bool{}},
	{0x8000, [3]bool{}},
	{0, [3]bool{}},
}

// A connection sends the P_Key of its index, and takes those that go with it; UD likewise. QP1 takes those of the table.
func TestPKeys(t *testing.T) {
	with := func(f *peer.Frame, k uint16) *peer.Frame { return f.With(func(f *peer.Frame) { f.PKey = k }) }
	for i, own := range table {
		for _, v := range pkeyCases {
			dropped := ""
			if !v.with[i] {
				dropped = "pkey=1"
			}
			bubble(t, fmt.Sprintf("RC/%04x/%04x", own, v.pkey), func(t *testing.T) {
				l := newLab(t, labConfig{PKeys: table})
				c := l.rc(func(o *rcOptions) { o.State = device.StateInit })
				if err := c.qp.Modify(&device.QPAttr{PKeyIndex: i}, device.AttrPKeyIndex); err != nil {
					t.Fatal(err)
				}
				c.to(device.StateRTR)
				c.to(device.StateRTS)
				at, _ := c.qp.Query()
				want(t, "pkey_index", at.PKeyIndex, i)
				l.pkey = own
				mr := l.mr(8, all)
				c.recv(7, mr, 8)
				c.gets(with(peer.SendOnly(nicQP, 0x200, []byte("request.")), v.pkey))
				if dropped == "" {
					l.emits("ACKNOWLEDGE 000200 1f m1")
					c.received("7 SUCCESS RECV 8")
				} else {
					l.emits()
					c.received()
				}
				want(t, "drops", l.drops(), dropped)
				c.send(mr, 8)
				l.emits("SEND_ONLY 000100 ar [8]")
				c.gets(with(ack(0x100, 1), v.pkey))
				if dropped == "" {
					c.sent("1 SUCCESS SEND 8")
				} else {
					c.sent()
					want(t, "drops", l.drops(), "pkey=2")
					c.gets(with(ack(0x100, 1), own|0x8000)) // as a full member
					c.sent("1 SUCCESS SEND 8")
				}
				p := must(l.dev.QueryPort(1))
				want(t, "bad_pkey_cntr", p.BadPKeys, 2*len(dropped)/len("pkey=1"))
			})
			bubble(t, fmt.Sprintf("UD/%04x/%04x", own, v.pkey), func(t *testing.T) {
				l := newLab(t, labConfig{PKeys: table})
				u := l.ud(device.StateInit)
				u.modify(&device.QPAttr{State: device.StateRTR, PKeyIndex: i}, device.AttrState|device.AttrPKeyIndex)
				u.modify(&device.QPAttr{State: device.StateRTS, SQPSN: 5}, device.AttrState|device.AttrSQPSN)
				l.pkey = own
				mr := l.mr(64, all)
				u.recv(7, mr.SGE(0, 64))
				l.p.Send(t, with(peer.UDSend(udQP, 0, qkey, peerUD, []byte("data")), v.pkey))
				l.settle()
				want(t, "drops", l.drops(), dropped)
				wc := drain(u.rcq)
				if (len(wc) == 1) != (dropped == "") || len(wc) == 1 && wc[0].PKeyIndex != 0 {
					t.Fatalf("%+v", wc)
				}
				u.post(device.SendWR{Op: device.OpSend, AH: u.ah(false), RemoteQPN: peerUD})
				l.emits("SEND_ONLY 000005")
			})
		}
	}
	for _, v := range pkeyCases {
		entry := -1
		for i := range v.with {
			if entry < 0 && v.with[i] {
				entry = i
			}
		}
		bubble(t, fmt.Sprintf("GSI/%04x", v.pkey), func(t *testing.T) {
			l := newLab(t, labConfig{PKeys: table})
			u := l.wellKnown(device.GSI)
			mr := l.mr(400, all)
			u.recv(7, mr.SGE(0, 400))
			l.p.Send(t, with(gsiSend(madOf("01 07 02 03")), v.pkey))
			l.settle()
			wc := drain(u.rcq)
			if entry < 0 {
				want(t, "completions", len(wc), 0)
				want(t, "drops", l.drops(), "pkey=1")
			} else if len(wc) != 1 || int(wc[0].PKeyIndex) != entry {
				t.Fatalf("%+v, want P_Key index %d", wc, entry)
			}
			// What the device answers itself has the P_Key of the table.
			l.p.Send(t, with(gsiSend(perf("01", "0012", "0001ffff")), v.pkey))
			if entry < 0 {
				l.emits()
				return
			}
			l.pkey = table[entry]
			l.emits("SEND_ONLY 000000 ar [256]")
		})
	}
}

// The index can be changed where the state table says so, is checked, and RESET makes it that of the first entry.
func TestPKeyIndex(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{PKeys: table})
		c := l.rc(nil)
		mr := l.mr(8, all)
		drained := func() {
			t.Helper()
			c.to(device.StateSQD)
			l.settle()
		}
		back := func() {
			t.Helper()
			if err := c.qp.Modify(&device.QPAttr{State: device.StateRTS}, device.AttrState); err != nil {
				t.Fatal(err)
			}
		}
		errno(t, c.qp.Modify(&device.QPAttr{PKeyIndex: 1}, device.AttrPKeyIndex), device.EINVAL) // in RTS
		for _, i := range []int{-1, 3, 64, 65535} {
			drained()
			errno(t, c.qp.Modify(&device.QPAttr{PKeyIndex: i}, device.AttrPKeyIndex), device.EINVAL)
			back()
		}
		c.send(mr, 8)
		l.emits("SEND_ONLY 000100 ar [8]")
		c.gets(ack(0x100, 1).With(func(f *peer.Frame) { f.PKey = table[0] }))
		l.settle()
		drained()
		if err := c.qp.Modify(&device.QPAttr{PKeyIndex: 2}, device.AttrPKeyIndex); err != nil {
			t.Fatal(err)
		}
		back()
		l.pkey = table[2]
		c.send(mr, 8)
		l.emits("SEND_ONLY 000101 ar [8]")
		c.to(device.StateReset)
		at, _ := c.qp.Query()
		want(t, "pkey_index", at.PKeyIndex, 0)
		for s := device.StateInit; s <= device.StateRTS; s++ {
			c.to(s)
		}
		l.pkey = table[0]
		c.send(mr, 8)
		l.emits("SEND_ONLY 000100 ar [8]")
	})
}

// A group is heard by queue pairs of the partition.
func TestPKeyMulticast(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{PKeys: table})
		u := l.ud(device.StateRTS)
		group := device.GIDOf(peer4.Next())
		group[12], group[13], group[14], group[15] = 239, 1, 2, 3
		if err := u.qp.Attach(group); err != nil {
			t.Fatal(err)
		}
		mr := l.mr(64, all)
		u.recv(7, mr.SGE(0, 64))
		to := peer.New(l.conn, peer4, group.Addr())
		for i, k := range []uint16{0x8456, 0x0123} {
			to.Send(t, peer.UDSend(device.MulticastQPN, 0, qkey, peerUD, []byte("data")).With(func(f *peer.Frame) { f.PKey = k }))
			l.settle()
			want(t, "received", len(drain(u.rcq)), i)
			want(t, "drops", l.drops(), "pkey=1")
		}
		if err := u.qp.Detach(group); err != nil {
			t.Fatal(err)
		}
	})
}
