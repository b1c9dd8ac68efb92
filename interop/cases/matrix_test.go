package cases

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/transport"
)

// The services of the matrix, and the states that a queue pair of one can be in. SQE is for services that go on receiving after a
// send has failed.
var (
	mxTypes  = []device.QPType{device.RC, device.UC, device.UD, device.GSI, device.SMI, device.RawPacket, device.XRCIni, device.XRCTgt}
	mxStates = []device.State{device.StateReset, device.StateInit, device.StateRTR, device.StateRTS, device.StateSQD, device.StateSQE, device.StateErr}
)

func mxReaches(typ device.QPType, s device.State) bool {
	return s != device.StateSQE || typ != device.RC && typ != device.XRCIni && typ != device.XRCTgt
}

// matrix is a lab with a queue pair of any service.
type matrix struct {
	*lab
	typ      device.QPType
	qp       *device.QP
	qpn      uint32
	scq, rcq *device.CQ
	xrcd     *device.XRCD
	srq      *device.SRQ // XRC target
	mr, buf  *device.MR  // what remote keys name; what is received into
	ah       *device.AH
	ether    bool
}

const (
	mxLen = 2048
	mxQP  = 0x11
)

func newMatrix(t *testing.T, typ device.QPType, c labConfig) *matrix {
	m := &matrix{typ: typ, ether: typ == device.RawPacket}
	if m.ether {
		m.lab = newEtherLab(t, pipe.Config{MTU: 1500})
	} else {
		m.lab = newLab(t, c)
	}
	m.scq, m.rcq = must(m.ctx.CreateCQ(device.CQInit{Entries: 64})), must(m.ctx.CreateCQ(device.CQInit{Entries: 64}))
	m.mr, m.buf = m.lab.mr(mxLen, every), m.lab.mr(mxLen, all)
	m.ah = must(m.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4}))
	m.xrcd = must(m.ctx.AllocXRCD())
	return m
}

// renew makes a fresh queue pair in a state, with nothing in its memory, and two receives where it can have some.
func (m *matrix) renew(s device.State) {
	m.t.Helper()
	if m.qp != nil {
		if err := m.qp.Destroy(); err != nil {
			m.t.Fatal(err)
		}
		if m.srq != nil {
			if err := m.srq.Destroy(); err != nil {
				m.t.Fatal(err)
			}
		}
		for ok := true; ok; {
			_, ok = m.ctx.TryAsyncEvent()
		}
		drain(m.scq)
		drain(m.rcq)
	}
	clear(m.mr.Bytes())
	clear(m.buf.Bytes())
	m.dice.push(mxQP)
	switch m.typ {
	case device.XRCTgt:
		m.qp = must(m.xrcd.CreateXRCTarget(nil))
		m.srq = must(m.pd.CreateSRQ(device.SRQInit{MaxWR: 4, XRCD: m.xrcd, CQ: m.rcq}))
	default:
		in := device.QPInit{Type: m.typ, SendCQ: m.scq, RecvCQ: m.rcq, SigAll: true, Cap: device.Cap{SendWR: 8, RecvWR: 8, SendSGE: 2, RecvSGE: 2, Inline: 64}}
		if m.typ == device.XRCIni {
			in.RecvCQ = nil
		}
		m.qp = must(m.pd.CreateQP(in))
	}
	m.qpn = m.qp.Num()
	m.state(s)
	for i := range uint64(2) {
		wr := device.RecvWR{ID: i + 1, SGE: []device.SGE{m.buf.SGE(0, mxLen)}}
		switch {
		case m.srq != nil:
			m.must(m.srq.PostRecv(&wr))
		case m.typ != device.XRCIni && s != device.StateReset && s != device.StateErr:
			m.must(m.qp.PostRecv(&wr))
		}
	}
}

