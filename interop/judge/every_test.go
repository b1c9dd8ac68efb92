package judge

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// everyRights is what the memory and the queue pairs of the capture allow.
const everyRights = device.LocalWrite | device.RemoteWrite | device.RemoteRead | device.RemoteAtomic | device.FlushGlobal

// everyHost is one of two devices in this process.
type everyHost struct {
	t       *testing.T
	dev     *device.Device
	ctx     *device.Context
	pd      *device.PD
	scq, cq *device.CQ
	mr      *device.MR
}

// everyHosts makes two devices on a pipe that write what they send and receive to the file; end finishes it.
func everyHosts(t *testing.T, path string, a, b pipe.Config) (x, y *everyHost, end func()) {
	t.Helper()
	file, err := os.Create(path)
	check(t, err)
	ea, eb := pipe.New(a, b)
	w, err := capture.NewWriter(file, ea.Info(), capture.Options{})
	check(t, err)
	second, err := w.Add("b", eb.Info())
	check(t, err)
	open := func(ep link.Endpoint, sink link.Sink) *everyHost {
		h := &everyHost{t: t}
		h.dev, err = device.Open(ep, device.Options{Link: link.PortOptions{Capture: sink}})
		check(t, err)
		h.ctx = h.dev.NewContext()
		h.pd, err = h.ctx.AllocPD()
		check(t, err)
		h.scq, err = h.ctx.CreateCQ(device.CQInit{Entries: 1024})
		check(t, err)
		h.cq, err = h.ctx.CreateCQ(device.CQInit{Entries: 1024})
		check(t, err)
		h.mr, err = h.pd.RegMR(make([]byte, 1<<16), everyRights|device.MWBind)
		check(t, err)
		for i := range h.mr.Bytes() {
			h.mr.Bytes()[i] = byte(i*7 + i>>8)
		}
		return h
	}
	x, y = open(ea, w), open(eb, second)
	return x, y, func() {
		check(t, x.dev.Close())
		check(t, y.dev.Close())
		check(t, w.Close())
		check(t, file.Close())
	}
}

// gid finds the entry of an address of the family.
func (h *everyHost) gid(v6 bool) int {
	for i := range device.GIDTableLen {
		if g, err := h.dev.QueryGID(1, i); err == nil && !g.IsZero() && g.Addr().Is6() == v6 && !g.Addr().IsLinkLocalUnicast() {
			return i
		}
	}
	h.t.Fatalf("%s has no address", h.dev.Name())
	return 0
}

func (h *everyHost) qp(typ device.QPType) *device.QP {
	h.t.Helper()
	init := device.QPInit{Type: typ, SendCQ: h.scq, RecvCQ: h.cq, Cap: device.Cap{SendWR: 64, RecvWR: 64, SendSGE: 2, RecvSGE: 2}}
	if typ == device.XRCIni {
		init.RecvCQ, init.Cap.RecvWR, init.Cap.RecvSGE = nil, 0, 0
	}
	q, err := h.pd.CreateQP(init)
	check(h.t, err)
	return q
}

// post posts a request and waits for its completion, which must be that.
func (h *everyHost) post(q *device.QP, wr device.SendWR, want device.Status) {
	h.t.Helper()
	wr.Flags |= device.Signaled
	check(h.t, q.PostSend(&wr))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	var wc [1]device.WC
	if _, err := h.scq.Wait(ctx, wc[:]); err != nil {
		h.t.Fatalf("%v: %v", wr.Op, err)
	}
	if wc[0].Status != want {
		h.t.Fatalf("%v: %v, want %v", wr.Op, wc[0].Status, want)
	}
}

func (h *everyHost) recv(q *device.QP, n int) {
	h.t.Helper()
	for range n {
		check(h.t, q.PostRecv(&device.RecvWR{SGE: []device.SGE{h.mr.SGE(0, 8192)}}))
	}
}

