package cases

import (
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
)

// Case 43: a group of which some members fail a check, in every order: the good one alone gets each datagram, once,
// in a buffer of its own, and nothing is left over. 100 datagrams an order; SOFTNIC_LONG: a million in all.
func TestCase43_FanOut(t *testing.T) {
	times := 100
	if os.Getenv("SOFTNIC_LONG") != "" {
		times = 1_000_000 / 240 * 10
	}
	gid := device.GIDOf(group4)
	say := func(f *peer.Frame) *peer.Frame { f.Dst = group4; return f }
	var orders [][]int
	for i := range 256 { // four digits of base four that differ
		o := []int{i & 3, i >> 2 & 3, i >> 4 & 3, i >> 6}
		if o[0] != o[1] && o[0] != o[2] && o[0] != o[3] && o[1] != o[2] && o[1] != o[3] && o[2] != o[3] {
			orders = append(orders, o)
		}
	}
	want(t, "orders", len(orders), 24)
	for _, o := range orders {
		bubble(t, fmt.Sprint(o), func(t *testing.T) {
			l := newLab(t, labConfig{})
			var us [4]*udConn // wrong Q_Key, good, no receive, RESET
			var mrs [4]*device.MR
			for _, kind := range o {
				key := uint32(qkey)
				if kind == 0 {
					key++
				}
				u, mr := l.listener(key)
				if kind == 2 { // its ten receives are used up
					for range 10 {
						l.p.Send(t, peer.UDSend(u.qp.Num(), 0, qkey, peerUD, nil))
					}
					want(t, "used up", len(drain(u.rcq)), 10)
				}
				if err := u.qp.Attach(gid); err != nil {
					t.Fatal(err)
				}
				if kind == 3 {
					u.modify(&device.QPAttr{State: device.StateReset}, device.AttrState)
				}
				us[kind], mrs[kind] = u, mr
			}
			f := say(peer.UDSend(groupQP, 0, qkey, peerUD, []byte("data")))
			routines := runtime.NumGoroutine()
			for i := range times {
				l.p.Send(t, f)
				if i%10 != 9 {
					continue
				}
				if got := len(drain(us[1].rcq)); got != 10 {
					t.Fatalf("%d completions of 10", got)
				}
				for k := range 10 {
					us[1].recv(uint64(k), mrs[1].SGE(200*k, 200))
				}
			}
			if n := runtime.NumGoroutine(); n > routines+50 {
				t.Errorf("%d goroutines, %d before", n, routines)
			}
			for _, k := range []int{0, 2, 3} {
				us[k].received()
			}
			// The copy is the receiver's own.
			wantBytes(t, "payload", mrs[1].Bytes()[40:44], []byte("data"))
			want(t, "someone else's memory", string(mrs[0].Bytes()[40:44]), "\x00\x00\x00\x00")
			l.emits()
			l.counts(fmt.Sprintf("rdma_recvs=%d", times+10), "drop_qkey=0", "drop_no-receive=0", "drop_qp-state=0")
			errno(t, us[1].qp.Destroy(), device.EBUSY)
		})
	}
	bubble(t, "attach and detach", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u, _ := l.listener(qkey, group4)
		stranger, _ := l.listener(qkey)
		if err := u.qp.Attach(gid); err != nil { // again: no second copy
			t.Fatal(err)
		}
		l.p.Send(t, say(peer.UDSend(groupQP, 0, qkey, peerUD, nil)))
		u.received("0 SUCCESS RECV 40")
		errno(t, stranger.qp.Detach(gid), device.EINVAL)
		errno(t, u.qp.Destroy(), device.EBUSY)
		l.p.Send(t, peer.UDSend(groupQP, 0, qkey, peerUD, nil))
		u.received()
		want(t, "drops", l.drops(), "no-qp=1")
	})
}