func (m *matrix) must(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

// state takes the queue pair from RESET to a state.
func (m *matrix) state(s device.State) {
	m.t.Helper()
	connected := slices.Contains([]device.QPType{device.RC, device.UC, device.XRCIni, device.XRCTgt}, m.typ)
	a := device.QPAttr{Port: 1, Access: everyQP, QKey: qkey, PathMTU: mtu, DestQPN: peerQP, RQPSN: 0x200, SQPSN: 0x100,
		MaxRdAtomic: 16, MaxDestRdAtomic: 16, MinRNRTimer: 12, Timeout: 14, RetryCnt: 6, RNRRetry: 6,
		AH: device.AHAttr{DGID: device.GIDOf(peer4), SGIDIndex: gid4}}
	to := func(s device.State, mask device.AttrMask) {
		m.t.Helper()
		a.State = s
		if err := m.qp.Modify(&a, mask|device.AttrState); err != nil {
			m.t.Fatalf("%v to %v: %v", m.typ, s, err)
		}
	}
	if s >= device.StateInit {
		mask := device.AttrPKeyIndex | device.AttrPort | device.AttrQKey
		switch {
		case connected:
			mask = device.AttrPKeyIndex | device.AttrPort | device.AttrAccess
		case m.typ == device.GSI, m.typ == device.SMI:
			mask = device.AttrPKeyIndex | device.AttrQKey
		case m.typ == device.RawPacket:
			mask = device.AttrPort
		}
		to(device.StateInit, mask)
	}
	if s >= device.StateRTR {
		mask := device.AttrMask(0)
		if connected {
			mask = device.AttrAV | device.AttrPathMTU | device.AttrDestQPN | device.AttrRQPSN
		}
		if m.typ == device.RC || m.typ == device.XRCTgt {
			mask |= device.AttrMaxDestRdAtomic | device.AttrMinRNRTimer
		}
		to(device.StateRTR, mask)
	}
	if s >= device.StateRTS {
		mask := device.AttrSQPSN
		switch m.typ {
		case device.RC, device.XRCIni:
			mask |= device.AttrTimeout | device.AttrRetryCnt | device.AttrRNRRetry | device.AttrMaxRdAtomic
		case device.XRCTgt:
			mask |= device.AttrTimeout
		case device.RawPacket:
			mask = 0
		}
		to(device.StateRTS, mask)
	}
	switch s {
	case device.StateSQD:
		to(device.StateSQD, 0)
	case device.StateSQE: // by a request that fails
		wr := m.sendWR(device.OpSend)
		wr.SGE = []device.SGE{{Addr: 1, Length: 20, LKey: 1}}
		m.must(m.qp.PostSend(&wr))
		sameList(m.t, "request that fails", briefWC(drain(m.scq)), []string{"9 LOC_PROT_ERR"})
	case device.StateErr:
		to(device.StateErr, 0)
	}
	want(m.t, "state", m.qp.State(), s)
}

// sendWR is a request that any service which has the operation takes.
func (m *matrix) sendWR(op device.WROp) device.SendWR {
	wr := device.SendWR{ID: 9, Op: op, SGE: []device.SGE{m.buf.SGE(0, 20)}, RemoteAddr: remoteVA, RKey: remoteKey}
	switch op {
	case device.OpCompareSwap, device.OpFetchAdd, device.OpMaskedCompareSwap, device.OpMaskedFetchAdd, device.OpAtomicWrite:
		wr.SGE = []device.SGE{m.buf.SGE(0, 8)}
	case device.OpFlush:
		wr.SGE, wr.FlushType, wr.FlushLen = nil, transport.FlushGlobal, 8
	case device.OpLocalInv, device.OpBindMW, device.OpRegMR:
		wr.SGE = nil
	}
	if m.typ == device.UD || m.typ == device.GSI {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = m.ah, peerUD, qkey
	}
	return wr
}

// gets has frames arrive.
func (m *matrix) gets(l ...*peer.Frame) {
	for _, f := range l {
		if m.ether {
			m.in(roce(nicMAC, nic4, f))
			continue
		}
		m.p.Send(m.t, f)
	}
}

// mxClass is what an opcode is to a service.
type mxClass int

const (
	mxForeign  mxClass = iota // of another service, of the other half of it, or of none
	mxCNP                     // the congestion notification
	mxNotify                  // another opcode of that kind
	mxReserved                // of the service, not assigned
	mxStarts                  // a request that begins a message
	mxGoesOn                  // a request that goes on with a message, of which there is none
	mxResponse
)

// mxClassOf is roce.md A.5 and A.11 step 6.
func mxClassOf(typ device.QPType, op peer.Op) mxClass {
	if typ == device.SMI || typ == device.RawPacket {
		return mxForeign
	}
	datagrams := typ == device.UD || typ == device.GSI
	switch {
	case !datagrams && op == peer.OpCNP:
		return mxCNP
	case !datagrams && op.Service() == 0x80:
		return mxNotify
	case typ == device.RC && (op == peer.OpMaskedCmpSwap || op == peer.OpMaskedFetchAdd):
		return mxStarts // softnic's own
	}
	svc := map[device.QPType]peer.Op{device.RC: peer.RC, device.UC: peer.UC, device.UD: peer.UD, device.GSI: peer.UD, device.XRCIni: peer.XRC, device.XRCTgt: peer.XRC}[typ]
	switch {
	case op.Service() != svc:
		return mxForeign
	case typ == device.XRCIni && !op.IsResponse(), typ == device.XRCTgt && op.IsResponse():
		return mxForeign
	case !op.Known():
		return mxReserved
	case op.IsResponse():
		return mxResponse
	}
	switch op.Operation() {
	case peer.OpSendMiddle, peer.OpSendLast, peer.OpSendLastImm, peer.OpSendLastInv, peer.OpWriteMiddle, peer.OpWriteLast, peer.OpWriteLastImm:
		return mxGoesOn
	}
	return mxStarts
}

// mxFrame is a packet of an opcode: with a right key, lengths that fit, and AckReq if it is a request.
func (m *matrix) frame(op peer.Op) *peer.Frame {
	f := peer.NewFrame(op, m.qpn, 0x200)
	o, n := op.Operation(), 0
	switch {
	case !op.CarriesPayload() || !op.Known():
	case o == peer.OpSendFirst, o == peer.OpSendMiddle, o == peer.OpWriteFirst, o == peer.OpWriteMiddle, o == peer.OpReadRespFirst, o == peer.OpReadRespMiddle:
		n = mtu
	case o == peer.OpAtomicWrite:
		n = 8
	default:
		n = 100
	}
	f.Payload = filled(0xA5, n)
	f.AckReq = true
	f.RETH = peer.RETH{VA: m.mr.Addr(), RKey: m.mr.RKey(), Len: uint32(max(n, 100))}
	switch o {
	case peer.OpWriteFirst:
		f.RETH.Len = 2000
	case peer.OpAtomicWrite:
		f.RETH.Len = 8
	}
	f.FETH.PLT = 1
	f.Atomic = peer.AtomicETH{VA: m.mr.Addr(), RKey: m.mr.RKey(), SwapAdd: 0x1234}
	f.Masked = peer.MaskedETH{VA: m.mr.Addr(), RKey: m.mr.RKey(), Swap: 0x1234, SwapMask: ^uint64(0)}
	f.DETH = peer.DETH{QKey: qkey, SrcQP: peerUD}
	if m.typ == device.GSI {
		f.DETH.QKey = gsiQKey
	}
	if m.srq != nil {
		f.XRCETH.SRQN = m.srq.Num()
	}
	f.Imm, f.InvKey = 0x01020304, 0xBAD
	if op.IsResponse() {
		f.PSN, f.AckReq = 0x100, false
		f.AETH = peer.AETH{Syndrome: peer.SynAck, MSN: 1}
	}
	if op == peer.OpCNP {
		f = peer.CNP(m.qpn)
	}
	return f
}

// mxWant is what is to be seen of one packet.
type mxWant struct {
	drop     string // reason; empty: it was of use
	answer   string // brief form of the answer; empty: none
	received []string
	events   []string
	state    device.State // afterwards
	written  bool         // remote memory was changed
	filled   bool         // the receive buffer was
}

// mxExpect is what roce.md A.11 and B, and design.md section 8, say of a packet with an opcode to a queue pair of a
// service in a state. The first rule that speaks of it holds.
func mxExpect(typ device.QPType, s device.State, op peer.Op) mxWant {
	class := mxClassOf(typ, op)
	reliable := typ == device.RC || typ == device.XRCTgt
	receives := s == device.StateRTR || s == device.StateRTS || s == device.StateSQD || s == device.StateSQE
	drop := func(why string) mxWant { return mxWant{drop: why, state: s} }
	switch {
	case typ == device.SMI || typ == device.RawPacket: // A.11 step 5; no RoCE packet is for a raw queue pair
		return drop("no-qp")
	case class == mxForeign: // A.11 step 6, before the state
		return drop("wrong-service")
	case class == mxNotify: // A.5: 0x81 alone is a CNP
		return drop("ignored")
	case class == mxCNP && (s == device.StateReset || s == device.StateInit): // there is no peer yet
		return drop("wrong-peer")
	case class == mxCNP && s == device.StateErr:
		return drop("ignored")
	case class == mxCNP: // counted; nothing else (case 55)
		return mxWant{state: s}
	case !receives: // A.11 step 6
		return drop("qp-state")
	case class == mxResponse && s == device.StateRTR: // responses need RTS
		return drop("qp-state")
	case class == mxResponse: // of a PSN that was never sent (design.md 8)
		return drop("ghost-response")
	case class == mxReserved && !reliable:
		return drop("reserved-opcode")
	}
	var w mxWant
	if s == device.StateRTR && (reliable || typ == device.UC) { // B.12
		w.events = append(w.events, "COMM_EST")
	}
	w.state = s
	ends := op.Operation() != peer.OpSendFirst && op.Operation() != peer.OpWriteFirst
	refused := func(syn string, wc ...string) mxWant {
		w.answer, w.state, w.received = "ACKNOWLEDGE 000200 "+syn, device.StateErr, wc
		return w
	}
	switch {
	case class == mxReserved || class == mxGoesOn && reliable: // design.md 8: NAK 61, ERR, event; the receives are flushed
		w.events = append(w.events, "QP_REQ_ERR")
		return refused("61 m0", "1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR")
	case class == mxGoesOn: // UC: B.10, the message is dropped
		w.drop = "out-of-sequence"
		return w
	}
	// Executed.
	n := 100
	o := op.Operation()
	wc := "1 SUCCESS RECV %d"
	switch o {
	case peer.OpSendFirst, peer.OpSendOnly, peer.OpSendOnlyImm, peer.OpSendOnlyInv:
		w.filled = true
	case peer.OpWriteFirst, peer.OpWriteOnly, peer.OpWriteOnlyImm, peer.OpCmpSwap, peer.OpFetchAdd, peer.OpAtomicWrite:
		w.written = true
	}
	switch o {
	case peer.OpWriteOnlyImm:
		wc = "1 SUCCESS RECV_RDMA_WITH_IMM %d"
		fallthrough
	case peer.OpSendOnlyImm:
		wc += " imm=01020304"
		fallthrough
	case peer.OpSendOnly:
		if typ == device.UD || typ == device.GSI {
			n += 40
		}
		w.received = []string{fmt.Sprintf(wc, n)}
	}
	if !reliable {
		return w
	}
	msn := map[bool]int{true: 1}[ends]
	switch o {
	case peer.OpSendOnlyInv: // the key is none: ACKed and counted, then ERR (design.md 8)
		return refused("1f m1", "1 REM_INV_REQ_ERR", "2 WR_FLUSH_ERR")
	case peer.OpReadRequest:
		w.answer = fmt.Sprintf("READ_RESPONSE_ONLY 000200 1f m1 [%d]", n)
	case peer.OpCmpSwap, peer.OpFetchAdd:
		w.answer = "ATOMIC_ACKNOWLEDGE 000200 1f m1"
	case peer.OpFlush, peer.OpAtomicWrite:
		w.answer = "READ_RESPONSE_ONLY 000200 1f m1"
	default:
		w.answer = fmt.Sprintf("ACKNOWLEDGE 000200 1f m%d", msn)
	}
	return w
}

// Every opcode, to a queue pair of every service, in every state.
func TestMatrixOpcodes(t *testing.T) {
	for _, typ := range mxTypes {
		for _, s := range mxStates {
			if !mxReaches(typ, s) {
				continue
			}
			bubble(t, fmt.Sprintf("%v/%v", typ, s), func(t *testing.T) {
				m := newMatrix(t, typ, labConfig{})
				seen := map[mxClass]int{}
				used := true
				for op := range 256 {
					w := mxExpect(typ, s, peer.Op(op))
					if used { // else nothing has happened to it
						m.renew(s)
					}
					used = w.drop == "" || len(w.events) > 0
					seen[mxClassOf(typ, peer.Op(op))]++
					if typ == device.XRCTgt { // the receives of a shared queue are not flushed
						w.received = slices.DeleteFunc(w.received, func(x string) bool { return strings.HasSuffix(x, "WR_FLUSH_ERR") })
					}
					if bad := m.probe(peer.Op(op), w); bad != "" {
						t.Errorf("opcode %02x (%v): %s", op, peer.Op(op), bad)
					}
				}
				if typ == device.RC { // A.5, and the masked atomics
					want(t, "opcodes by class", fmt.Sprint(seen[mxStarts], seen[mxGoesOn], seen[mxResponse], seen[mxReserved], seen[mxCNP]), "14 7 6 7 1")
				}
			})
		}
	}
}

// probe has a packet arrive and compares; it returns what is different.
func (m *matrix) probe(op peer.Op, w mxWant) string {
	m.t.Helper()
	var bad []string
	differ := func(what string, got, want any) {
		if g, x := fmt.Sprint(got), fmt.Sprint(want); g != x {
			bad = append(bad, fmt.Sprintf("%s: %s, want %s", what, g, x))
		}
	}
	before := m.dropCounts()
	m.gets(m.frame(op))
	var answers []string
	if m.ether {
		m.settle()
		for range m.out() {
			answers = append(answers, "a frame")
		}
	} else {
		answers = briefs(m.take())
	}
	expected := []string{}
	if w.answer != "" {
		expected = append(expected, w.answer)
	}
	differ("answers", append([]string{}, answers...), expected)
	differ("receives", briefWC(drain(m.rcq)), append([]string{}, w.received...))
	differ("sends", briefWC(drain(m.scq)), []string{})
	events := []string{}
	for e, ok := m.ctx.TryAsyncEvent(); ok; e, ok = m.ctx.TryAsyncEvent() {
		events = append(events, strings.TrimPrefix(e.Type.String(), "IBV_EVENT_"))
	}
	differ("events", events, append([]string{}, w.events...))
	differ("state", m.qp.State(), w.state)
	var drops []string
	for name, n := range m.dropCounts() {
		if n > before[name] {
			drops = append(drops, fmt.Sprintf("%s=%d", name, n-before[name]))
		}
	}
	switch {
	case w.drop != "":
		differ("drops", drops, []string{w.drop + "=1"})
	case strings.Contains(w.answer, " 61 "):
		differ("drops", drops, []string{"bad-request=1"})
	default:
		differ("drops", drops, []string{})
	}
	differ("remote memory changed", !bytes.Equal(m.mr.Bytes(), make([]byte, mxLen)), w.written)
	differ("receive buffer changed", !bytes.Equal(m.buf.Bytes(), make([]byte, mxLen)), w.filled)
	return strings.Join(bad, "; ")
}

func (l *lab) dropCounts() map[string]uint64 {
	c := map[string]uint64{}
	for _, v := range l.dev.Statistics() {
		if r, ok := strings.CutPrefix(v.Name, "drop_"); ok {
			c[r] = v.Value
		}
	}
	return c
}

// Every response, to every kind of request that waits for one, on RC and XRC: completes it, is an implied NAK, is
// one of several, or cannot be.
func TestMatrixResponses(t *testing.T) {
	const (
		completes = "completes"
		partly    = "one of several"
		implied   = "implied NAK"
		bad       = "cannot be"
	)
	kinds := []struct {
		op     device.WROp
		n      int
		name   string
		answer string // the response that completes it, or is the first of several
	}{
		{device.OpSend, 20, "SEND", "ack"}, {device.OpWrite, 20, "RDMA_WRITE", "ack"}, {device.OpWriteImm, 20, "RDMA_WRITE", "ack"}, {device.OpSendInv, 20, "SEND", "ack"},
		{device.OpRead, 20, "RDMA_READ", "only 20"}, {device.OpRead, 2100, "RDMA_READ", "first"}, {device.OpRead, 0, "RDMA_READ", "only 0"},
		{device.OpCompareSwap, 8, "COMP_SWAP", "atomic"}, {device.OpFetchAdd, 8, "FETCH_ADD", "atomic"},
		{device.OpFlush, 0, "FLUSH", "only 0"}, {device.OpAtomicWrite, 8, "ATOMIC_WRITE", "only 0"},
	}
	responses := map[string]func() *peer.Frame{
		"ack":     func() *peer.Frame { return peer.Ack(mxQP, 0x100, 1) },
		"atomic":  func() *peer.Frame { return peer.AtomicAck(mxQP, 0x100, 1, 5) },
		"only 0":  func() *peer.Frame { return peer.ReadRespOnly(mxQP, 0x100, 1, nil) },
		"only 20": func() *peer.Frame { return peer.ReadRespOnly(mxQP, 0x100, 1, filled(1, 20)) },
		"only 21": func() *peer.Frame { return peer.ReadRespOnly(mxQP, 0x100, 1, filled(1, 21)) },
		"first":   func() *peer.Frame { return peer.ReadRespFirst(mxQP, 0x100, 1, filled(1, mtu)) },
		"middle":  func() *peer.Frame { return peer.ReadRespMiddle(mxQP, 0x100, filled(1, mtu)) },
		"last":    func() *peer.Frame { return peer.ReadRespLast(mxQP, 0x100, 1, filled(1, 20)) },
	}
	for _, typ := range []device.QPType{device.RC, device.XRCIni} {
		bubble(t, fmt.Sprint(typ), func(t *testing.T) {
			m := newMatrix(t, typ, labConfig{})
			for _, k := range kinds {
				for name, response := range responses {
					m.renew(device.StateRTS)
					wr := m.sendWR(k.op)
					if k.n == 2100 {
						wr.SGE = []device.SGE{m.mr.SGE(0, 2048), m.mr.SGE(0, 52)}
					} else if wr.SGE = nil; k.n > 0 {
						wr.SGE = []device.SGE{m.mr.SGE(0, k.n)}
					}
					m.must(m.qp.PostSend(&wr))
					m.take()
					// What has a response of its own is completed by nothing else; an ACK says that this
					// response was lost (roce.md B.7, design.md 8).
					expect := bad
					switch {
					case name == k.answer && name == "first":
						expect = partly
					case name == k.answer:
						expect = completes
					case name == "ack":
						expect = implied
					}
					f := response()
					if typ == device.XRCIni {
						f.AsXRC(0)
					}
					m.gets(f)
					frames := m.take()
					got := briefWC(drain(m.scq))
					wants, state, again := []string{}, device.StateRTS, 0
					switch expect {
					case completes:
						wants = []string{fmt.Sprintf("9 SUCCESS %s %d", k.name, k.n)}
					case implied:
						again = 1
					case bad:
						wants, state = []string{"9 BAD_RESP_ERR"}, device.StateErr
					}
					if !slices.Equal(got, wants) || m.qp.State() != state || len(frames) != again {
						t.Errorf("%v of %d, answered by %q (%s): completions %q, state %v, %d frames", k.op, k.n, name, expect, got, m.qp.State(), len(frames))
					}
				}
			}
		})
	}
}

// mxHas is which service has which operation (roce.md C.1 and, for what is refused there, B.2).
func mxHas(typ device.QPType) []device.WROp {
	sends := []device.WROp{device.OpSend, device.OpSendImm}
	unreliable := append(slices.Clone(sends), device.OpWrite, device.OpWriteImm)
	xrc := append(slices.Clone(unreliable), device.OpSendInv, device.OpRead, device.OpReadInv, device.OpCompareSwap, device.OpFetchAdd,
		device.OpAtomicWrite, device.OpFlush, device.OpLocalInv, device.OpBindMW, device.OpRegMR)
	switch typ {
	case device.RC:
		return append(xrc, device.OpMaskedCompareSwap, device.OpMaskedFetchAdd)
	case device.XRCIni:
		return xrc
	case device.XRCTgt:
		return nil
	case device.UC:
		return append(unreliable, device.OpLocalInv, device.OpBindMW, device.OpRegMR) // ibv_post_send(3)
	case device.RawPacket:
		return sends[:1]
	}
	return sends
}

// mxPost is what roce.md B.11, B.12 and D say of a send request with an operation that is posted to a queue pair of a
// service in a state: whether it is taken, how it completes (empty: not yet), whether it is sent, and the state then.
func mxPost(typ device.QPType, s device.State, op device.WROp) (taken bool, wc string, sent bool, then device.State) {
	switch {
	case s < device.StateRTS || typ == device.XRCTgt: // rxe-lab.md S9; case 31
		return false, "", false, s
	case !slices.Contains(mxHas(typ), op):
		return false, "", false, s
	case s == device.StateSQD: // B.12: taken and held
		return true, "", false, s
	case s == device.StateSQE || s == device.StateErr: // taken and flushed, in SQE too; nothing is executed
		return true, "9 WR_FLUSH_ERR", false, s
	case op == device.OpLocalInv || op == device.OpBindMW || op == device.OpRegMR: // of a key that is none (design.md 8)
		if typ == device.UC {
			return true, "9 MW_BIND_ERR", false, device.StateSQE
		}
		return true, "9 MW_BIND_ERR", false, device.StateErr
	case typ == device.RC || typ == device.XRCIni: // the answer is waited for
		return true, "", true, s
	}
	return true, fmt.Sprintf("9 SUCCESS %s 20", strings.TrimPrefix(op.Completed().String(), "IBV_WC_")), typ != device.SMI, s // SMI: to the port itself
}

// Posting, on every service in every state: every operation, and receives.
func TestMatrixPosting(t *testing.T) {
	for _, typ := range mxTypes {
		bubble(t, fmt.Sprint(typ), func(t *testing.T) {
			m := newMatrix(t, typ, labConfig{})
			for _, s := range mxStates {
				if !mxReaches(typ, s) {
					continue
				}
				for op := range device.WROp(64) {
					m.renew(s)
					taken, wc, sent, then := mxPost(typ, s, op)
					wr := m.sendWR(op)
					switch err := m.qp.PostSend(&wr); {
					case !taken && device.ErrnoOf(err) != device.EINVAL:
						t.Errorf("%v/%v: post_send: %v, want EINVAL", s, op, err)
					case taken && err != nil:
						t.Errorf("%v/%v: post_send: %v", s, op, err)
					}
					frames := 0
					if m.ether {
						m.settle()
						frames = len(m.out())
					} else {
						frames = len(m.take())
					}
					if (frames > 0) != sent {
						t.Errorf("%v/%v: %d frames", s, op, frames)
					}
					if got := strings.Join(briefWC(drain(m.scq)), ", "); got != wc {
						t.Errorf("%v/%v: completes %q, want %q", s, op, got, wc)
					}
					if got := m.qp.State(); got != then {
						t.Errorf("%v/%v: the state is %v, want %v", s, op, got, then)
					}
					if op == device.OpSend {
						m.postRecv(s)
					}
				}
			}
		})
	}
}

// postRecv posts a third receive to a queue pair that is in state s.
func (m *matrix) postRecv(s device.State) {
	m.t.Helper()
	err := m.qp.PostRecv(&device.RecvWR{ID: 7})
	var received []string
	switch {
	case s == device.StateReset || m.typ == device.XRCIni || m.typ == device.XRCTgt:
		errno(m.t, err, device.EINVAL)
		return
	case err != nil:
		m.t.Errorf("%v: post_recv: %v", s, err)
	case s == device.StateErr:
		received = []string{"7 WR_FLUSH_ERR"}
	}
	if got := briefWC(drain(m.rcq)); !slices.Equal(got, received) && len(got)+len(received) > 0 {
		m.t.Errorf("%v: receives %q, want %q", s, got, received)
	}
	want(m.t, fmt.Sprintf("state after %v", s), m.qp.State(), s)
	if s != device.StateErr { // what waited in the receive queue is still there, and in order
		m.must(m.qp.Modify(&device.QPAttr{State: device.StateErr}, device.AttrState))
		sameList(m.t, "flushed receives", briefWC(drain(m.rcq)), []string{"1 WR_FLUSH_ERR", "2 WR_FLUSH_ERR", "7 WR_FLUSH_ERR"})
	}
}

// What a service has, asked for in a way that is not possible; TestMatrixPosting says what which service has.
func TestMatrixOperations(t *testing.T) {
	// What is possible, and asked for in a way that is not (one validator, design.md 3).
	bubble(t, "RC/arguments", func(t *testing.T) {
		m := newMatrix(t, device.RC, labConfig{})
		m.renew(device.StateRTS)
		for _, v := range []struct {
			name   string
			change func(wr *device.SendWR)
			op     device.WROp
		}{
			{"more entries than max_send_sge", func(wr *device.SendWR) { wr.SGE = make([]device.SGE, 3) }, device.OpSend},
			{"more inline than max_inline_data", func(wr *device.SendWR) { wr.Flags, wr.InlineData = device.Inline, make([]byte, 65) }, device.OpSend},
			{"a READ inline", func(wr *device.SendWR) { wr.Flags, wr.InlineData = device.Inline, make([]byte, 8) }, device.OpRead},
			{"an atomic of 4 bytes", func(wr *device.SendWR) { wr.SGE = []device.SGE{m.buf.SGE(0, 4)} }, device.OpFetchAdd},
			{"an ATOMIC WRITE of 16 bytes", func(wr *device.SendWR) { wr.SGE = []device.SGE{m.buf.SGE(0, 16)} }, device.OpAtomicWrite},
			{"a FLUSH with data", func(wr *device.SendWR) { wr.SGE = []device.SGE{m.buf.SGE(0, 8)} }, device.OpFlush},
			{"a FLUSH of type 4", func(wr *device.SendWR) { wr.FlushType = 4 }, device.OpFlush},
			{"a FLUSH of level 2", func(wr *device.SendWR) { wr.FlushLevel = 2 }, device.OpFlush},
			{"a READ with invalidate without an entry", func(wr *device.SendWR) { wr.SGE = nil }, device.OpReadInv},
		} {
			wr := m.sendWR(v.op)
			v.change(&wr)
			if err := m.qp.PostSend(&wr); device.ErrnoOf(err) != device.EINVAL {
				t.Errorf("%s: %v", v.name, err)
			}
		}
		m.emits()
	})
}