// link connects two queue pairs of any connected type.
func (h *everyHost) link(a *device.QP, to *everyHost, b *device.QP, v6 bool, o device.ConnectOptions) {
	h.t.Helper()
	o.Access, o.SGIDIndex, o.PathMTU = everyRights&^device.LocalWrite, h.gid(v6), 1024
	ra, rb := a.Address(h.gid(v6), 0xFFFFF0), b.Address(to.gid(v6), 0x7FFFFE)
	if a.Type() == device.UC {
		o.Access = device.RemoteWrite
	}
	check(h.t, a.Connect(ra.PSN, rb, o))
	o.SGIDIndex = to.gid(v6)
	check(h.t, b.Connect(rb.PSN, ra, o))
}

// everySizes are those of messages of one packet and of several.
var everySizes = []int{10, 3500}

// writeEvery has the engines of two devices emit every opcode that they have.
func writeEvery(t *testing.T, a, b *everyHost, v6 bool) {
	t.Helper()
	// What the operations of all the services look like; srqn is for XRC.
	segmented := func(q *device.QP, srqn uint32, ops ...device.WROp) {
		t.Helper()
		for _, op := range ops {
			for _, n := range everySizes {
				wr := device.SendWR{Op: op, SGE: []device.SGE{a.mr.SGE(3, n)}, RemoteAddr: b.mr.Addr() + 9, RKey: b.mr.RKey(), Imm: 0x89ABCDEF, SRQN: srqn}
				if op.Consumes() {
					wr.Flags = device.Solicited
				}
				a.post(q, wr, device.StatusSuccess)
			}
		}
	}
	asked := func(q *device.QP, srqn uint32) {
		t.Helper()
		segmented(q, srqn, device.OpRead)
		word := device.SendWR{SGE: []device.SGE{a.mr.SGE(16, 8)}, RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(), SRQN: srqn,
			CompareAdd: 0x0123456789ABCDEF, Swap: 0xFEDCBA9876543210}
		for _, op := range []device.WROp{device.OpFetchAdd, device.OpCompareSwap, device.OpAtomicWrite} {
			word.Op = op
			a.post(q, word, device.StatusSuccess)
		}
		flush := device.SendWR{Op: device.OpFlush, RemoteAddr: b.mr.Addr() + 1, RKey: b.mr.RKey(), SRQN: srqn, FlushType: transport.FlushGlobal, FlushLen: 777}
		for _, level := range []transport.FlushLevel{transport.FlushRange, transport.FlushMR} {
			flush.FlushLevel = level
			a.post(q, flush, device.StatusSuccess)
		}
	}
	refused := func(q *device.QP, srqn uint32) {
		t.Helper()
		a.post(q, device.SendWR{Op: device.OpWrite, SGE: []device.SGE{a.mr.SGE(0, 4)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey() ^ 0x100, SRQN: srqn}, device.StatusRemoteAccess)
	}

	// RC, with a congestion mark on everything: each end notifies the other.
	qa, qb := a.qp(device.RC), b.qp(device.RC)
	a.link(qa, b, qb, v6, device.ConnectOptions{TrafficClass: 0x23})
	b.recv(qb, 20)
	segmented(qa, 0, device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm)
	asked(qa, 0)
	masked := device.SendWR{SGE: []device.SGE{a.mr.SGE(16, 8)}, RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(),
		CompareAdd: 0x0123456789ABCDEF, Swap: 0x1112131415161718, CompareAddMask: 0x8000000080000000, SwapMask: 0xFF00FF00FF00FF00}
	for _, op := range []device.WROp{device.OpMaskedFetchAdd, device.OpMaskedCompareSwap} {
		masked.Op = op
		a.post(qa, masked, device.StatusSuccess)
	}
	for _, n := range everySizes {
		mw, err := b.pd.AllocMW(device.MW2B)
		check(t, err)
		bind := device.SendWR{Op: device.OpBindMW}
		bind.Bind = transport.BindWR{Window: mw.RKey(), NewKey: device.IncRKey(mw.RKey()), MRKey: b.mr.LKey(), Addr: b.mr.Addr(), Length: 64, Access: device.RemoteRead}
		b.post(qb, bind, device.StatusSuccess)
		a.post(qa, device.SendWR{Op: device.OpSendInv, SGE: []device.SGE{a.mr.SGE(0, n)}, Imm: bind.Bind.NewKey}, device.StatusSuccess)
	}
	// What is not ready, and what is refused.
	qa, qb = a.qp(device.RC), b.qp(device.RC)
	a.link(qa, b, qb, v6, device.ConnectOptions{RNRRetry: 1})
	a.post(qa, device.SendWR{Op: device.OpSend, SGE: []device.SGE{a.mr.SGE(0, 4)}}, device.StatusRNRRetryExceeded)
	qa, qb = a.qp(device.RC), b.qp(device.RC)
	a.link(qa, b, qb, v6, device.ConnectOptions{})
	refused(qa, 0)

	qa, qb = a.qp(device.UC), b.qp(device.UC)
	a.link(qa, b, qb, v6, device.ConnectOptions{})
	b.recv(qb, 20)
	segmented(qa, 0, device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm)

	qa, qb = a.qp(device.UD), b.qp(device.UD)
	for _, q := range []*device.QP{qa, qb} {
		check(t, q.Activate(0x11223344, 5))
	}
	b.recv(qb, 8)
	g, err := b.dev.QueryGID(1, b.gid(v6))
	check(t, err)
	ah, err := a.pd.CreateAH(device.AHAttr{DGID: g, SGIDIndex: a.gid(v6)})
	check(t, err)
	for _, op := range []device.WROp{device.OpSend, device.OpSendImm} {
		for n := range 4 {
			a.post(qa, device.SendWR{Op: op, SGE: []device.SGE{a.mr.SGE(0, 100+n)}, Imm: 0x01020304, AH: ah, RemoteQPN: qb.Num(), RemoteQKey: 0x11223344}, device.StatusSuccess)
		}
	}

	dom, err := b.ctx.AllocXRCD()
	check(t, err)
	srq, err := b.pd.CreateSRQ(device.SRQInit{MaxWR: 64, MaxSGE: 1, XRCD: dom, CQ: b.cq})
	check(t, err)
	for range 40 {
		check(t, srq.PostRecv(&device.RecvWR{SGE: []device.SGE{b.mr.SGE(0, 8192)}}))
	}
	xrc := func() *device.QP {
		t.Helper()
		ini := a.qp(device.XRCIni)
		tgt, err := dom.CreateXRCTarget(nil)
		check(t, err)
		a.link(ini, b, tgt, v6, device.ConnectOptions{})
		return ini
	}
	qa = xrc()
	segmented(qa, srq.Num(), device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm)
	asked(qa, srq.Num())
	refused(qa, srq.Num())
	for _, n := range everySizes { // the key is nobody's: the message is acknowledged all the same
		a.post(xrc(), device.SendWR{Op: device.OpSendInv, SGE: []device.SGE{a.mr.SGE(0, n)}, Imm: 0xDEAD00, SRQN: srq.Num()}, device.StatusSuccess)
	}
}

// emitted are the opcodes of softnic's engines: all that its table has, but for RD.
func emitted() []peer.Op {
	var l []peer.Op
	for i := range 256 {
		if op := bth.Opcode(i); op.Info().Known() && op.Service() != bth.RD {
			l = append(l, peer.Op(i))
		}
	}
	return l
}

// TestEveryOpcode has the engines of two devices emit every opcode that they have, and puts the capture before tshark and
// the independent codec of package peer: they and package wire must read the same. Where tshark does not know an opcode's
// headers, which table undissected says, the codec alone stands against package wire.
func TestEveryOpcode(t *testing.T) {
	needTshark(t)
	for _, c := range []struct {
		name string
		a, b pipe.Config
		v6   bool
	}{
		{"ethernet", pipe.Config{Ethernet: true, MaxSegs: 8, Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.2/24")}},
			pipe.Config{Ethernet: true, MaxSegs: 8, Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.1/24")}}, false},
		{"ipv6", pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("2001:db8::2/64")}}, pipe.Config{Addrs: []netip.Prefix{netip.MustParsePrefix("2001:db8::1/64")}}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), c.name+".pcapng")
			a, b, end := everyHosts(t, path, c.a, c.b)
			writeEvery(t, a, b, c.v6)
			end()

			findings, frames, err := All(path)
			check(t, err)
			said(t, findings)
			t.Logf("%d frames", frames)
			seen := map[peer.Op]int{}
			check(t, Packets(path, func(p Packet) error {
				f, err := p.Parse()
				if err != nil {
					return err
				}
				seen[f.Op]++
				if err := codecsAgree(p, f); err != nil {
					t.Errorf("frame %d, %v: %v", p.Number, f.Op, err)
				}
				return nil
			}))
			for _, op := range emitted() {
				if seen[op] == 0 {
					t.Errorf("the capture has no %v", op)
				}
				delete(seen, op)
			}
			for op, n := range seen {
				t.Errorf("%d frames %v, which softnic does not have", n, op)
			}
			tsharkKnows(t, path)
		})
	}
}

