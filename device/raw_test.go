package device_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
)

// etherHosts returns two devices on one cable with Ethernet.
func etherHosts(t *testing.T, o device.Options) (*host, *host) {
	t.Helper()
	ea, eb := pipe.New(
		pipe.Config{Name: "a", Ethernet: true, MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
		pipe.Config{Name: "b", MTU: 1500, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	return newHost(t, ea, o), newHost(t, eb, o)
}

func (h *host) rawQP(s device.Steering) *device.QP {
	h.t.Helper()
	q, err := h.pd.CreateQP(device.QPInit{Type: device.RawPacket, SendCQ: h.cq, RecvCQ: h.cq, Steer: s,
		Cap: device.Cap{SendWR: 64, RecvWR: 64, SendSGE: 2, RecvSGE: 2, Inline: 64}})
	if err != nil {
		h.t.Fatal(err)
	}
	if err := q.Activate(0, 0); err != nil {
		h.t.Fatal(err)
	}
	return q
}

// frameTo is an Ethernet frame to a device.
func frameTo(h *host, typ uint16, payload []byte) []byte {
	f := append(bytes.Clone(h.dev.Port().Info().MAC), 2, 0, 0, 0, 0, 1)
	return append(binary.BigEndian.AppendUint16(f, typ), payload...)
}

// Frames both ways at once while RC works on the same link, and while queue pairs come and go.
func TestRawConcurrent(t *testing.T) {
	a, b := etherHosts(t, device.Options{})
	qa, qb := a.qp(device.RC, 64), b.qp(device.RC, 64)
	connect(t, qa, qb, 1, device.ConnectOptions{Timeout: 19})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	work := func(f func(i int)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := 0; ; i++ {
				select {
				case <-stop:
					return
				default:
					f(i)
				}
			}
		}()
	}
	for _, dir := range [][2]*host{{a, b}, {b, a}} {
		from, to := dir[0], dir[1]
		cq, err := from.ctx.CreateCQ(device.CQInit{Entries: 4096})
		if err != nil {
			t.Fatal(err)
		}
		q, err := from.pd.CreateQP(device.QPInit{Type: device.RawPacket, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{SendWR: 16, RecvWR: 16, SendSGE: 1, RecvSGE: 1, Inline: 64}})
		if err == nil {
			err = q.Activate(0, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		mr := from.mr(2000)
		f := frameTo(to, 0x88B5, []byte("concurrent"))
		wc := make([]device.WC, 64)
		work(func(int) {
			time.Sleep(50 * time.Microsecond) // a link that is always full carries no RC
			_ = q.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline | device.Signaled, InlineData: f})
			_ = q.PostRecv(&device.RecvWR{SGE: []device.SGE{mr.SGE(0, 2000)}})
			for _, w := range wc[:cq.Poll(wc)] {
				if w.Status != device.StatusSuccess {
					t.Errorf("%+v", w)
				}
			}
		})
		// Others that come and go, without receives and with.
		work(func(i int) {
			o := from.second(t)
			q := o.rawQP(device.Steering{Sniffer: i%2 == 0})
			_ = q.PostRecv(&device.RecvWR{SGE: []device.SGE{o.mr(2000).SGE(0, 2000)}})
			if err := o.ctx.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	defer wg.Wait()
	defer close(stop)
	exchange(t, a, b, qa, qb, []int{0, 1, 1025, 65536}, 3)
}

// A device that is closed while frames come, and while management datagrams are answered, ends.
func TestRawAndGSIClose(t *testing.T) {
	for range 5 {
		a, b := etherHosts(t, device.Options{})
		q := a.rawQP(device.Steering{})
		b.rawQP(device.Steering{Sniffer: true})
		g, err := a.pd.CreateQP(device.QPInit{Type: device.GSI, SendCQ: a.cq, RecvCQ: a.cq, Cap: device.Cap{SendWR: 16, Inline: 256}})
		if err == nil {
			err = g.Activate(0, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		s, err := b.pd.CreateQP(device.QPInit{Type: device.SMI, SendCQ: b.cq, RecvCQ: b.cq, Cap: device.Cap{SendWR: 16, RecvWR: 16, Inline: 256}})
		if err == nil {
			err = s.Activate(0, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		ah, err := a.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(netip.MustParseAddr("10.0.0.2")), SGIDIndex: 1})
		if err != nil {
			t.Fatal(err)
		}
		get := make([]byte, 256)
		copy(get, []byte{1, 4, 1, 1})
		get[17], get[65] = 0x12, 1
		smp := make([]byte, 256)
		copy(smp, []byte{1, 1, 1, 1})
		smp[17] = 0x11
		f := frameTo(b, 0x88B5, []byte("x"))
		var wg sync.WaitGroup
		for range 2 {
			for _, post := range []func() error{
				func() error {
					return q.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: f})
				},
				func() error {
					return g.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: get, AH: ah, RemoteQPN: 1})
				},
				func() error {
					return s.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: smp})
				},
			} {
				wg.Add(1)
				go func() {
					defer wg.Done()
					for {
						if err := post(); device.ErrnoOf(err) == device.EINVAL {
							return // it is destroyed
						}
					}
				}()
			}
		}
		time.Sleep(5 * time.Millisecond) // let it all run
		for _, h := range []*host{b, a} {
			if err := h.dev.Close(); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
	}
}

// In a stepped device everything happens in Step, the port's own answers too.
func TestRawStepped(t *testing.T) {
	start := time.Unix(1000, 0)
	ea, raw := pipe.NewRaw(pipe.Config{Ethernet: true, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, Clock: clock.NewManual(start)})
	h := newHost(t, ea, device.Options{Stepped: true, Clock: clock.NewManual(start)})
	q := h.rawQP(device.Steering{})
	mr := h.mr(64)
	if err := q.PostRecv(&device.RecvWR{ID: 3, SGE: []device.SGE{mr.SGE(0, 64)}}); err != nil {
		t.Fatal(err)
	}
	f := frameTo(h, 0x88B5, []byte("stepped"))
	raw.Write(f)
	var wc [4]device.WC
	if h.cq.Poll(wc[:]) != 0 {
		t.Fatal("before the step")
	}
	h.dev.Step(start.Add(1))
	if n := h.cq.Poll(wc[:]); n != 1 || wc[0].ID != 3 || !bytes.Equal(mr.Bytes()[:len(f)], f) {
		t.Fatalf("%d completions, %+v", n, wc[0])
	}
}

// Frames in and out do not allocate in steady state.
func TestRawAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates on its own; runs without it")
	}
	start := time.Unix(1000, 0)
	m := clock.NewManual(start)
	ea, raw := pipe.NewRaw(pipe.Config{Ethernet: true, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}, Clock: m})
	h := newHost(t, ea, device.Options{Stepped: true, Clock: m})
	q := h.rawQP(device.Steering{})
	mr := h.mr(4096)
	in, out := frameTo(h, 0x88B5, make([]byte, 1000)), make([]byte, 1000)
	copy(mr.Bytes()[2048:], out)
	recv := &device.RecvWR{SGE: []device.SGE{mr.SGE(0, 2048)}}
	send := &device.SendWR{Op: device.OpSend, Flags: device.Signaled, SGE: []device.SGE{mr.SGE(2048, 1000)}}
	wc := make([]device.WC, 64)
	run := func(k int) {
		for range k {
			if err := q.PostRecv(recv); err != nil {
				t.Fatal(err)
			}
			if err := q.PostSend(send); err != nil {
				t.Fatal(err)
			}
			raw.Write(in)
			raw.TryRead() // makes a copy
		}
		h.dev.Step(start)
		if n := h.cq.Poll(wc); n != 2*k {
			t.Fatalf("%d completions", n)
		}
	}
	run(32)
	one, many := testing.AllocsPerRun(50, func() { run(1) }), testing.AllocsPerRun(50, func() { run(32) })
	if many-one > 31+2 { // the copies
		t.Errorf("%v allocations for 32 frames each way, %v for one", many, one)
	}
}

