package device_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/transport"
)

// wrong is a call with a wrong argument, or of an object that is not in a state for it.
type wrong struct {
	method string // as Type.Method
	what   string
	want   device.Errno
	call   func() error
}

// second drops the first result.
func second[T any](_ T, err error) error { return err }

// TestWrongArguments: whatever is wrong, the error is an OpError of one line with the errno of the verbs, and nothing has changed.
// Every method that can fail is here.
func TestWrongArguments(t *testing.T) {
	h, far := twoHosts(t, 1500, device.Options{}, device.Options{})
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	c, pd, cq := h.ctx, h.pd, h.cq
	other := h.dev.NewContext() // of the same device
	otherPD, err := other.AllocPD()
	must(err)
	otherCQ, err := other.CreateCQ(device.CQInit{Entries: 1})
	must(err)
	otherCh, err := other.CreateCompChannel()
	must(err)
	closed := h.dev.NewContext()
	closedPD, err := closed.AllocPD()
	must(err)
	closedXRCD, err := closed.AllocXRCD()
	must(err)
	must(closed.Close())

	// What is destroyed.
	deadPD, err := c.AllocPD()
	must(err)
	deadMR, err := deadPD.RegMR(make([]byte, 64), device.LocalWrite)
	must(err)
	deadMW, err := deadPD.AllocMW(device.MW1)
	must(err)
	deadFast, err := deadPD.AllocMR(64)
	must(err)
	to := device.AHAttr{DGID: device.GIDOf(netip.MustParseAddr("10.0.0.2")), SGIDIndex: 1}
	deadAH, err := deadPD.CreateAH(to)
	must(err)
	deadSRQ, err := deadPD.CreateSRQ(device.SRQInit{MaxWR: 4})
	must(err)
	deadQP, err := deadPD.CreateQP(device.QPInit{Type: device.UD, SendCQ: cq, RecvCQ: cq})
	must(err)
	deadCQ, err := c.CreateCQ(device.CQInit{Entries: 4})
	must(err)
	deadCh, err := c.CreateCompChannel()
	must(err)
	deadXRCD, err := c.AllocXRCD()
	must(err)
	for _, f := range []func() error{deadQP.Destroy, deadSRQ.Destroy, deadAH.Destroy, deadFast.Dereg, deadMW.Dealloc, deadMR.Dereg, deadPD.Dealloc,
		func() error { return second(deadCQ.Destroy()) }, deadCh.Destroy, deadXRCD.Close} {
		must(f())
	}

	// What lives, and what stands on it.
	ch, err := c.CreateCompChannel()
	must(err)
	busyCQ, err := c.CreateCQ(device.CQInit{Entries: 4, Channel: ch})
	must(err)
	xrcd, err := c.AllocXRCD()
	must(err)
	xsrq, err := pd.CreateSRQ(device.SRQInit{MaxWR: 4, XRCD: xrcd, CQ: busyCQ})
	must(err)
	srq, err := pd.CreateSRQ(device.SRQInit{MaxWR: 4, MaxSGE: 2, Limit: 2})
	must(err)
	capacity := device.Cap{SendWR: 2, RecvWR: 2, SendSGE: 2, RecvSGE: 2, Inline: 16}
	rc, err := pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: busyCQ, RecvCQ: busyCQ, Cap: capacity})
	must(err)
	must(rc.Connect(1, device.Remote{GID: to.DGID, QPN: 7}, device.ConnectOptions{}))
	onSRQ, err := pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, SRQ: srq})
	must(err)
	reset, err := pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq, Cap: capacity})
	must(err)
	ud, err := pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: cq, RecvCQ: cq, Cap: capacity})
	must(err)
	must(ud.Activate(1, 1))
	group := device.GIDOf(netip.MustParseAddr("239.1.2.3"))
	must(ud.Attach(group))
	ini, err := pd.CreateQP(device.QPInit{Type: device.XRCIni, SendCQ: cq, Cap: capacity})
	must(err)
	for range 2 {
		must(rc.PostRecv(&device.RecvWR{}))
	}
	for range 4 {
		must(srq.PostRecv(&device.RecvWR{}))
	}
	mr, err := pd.RegMR(make([]byte, 64), device.LocalWrite)
	must(err)
	otherAH, err := otherPD.CreateAH(to)
	must(err)
	ended, cancel := context.WithCancel(context.Background())
	cancel()

	base := device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq}
	init := func(change func(in *device.QPInit)) func() error {
		return func() error {
			in := base
			change(&in)
			return second(pd.CreateQP(in))
		}
	}
	ah := func(change func(a *device.AHAttr)) func() error {
		return func() error {
			a := to
			change(&a)
			return second(pd.CreateAH(a))
		}
	}
	access := device.Access(0)
	mem := device.NewMemory(make([]byte, 64))
	const EINVAL, EBUSY, EIO, ENOMEM, EOPNOTSUPP = device.EINVAL, device.EBUSY, device.EIO, device.ENOMEM, device.EOPNOTSUPP
	l := []wrong{
		{"Device.QueryPort", "port 0", EINVAL, func() error { return second(h.dev.QueryPort(0)) }},
		{"Device.QueryPort", "port 2", EINVAL, func() error { return second(h.dev.QueryPort(2)) }},
		{"Device.QueryGID", "port", EINVAL, func() error { return second(h.dev.QueryGID(2, 0)) }},
		{"Device.QueryGID", "index -1", EINVAL, func() error { return second(h.dev.QueryGID(1, -1)) }},
		{"Device.QueryGID", "index", EINVAL, func() error { return second(h.dev.QueryGID(1, device.GIDTableLen)) }},
		{"Device.QueryPKey", "port", EINVAL, func() error { return second(h.dev.QueryPKey(0, 0)) }},
		{"Device.QueryPKey", "index -1", EINVAL, func() error { return second(h.dev.QueryPKey(1, -1)) }},
		{"Device.QueryPKey", "index", EINVAL, func() error { return second(h.dev.QueryPKey(1, 1)) }},
		{"Device.ProcessMAD", "port", EINVAL, func() error { return second(h.dev.ProcessMAD(2, make([]byte, 256))) }},
		{"Device.ProcessMAD", "length", EINVAL, func() error { return second(h.dev.ProcessMAD(1, make([]byte, 255))) }},

		{"Context.AllocPD", "closed", EIO, func() error { return second(closed.AllocPD()) }},
		{"Context.AllocXRCD", "closed", EIO, func() error { return second(closed.AllocXRCD()) }},
		{"Context.OpenXRCD", "closed", EIO, func() error { return second(closed.OpenXRCD(xrcd)) }},
		{"Context.OpenXRCD", "nil", EINVAL, func() error { return second(c.OpenXRCD(nil)) }},
		{"Context.OpenXRCD", "another device", EINVAL, func() error { return second(far.ctx.OpenXRCD(xrcd)) }},
		{"Context.CreateCompChannel", "closed", EIO, func() error { return second(closed.CreateCompChannel()) }},
		{"Context.AsyncEvent", "closed", EIO, func() error { return second(closed.AsyncEvent(context.Background())) }},
		{"Context.CreateCQ", "closed", EIO, func() error { return second(closed.CreateCQ(device.CQInit{Entries: 1})) }},
		{"Context.CreateCQ", "0 entries", EINVAL, func() error { return second(c.CreateCQ(device.CQInit{})) }},
		{"Context.CreateCQ", "-1 entries", EINVAL, func() error { return second(c.CreateCQ(device.CQInit{Entries: -1})) }},
		{"Context.CreateCQ", "too many", EINVAL, func() error { return second(c.CreateCQ(device.CQInit{Entries: device.MaxCQE + 1})) }},
		{"Context.CreateCQ", "channel that is gone", EINVAL, func() error { return second(c.CreateCQ(device.CQInit{Entries: 1, Channel: deadCh})) }},
		{"Context.CreateCQ", "channel of another context", EINVAL, func() error { return second(c.CreateCQ(device.CQInit{Entries: 1, Channel: otherCh})) }},

		{"PD.Dealloc", "in use", EBUSY, pd.Dealloc},
		{"PD.Dealloc", "twice", EINVAL, deadPD.Dealloc},
		{"PD.RegMR", "gone", EINVAL, func() error { return second(deadPD.RegMR(make([]byte, 8), access)) }},
		{"PD.RegMR", "closed", EIO, func() error { return second(closedPD.RegMR(make([]byte, 8), access)) }},
		{"PD.RegMR", "remote write alone", EINVAL, func() error { return second(pd.RegMR(make([]byte, 8), device.RemoteWrite)) }},
		{"PD.RegMR", "remote atomic alone", EINVAL, func() error { return second(pd.RegMR(make([]byte, 8), device.RemoteAtomic|device.RemoteRead)) }},
		{"PD.RegMR", "flag that is none", EOPNOTSUPP, func() error { return second(pd.RegMR(make([]byte, 8), 1<<6)) }},
		{"PD.RegMR", "persistence of memory", EINVAL, func() error { return second(pd.RegMR(make([]byte, 8), device.FlushPersistent)) }},
		{"PD.RegMemory", "none", EINVAL, func() error { return second(pd.RegMemory(nil, 0, 8, access)) }},
		{"PD.RegMemory", "wraps", EINVAL, func() error { return second(pd.RegMemory(&guarded{}, ^uint64(0), 8, access)) }},
		{"PD.RegMemory", "elsewhere", EINVAL, func() error { return second(pd.RegMemory(mem, 8, 8, access)) }},
		{"PD.RegMemory", "zero-based elsewhere", EINVAL, func() error { return second(pd.RegMemory(&guarded{}, 8, 8, device.ZeroBased)) }},
		{"PD.AllocMR", "nothing", EINVAL, func() error { return second(pd.AllocMR(0)) }},
		{"PD.AllocMR", "gone", EINVAL, func() error { return second(deadPD.AllocMR(8)) }},
		{"PD.AllocMR", "closed", EIO, func() error { return second(closedPD.AllocMR(8)) }},
		{"PD.AllocMW", "type 0", EINVAL, func() error { return second(pd.AllocMW(0)) }},
		{"PD.AllocMW", "type 4", EINVAL, func() error { return second(pd.AllocMW(4)) }},
		{"PD.AllocMW", "gone", EINVAL, func() error { return second(deadPD.AllocMW(device.MW1)) }},
		{"PD.AllocMW", "closed", EIO, func() error { return second(closedPD.AllocMW(device.MW1)) }},
		{"PD.CreateAH", "gone", EINVAL, func() error { return second(deadPD.CreateAH(to)) }},
		{"PD.CreateAH", "closed", EIO, func() error { return second(closedPD.CreateAH(to)) }},
		{"PD.CreateAH", "port", EINVAL, ah(func(a *device.AHAttr) { a.Port = 2 })},
		{"PD.CreateAH", "GID index -1", EINVAL, ah(func(a *device.AHAttr) { a.SGIDIndex = -1 })},
		{"PD.CreateAH", "GID index", EINVAL, ah(func(a *device.AHAttr) { a.SGIDIndex = device.GIDTableLen })},
		{"PD.CreateAH", "empty entry", EINVAL, ah(func(a *device.AHAttr) { a.SGIDIndex = 9 })},
		{"PD.CreateAH", "no destination", EINVAL, ah(func(a *device.AHAttr) { a.DGID = device.GID{} })},
		{"PD.CreateAH", "IPv6 to IPv4", EINVAL, ah(func(a *device.AHAttr) { a.SGIDIndex = 2 })},
		{"PD.CreateAH", "flow label", EINVAL, ah(func(a *device.AHAttr) { a.FlowLabel = 1 << 20 })},
		{"PD.CreateSRQ", "gone", EINVAL, func() error { return second(deadPD.CreateSRQ(device.SRQInit{MaxWR: 1})) }},
		{"PD.CreateSRQ", "closed", EIO, func() error { return second(closedPD.CreateSRQ(device.SRQInit{MaxWR: 1})) }},
		{"PD.CreateSRQ", "max_wr 0", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{})) }},
		{"PD.CreateSRQ", "max_wr", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: device.MaxSRQWR + 1})) }},
		{"PD.CreateSRQ", "max_sge -1", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1, MaxSGE: -1})) }},
		{"PD.CreateSRQ", "max_sge", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1, MaxSGE: device.MaxSRQSGE + 1})) }},
		{"PD.CreateSRQ", "limit", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1, Limit: 2})) }},
		{"PD.CreateSRQ", "limit -1", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1, Limit: -1})) }},
		{"PD.CreateSRQ", "a queue and no domain", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1, CQ: cq})) }},
		{"PD.CreateSRQ", "a domain and no queue", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1, XRCD: xrcd})) }},
		{"PD.CreateSRQ", "a queue that is gone", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1, XRCD: xrcd, CQ: deadCQ})) }},
		{"PD.CreateSRQ", "a domain that is closed", EINVAL, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1, XRCD: deadXRCD, CQ: cq})) }},
		{"PD.CreateQP", "gone", EINVAL, func() error { return second(deadPD.CreateQP(base)) }},
		{"PD.CreateQP", "closed", EIO, func() error { return second(closedPD.CreateQP(base)) }},
		{"PD.CreateQP", "XRC target", EINVAL, init(func(in *device.QPInit) { in.Type = device.XRCTgt })},
		{"PD.CreateQP", "type 5", EOPNOTSUPP, init(func(in *device.QPInit) { in.Type = 5 })},
		{"PD.CreateQP", "no send queue", EINVAL, init(func(in *device.QPInit) { in.SendCQ = nil })},
		{"PD.CreateQP", "no receive queue", EINVAL, init(func(in *device.QPInit) { in.RecvCQ = nil })},
		{"PD.CreateQP", "send queue that is gone", EINVAL, init(func(in *device.QPInit) { in.SendCQ = deadCQ })},
		{"PD.CreateQP", "receive queue that is gone", EINVAL, init(func(in *device.QPInit) { in.RecvCQ = deadCQ })},
		{"PD.CreateQP", "queue of another context", EINVAL, init(func(in *device.QPInit) { in.SendCQ = otherCQ })},
		{"PD.CreateQP", "shared queue that is gone", EINVAL, init(func(in *device.QPInit) { in.SRQ = deadSRQ })},
		{"PD.CreateQP", "shared queue of XRC", EINVAL, init(func(in *device.QPInit) { in.SRQ = xsrq })},
		{"PD.CreateQP", "initiator with a receive queue", EINVAL, init(func(in *device.QPInit) { in.Type = device.XRCIni })},
		{"PD.CreateQP", "initiator with a shared queue", EINVAL, init(func(in *device.QPInit) { in.Type, in.RecvCQ, in.SRQ = device.XRCIni, nil, srq })},
		{"PD.CreateQP", "QP1 with a shared queue", EINVAL, init(func(in *device.QPInit) { in.Type, in.SRQ = device.GSI, srq })},
		{"PD.CreateQP", "max_send_wr", EINVAL, init(func(in *device.QPInit) { in.Cap.SendWR = device.MaxQPWR + 1 })},
		{"PD.CreateQP", "max_recv_wr -1", EINVAL, init(func(in *device.QPInit) { in.Cap.RecvWR = -1 })},
		{"PD.CreateQP", "max_send_sge", EINVAL, init(func(in *device.QPInit) { in.Cap.SendSGE = device.MaxSGE + 1 })},
		{"PD.CreateQP", "max_recv_sge", EINVAL, init(func(in *device.QPInit) { in.Cap.RecvSGE = device.MaxSGE + 1 })},
		{"PD.CreateQP", "max_inline_data", EINVAL, init(func(in *device.QPInit) { in.Cap.Inline = device.MaxInline + 1 })},
		{"PD.CreateQP", "raw on a link without Ethernet", EOPNOTSUPP, init(func(in *device.QPInit) { in.Type = device.RawPacket })},
		{"PD.CreateQP", "steering", EOPNOTSUPP, init(func(in *device.QPInit) {
			in.Type, in.Steer = device.RawPacket, device.Steering{MACs: []net.HardwareAddr{{1}}}
		})},

		{"CQ.Destroy", "in use", EBUSY, func() error { return second(busyCQ.Destroy()) }},
		{"CQ.Destroy", "twice", EINVAL, func() error { return second(deadCQ.Destroy()) }},
		{"CQ.Moderate", "count alone", EINVAL, func() error { return cq.Moderate(1, 0) }},
		{"CQ.Moderate", "period alone", EINVAL, func() error { return cq.Moderate(0, time.Microsecond) }},
		{"CQ.Moderate", "count", EINVAL, func() error { return cq.Moderate(65536, time.Microsecond) }},
		{"CQ.Moderate", "period", EINVAL, func() error { return cq.Moderate(1, 65536*time.Microsecond) }},
		{"CQ.Moderate", "negative", EINVAL, func() error { return cq.Moderate(-1, -time.Microsecond) }},
		{"CQ.Moderate", "gone", EINVAL, func() error { return deadCQ.Moderate(1, time.Microsecond) }},
		{"CQ.ReplaceRing", "no ring", EINVAL, func() error { return cq.ReplaceRing(nil) }},
		{"CQ.ReplaceRing", "gone", EINVAL, func() error { return deadCQ.ReplaceRing(nil) }},
		{"CQ.Resize", "0", EINVAL, func() error { return cq.Resize(0) }},
		{"CQ.Resize", "too long", EINVAL, func() error { return cq.Resize(device.MaxCQE + 1) }},
		{"CQ.Resize", "gone", EINVAL, func() error { return deadCQ.Resize(4) }},
		{"CQ.Wait", "gone", EIO, func() error { return second(deadCQ.Wait(context.Background(), make([]device.WC, 1))) }},

		{"SRQ.Destroy", "in use", EBUSY, srq.Destroy},
		{"SRQ.Destroy", "twice", EINVAL, deadSRQ.Destroy},
		{"SRQ.PostRecv", "nil", EINVAL, func() error { return srq.PostRecv(nil) }},
		{"SRQ.PostRecv", "full", ENOMEM, func() error { return srq.PostRecv(&device.RecvWR{}) }},
		{"SRQ.PostRecv", "entries", EINVAL, func() error { return srq.PostRecv(&device.RecvWR{SGE: make([]device.SGE, 3)}) }},
		{"SRQ.PostRecv", "gone", EINVAL, func() error { return deadSRQ.PostRecv(&device.RecvWR{}) }},
		{"SRQ.ReplaceRing", "no ring", EINVAL, func() error { return srq.ReplaceRing(8, nil) }},
		{"SRQ.ReplaceRing", "gone", EINVAL, func() error { return deadSRQ.ReplaceRing(8, nil) }},
		{"SRQ.Resize", "0", EINVAL, func() error { return srq.Resize(0) }},
		{"SRQ.Resize", "too long", EINVAL, func() error { return srq.Resize(device.MaxSRQWR + 1) }},
		{"SRQ.Resize", "below its limit", EINVAL, func() error { return srq.Resize(1) }},
		{"SRQ.Resize", "below what is there", EINVAL, func() error { return srq.Resize(3) }},
		{"SRQ.Resize", "gone", EINVAL, func() error { return deadSRQ.Resize(4) }},
		{"SRQ.SetLimit", "-1", EINVAL, func() error { return srq.SetLimit(-1) }},
		{"SRQ.SetLimit", "above max_wr", EINVAL, func() error { return srq.SetLimit(5) }},
		{"SRQ.SetLimit", "gone", EINVAL, func() error { return deadSRQ.SetLimit(1) }},

		{"QP.Activate", "RC", EINVAL, func() error { return reset.Activate(1, 1) }},
		{"QP.Activate", "gone", EINVAL, func() error { return deadQP.Activate(1, 1) }},
		{"QP.Activate", "twice", EINVAL, func() error { return ud.Activate(2, 2) }},
		{"QP.Connect", "UD", EINVAL, func() error { return ud.Connect(1, device.Remote{GID: to.DGID}, device.ConnectOptions{}) }},
		{"QP.Connect", "connected", EINVAL, func() error { return rc.Connect(1, device.Remote{GID: to.DGID}, device.ConnectOptions{}) }},
		{"QP.Connect", "P_Key index", EINVAL, func() error {
			return reset.Connect(1, device.Remote{GID: to.DGID}, device.ConnectOptions{PKeyIndex: 1})
		}},
		{"QP.Connect", "gone", EINVAL, func() error { return deadQP.Connect(1, device.Remote{GID: to.DGID}, device.ConnectOptions{}) }},
		{"QP.Attach", "RC", EINVAL, func() error { return rc.Attach(group) }},
		{"QP.Attach", "no group", EINVAL, func() error { return ud.Attach(to.DGID) }},
		{"QP.Attach", "no GID", EINVAL, func() error { return ud.Attach(device.GID{}) }},
		{"QP.Attach", "gone", EINVAL, func() error { return deadQP.Attach(group) }},
		{"QP.Detach", "RC", EINVAL, func() error { return rc.Detach(group) }},
		{"QP.Detach", "not attached", EINVAL, func() error { return ud.Detach(device.GIDOf(netip.MustParseAddr("239.1.2.4"))) }},
		{"QP.Detach", "gone", EINVAL, func() error { return deadQP.Detach(group) }},
		{"QP.Destroy", "attached", EBUSY, ud.Destroy},
		{"QP.Destroy", "twice", EINVAL, deadQP.Destroy},
		{"QP.Doorbell", "RESET", EINVAL, reset.Doorbell},
		{"QP.Doorbell", "gone", EINVAL, deadQP.Doorbell},
		{"QP.PostRecv", "nil", EINVAL, func() error { return rc.PostRecv(nil) }},
		{"QP.PostRecv", "RESET", EINVAL, func() error { return reset.PostRecv(&device.RecvWR{}) }},
		{"QP.PostRecv", "full", ENOMEM, func() error { return rc.PostRecv(&device.RecvWR{}) }},
		{"QP.PostRecv", "entries", EINVAL, func() error { return ud.PostRecv(&device.RecvWR{SGE: make([]device.SGE, 3)}) }},
		{"QP.PostRecv", "shared", EINVAL, func() error { return onSRQ.PostRecv(&device.RecvWR{}) }},
		{"QP.PostRecv", "initiator", EINVAL, func() error { return ini.PostRecv(&device.RecvWR{}) }},
		{"QP.PostRecv", "gone", EINVAL, func() error { return deadQP.PostRecv(&device.RecvWR{}) }},
		{"MR.Dereg", "twice", EINVAL, deadMR.Dereg},
		{"MR.Rereg", "no flags", EINVAL, func() error { return mr.Rereg(0, nil, nil, 0, 0, 0) }},
		{"MR.Rereg", "unknown flags", EINVAL, func() error { return mr.Rereg(8, nil, nil, 0, 0, 0) }},
		{"MR.Rereg", "no memory", EINVAL, func() error { return mr.Rereg(device.ReregTranslation, nil, nil, 0, 8, 0) }},
		{"MR.Rereg", "no domain", EINVAL, func() error { return mr.Rereg(device.ReregPD, nil, nil, 0, 0, 0) }},
		{"MR.Rereg", "another context", EINVAL, func() error { return mr.Rereg(device.ReregPD, otherPD, nil, 0, 0, 0) }},
		{"MR.Rereg", "a domain that is gone", EINVAL, func() error { return mr.Rereg(device.ReregPD, deadPD, nil, 0, 0, 0) }},
		{"MR.Rereg", "rights", EINVAL, func() error { return mr.Rereg(device.ReregAccess, nil, nil, 0, 0, device.RemoteWrite) }},
		{"MR.Rereg", "flag that is none", EOPNOTSUPP, func() error { return mr.Rereg(device.ReregAccess, nil, nil, 0, 0, 1<<6) }},
		{"MR.Rereg", "gone", EINVAL, func() error { return deadMR.Rereg(device.ReregAccess, nil, nil, 0, 0, 0) }},
		{"MW.Dealloc", "twice", EINVAL, deadMW.Dealloc},
		{"FastMR.Dereg", "twice", EINVAL, deadFast.Dereg},
		{"AH.Destroy", "twice", EINVAL, deadAH.Destroy},
		{"XRCD.Close", "in use", EBUSY, xrcd.Close},
		{"XRCD.Close", "twice", EINVAL, deadXRCD.Close},
		{"XRCD.CreateXRCTarget", "closed", EINVAL, func() error { return second(deadXRCD.CreateXRCTarget(nil)) }},
		{"XRCD.CreateXRCTarget", "closed context", EIO, func() error { return second(closedXRCD.CreateXRCTarget(nil)) }},
		{"CompChannel.Destroy", "in use", EBUSY, ch.Destroy},
		{"CompChannel.Destroy", "twice", EINVAL, deadCh.Destroy},
		{"CompChannel.Get", "gone", EIO, func() error { return second(deadCh.Get(context.Background())) }},
	}
	// Modify: every value beyond its range, with the rest of a row that is right.
	toRTR := device.AttrState | device.AttrAV | device.AttrPathMTU | device.AttrDestQPN | device.AttrRQPSN | device.AttrMaxDestRdAtomic | device.AttrMinRNRTimer
	must(onSRQ.Modify(&device.QPAttr{State: device.StateInit, Port: 1}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess))
	rtr := func(change func(a *device.QPAttr)) func() error {
		return func() error {
			a := device.QPAttr{State: device.StateRTR, PathMTU: 1024, AH: to}
			change(&a)
			return onSRQ.Modify(&a, toRTR|device.AttrAccess)
		}
	}
	for what, change := range map[string]func(a *device.QPAttr){
		"path_mtu 1000": func(a *device.QPAttr) { a.PathMTU = 1000 }, "path_mtu above the port's": func(a *device.QPAttr) { a.PathMTU = 2048 },
		"dest_qp_num": func(a *device.QPAttr) { a.DestQPN = 1 << 24 }, "max_dest_rd_atomic": func(a *device.QPAttr) { a.MaxDestRdAtomic = device.MaxRdAtomic + 1 },
		"max_dest_rd_atomic -1": func(a *device.QPAttr) { a.MaxDestRdAtomic = -1 }, "min_rnr_timer": func(a *device.QPAttr) { a.MinRNRTimer = 32 },
		"GID index": func(a *device.QPAttr) { a.AH.SGIDIndex = 9 }, "a group": func(a *device.QPAttr) { a.AH.DGID = group },
		"AV port": func(a *device.QPAttr) { a.AH.Port = 2 }, "access flags": func(a *device.QPAttr) { a.Access = 1 << 12 }, "state": func(a *device.QPAttr) { a.State = 7 },
		"RTS": func(a *device.QPAttr) { a.State = device.StateRTS },
	} {
		l = append(l, wrong{"QP.Modify", what, EINVAL, rtr(change)})
	}
	sqd := func(mask device.AttrMask, a device.QPAttr) func() error {
		return func() error { return rc.Modify(&a, mask) }
	}
	l = append(l, []wrong{
		{"QP.Modify", "nil", EINVAL, func() error { return reset.Modify(nil, device.AttrState) }},
		{"QP.Modify", "gone", EINVAL, func() error { return deadQP.Modify(&device.QPAttr{State: device.StateReset}, device.AttrState) }},
		{"QP.Modify", "cur_qp_state", EINVAL, sqd(device.AttrState|device.AttrCurState, device.QPAttr{State: device.StateRTS, CurState: device.StateRTR})},
		{"QP.Modify", "CAP", EINVAL, sqd(device.AttrCap, device.QPAttr{})},
		{"QP.Modify", "alternate path", EINVAL, sqd(device.AttrAltPath, device.QPAttr{})},
		{"QP.Modify", "min_rnr_timer in RTS", EINVAL, sqd(device.AttrMinRNRTimer, device.QPAttr{MinRNRTimer: 32})},
		{"QP.Modify", "timeout in RTS", EINVAL, sqd(device.AttrTimeout, device.QPAttr{Timeout: 1})},
		{"QP.Modify", "port", EINVAL, func() error {
			return reset.Modify(&device.QPAttr{State: device.StateInit, Port: 2}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess)
		}},
		{"QP.Modify", "pkey_index", EINVAL, func() error {
			return reset.Modify(&device.QPAttr{State: device.StateInit, Port: 1, PKeyIndex: 1}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess)
		}},
	}...)
	// Posting.
	for what, x := range map[string]struct {
		q  *device.QP
		wr *device.SendWR
	}{
		"nil": {rc, nil}, "RESET": {reset, &device.SendWR{Op: device.OpSend}}, "gone": {deadQP, &device.SendWR{Op: device.OpSend}},
		"entries":     {rc, &device.SendWR{Op: device.OpSend, SGE: make([]device.SGE, 3)}},
		"inline":      {rc, &device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: make([]byte, 17)}},
		"inline READ": {rc, &device.SendWR{Op: device.OpRead, Flags: device.Inline, InlineData: make([]byte, 8)}},
		"opcode":      {rc, &device.SendWR{Op: 200}}, "READ on UD": {ud, &device.SendWR{Op: device.OpRead}},
		"length":            {rc, &device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Length: 1 << 31}, {Length: 1}}}},
		"atomic of 4 bytes": {rc, &device.SendWR{Op: device.OpFetchAdd, SGE: []device.SGE{{Length: 4}}}},
		"FLUSH with data":   {rc, &device.SendWR{Op: device.OpFlush, FlushType: transport.FlushGlobal, SGE: []device.SGE{{Length: 4}}}},
		"FLUSH of type 4":   {rc, &device.SendWR{Op: device.OpFlush, FlushType: 4}},
		"no address handle": {ud, &device.SendWR{Op: device.OpSend}}, "address handle of another domain": {ud, &device.SendWR{Op: device.OpSend, AH: otherAH}},
		"address handle that is gone": {ud, &device.SendWR{Op: device.OpSend, AH: deadAH}},
	} {
		l = append(l, wrong{"QP.PostSend", what, EINVAL, func() error { return x.q.PostSend(x.wr) }},
			wrong{"QP.PostSendList", what, EINVAL, func() error { return x.q.PostSendList(x.wr, &device.SendWR{Op: device.OpSend}) }})
	}

	state := func() string {
		var b strings.Builder
		for _, c := range []*device.Context{c, other, closed, far.ctx} {
			fmt.Fprintf(&b, "%+v ", c.Objects())
		}
		for _, q := range []*device.QP{rc, onSRQ, reset, ud, ini, deadQP} {
			a, in := q.Query()
			fmt.Fprintf(&b, "%+v %+v ", a, in.Cap)
		}
		fmt.Fprintf(&b, "%+v %+v %d %d %d %x %d %d", srq.Query(), xsrq.Query(), cq.Cap(), busyCQ.Cap(), len(h.dev.QPs()), mr.Addr(), mr.Len(), h.dev.Counters().Load(stats.SentPkts))
		return b.String()
	}
	tested := map[string]bool{}
	for _, w := range l {
		tested[w.method] = true
		before := state()
		err := w.call()
		var op *device.OpError
		if !errors.As(err, &op) || op.Op == "" || strings.Contains(err.Error(), "\n") || device.ErrnoOf(err) != w.want {
			t.Errorf("%s, %s: %v (errno %d), want errno %d in an OpError of one line", w.method, w.what, err, int(device.ErrnoOf(err)), int(w.want))
		}
		if after := state(); after != before {
			t.Errorf("%s, %s: %v, and something has changed: %s", w.method, w.what, err, cmp.Diff(strings.Fields(before), strings.Fields(after)))
		}
	}
	for name, f := range map[string]func() error{
		"Context.AsyncEvent": func() error { return second(c.AsyncEvent(ended)) }, "CQ.Wait": func() error { return second(cq.Wait(ended, make([]device.WC, 1))) },
		"CompChannel.Get": func() error { return second(ch.Get(ended)) },
	} {
		var op *device.OpError
		if err := f(); !errors.As(err, &op) || !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name := range map[string]bool{"Device.Close": true, "Context.Close": true} { // nothing can be wrong
		tested[name] = true
	}
	for _, x := range []any{h.dev, c, pd, cq, srq, rc, mr, deadMW, deadFast, deadAH, xrcd, ch} {
		typ := reflect.TypeOf(x)
		for m := range typ.NumMethod() {
			f := typ.Method(m)
			n, name := f.Type.NumOut(), typ.Elem().Name()+"."+f.Name
			if n > 0 && f.Type.Out(n-1) == reflect.TypeFor[error]() && !tested[name] {
				t.Errorf("%s is not tested", name)
			}
		}
	}
	// When the device is closed all that was wrong still is, and what was right is not.
	if err := h.dev.Close(); err != nil {
		t.Error(err)
	}
	right := []wrong{
		{"Context.AllocPD", "", EIO, func() error { return second(c.AllocPD()) }},
		{"Context.AllocPD", "new context", EIO, func() error { return second(h.dev.NewContext().AllocPD()) }},
		{"Context.AllocXRCD", "", EIO, func() error { return second(c.AllocXRCD()) }},
		{"Context.CreateCQ", "", EIO, func() error { return second(c.CreateCQ(device.CQInit{Entries: 1})) }},
		{"Context.CreateCompChannel", "", EIO, func() error { return second(c.CreateCompChannel()) }},
		{"PD.RegMR", "", EIO, func() error { return second(pd.RegMR(make([]byte, 8), 0)) }},
		{"PD.CreateAH", "", EIO, func() error { return second(pd.CreateAH(to)) }},
		{"PD.CreateQP", "", EIO, func() error { return second(pd.CreateQP(base)) }},
		{"PD.CreateSRQ", "", EIO, func() error { return second(pd.CreateSRQ(device.SRQInit{MaxWR: 1})) }},
		{"PD.Dealloc", "", EINVAL, pd.Dealloc},
		{"CQ.Destroy", "", EINVAL, func() error { return second(cq.Destroy()) }},
		{"CQ.Resize", "", EINVAL, func() error { return cq.Resize(2000) }},
		{"CQ.Wait", "", EIO, func() error { return second(cq.Wait(context.Background(), make([]device.WC, 1))) }},
		{"SRQ.PostRecv", "", EINVAL, func() error { return srq.PostRecv(&device.RecvWR{}) }},
		{"SRQ.SetLimit", "", EINVAL, func() error { return srq.SetLimit(1) }},
		{"QP.Modify", "", EINVAL, func() error { return rc.Modify(&device.QPAttr{State: device.StateReset}, device.AttrState) }},
		{"QP.PostSend", "", EINVAL, func() error { return rc.PostSend(&device.SendWR{Op: device.OpSend}) }},
		{"QP.Destroy", "", EINVAL, rc.Destroy},
		{"MR.Dereg", "", EINVAL, mr.Dereg},
		{"MR.Rereg", "", EINVAL, func() error { return mr.Rereg(device.ReregAccess, nil, nil, 0, 0, 0) }},
		{"CompChannel.Get", "", EIO, func() error { return second(ch.Get(context.Background())) }},
		{"CompChannel.Destroy", "", EINVAL, ch.Destroy},
		{"XRCD.Close", "", EINVAL, xrcd.Close},
		{"XRCD.CreateXRCTarget", "", EIO, func() error { return second(xrcd.CreateXRCTarget(nil)) }},
	}
	for _, w := range append(right, l...) {
		err := w.call()
		var op *device.OpError
		if !errors.As(err, &op) || strings.Contains(err.Error(), "\n") || w.what == "" && device.ErrnoOf(err) != w.want {
			t.Errorf("%s, %s, closed: %v, want errno %d in an OpError of one line", w.method, w.what, err, int(w.want))
		}
	}
}