// tsharkKnows holds table undissected against what this tshark reads: of the other opcodes every field, of those in the
// table not. A newer tshark may know more; that the table is then out of date is said and no failure.
func tsharkKnows(t *testing.T, path string) {
	t.Helper()
	rows, err := Tshark(path)
	check(t, err)
	good, err := roceFrames(path, func(int, string) {})
	check(t, err)
	out, err := exec.Command("tshark", "--version").Output()
	check(t, err)
	version := regexp.MustCompile(`\d+\.\d+\.\d+`).FindString(string(out))
	byNumber := map[int]Row{}
	for _, row := range rows {
		byNumber[row.Frame] = row
	}
	missing := map[peer.Op][]string{} // by opcode: what tshark does not read, or reads wrongly
	for _, f := range good {
		row := byNumber[f.number]
		for _, field := range tsharkFields {
			if field.headers != 0 && f.frame.HeaderSet()&field.headers == 0 {
				continue
			}
			if got, ok := row.Uint(field.name); (!ok || got != field.value(f.frame)) && !slices.Contains(missing[f.frame.Op], field.name) {
				missing[f.frame.Op] = append(missing[f.frame.Op], field.name)
			}
		}
		for h, name := range unreadable {
			if f.frame.HeaderSet().Has(h) && !slices.Contains(missing[f.frame.Op], name) {
				missing[f.frame.Op] = append(missing[f.frame.Op], name)
			}
		}
	}
	byReason := map[string][]string{}
	for _, op := range emitted() {
		reason, listed := undissected[op]
		switch lost := missing[op]; {
		case listed && len(lost) == 0:
			complain := t.Logf
			if strings.HasPrefix(version, "4.0.") {
				complain = t.Errorf
			}
			complain("tshark %s reads all of %v: it is no longer one of undissected (%s)", version, op, reason)
		case !listed && len(lost) > 0:
			t.Errorf("tshark %s does not read %v of %v, which is not among undissected", version, lost, op)
		case listed:
			byReason[reason] = append(byReason[reason], op.String())
		}
	}
	for reason, ops := range byReason {
		t.Logf("the BTH alone is compared with tshark %s, the rest with package peer: %s: %s", version, strings.Join(ops, ", "), reason)
	}
	for op := range undissected {
		if !slices.Contains(emitted(), op) {
			t.Errorf("undissected has %v, which softnic does not emit", op)
		}
	}
}