// Case 51: messages of 2^31 bytes and more (2^31 itself, sent and read, is TestLongestMessages), and a READ of 8 MiB across the
// PSN wrap.
func TestCase51_BigMessages(t *testing.T) {
	const M = 1 << 31
	bubble(t, "posted", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.MTU = 4096 })
		want(t, "max_msg_sz", l.dev.Query().MaxMessage, M)
		big := must(l.pd.RegMemory(bigMemory{}, 0, 1<<33, device.LocalWrite))
		for _, op := range []device.WROp{device.OpSend, device.OpWrite, device.OpRead} {
			for _, l := range [][]uint32{{M + 1}, {M + 4}, {0x60000000, 0x60000000, 0x60000000}, {0xFFFFFFFF, 1}, {M, 1}} {
				wr := device.SendWR{Op: op}
				for _, n := range l {
					wr.SGE = append(wr.SGE, device.SGE{Length: n, LKey: big.LKey()})
				}
				errno(t, c.qp.PostSend(&wr), device.EINVAL)
			}
		}
		l.emits() // nothing is on the wire
		c.sent()
		c.post(device.SendWR{Op: device.OpRead, SGE: []device.SGE{{Length: M, LKey: big.LKey()}}})
		l.emits("READ_REQUEST 000100 ar va=0+2147483648")
	})
	for _, v := range []struct {
		n   uint32
		ans string
	}{{M, "READ_RESPONSE_FIRST 000200 1f m1 [4096]"}, {M + 1, "ACKNOWLEDGE 000200 61 m0"}, {1<<32 - 1, "ACKNOWLEDGE 000200 61 m0"}} {
		bubble(t, fmt.Sprintf("asked for/%x", v.n), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(func(o *rcOptions) { o.MTU = 4096 })
			mem := &tiled{b: make([]byte, 8192)}
			mr := must(l.pd.RegMemory(mem, 0, 1<<33, all))
			c.gets(peer.ReadRequest(nicQP, 0x200, 1<<32-8, mr.RKey(), v.n))
			f := l.nextOrNothing(time.Second)
			if f == nil {
				t.Fatal("no answer")
			}
			want(t, "answer", brief(f), v.ans)
			if v.n == M { // enough
				if err := c.qp.Destroy(); err != nil {
					t.Fatal(err)
				}
				for l.raw.TryRead() != nil {
				}
			}
		})
	}
	bubble(t, "8 MiB across the wrap", func(t *testing.T) {
		const size = 8 << 20
		n := newNet(t, netConfig{pairs: []device.QPType{device.RC}, way: time.Microsecond})
		a, b := n.q[0][0], n.q[0][1] // a begins with PSN FFFFE0, of 8192
		src, dst := must(b.pd.RegMR(pattern(3, size), device.RemoteRead)), must(a.pd.RegMR(make([]byte, size), device.LocalWrite))
		wr := device.SendWR{ID: 1, Op: device.OpRead, Flags: device.Signaled, SGE: []device.SGE{dst.SGE(0, size)}, RemoteAddr: src.Addr(), RKey: src.RKey()}
		if err := a.qp.PostSend(&wr); err != nil {
			t.Fatal(err)
		}
		for range 1000 {
			time.Sleep(time.Millisecond)
			if l := drain(a.scq); len(l) > 0 {
				sameList(t, "completions", briefWC(l), []string{"1 SUCCESS RDMA_READ 8388608"})
				wantBytes(t, "data", dst.Bytes(), src.Bytes())
				return
			}
		}
		t.Fatal("no completion")
	})
}

