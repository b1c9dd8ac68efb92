//go:build linux

package guest

import (
	"bytes"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// wireLab is the kernel's device on one end of a veth pair and a scripted peer on the other, for both IP versions.
type wireLab struct {
	dev rxe
	nic *verbs
	ips []wireIP
}

// wireIP is the lab seen through one IP version.
type wireIP struct {
	name        string
	nic, remote netip.Addr
	gidIndex    int
	peer        *peer.Peer
}

const (
	nicMAC  = "02:00:00:00:09:01"
	peerMAC = "02:00:00:00:09:02"
)

func newWireLab(t *testing.T) *wireLab {
	t.Helper()
	newVeth(t, 4200, vethEnd{Name: "v0", MAC: nicMAC, Addrs: []string{"10.9.0.1/24", "fd00:9::1/64"}}, vethEnd{Name: "v1", MAC: peerMAC})
	addNeigh(t, "v0", "10.9.0.2", peerMAC)
	addNeigh(t, "v0", "fd00:9::2", peerMAC)
	lab := &wireLab{dev: addRxe(t, "rxe0", "v0"), ips: []wireIP{
		{name: "IPv4", nic: netip.MustParseAddr("10.9.0.1"), remote: netip.MustParseAddr("10.9.0.2")},
		{name: "IPv6", nic: netip.MustParseAddr("fd00:9::1"), remote: netip.MustParseAddr("fd00:9::2")},
	}}
	both := newPeer(t, "v1", lab.ips[0].remote, lab.ips[0].nic, nicMAC)
	for i := range lab.ips {
		ip := &lab.ips[i]
		ip.gidIndex = lab.dev.GIDIndex(t, ip.nic)
		// One socket for both: two would each get everything.
		ip.peer = new(*both)
		ip.peer.Local, ip.peer.Remote = ip.remote, ip.nic
	}
	lab.nic = startVerbs(t, options{}, "rxe0")
	return lab
}

// pattern is n bytes that differ from any other seed's.
func pattern(seed, n int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// TestWireRxeFramesDecode lets the kernel's driver emit every kind of packet that a requester and a responder send, and
// holds each against package wire: it has to parse, to carry what the independent parser of interop/peer finds, to have
// a right ICRC by wire and by peer, and to be what wire would have built, byte for byte.
func TestWireRxeFramesDecode(t *testing.T) {
	needGuest(t)
	lab := newWireLab(t)
	dump := startCapture(t, options{}, "v0", "rxe.pcap", "udp", "port", "4791")
	const size = 3000 // three packets of 1024 bytes path MTU, the last one not full
	mr := lab.nic.RegMR(65536, accessAll)
	mr.Write(0, pattern(1, size))

	for i, ip := range lab.ips {
		p := ip.peer
		remoteQP := uint32(0x000777 + i)

		// Datagrams.
		ud := lab.nic.CreateQP("UD")
		ud.Datagrams(0x11111111, 0xfffffe)
		ah := lab.nic.CreateAH(ip.gidIndex, ip.remote)
		for n := range 4 { // every pad count, and the PSN wraps
			ud.PostSend(sendWR{ID: uint64(n), Opcode: "SEND", MR: mr, Length: 100 + n, AH: ah, RemoteQPN: remoteQP, QKey: 0x22222222})
			p.Expect(t, peer.WantOp(peer.OpUDSendOnly), peer.WantPSN(0xfffffe+uint32(n)), peer.WantDestQP(remoteQP), peer.WantQKey(0x22222222), peer.WantSrcQP(ud.QPN), peer.WantPayload(pattern(1, size)[:100+n]))
		}
		ud.PostSend(sendWR{Opcode: "SEND_WITH_IMM", Imm: 0x01020304, MR: mr, Length: 8, AH: ah, RemoteQPN: remoteQP, QKey: 0x22222222})
		p.Expect(t, peer.WantOp(peer.OpUDSendOnlyImm), peer.WantImm(0x01020304))
		ud.SendCompletions(5)
		ud.Destroy()

		// The requester. A timeout of 0 means never: nothing is sent twice.
		rc := lab.nic.CreateQP("RC")
		rc.Connect(connection{SGIDIndex: ip.gidIndex, DGID: ip.remote, QPN: remoteQP, SendPSN: 0xfffffd, RecvPSN: 0x000100, MaxRdAtomic: 4, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12, TrafficClass: 0x40})
		psn, msn := uint32(0xfffffd), uint32(0)
		ack := func() {
			t.Helper()
			msn++
			p.Send(t, peer.Ack(rc.QPN, psn-1, msn))
			if wc := rc.SendCompletions(1)[0]; wc.Status != 0 {
				t.Fatalf("completion %+v", wc)
			}
		}
		expect := func(wants ...peer.Want) {
			t.Helper()
			p.Expect(t, append(wants, peer.WantPSN(psn), peer.WantDestQP(remoteQP), peer.WantTOS(0x40))...)
			psn++
		}
		rc.PostSend(sendWR{Opcode: "SEND", Flags: sendSolicited, MR: mr, Length: size})
		expect(peer.WantOp(peer.OpSendFirst), peer.WantLen(1024), peer.WantSolicited(false))
		expect(peer.WantOp(peer.OpSendMiddle), peer.WantLen(1024))
		expect(peer.WantOp(peer.OpSendLast), peer.WantLen(952), peer.WantSolicited(true), peer.WantAckReq(true))
		ack()
		rc.PostSend(sendWR{Opcode: "SEND_WITH_IMM", Imm: 0xa1a2a3a4, MR: mr, Length: 1025})
		expect(peer.WantOp(peer.OpSendFirst))
		expect(peer.WantOp(peer.OpSendLastImm), peer.WantImm(0xa1a2a3a4), peer.WantLen(1))
		ack()
		rc.PostSend(sendWR{Opcode: "SEND", MR: mr, Length: 0})
		expect(peer.WantOp(peer.OpSendOnly), peer.WantLen(0))
		ack()
		rc.PostSend(sendWR{Opcode: "SEND_WITH_IMM", Imm: 1, MR: mr, Length: 2})
		expect(peer.WantOp(peer.OpSendOnlyImm), peer.WantLen(2))
		ack()
		rc.PostSend(sendWR{Opcode: "RDMA_WRITE", MR: mr, Length: size, RemoteAddr: 0x1122334455667788, RKey: 0x99aabbcc})
		expect(peer.WantOp(peer.OpWriteFirst), peer.WantVA(0x1122334455667788), peer.WantRKey(0x99aabbcc), peer.WantDMALen(size))
		expect(peer.WantOp(peer.OpWriteMiddle))
		expect(peer.WantOp(peer.OpWriteLast))
		ack()
		rc.PostSend(sendWR{Opcode: "RDMA_WRITE", MR: mr, Length: 3, RemoteAddr: 1, RKey: 2})
		expect(peer.WantOp(peer.OpWriteOnly), peer.WantLen(3))
		ack()
		rc.PostSend(sendWR{Opcode: "RDMA_WRITE_WITH_IMM", Imm: 7, MR: mr, Length: 1500, RemoteAddr: 1, RKey: 2})
		expect(peer.WantOp(peer.OpWriteFirst))
		expect(peer.WantOp(peer.OpWriteLastImm), peer.WantImm(7))
		ack()
		rc.PostSend(sendWR{Opcode: "RDMA_WRITE_WITH_IMM", Imm: 8, MR: mr, Length: 64, RemoteAddr: 1, RKey: 2})
		expect(peer.WantOp(peer.OpWriteOnlyImm), peer.WantImm(8))
		ack()
		rc.PostSend(sendWR{Opcode: "ATOMIC_CMP_AND_SWP", MR: mr, Offset: 8192, Length: 8, RemoteAddr: 0x1000, RKey: 2, CompareAdd: 3, Swap: 4})
		expect(peer.WantOp(peer.OpCmpSwap), peer.WantVA(0x1000), peer.WantCompare(3), peer.WantSwapAdd(4))
		msn++
		p.Send(t, peer.AtomicAck(rc.QPN, psn-1, msn, 0x0102030405060708))
		rc.SendCompletions(1)
		rc.PostSend(sendWR{Opcode: "ATOMIC_FETCH_AND_ADD", MR: mr, Offset: 8192, Length: 8, RemoteAddr: 0x1000, RKey: 2, CompareAdd: 5})
		expect(peer.WantOp(peer.OpFetchAdd), peer.WantSwapAdd(5))
		msn++
		p.Send(t, peer.AtomicAck(rc.QPN, psn-1, msn, 0))
		rc.SendCompletions(1)
		rc.PostSend(sendWR{Opcode: "RDMA_READ", MR: mr, Offset: 4096, Length: 16, RemoteAddr: 0x2000, RKey: 3})
		expect(peer.WantOp(peer.OpReadRequest), peer.WantVA(0x2000), peer.WantDMALen(16))
		msn++
		p.Send(t, peer.ReadRespOnly(rc.QPN, psn-1, msn, pattern(2, 16)))
		rc.SendCompletions(1)
		if got := mr.Read(4096, 16); !bytes.Equal(got, pattern(2, 16)) {
			t.Errorf("READ brought % x", got)
		}

		// The responder: acknowledge, READ responses, atomic acknowledge, the two kinds of NAK.
		in, done := uint32(0x000100), uint32(0)
		p.Send(t, peer.WriteOnly(rc.QPN, in, mr.Addr+16384, mr.RKey, pattern(3, 500)))
		done++
		p.Expect(t, peer.WantAck(in), peer.WantMSN(done), peer.WantDestQP(remoteQP))
		if got := mr.Read(16384, 500); !bytes.Equal(got, pattern(3, 500)) {
			t.Errorf("WRITE left % x", got)
		}
		in++
		p.Send(t, peer.ReadRequest(rc.QPN, in, mr.Addr, mr.RKey, size))
		done++
		p.Expect(t, peer.WantOp(peer.OpReadRespFirst), peer.WantPSN(in), peer.WantMSN(done), peer.WantPayload(pattern(1, size)[:1024]))
		p.Expect(t, peer.WantOp(peer.OpReadRespMiddle), peer.WantPSN(in+1), peer.WantPayload(pattern(1, size)[1024:2048]))
		p.Expect(t, peer.WantOp(peer.OpReadRespLast), peer.WantPSN(in+2), peer.WantPayload(pattern(1, size)[2048:]))
		in += 3
		p.Send(t, peer.ReadRequest(rc.QPN, in, mr.Addr+1, mr.RKey, 5))
		done++
		p.Expect(t, peer.WantOp(peer.OpReadRespOnly), peer.WantPSN(in), peer.WantMSN(done), peer.WantPayload(pattern(1, size)[1:6]))
		in++
		p.Send(t, peer.FetchAdd(rc.QPN, in, mr.Addr+16384, mr.RKey, 1))
		done++
		p.Expect(t, peer.WantOp(peer.OpAtomicAck), peer.WantPSN(in), peer.WantMSN(done))
		in++
		p.Send(t, peer.SendOnly(rc.QPN, in, []byte("nobody waits for this")))
		p.Expect(t, peer.WantNak(in, peer.RNR(12)), peer.WantMSN(done))
		p.Send(t, peer.WriteOnly(rc.QPN, in, mr.Addr, mr.RKey^0xff00, []byte("bad key")))
		p.Expect(t, peer.WantNak(in, peer.SynNakAccess), peer.WantMSN(done))
		rc.Destroy()
	}

	seen := map[bth.Opcode]int{}
	for i, frame := range dump.Stop() {
		if !bytes.Equal(frame[6:12], []byte{2, 0, 0, 0, 9, 1}) {
			continue // the peer's
		}
		op, err := judgeRxeFrame(frame)
		if err != nil {
			t.Errorf("frame %d: %v\n%x", i, err, frame)
		}
		seen[op]++
	}
	t.Logf("decoded: %v", seen)
	for _, op := range []bth.Operation{
		bth.SendFirst, bth.SendMiddle, bth.SendLast, bth.SendLastImm, bth.SendOnly, bth.SendOnlyImm,
		bth.WriteFirst, bth.WriteMiddle, bth.WriteLast, bth.WriteLastImm, bth.WriteOnly, bth.WriteOnlyImm,
		bth.ReadRequest, bth.ReadResponseFirst, bth.ReadResponseMiddle, bth.ReadResponseLast, bth.ReadResponseOnly,
		bth.Acknowledge, bth.AtomicAcknowledge, bth.CompareSwap, bth.FetchAdd,
	} {
		if seen[bth.Make(bth.RC, op)] < len(lab.ips) {
			t.Errorf("%v: %d frames decoded", bth.Make(bth.RC, op), seen[bth.Make(bth.RC, op)])
		}
	}
	if seen[bth.UDSendOnly] < 8 || seen[bth.UDSendOnlyImm] < 2 {
		t.Errorf("datagrams decoded: %d and %d", seen[bth.UDSendOnly], seen[bth.UDSendOnlyImm])
	}
}

// judgeRxeFrame holds one frame of the kernel's driver against package wire.
func judgeRxeFrame(frame []byte) (bth.Opcode, error) {
	var v wire.View
	if fault := wire.ParseEthernet(frame, &v); fault != wire.OK {
		return 0, fmt.Errorf("wire does not take it: %v", fault)
	}
	b := v.BTH()
	op := b.Opcode()
	if !wire.CheckICRC(&v) {
		return op, fmt.Errorf("wrong ICRC, says wire")
	}
	ip := frame[14:]
	if !peer.CheckICRC(ip) {
		return op, fmt.Errorf("wrong ICRC, says peer")
	}

	// What the other parser finds.
	f, err := peer.Parse(ip)
	if err != nil {
		return op, fmt.Errorf("peer does not take it: %v", err)
	}
	if bad := f.Irregular(); len(bad) != 0 {
		return op, fmt.Errorf("irregular: %v", bad)
	}
	got := []any{op, v.Src(), v.Dst(), v.SrcPort(), v.TClass(), b.Solicited(), b.MigReq(), b.PKey(), b.BECN(), b.DestQP(), b.AckReq(), uint32(b.PSN()), string(v.Payload)}
	want := []any{bth.Opcode(f.Op), f.Src, f.Dst, f.SrcPort, f.TOS, f.SE, f.Migrated, f.PKey, f.BECN, f.DestQP, f.AckReq, f.PSN, string(f.Payload)}
	for _, h := range v.Info.Headers {
		x := v.Header(h)
		switch h {
		case bth.HDETH:
			got, want = append(got, bth.DETH(x).QKey(), bth.DETH(x).SrcQP()), append(want, f.DETH.QKey, f.DETH.SrcQP)
		case bth.HRETH:
			got, want = append(got, bth.RETH(x).VA(), bth.RETH(x).RKey(), bth.RETH(x).Length()), append(want, f.RETH.VA, f.RETH.RKey, f.RETH.Len)
		case bth.HAtomicETH:
			a := bth.AtomicETH(x)
			got, want = append(got, a.VA(), a.RKey(), a.SwapAdd(), a.Compare()), append(want, f.Atomic.VA, f.Atomic.RKey, f.Atomic.SwapAdd, f.Atomic.Compare)
		case bth.HAETH:
			got, want = append(got, byte(bth.AETH(x).Syndrome()), bth.AETH(x).MSN()), append(want, byte(f.AETH.Syndrome), f.AETH.MSN)
		case bth.HAtomicAckETH:
			got, want = append(got, bth.AtomicAckETH(x).Original()), append(want, f.Orig)
		case bth.HImmDt:
			got, want = append(got, bth.ImmDt(x).Data()), append(want, f.Imm)
		}
	}
	if !slices.Equal(got, want) {
		return op, fmt.Errorf("wire and peer differ:\n wire %v\n peer %v", got, want)
	}

	// What wire would have sent.
	p := &wire.Packet{
		Path: &wire.Path{Src: v.Src(), Dst: v.Dst(), SrcPort: v.SrcPort(), TClass: v.TClass(), HopLimit: f.TTL, FlowLabel: f.FlowLabel},
		Len:  v.Info.Len,
		Data: [][]byte{v.Payload},
		Size: len(v.Payload),
		Pad:  b.Pad(),
	}
	fields := b.Fields()
	bth.BTH(p.Head[:]).Encode(&fields)
	copy(p.Head[bth.Len:p.Len], v.IB[bth.Len:p.Len])
	for name, built := range map[string][]byte{"the framer": p.Append(nil, f.ID), "the builder": wire.Build(new(wire.SpecOf(&v)))[14:]} {
		if !bytes.Equal(built, ip) {
			return op, fmt.Errorf("%s of wire would have made\n%x", name, built)
		}
	}

	// One bit less of the payload, or of the PSN where there is none, and neither takes it any more.
	at := len(ip) - wire.ICRCLen - b.Pad() - 1
	spoiled := bytes.Clone(frame)
	spoiled[14+at] ^= 0x10
	if fault := wire.ParseEthernet(spoiled, &v); fault == wire.OK && wire.CheckICRC(&v) || peer.CheckICRC(spoiled[14:]) {
		return op, fmt.Errorf("a spoiled byte %d goes unnoticed", at)
	}
	return op, nil
}

// toRxe describes a packet of ours for the kernel's device; the sender asks for an answer to the last packet of a request.
func toRxe(ip wireIP, op bth.Opcode, qpn uint32, psn bth.PSN, payload []byte) *wire.Spec {
	s := wire.NewSpec(wire.Path{Src: ip.remote, Dst: ip.nic, SrcPort: 0xc123}, op, qpn, psn)
	s.ID = uint16(psn) * 257
	s.Payload = payload
	s.BTH.AckReq = op.Service() == bth.RC && op.Info().Has(bth.End)
	return &s
}

// TestWireFramesTakenByRxe sends the kernel's driver packets that package wire has built. It has to take each, to
// report it with the exact payload, and to answer those that ask for it; a packet with one wrong bit it has to drop.
func TestWireFramesTakenByRxe(t *testing.T) {
	needGuest(t)
	lab := newWireLab(t)
	dump := startCapture(t, options{}, "v0", "softnic.pcap", "udp", "port", "4791")
	mr := lab.nic.RegMR(65536, accessAll)
	for _, ip := range lab.ips {
		t.Log(ip.name) // above what went wrong with it
		send := func(s *wire.Spec) []byte {
			t.Helper()
			raw := wire.Build(s)
			ip.peer.SendRaw(t, raw)
			return raw
		}

		const grh = 40 // what a datagram is preceded by in memory
		ud := lab.nic.CreateQP("UD")
		ud.Datagrams(0x11111111, 0)
		for i, n := range []int{0, 1, 2, 3, 4, 1000, 4096} {
			payload := pattern(n, n)
			ud.PostRecv(uint64(i), mr, 0, grh+4096)
			op := bth.UDSendOnly
			if n == 1000 {
				op = bth.UDSendOnlyImm
			}
			s := toRxe(ip, op, ud.QPN, bth.PSN(i), payload)
			s.Ext = bth.Ext{QKey: 0x11111111, SrcQP: 0x000abc, Imm: 0xcafe0001}
			raw := send(s)
			wc := ud.RecvCompletions(1)[0]
			if wc.Status != 0 || wc.WrID != uint64(i) || wc.ByteLen != grh+n || wc.SrcQP != 0x000abc || op == bth.UDSendOnlyImm && wc.Imm != 0xcafe0001 {
				t.Errorf("datagram of %d bytes: completion %+v", n, wc)
			}
			got := mr.Read(0, grh+n)
			if !bytes.Equal(got[grh:], payload) {
				t.Errorf("datagram of %d bytes: the payload came out wrong", n)
			}
			header := got[:grh]
			if ip.nic.Is4() {
				header = got[grh-20 : grh]
			}
			if !bytes.Equal(header, raw[:len(header)]) {
				t.Errorf("datagram of %d bytes: its IP header came out as % x, was % x", n, header, raw[:len(header)])
			}
		}
		ud.Destroy()

		const peerQP = 0x000def
		rc := lab.nic.CreateQP("RC")
		rc.Connect(connection{SGIDIndex: ip.gidIndex, DGID: ip.remote, QPN: peerQP, SendPSN: 0x500, RecvPSN: 0xfffffd, MaxRdAtomic: 4, RetryCnt: 7, RNRRetry: 7, PathMTU: 5})
		psn, msn := bth.PSN(0xfffffd), uint32(0)
		// answer reads what rxe sends back and decodes it with package wire; Expect has judged it before.
		answer := func(op bth.Operation) *wire.View {
			t.Helper()
			f := ip.peer.Expect(t, peer.WantOp(peer.Op(bth.Make(bth.RC, op))), peer.WantPSN(uint32(psn)), peer.WantDestQP(peerQP))
			v := new(wire.View)
			if fault := wire.ParseIP(f.Marshal(), v); fault != wire.OK || !wire.CheckICRC(v) {
				t.Fatalf("answer %v: %v", f, fault)
			}
			a := bth.AETH(v.Header(bth.HAETH))
			if byte(a.Syndrome()) != byte(peer.SynAck) || a.MSN() != msn {
				t.Errorf("answer %v: syndrome %v, MSN %d; want an ACK with MSN %d", f, a.Syndrome(), a.MSN(), msn)
			}
			return v
		}
		for i, n := range []int{0, 1, 2, 3, 4, 1000, 4096} { // the PSN wraps on the way
			payload := pattern(10+n, n)
			rc.PostRecv(uint64(i), mr, 0, 4096)
			s := toRxe(ip, bth.Make(bth.RC, bth.SendOnly), rc.QPN, psn, payload)
			send(s)
			msn++
			answer(bth.Acknowledge)
			wc := rc.RecvCompletions(1)[0]
			if wc.Status != 0 || wc.WrID != uint64(i) || wc.ByteLen != n {
				t.Errorf("SEND of %d bytes: completion %+v", n, wc)
			}
			if !bytes.Equal(mr.Read(0, n), payload) {
				t.Errorf("SEND of %d bytes: the payload came out wrong", n)
			}
			psn = psn.Next()
		}

		payload := pattern(3, 777)
		s := toRxe(ip, bth.Make(bth.RC, bth.WriteOnly), rc.QPN, psn, payload)
		s.Ext = bth.Ext{VA: mr.Addr + 8192, RKey: mr.RKey, Length: uint32(len(payload))}
		send(s)
		msn++
		answer(bth.Acknowledge)
		if !bytes.Equal(mr.Read(8192, len(payload)), payload) {
			t.Error("WRITE: the payload came out wrong")
		}
		psn = psn.Next()

		s = toRxe(ip, bth.Make(bth.RC, bth.ReadRequest), rc.QPN, psn, nil)
		s.Ext = bth.Ext{VA: mr.Addr + 8192, RKey: mr.RKey, Length: uint32(len(payload))}
		send(s)
		msn++
		if v := answer(bth.ReadResponseOnly); !bytes.Equal(v.Payload, payload) {
			t.Error("READ: the payload came out wrong")
		}
		psn = psn.Next()

		mr.Write(16384, []byte{1, 0, 0, 0, 0, 0, 0, 0})
		s = toRxe(ip, bth.Make(bth.RC, bth.FetchAdd), rc.QPN, psn, nil)
		s.Ext = bth.Ext{VA: mr.Addr + 16384, RKey: mr.RKey, SwapAdd: 0x0200}
		send(s)
		msn++
		if v := answer(bth.AtomicAcknowledge); bth.AtomicAckETH(v.Header(bth.HAtomicAckETH)).Original() != 1 {
			t.Errorf("FETCH ADD: original value % x", v.Header(bth.HAtomicAckETH))
		}
		if got := mr.Read(16384, 8); !bytes.Equal(got, []byte{1, 2, 0, 0, 0, 0, 0, 0}) {
			t.Errorf("FETCH ADD left % x", got)
		}
		if state := rc.State(); state != "RTS" {
			t.Errorf("the queue pair is in %s", state)
		}
		rc.Destroy()
	}
	dump.Stop()
}

// TestWireSpoiledFramesDroppedByRxe shows that the kernel's driver does look at what package wire computes: with one bit
// of the payload wrong, it takes neither a datagram nor a SEND, and the good packet behind it in their place.
func TestWireSpoiledFramesDroppedByRxe(t *testing.T) {
	needGuest(t)
	lab := newWireLab(t)
	mr := lab.nic.RegMR(4096, accessAll)
	for _, ip := range lab.ips {
		t.Log(ip.name)
		good := pattern(1, 99)
		send := func(s *wire.Spec) {
			t.Helper()
			raw := wire.Build(s)
			spoiled := bytes.Clone(raw)
			spoiled[bytes.Index(raw, good)+50] ^= 1
			ip.peer.SendRaw(t, spoiled)
			ip.peer.SendRaw(t, raw)
		}
		ud := lab.nic.CreateQP("UD")
		ud.Datagrams(1, 0)
		ud.PostRecv(1, mr, 0, 1024)
		ud.PostRecv(2, mr, 1024, 1024) // would be taken by the second of two
		s := toRxe(ip, bth.UDSendOnly, ud.QPN, 0, good)
		s.Ext = bth.Ext{QKey: 1, SrcQP: 2}
		send(s)
		send(s)
		for i, wc := range ud.RecvCompletions(2) {
			if wc.Status != 0 || !bytes.Equal(mr.Read(i*1024+40, len(good)), good) {
				t.Errorf("datagram %d: completion %+v, or the spoiled payload", i, wc)
			}
		}
		ud.Destroy()

		rc := lab.nic.CreateQP("RC")
		rc.Connect(connection{SGIDIndex: ip.gidIndex, DGID: ip.remote, QPN: 0x000def})
		rc.PostRecv(1, mr, 2048, 1024)
		send(toRxe(ip, bth.Make(bth.RC, bth.SendOnly), rc.QPN, 0, good))
		ip.peer.Expect(t, peer.WantAck(0), peer.WantMSN(1))
		if wc := rc.RecvCompletions(1)[0]; wc.Status != 0 || !bytes.Equal(mr.Read(2048, len(good)), good) {
			t.Errorf("SEND: completion %+v, or the spoiled payload", wc)
		}
		rc.Destroy()
	}
}