// codecsAgree compares what package peer and package wire read in a packet, and what each would make of it again.
func codecsAgree(p Packet, f *peer.Frame) error {
	ip := p.Data
	var v wire.View
	fault := wire.ParseIP(ip, &v)
	if p.LinkType == trace.LinkEthernet {
		ip = p.Data[wire.EthLen:]
		fault = wire.ParseEthernet(p.Data, &v)
	}
	if fault != wire.OK || !wire.CheckICRC(&v) {
		return fmt.Errorf("wire says %v, ICRC right: %v", fault, wire.CheckICRC(&v))
	}
	b, x := v.BTH(), bth.ReadExt(v.IB, v.Info)
	type fields struct {
		Op                           uint8
		SE, Mig, FECN, BECN, Ack     bool
		PKey                         uint16
		QP, PSN                      uint32
		Pad                          int
		Payload                      string
		QKey, SrcQP, SRQN, RKey, DMA uint32
		VA, Swap, Compare, SwapMask  uint64
		CompareMask, Orig            uint64
		Syndrome                     uint8
		MSN, Imm, Inv                uint32
		Selectivity, Placement       int
		Src, Dst                     netip.Addr
		Port, ID                     uint16
		TOS, TTL                     uint8
		Label                        uint32
	}
	ours := fields{
		Op: uint8(b.Opcode()), SE: b.Solicited(), Mig: b.MigReq(), FECN: b.FECN(), BECN: b.BECN(), Ack: b.AckReq(), PKey: b.PKey(), QP: b.DestQP(), PSN: uint32(b.PSN()),
		Pad: b.Pad(), Payload: string(v.Payload), QKey: x.QKey, SrcQP: x.SrcQP, SRQN: x.SRQN, RKey: x.RKey, DMA: x.Length, VA: x.VA, Swap: x.SwapAdd, Compare: x.Compare,
		SwapMask: x.SwapMask, CompareMask: x.CompareMask, Orig: x.Original, Syndrome: uint8(x.Syndrome), MSN: x.MSN, Imm: x.Imm, Inv: x.InvKey,
		Selectivity: x.Selectivity, Placement: x.Placement, Src: v.Src(), Dst: v.Dst(), Port: v.SrcPort(), ID: v.ID(), TOS: v.TClass(), TTL: v.HopLimit(), Label: v.FlowLabel(),
	}
	theirs := fields{
		Op: uint8(f.Op), SE: f.SE, Mig: f.Migrated, FECN: f.FECN, BECN: f.BECN, Ack: f.AckReq, PKey: f.PKey, QP: f.DestQP, PSN: f.PSN,
		Pad: int(padCount(f)), Payload: string(f.Payload), Src: f.Src, Dst: f.Dst, Port: f.SrcPort, ID: f.ID, TOS: f.TOS, TTL: f.TTL, Label: f.FlowLabel,
	}
	has := f.HeaderSet()
	if has.Has(peer.HasDETH) {
		theirs.QKey, theirs.SrcQP = f.DETH.QKey, f.DETH.SrcQP
	}
	if has.Has(peer.HasXRCETH) {
		theirs.SRQN = f.XRCETH.SRQN
	}
	if has.Has(peer.HasFETH) {
		theirs.Selectivity, theirs.Placement = int(f.FETH.Sel), int(f.FETH.PLT)
	}
	if has.Has(peer.HasRETH) {
		theirs.VA, theirs.RKey, theirs.DMA = f.RETH.VA, f.RETH.RKey, f.RETH.Len
	}
	if has.Has(peer.HasAtomicETH) {
		theirs.VA, theirs.RKey, theirs.Swap, theirs.Compare = f.Atomic.VA, f.Atomic.RKey, f.Atomic.SwapAdd, f.Atomic.Compare
	}
	if m := f.Masked; has.Has(peer.HasMaskedETH) {
		theirs.VA, theirs.RKey, theirs.Swap, theirs.Compare, theirs.SwapMask, theirs.CompareMask = m.VA, m.RKey, m.Swap, m.Compare, m.SwapMask, m.CompareMask
	}
	if has.Has(peer.HasAETH) {
		theirs.Syndrome, theirs.MSN = uint8(f.AETH.Syndrome), f.AETH.MSN
	}
	if has.Has(peer.HasAtomicAckETH) {
		theirs.Orig = f.Orig
	}
	if has.Has(peer.HasImmDt) {
		theirs.Imm = f.Imm
	}
	if has.Has(peer.HasIETH) {
		theirs.Inv = f.InvKey
	}
	if ours != theirs {
		return fmt.Errorf("wire and peer read differently:\n wire %+v\n peer %+v", ours, theirs)
	}
	if again := f.Marshal(); !bytes.Equal(again, ip) {
		return fmt.Errorf("peer would have made\n%x of\n%x", again, ip)
	}
	spec := wire.SpecOf(&v)
	if again := wire.Build(&spec); !bytes.Equal(again, p.Data) {
		return fmt.Errorf("wire would have made\n%x of\n%x", again, p.Data)
	}
	return nil
}