// Case 53: the MTU of a port follows that of the link, datagrams end with it, and ends that disagree say so.
func TestCase53_MTU(t *testing.T) {
	for _, v := range []struct{ link, active int }{{1500, 1024}, {4096, 2048}, {4200, 4096}, {9000, 4096}, {576, 256}, {4176, 4096}, {4175, 2048}, {336, 256}} {
		bubble(t, fmt.Sprint(v.link), func(t *testing.T) {
			l := newLab(t, labConfig{MTU: v.link})
			p, err := l.dev.QueryPort(1)
			if err != nil {
				t.Fatal(err)
			}
			want(t, "active_mtu", p.ActiveMTU, v.active)
			u := l.ud(device.StateRTS)
			l.destQP = 0
			mr := l.mr(8192, all)
			for _, op := range []device.WROp{device.OpSend, device.OpSendImm} {
				for _, n := range []int{v.active, v.active + 1} {
					id := u.post(device.SendWR{Op: op, SGE: sge(mr, n), AH: u.ah(false), RemoteQPN: peerUD, RemoteQKey: qkey})
					u.sent(fmt.Sprintf("%d SUCCESS SEND %d", id, n)) // C10-93.1.1: no error
					got := l.take()
					want(t, "datagrams", len(got), v.active+1-n)
					for _, f := range got {
						want(t, "payload", len(f.Payload), n)
					}
				}
			}
			l.counts("ud_oversize=2")
			c := l.rc(func(o *rcOptions) { o.State, o.QPN = device.StateInit, 0x15 })
			if v.active < 4096 {
				a := device.QPAttr{State: device.StateRTR, PathMTU: 2 * v.active, DestQPN: peerQP, AH: device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4}}
				errno(t, c.qp.Modify(&a, device.AttrState|device.AttrAV|device.AttrPathMTU|device.AttrDestQPN|device.AttrRQPSN|device.AttrMaxDestRdAtomic|device.AttrMinRNRTimer), device.EINVAL)
				c.state(device.StateInit) // nothing was changed
			}
		})
	}
	for _, mtu := range []int{296, 335} {
		end, _ := pipe.New(pipe.Config{MTU: mtu, Addrs: []netip.Prefix{netip.PrefixFrom(nic4, 24)}}, pipe.Config{})
		_, err := device.Open(end, device.Options{})
		errno(t, err, device.EINVAL)
	}
	bubble(t, "changes", func(t *testing.T) {
		l := newLab(t, labConfig{MTU: 1500})
		u := l.ud(device.StateRTS)
		l.destQP = 0
		mr := l.mr(8192, all)
		send := func(n, frames int) {
			t.Helper()
			id := u.post(device.SendWR{Op: device.OpSend, SGE: sge(mr, n), AH: u.ah(false), RemoteQPN: peerUD})
			u.sent(fmt.Sprintf("%d SUCCESS SEND %d", id, n))
			want(t, "datagrams", len(l.take()), frames)
		}
		send(2048, 0)
		l.end.Change(func(i *link.Info) { i.MTU = 4200 })
		l.settle()
		send(2048, 1)
		send(4096, 1)
		l.end.Change(func(i *link.Info) { i.MTU = 576 })
		l.settle()
		send(257, 0)
		send(256, 1)
	})
	bubble(t, "ends that disagree", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil) // 1024
		c.recv(1, l.mr(8192, all), 8192)
		c.gets(peer.SendFirst(nicQP, 0x200, make([]byte, 4096)))
		l.emits("ACKNOWLEDGE 000200 61 m0")
		c.received("1 LOC_LEN_ERR")
	})
}

