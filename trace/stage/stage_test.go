package stage_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/stage"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

var nicAddr, peerAddr = netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")

func open(t *testing.T, o stage.Options) *stage.NIC {
	t.Helper()
	n, err := stage.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// Queue pairs and regions have the numbers that were asked for, also twice in a row, and what
// cannot be had is an error that leaves nothing behind.
func TestNumbers(t *testing.T) {
	n := open(t, stage.Options{Addr: nicAddr})
	for _, qpn := range []uint32{0x10, 0x11, 0xFFFFFE} {
		q, err := n.CreateQP(qpn, device.QPInit{Type: device.RC})
		if err != nil || q.Num() != qpn {
			t.Fatal(qpn, err)
		}
	}
	for _, qpn := range []uint32{0, 1, 0xF, 0x11, 0xFFFFFF, 0x1000011} {
		if _, err := n.CreateQP(qpn, device.QPInit{Type: device.RC}); err == nil {
			t.Errorf("queue pair 0x%x was made", qpn)
		}
	}
	for _, num := range []uint32{1, 0x77, 0xFFFFFF} {
		if s, err := n.CreateSRQ(num, 4); err != nil || s.Num() != num {
			t.Fatal(num, err)
		}
	}
	for _, num := range []uint32{0, 0x77, 0x1000000} {
		if _, err := n.CreateSRQ(num, 4); err == nil {
			t.Errorf("shared receive queue 0x%x was made", num)
		}
	}
	if q, err := n.CreateQP(0x12, device.QPInit{Type: device.XRCTgt}); err != nil || q.Num() != 0x12 {
		t.Fatal(err)
	}
	if _, err := n.CreateQP(0x12, device.QPInit{Type: device.XRCTgt}); err == nil {
		t.Error("an XRC target has the number of another")
	}
	for _, key := range []uint32{1, 0xFFFFFFFE, 0x1234} {
		mr, _, err := n.Register(key, 0xFFFF_FFFF_FFFF_0000, 0xFFFF, device.LocalWrite|device.RemoteWrite)
		if err != nil || mr.RKey() != key || mr.LKey() != key || mr.Addr() != 0xFFFF_FFFF_FFFF_0000 {
			t.Fatal(key, err)
		}
	}
	for _, key := range []uint32{0, 0xFFFFFFFF, 0x1234} {
		if _, _, err := n.Register(key, 0, 1, 0); err == nil {
			t.Errorf("key 0x%x was given", key)
		}
	}
	if f, err := n.Alloc(0x5600, 4096); err != nil || f.RKey() != 0x5600 {
		t.Error(err)
	}
	if _, err := n.Alloc(0x12FF, 4096); err == nil {
		t.Error("a key that begins like another was given")
	}
	if w, err := n.AllocMW(0x7700, device.MW2B); err != nil || w.RKey() != 0x7700 {
		t.Error(err)
	}
	if _, err := n.AllocMW(0x77FF, device.MW1); err == nil {
		t.Error("a window has a key that begins like another")
	}
	if qps, o := len(n.Device.QPs()), n.Ctx.Objects(); qps != 4 || o.SRQ != 3 || o.MR != 3 || o.MW != 1 {
		t.Errorf("%d queue pairs, %+v", qps, o)
	}
}

// A packet is answered in no time; an answer may be longer than any queue.
func TestLongAnswer(t *testing.T) {
	const packets = 20_000
	got, lost := 0, bth.PSN(0)
	n := open(t, stage.Options{Addr: nicAddr, Sent: func(b []byte) {
		var v wire.View
		if wire.ParseIP(b, &v) != wire.OK || !wire.CheckICRC(&v) || v.BTH().PSN() != bth.PSN(5).Add(got) {
			lost++
		}
		got++
	}})
	mr, _, err := n.Register(0x42, 0x1000, packets*256, device.RemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	q, err := n.CreateQP(0x11, device.QPInit{Type: device.RC})
	if err == nil {
		err = q.Connect(0, device.Remote{GID: device.GIDOf(peerAddr), QPN: 0x22, PSN: 5}, device.ConnectOptions{PathMTU: 256})
	}
	if err != nil {
		t.Fatal(err)
	}
	s := wire.NewSpec(wire.Path{Src: peerAddr, Dst: nicAddr, SrcPort: 0xC000}, bth.Make(bth.RC, bth.ReadRequest), 0x11, 5)
	s.Ext = bth.Ext{VA: mr.Addr(), RKey: mr.RKey(), Length: packets * 256}
	n.Receive(wire.Build(&s))
	n.Step()
	if got != packets || lost != 0 || n.Now() != 0 {
		t.Errorf("%d packets, %d bad ones, at %v", got, lost, n.Now())
	}
}

// Time stands still until it is moved, and stops on the way where the NIC has something to do.
func TestTime(t *testing.T) {
	var sent []time.Duration
	var n *stage.NIC
	n = open(t, stage.Options{Addr: nicAddr, Sent: func([]byte) { sent = append(sent, n.Now()) }})
	q, err := n.CreateQP(0x11, device.QPInit{Type: device.RC, Cap: device.Cap{SendWR: 1}})
	if err == nil {
		err = q.Connect(0, device.Remote{GID: device.GIDOf(peerAddr), QPN: 0x22}, device.ConnectOptions{Timeout: 14, RetryCnt: 2})
	}
	if err == nil {
		err = q.PostSend(&device.SendWR{Op: device.OpSend})
	}
	if err != nil {
		t.Fatal(err)
	}
	if n.Advance(time.Hour) || len(sent) != 2 || sent[0] != 0 || sent[1] != n.Now() {
		t.Fatalf("sent at %v, it is %v", sent, n.Now())
	}
	if tt := 4096 * time.Nanosecond << 14; n.Now() < tt || n.Now() > 4*tt {
		t.Errorf("sent again after %v, T is %v", n.Now(), tt)
	}
	n.Run(time.Hour)
	var wc [2]device.WC
	if k := n.CQ.Poll(wc[:]); k != 1 || wc[0].Status != device.StatusRetryExceeded || len(sent) != 3 || n.Now() != time.Hour {
		t.Errorf("%d completions, %v, sent at %v, it is %v", k, wc[0].Status, sent, n.Now())
	}
	if !n.Advance(0) || n.Now() != time.Hour {
		t.Error("time goes back")
	}
}

// Memory is 0 where nothing was written, at any address, and takes no room there.
func TestMemory(t *testing.T) {
	m := stage.NewMemory()
	data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, 2000)
	const va = 0x7FFF_FFFF_FFFF_F123
	m.Write(va, data)
	got := bytes.Repeat([]byte{9}, 12000)
	m.Read(va-1000, got)
	if want := append(append(make([]byte, 1000), data...), make([]byte, 1000)...); !bytes.Equal(got, want) {
		t.Error("other bytes")
	}
	add := &transport.Atomic{Op: transport.OpFetchAdd, CompareAdd: 5}
	if err := m.Store64(0x1000, 7); err != nil {
		t.Fatal(err)
	}
	if old, err := m.Atomic64(0x1000, add); err != nil || old != 7 {
		t.Error(old, err)
	}
	if old, err := m.Atomic64(0x1000, add); err != nil || old != 12 {
		t.Error(old, err)
	}
	if _, err := m.Atomic64(0x1001, add); err == nil {
		t.Error("an atomic that is not aligned")
	}
}