// FuzzEther: whatever frame comes, a sniffer gets it or it is too short; the RDMA side gets what it gets without one.
func FuzzEther(f *testing.F) {
	f.Add([]byte("0123456789ab\x08\x00"), uint16(0))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x81, 0, 0, 0, 8, 6}, uint16(0x806))
	f.Fuzz(func(t *testing.T, frame []byte, typ uint16) {
		if len(frame) > 2000 {
			return
		}
		drops := func(sniff bool) string {
			ea, raw := pipe.NewRaw(pipe.Config{Ethernet: true, Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}})
			h := newHost(t, ea, device.Options{Stepped: true, Rand: rand.NewChaCha8([32]byte{1})})
			defer h.dev.Close()
			var mr *device.MR
			if sniff {
				q := h.rawQP(device.Steering{Sniffer: true, EtherType: typ})
				h.rawQP(device.Steering{MACs: []net.HardwareAddr{{2, 0, 0, 0, 0, 1}}})
				mr = h.mr(2000)
				if err := q.PostRecv(&device.RecvWR{SGE: []device.SGE{mr.SGE(0, 2000)}}); err != nil {
					t.Fatal(err)
				}
			}
			raw.Write(frame)
			h.dev.Step(time.Now())
			var wc [2]device.WC
			n := h.cq.Poll(wc[:])
			switch {
			case !sniff:
			case n == 1 && !bytes.Equal(mr.Bytes()[:wc[0].ByteLen], frame):
				t.Errorf("% x received", mr.Bytes()[:wc[0].ByteLen])
			case n != 1 && len(frame) >= 14 && typ == 0:
				t.Errorf("%d completions", n)
			}
			s := ""
			for _, v := range h.dev.Statistics() {
				if v.Value > 0 && v.Name != "raw_rcvd" && v.Name != "drop_no-receive" && v.Name != "out_of_buffer" {
					s += fmt.Sprint(v)
				}
			}
			return s
		}
		if with, without := drops(true), drops(false); with != without {
			t.Errorf("with a sniffer %s, without %s", with, without)
		}
	})
}