// Case 55: marked packets give congestion notifications, paced, and notifications that come change nothing.
func TestCase55_CNP(t *testing.T) {
	const gap = 50 * time.Microsecond // least time between two to one address pair
	write := func(i int) *peer.Frame {
		return peer.WriteOnly(nicQP, 0x200+uint32(i), 0, 0, nil).With(func(f *peer.Frame) { f.AckReq = false })
	}
	for _, every := range []time.Duration{100 * time.Microsecond, gap, gap - 1, 20 * time.Microsecond, 7 * time.Microsecond} {
		bubble(t, fmt.Sprintf("one each %v", every), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			n := 150
			if every == 100*time.Microsecond { // the rate of the case, for its second
				n = 10_000
			}
			var last time.Time
			sent := 0
			for i := range n {
				c.gets(marked(write(i)))
				now := time.Now()
				for _, f := range l.take() {
					want(t, "frame", brief(f), "CNP 000000")
					if sent++; sent > 1 && now.Sub(last) < gap {
						t.Fatalf("%v after the one before", now.Sub(last))
					}
					last = now
				}
				time.Sleep(every)
			}
			steps := int((gap + every - 1) / every) // packets from one to the next that is due
			want(t, "notifications", sent, (n+steps-1)/steps)
			l.counts(fmt.Sprintf("np_ecn_marked_roce_packets=%d", n), fmt.Sprintf("np_cnp_sent=%d", sent))
			for i := range 20 { // ECT(0): capable, not marked
				c.gets(write(n + i).With(func(f *peer.Frame) { f.TOS = 2 }))
				time.Sleep(every)
			}
			l.emits()
			c.state(device.StateRTS)
		})
	}
	bubble(t, "form", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.gets(marked(write(0)))
		f := l.emits("CNP 000000")[0]
		b := f.Marshal()
		want(t, "IP length", len(b), 60)
		want(t, "BECN, DestQP, AckReq, SE, ports", fmt.Sprint(f.BECN, f.DestQP, f.AckReq, f.SE, f.DstPort), fmt.Sprint(true, peerQP, false, false, 4791))
		if f.TOS&3 == ceMark || f.CNPResv != [16]byte{} {
			t.Errorf("TOS %x, %x", f.TOS, f.CNPResv)
		}
	})
	bubble(t, "per address pair", func(t *testing.T) {
		l := newLab(t, labConfig{})
		a, b := l.rc(nil), l.rc(func(o *rcOptions) { o.QPN = 0x15 })
		far := l.rc(func(o *rcOptions) { o.QPN, o.remote = 0x16, netip.MustParseAddr("192.0.2.7") })
		l.dst, l.destQP = netip.Addr{}, 0
		to := func(c *conn) *peer.Frame {
			return marked(write(0)).With(func(f *peer.Frame) { f.DestQP, f.Src, f.Dst = c.o.QPN, c.o.remote, nic4 })
		}
		a.gets(to(a), to(b), to(far))
		var dst []string
		for _, f := range l.take() {
			dst = append(dst, f.Dst.String())
		}
		want(t, "notifications to", fmt.Sprint(dst), "[192.0.2.1 192.0.2.7]")
	})
	for _, v := range []struct {
		name    string
		f       *peer.Frame
		drop    string
		counted bool
	}{
		{"good", peer.CNP(nicQP), "", true},
		{"PSN", peer.CNP(nicQP).With(func(f *peer.Frame) { f.PSN = 0x100 }), "", true},
		{"marked itself", marked(peer.CNP(nicQP)), "", true},
		{"ICRC", peer.CNP(nicQP).With(func(f *peer.Frame) { f.Src, f.Dst = peer4, nic4 }).SpoilICRC(), "icrc", false},
		{"unknown queue pair", peer.CNP(0x99), "no-qp", false},
		{"UD", peer.CNP(udQP), "wrong-service", false},
		{"opcode 80", peer.CNP(nicQP).With(func(f *peer.Frame) { f.Op = 0x80 }), "ignored", false},
		{"another source", peer.CNP(nicQP).With(func(f *peer.Frame) { f.Src, f.Dst = netip.MustParseAddr("192.0.2.7"), nic4 }), "wrong-peer", false},
	} {
		bubble(t, "arrives/"+v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			l.ud(device.StateRTS)
			c := l.rc(nil)
			mr := l.mr(64, all)
			c.write(mr, 8)
			l.emits("WRITE_ONLY 000100 ar va=10000+8 [8]")
			c.gets(v.f)
			l.emits() // no answer, and no notification for one
			c.sent()
			c.state(device.StateRTS)
			if v.drop != "" {
				v.drop += "=1"
			}
			want(t, "drops", l.drops(), v.drop)
			l.counts(fmt.Sprintf("rp_cnp_handled=%d", map[bool]int{true: 1}[v.counted]), "np_cnp_sent=0", "np_ecn_marked_roce_packets=0")
			c.gets(ack(0x100, 1), peer.WriteOnly(nicQP, 0x200, 0, 0, nil))
			l.emits("ACKNOWLEDGE 000200 1f m1")
			c.sent("1 SUCCESS RDMA_WRITE 8")
		})
	}
}
