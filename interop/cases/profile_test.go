package cases

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// TestProfileTable has what each profile does on the wire, beside each other (design.md 8; roce.md A.5 to A.8; rxe-lab.md C4, C7, 3).
func TestProfileTable(t *testing.T) {
	for _, v := range []struct {
		profile  string
		migReq   bool
		ports    int // different source ports of eight connections between the same queue pairs
		partial  []string
		whole    string // of a READ that is repeated from its start
		badInv   string
		reserved string
		cnps     string // of marked packets 0, 4, 49 and 50 µs after the first
	}{
		{"ibta", true, 1, []string{"READ_RESPONSE_FIRST 000201 1f m1 [1024]", "READ_RESPONSE_LAST 000202 1f m1 [952]"}, "READ_RESPONSE_FIRST 000200 1f m1 [1024]",
			"ACKNOWLEDGE 000200 1f m1", "ACKNOWLEDGE 000200 61 m0", "1001"},
		{"connectx", true, 8, []string{"READ_RESPONSE_FIRST 000201 00 m1 [1024]", "READ_RESPONSE_LAST 000202 00 m1 [952]"}, "READ_RESPONSE_FIRST 000200 00 m1 [1024]",
			"ACKNOWLEDGE 000200 00 m1", "ACKNOWLEDGE 000200 61 m0", "1110"},
		{"rxe", false, 1, []string{"READ_RESPONSE_MIDDLE 000201 [1024]", "READ_RESPONSE_LAST 000202 1f m1 [952]"}, "READ_RESPONSE_FIRST 000200 1f m1 [1024]",
			"ACKNOWLEDGE 000200 1f m0", "", "0000"},
	} {
		open := func(t *testing.T) (*lab, *conn) {
			l := newLab(t, labConfig{Profile: v.profile})
			return l, l.rc(allOps)
		}
		bubble(t, v.profile+"/M bit and port", func(t *testing.T) {
			l := newLab(t, labConfig{Profile: v.profile})
			ports := map[uint16]bool{}
			for i := range 8 {
				c := l.rc(allOps)
				l.p.Send(t, peer.WriteOnly(nicQP, 0x200, 0, 0, nil))
				for _, f := range l.take() {
					want(t, "M bit", f.Migrated, v.migReq)
					ports[f.SrcPort] = true
				}
				if err := c.qp.Destroy(); err != nil {
					t.Fatal(i, err)
				}
			}
			// Drawn ports differ, but for chance: 14 bits.
			if n := len(ports); v.ports == 1 && n != 1 || v.ports == 8 && n < 6 {
				t.Errorf("%d different ports", n)
			}
		})
		bubble(t, v.profile+"/partial READ", func(t *testing.T) {
			l, c := open(t)
			mr := l.mr(4096, all)
			c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 3000))
			l.take()
			c.gets(peer.ReadRequest(nicQP, 0x201, mr.Addr()+1024, mr.RKey(), 1976))
			l.emits(v.partial...)
			c.gets(peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 3000))
			l.emits(append([]string{v.whole, "READ_RESPONSE_MIDDLE 000201 [1024]"}, v.partial[1])...)
			c.gets(peer.ReadRequest(nicQP, 0x202, mr.Addr()+2048, mr.RKey(), 952))
			alone := "READ_RESPONSE_ONLY" + v.partial[1][len("READ_RESPONSE_LAST"):]
			if v.profile == "rxe" {
				alone = v.partial[1]
			}
			l.emits(alone)
		})
		bubble(t, v.profile+"/SEND that invalidates a key of nobody", func(t *testing.T) {
			l, c := open(t)
			c.recv(1, nil, 0)
			c.gets(peer.SendOnlyInv(nicQP, 0x200, 0xDEAD00, nil))
			l.emits(v.badInv)
			c.received("1 REM_INV_REQ_ERR")
			c.state(device.StateErr)
		})
		bubble(t, v.profile+"/reserved opcode", func(t *testing.T) {
			l, c := open(t)
			c.gets(peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.Op = 0x18 }))
			if v.reserved == "" {
				l.emits()
				c.state(device.StateRTS)
				return
			}
			l.emits(v.reserved)
			l.events("QP_REQ_ERR")
		})
		bubble(t, v.profile+"/congestion", func(t *testing.T) {
			l, c := open(t)
			for i := range uint64(4) {
				c.recv(i, nil, 0)
			}
			got := ""
			for i, gap := range []time.Duration{0, 4, 45, 1} {
				time.Sleep(gap * time.Microsecond)
				c.gets(marked(peer.SendOnly(nicQP, uint32(0x200+i), nil)))
				all := l.take()
				got += fmt.Sprint(len(all) - len(answers(all)))
			}
			want(t, "notifications", got, v.cnps)
		})
	}
}

// TestCNPModes marks packets from two peers to two addresses of the device, and asks for whom a gap is kept.
func TestCNPModes(t *testing.T) {
	for _, v := range []struct {
		text string
		want string // notifications for: A→1, A→1, A→2, B→1, and A→1 after the gap
	}{
		{"off", "00000"},
		{"port:20µs", "10001"},
		{"dest:20µs", "10011"},
		{"pair:20µs", "10111"},
		{"port:0s", "11111"},
	} {
		bubble(t, v.text, func(t *testing.T) {
			p, err := device.ParseCNP(v.text)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "text", p.String(), v.text)
			l := newLab(t, labConfig{CNP: p})
			l.dst = netip.Addr{} // frames go to more than one
			cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 4}))
			got := ""
			for i, way := range [][2]int{{0, 0}, {0, 0}, {0, 1}, {1, 0}, {0, 0}} {
				if i == 4 {
					time.Sleep(20 * time.Microsecond)
				}
				src, dst := []netip.Addr{peer4, nic4b.Next()}[way[0]], []netip.Addr{nic4, nic4b}[way[1]]
				gid := 0
				for must(l.dev.QueryGID(1, gid)) != device.GIDOf(dst) {
					gid++
				}
				l.dice.push(nicQP + uint32(i))
				q := must(l.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{SendWR: 1}}))
				if err := q.Connect(0x100, device.Remote{GID: device.GIDOf(src), QPN: peerQP, PSN: 0x200}, device.ConnectOptions{SGIDIndex: gid}); err != nil {
					t.Fatal(err)
				}
				f := marked(peer.WriteOnly(nicQP+uint32(i), 0x200, 0, 0, nil))
				f.Src, f.Dst = src, dst
				l.p.Send(t, f)
				all := l.take()
				got += fmt.Sprint(len(all) - len(answers(all)))
			}
			want(t, "notifications", got, v.want)
		})
	}
	for _, bad := range []string{"", "on", "off:1us", "pair", "pair:", "pair:x", "pair:-1us", ":1us"} {
		if p, err := device.ParseCNP(bad); err == nil {
			t.Errorf("%q is %v", bad, p)
		} else {
			errno(t, err, device.EINVAL)
		}
	}
}
