package device_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
)

// TestErrnos holds the manual: the errno that a comment names is the one that comes back, and the error is an OpError.
func TestErrnos(t *testing.T) {
	a, b := newApps()
	defer a.close()
	defer b.close()
	other := newApp(a.dev) // another context of the device

	gone := func() *device.PD { pd := must(a.ctx.AllocPD()); check(pd.Dealloc()); return pd }()
	deadQP := a.qp(device.RC)
	check(deadQP.Destroy())
	rc, connected, peer, ud := a.qp(device.RC), a.qp(device.RC), b.qp(device.RC), a.qp(device.UD)
	join(connected, peer)
	check(ud.Activate(1, 0))
	mr := must(a.pd.RegMR(make([]byte, 64), device.LocalWrite|device.MWBind))
	deadMR := must(a.pd.RegMR(make([]byte, 8), 0))
	check(deadMR.Dereg())
	srq := must(a.pd.CreateSRQ(device.SRQInit{MaxWR: 2, MaxSGE: 1}))
	onSRQ := must(a.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: a.cq, RecvCQ: a.cq, SRQ: srq}))
	xrcd := must(a.ctx.AllocXRCD())
	must(xrcd.CreateXRCTarget(nil))
	shut := must(a.ctx.AllocXRCD())
	if err := shut.Close(); err != nil {
		t.Fatal(err)
	}
	ah := must(a.pd.CreateAH(device.AHAttr{DGID: must(b.dev.QueryGID(1, 1)), SGIDIndex: 1}))
	ch := must(a.ctx.CreateCompChannel())
	must(a.ctx.CreateCQ(device.CQInit{Entries: 1, Channel: ch}))
	deadCQ := must(a.ctx.CreateCQ(device.CQInit{Entries: 1}))
	must(deadCQ.Destroy())
	group := device.GID{0: 0xFF, 1: 0x0E, 15: 1}
	attached := a.qp(device.UD)
	check(attached.Attach(group))
	full := must(a.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: a.cq, RecvCQ: a.cq}))
	join(full, b.qp(device.RC))

	closed := a.dev.NewContext()
	check(closed.Close())

	second := func(_ any, err error) error { return err }
	for _, c := range []struct {
		what string
		err  error
		want device.Errno
	}{
		{"open: no link", second(device.Open(nil, device.Options{})), device.EINVAL},
		{"open: profile", second(device.Open(pipeEnd(), device.Options{Profile: "none"})), device.EINVAL},
		{"open: P_Key", second(device.Open(pipeEnd(), device.Options{PKeys: []uint16{0x8000}})), device.EINVAL},
		{"open: MTU 335", second(device.Open(pipeMTU(335), device.Options{})), device.EINVAL},
		{"query port 2", second(a.dev.QueryPort(2)), device.EINVAL},
		{"query GID 16", second(a.dev.QueryGID(1, device.GIDTableLen)), device.EINVAL},
		{"query P_Key 1", second(a.dev.QueryPKey(1, 1)), device.EINVAL},
		{"process MAD of 1 byte", second(a.dev.ProcessMAD(1, []byte{1})), device.EINVAL},
		{"alloc PD: context closed", second(closed.AllocPD()), device.EIO},
		{"event of a context that is closed", second(closed.AsyncEvent(context.Background())), device.EIO},
		{"dealloc PD in use", a.pd.Dealloc(), device.EBUSY},
		{"dealloc PD again", gone.Dealloc(), device.EINVAL},
		{"reg MR: PD gone", second(gone.RegMR(nil, 0)), device.EINVAL},
		{"reg MR: rights", second(a.pd.RegMR(nil, device.RemoteWrite)), device.EINVAL},
		{"reg MR: persistent", second(a.pd.RegMR(nil, device.FlushPersistent)), device.EINVAL},
		{"reg MR: unknown right", second(a.pd.RegMR(nil, 1<<30)), device.EOPNOTSUPP},
		{"reg memory: nil", second(a.pd.RegMemory(nil, 0, 1, 0)), device.EINVAL},
		{"reg memory: too long", second(a.pd.RegMemory(device.NewMemory(make([]byte, 8)), 0, 8, 0)), device.EINVAL},
		{"rereg: no flag", mr.Rereg(0, nil, nil, 0, 0, 0), device.EINVAL},
		{"rereg: PD of another context", mr.Rereg(device.ReregPD, other.pd, nil, 0, 0, 0), device.EINVAL},
		{"dereg again", deadMR.Dereg(), device.EINVAL},
		{"alloc MW: type", second(a.pd.AllocMW(9)), device.EINVAL},
		{"alloc MR of nothing", second(a.pd.AllocMR(0)), device.EINVAL},
		{"create CQ: entries", second(a.ctx.CreateCQ(device.CQInit{})), device.EINVAL},
		{"create CQ: channel of another context", second(other.ctx.CreateCQ(device.CQInit{Entries: 1, Channel: ch})), device.EINVAL},
		{"destroy CQ in use", second(a.cq.Destroy()), device.EBUSY},
		{"destroy CQ again", second(deadCQ.Destroy()), device.EINVAL},
		{"wait for CQ that is gone", second(deadCQ.Wait(context.Background(), make([]device.WC, 1))), device.EIO},
		{"moderate: count alone", a.cq.Moderate(1, 0), device.EINVAL},
		{"moderate: period", a.cq.Moderate(1, 65536*time.Microsecond), device.EINVAL},
		{"resize CQ that is gone", deadCQ.Resize(2), device.EINVAL},
		{"replace ring without one", a.cq.ReplaceRing(nil), device.EINVAL},
		{"destroy channel in use", ch.Destroy(), device.EBUSY},
		{"create QP: no CQ", second(a.pd.CreateQP(device.QPInit{Type: device.RC})), device.EINVAL},
		{"create QP: type", second(a.pd.CreateQP(device.QPInit{Type: 7})), device.EOPNOTSUPP},
		{"create QP: target", second(a.pd.CreateQP(device.QPInit{Type: device.XRCTgt})), device.EINVAL},
		{"create QP: inline", second(a.pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: a.cq, RecvCQ: a.cq, Cap: device.Cap{Inline: 513}})), device.EINVAL},
		{"modify to RTS from RESET", rc.Modify(&device.QPAttr{State: device.StateRTS}, device.AttrState), device.EINVAL},
		{"modify: nil", rc.Modify(nil, device.AttrState), device.EINVAL},
		{"modify: gone", deadQP.Modify(&device.QPAttr{State: device.StateErr}, device.AttrState), device.EINVAL},
		{"post send in RESET", rc.PostSend(&device.SendWR{Op: device.OpSend}), device.EINVAL},
		{"post send: nil", connected.PostSend(nil), device.EINVAL},
		{"post send: entries", connected.PostSend(&device.SendWR{Op: device.OpSend, SGE: make([]device.SGE, 2)}), device.EINVAL},
		{"post send: inline", connected.PostSend(&device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: make([]byte, 65)}), device.EINVAL},
		{"post send: atomic of 4 bytes", connected.PostSend(&device.SendWR{Op: device.OpFetchAdd, SGE: []device.SGE{mr.SGE(0, 4)}}), device.EINVAL},
		{"post send: queue of 0", full.PostSend(&device.SendWR{Op: device.OpSend}), device.ENOMEM},
		{"post send: no address handle", ud.PostSend(&device.SendWR{Op: device.OpSend}), device.EINVAL},
		{"post send: WRITE on UD", ud.PostSend(&device.SendWR{Op: device.OpWrite, AH: ah}), device.EINVAL},
		{"post recv in RESET", rc.PostRecv(&device.RecvWR{}), device.EINVAL},
		{"post recv: queue of 0", full.PostRecv(&device.RecvWR{}), device.ENOMEM},
		{"post recv: SRQ", onSRQ.PostRecv(&device.RecvWR{}), device.EINVAL},
		{"activate RC", rc.Activate(0, 0), device.EINVAL},
		{"connect UD", ud.Connect(0, device.Remote{}, device.ConnectOptions{}), device.EINVAL},
		{"attach RC", rc.Attach(group), device.EINVAL},
		{"attach: no group", ud.Attach(device.GID{15: 1}), device.EINVAL},
		{"detach what is not attached", ud.Detach(group), device.EINVAL},
		{"destroy QP that is attached", attached.Destroy(), device.EBUSY},
		{"destroy QP again", deadQP.Destroy(), device.EINVAL},
		{"raw: as many MACs", second(a.pd.CreateQP(device.QPInit{Type: device.RawPacket, SendCQ: a.cq, RecvCQ: a.cq,
			Steer: device.Steering{MACs: make([]net.HardwareAddr, 65)}})), device.EINVAL},
		{"create SRQ: none", second(a.pd.CreateSRQ(device.SRQInit{})), device.EINVAL},
		{"create SRQ: domain without CQ", second(a.pd.CreateSRQ(device.SRQInit{MaxWR: 1, XRCD: xrcd})), device.EINVAL},
		{"SRQ limit", srq.SetLimit(3), device.EINVAL},
		{"SRQ of 0", srq.Resize(0), device.EINVAL},
		{"SRQ entries", srq.PostRecv(&device.RecvWR{SGE: make([]device.SGE, 2)}), device.EINVAL},
		{"destroy SRQ in use", srq.Destroy(), device.EBUSY},
		{"close XRCD in use", xrcd.Close(), device.EBUSY},
		{"open XRCD that is closed", second(a.ctx.OpenXRCD(shut)), device.EINVAL},
		{"open XRCD of another device", second(b.ctx.OpenXRCD(xrcd)), device.EINVAL},
		{"create AH: empty GID", second(a.pd.CreateAH(device.AHAttr{DGID: device.GID{15: 1}, SGIDIndex: 9})), device.EINVAL},
		{"create AH: IPv6 from IPv4", second(a.pd.CreateAH(device.AHAttr{DGID: device.GID{0: 0x20, 15: 1}, SGIDIndex: 1})), device.EINVAL},
	} {
		var op *device.OpError
		if !errors.As(c.err, &op) || device.ErrnoOf(c.err) != c.want {
			t.Errorf("%s: %v (%T), want an OpError with %v", c.what, c.err, c.err, c.want)
		}
	}
}

func pipeEnd() *pipe.End { return pipeMTU(0) }

func pipeMTU(n int) *pipe.End {
	x, _ := pipe.New(pipe.Config{MTU: n}, pipe.Config{})
	return x
}
