package cases

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// target is what a violation is committed on: two MRs of the queue pair's protection
// domain, one of another domain, one without remote rights, and a receive or two.
type target struct {
	*conn
	mr, foreign, local, readOnly *device.MR
}

// va and key of a region.
func (tg *target) write(psn uint32, mr *device.MR, data []byte) *peer.Frame {
	return peer.WriteOnly(nicQP, psn, mr.Addr(), mr.RKey(), data)
}

// violation is one row of roce.md B.13 for SEND, WRITE and READ, as design.md 8 decides
// it: what the peer sends, and what is seen on the wire, at the responder's queues
// and in its events.
type violation struct {
	name   string
	change func(o *rcOptions)
	recvs  int // receives posted, of 2048 bytes each
	send   func(tg *target) []*peer.Frame
	nak    peer.Syndrome
	at     uint32 // PSN of the NAK, relative to ePSN
	msn    int    // messages counted before it
	wc     string // status of the receive that was held; "" none
	event  string
}

const mtu = 1024

var violations = []violation{
	// Reserved opcodes of the RC range at the expected PSN (rxe drops them; IBTA does not).
	{name: "reserved opcode 15", send: func(*target) []*peer.Frame { return []*peer.Frame{peer.NewFrame(0x15, nicQP, 0x200)} },
		nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "reserved opcode 18", send: func(*target) []*peer.Frame { return []*peer.Frame{peer.NewFrame(0x18, nicQP, 0x200)} },
		nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "reserved opcode 1F with a payload", send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.NewFrame(0x1F, nicQP, 0x200).With(func(f *peer.Frame) { f.Payload = make([]byte, 20) })}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "reserved opcode inside a SEND", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.NewFrame(0x15, nicQP, 0x201)}
	}, nak: peer.SynNakInvalid, at: 1, wc: "REM_INV_REQ_ERR"},

	// Opcode sequence.
	{name: "SEND Middle first", recvs: 1, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendMiddle(nicQP, 0x200, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "SEND Last first", recvs: 1, send: func(*target) []*peer.Frame { return []*peer.Frame{peer.SendLast(nicQP, 0x200, []byte{1})} },
		nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "SEND Last with immediate first", recvs: 1, send: func(*target) []*peer.Frame { return []*peer.Frame{peer.SendLastImm(nicQP, 0x200, 1, []byte{1})} },
		nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE Middle first", send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.WriteMiddle(nicQP, 0x200, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE Last first", send: func(*target) []*peer.Frame { return []*peer.Frame{peer.WriteLast(nicQP, 0x200, []byte{1})} },
		nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE Last with immediate first", recvs: 1, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.WriteLastImm(nicQP, 0x200, 1, []byte{1})}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "SEND First, First", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.SendFirst(nicQP, 0x201, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, at: 1, wc: "REM_INV_REQ_ERR"},
	{name: "SEND First, Only", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.SendOnly(nicQP, 0x201, nil)}
	}, nak: peer.SynNakInvalid, at: 1, wc: "REM_INV_REQ_ERR"},
	{name: "SEND First, WRITE Middle", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.WriteMiddle(nicQP, 0x201, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, at: 1, wc: "REM_INV_REQ_ERR"},
	{name: "SEND First, WRITE Last", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.WriteLast(nicQP, 0x201, []byte{1})}
	}, nak: peer.SynNakInvalid, at: 1, wc: "REM_INV_REQ_ERR"},
	{name: "SEND First, READ", recvs: 2, send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.ReadRequest(nicQP, 0x201, tg.mr.Addr(), tg.mr.RKey(), 8)}
	}, nak: peer.SynNakInvalid, at: 1, wc: "REM_INV_REQ_ERR"},
	{name: "SEND First, WRITE Only", recvs: 2, send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), tg.write(0x201, tg.mr, []byte{1})}
	}, nak: peer.SynNakInvalid, at: 1, wc: "REM_INV_REQ_ERR"},
	{name: "WRITE First, First", send: func(tg *target) []*peer.Frame {
		f := peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 4000, make([]byte, mtu))
		return []*peer.Frame{f, f.Clone().With(func(f *peer.Frame) { f.PSN++ })}
	}, nak: peer.SynNakInvalid, at: 1, event: "QP_REQ_ERR"},
	{name: "WRITE First, SEND Last", recvs: 1, send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2000, make([]byte, mtu)), peer.SendLast(nicQP, 0x201, make([]byte, 976))}
	}, nak: peer.SynNakInvalid, at: 1, event: "QP_REQ_ERR"},
	{name: "WRITE First, SEND Only", recvs: 1, send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2000, make([]byte, mtu)), peer.SendOnly(nicQP, 0x201, nil)}
	}, nak: peer.SynNakInvalid, at: 1, event: "QP_REQ_ERR"},
	{name: "WRITE First, READ", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2000, make([]byte, mtu)), peer.ReadRequest(nicQP, 0x201, tg.mr.Addr(), tg.mr.RKey(), 8)}
	}, nak: peer.SynNakInvalid, at: 1, event: "QP_REQ_ERR"},
	{name: "WRITE Middle after a finished WRITE", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{tg.write(0x200, tg.mr, make([]byte, 8)), peer.WriteMiddle(nicQP, 0x201, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, at: 1, msn: 1, event: "QP_REQ_ERR"},

	// Operations that the queue pair does not allow; also of length 0, which needs no key.
	{name: "WRITE not enabled", change: func(o *rcOptions) { o.Access = device.RemoteRead },
		send: func(tg *target) []*peer.Frame { return []*peer.Frame{tg.write(0x200, tg.mr, []byte{1})} }, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE of length 0 not enabled", change: func(o *rcOptions) { o.Access = device.RemoteRead },
		send: func(tg *target) []*peer.Frame { return []*peer.Frame{tg.write(0x200, tg.mr, nil)} }, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "READ not enabled", change: func(o *rcOptions) { o.Access = device.RemoteWrite },
		send: func(tg *target) []*peer.Frame {
			return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 8)}
		}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "READ of length 0 not enabled", change: func(o *rcOptions) { o.Access = device.RemoteWrite },
		send: func(*target) []*peer.Frame { return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, 0, 0, 0)} }, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "READ with responder depth 0", change: func(o *rcOptions) { o.Resp = 0 },
		send: func(tg *target) []*peer.Frame {
			return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 8)}
		}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	// The queue pair's rights come before the receive (rxe-lab.md 4).
	{name: "WRITE with immediate not enabled, no receive", change: func(o *rcOptions) { o.Access = 0 },
		send: func(tg *target) []*peer.Frame {
			return []*peer.Frame{peer.WriteOnlyImm(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 1, []byte{1})}
		}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE with immediate not enabled", recvs: 1, change: func(o *rcOptions) { o.Access = 0 },
		send: func(tg *target) []*peer.Frame {
			return []*peer.Frame{peer.WriteOnlyImm(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 1, []byte{1})}
		}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "READ of 2^31+1", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 1<<31+1)}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE of 2^31+1", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 1<<31+1, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "READ of 2^31 out of range", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 1<<31)}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE of 2^31 out of range", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 1<<31, make([]byte, mtu))}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE with immediate of 2^31+1", recvs: 2, send: func(tg *target) []*peer.Frame {
		f := peer.WriteOnlyImm(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 1, []byte{1, 2, 3, 4})
		f.RETH.Len = 1<<31 + 1
		return []*peer.Frame{f}
	}, nak: peer.SynNakInvalid, wc: "REM_INV_REQ_ERR"},
	{name: "one READ more than max_dest_rd_atomic", change: func(o *rcOptions) { o.Resp = 4 }, send: func(tg *target) []*peer.Frame {
		var l []*peer.Frame
		for i := range uint32(5) { // in one batch, so that no response is out when the fifth comes
			l = append(l, peer.ReadRequest(nicQP, 0x200+i, tg.mr.Addr(), tg.mr.RKey(), 8))
		}
		return l
	}, nak: peer.SynNakInvalid, at: 4, msn: 4, event: "QP_REQ_ERR"},

	// Keys.
	{name: "WRITE, bad key", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteOnly(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey()^0x100, []byte{1})}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE, key byte", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteOnly(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey()^1, []byte{1})}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE, L_Key in place of the R_Key", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteOnly(nicQP, 0x200, tg.mr.Addr(), tg.mr.LKey(), []byte{1})}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE, another protection domain", send: func(tg *target) []*peer.Frame { return []*peer.Frame{tg.write(0x200, tg.foreign, []byte{1})} },
		nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE, region with local access only", send: func(tg *target) []*peer.Frame { return []*peer.Frame{tg.write(0x200, tg.local, []byte{1})} },
		nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE, region that is read only", send: func(tg *target) []*peer.Frame { return []*peer.Frame{tg.write(0x200, tg.readOnly, []byte{1})} },
		nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE, before the region", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteOnly(nicQP, 0x200, tg.mr.Addr()-1, tg.mr.RKey(), []byte{1, 2})}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE, across the end", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteOnly(nicQP, 0x200, tg.mr.Addr()+4095, tg.mr.RKey(), []byte{1, 2})}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "WRITE, address that wraps", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteOnly(nicQP, 0x200, 1<<64-1, tg.mr.RKey(), []byte{1, 2})}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	// The whole range is checked at FIRST: nothing of the message is stored.
	{name: "WRITE First, range of the message", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr()+2048, tg.mr.RKey(), 2049, make([]byte, mtu))}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "READ, bad key", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey()^0x100, 1)}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "READ, another protection domain", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.foreign.Addr(), tg.foreign.RKey(), 1)}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "READ, range", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 4097)}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	{name: "READ, address that wraps", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr()-2048, tg.mr.RKey(), 1<<31)}
	}, nak: peer.SynNakAccess, event: "QP_ACCESS_ERR"},
	// With an immediate and a receive that is held, the completion tells.
	{name: "WRITE Only with immediate, bad key", recvs: 2, send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteOnlyImm(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey()^0x100, 1, []byte{1})}
	}, nak: peer.SynNakAccess, wc: "REM_ACCESS_ERR"},
	{name: "WRITE Last with immediate, region gone", recvs: 2, send: func(tg *target) []*peer.Frame {
		tg.gets(peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2000, make([]byte, mtu)))
		tg.settle()
		if err := tg.mr.Dereg(); err != nil {
			tg.t.Fatal(err)
		}
		return []*peer.Frame{peer.WriteLastImm(nicQP, 0x201, 1, make([]byte, 976))}
	}, nak: peer.SynNakAccess, at: 1, wc: "REM_ACCESS_ERR"},
	{name: "WRITE Middle, region gone", recvs: 1, send: func(tg *target) []*peer.Frame {
		tg.gets(peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 3000, make([]byte, mtu)))
		tg.settle()
		if err := tg.mr.Dereg(); err != nil {
			tg.t.Fatal(err)
		}
		return []*peer.Frame{peer.WriteMiddle(nicQP, 0x201, make([]byte, mtu))}
	}, nak: peer.SynNakAccess, at: 1, event: "QP_ACCESS_ERR"},

	// Lengths against MTU, RETH and pad.
	{name: "SEND First short", recvs: 2, send: func(*target) []*peer.Frame { return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu-4))} },
		nak: peer.SynNakInvalid, wc: "LOC_LEN_ERR"},
	{name: "SEND First long", recvs: 2, send: func(*target) []*peer.Frame { return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu+4))} },
		nak: peer.SynNakInvalid, wc: "LOC_LEN_ERR"},
	{name: "SEND Middle short", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.SendMiddle(nicQP, 0x201, make([]byte, 4))}
	}, nak: peer.SynNakInvalid, at: 1, wc: "LOC_LEN_ERR"},
	{name: "SEND Last empty", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.SendLast(nicQP, 0x201, nil)}
	}, nak: peer.SynNakInvalid, at: 1, wc: "LOC_LEN_ERR"},
	{name: "SEND Last long", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)), peer.SendLast(nicQP, 0x201, make([]byte, mtu+1))}
	}, nak: peer.SynNakInvalid, at: 1, wc: "LOC_LEN_ERR"},
	{name: "SEND Only long", recvs: 2, send: func(*target) []*peer.Frame { return []*peer.Frame{peer.SendOnly(nicQP, 0x200, make([]byte, mtu+1))} },
		nak: peer.SynNakInvalid, wc: "LOC_LEN_ERR"},
	{name: "SEND Only, wrong pad", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendOnly(nicQP, 0x200, []byte{1, 2, 3, 4}).With(func(f *peer.Frame) { f.PadCount, f.PadBytes = new(uint8(3)), make([]byte, 3) })}
	}, nak: peer.SynNakInvalid, wc: "LOC_LEN_ERR"},
	{name: "SEND First with pad", recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendFirst(nicQP, 0x200, make([]byte, mtu)).With(func(f *peer.Frame) { f.PadCount, f.PadBytes = new(uint8(1)), make([]byte, 1) })}
	}, nak: peer.SynNakInvalid, wc: "LOC_LEN_ERR"},
	{name: "WRITE First short", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2000, make([]byte, 1000))}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	// rxe takes this one (rxe-lab.md C6).
	{name: "WRITE First that is the whole message", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), mtu, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE First longer than the message", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 8, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE Only shorter than its RETH", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{tg.write(0x200, tg.mr, make([]byte, 8)).With(func(f *peer.Frame) { f.RETH.Len = 9 })}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE Only longer than its RETH", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{tg.write(0x200, tg.mr, make([]byte, 8)).With(func(f *peer.Frame) { f.RETH.Len = 7 })}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE Only with RETH length 0 and a payload", send: func(tg *target) []*peer.Frame { // rxe: 0x62 (rxe-lab.md C6)
		return []*peer.Frame{tg.write(0x200, tg.mr, make([]byte, 4)).With(func(f *peer.Frame) { f.RETH.Len = 0 })}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE Only, pad", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{tg.write(0x200, tg.mr, make([]byte, 4)).With(func(f *peer.Frame) { f.PadCount, f.PadBytes = new(uint8(2)), make([]byte, 2) })}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "WRITE Middle behind which nothing is left", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2048, make([]byte, mtu)), peer.WriteMiddle(nicQP, 0x201, make([]byte, mtu))}
	}, nak: peer.SynNakInvalid, at: 1, event: "QP_REQ_ERR"},
	{name: "WRITE Last short", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2000, make([]byte, mtu)), peer.WriteLast(nicQP, 0x201, make([]byte, 975))}
	}, nak: peer.SynNakInvalid, at: 1, event: "QP_REQ_ERR"},
	{name: "WRITE Last long", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2000, make([]byte, mtu)), peer.WriteLast(nicQP, 0x201, make([]byte, 977))}
	}, nak: peer.SynNakInvalid, at: 1, event: "QP_REQ_ERR"},
	{name: "WRITE Last with immediate, short", recvs: 2, send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.WriteFirst(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 2000, make([]byte, mtu)), peer.WriteLastImm(nicQP, 0x201, 1, make([]byte, 972))}
	}, nak: peer.SynNakInvalid, at: 1, wc: "LOC_LEN_ERR"},
	{name: "READ with a payload", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 8).With(func(f *peer.Frame) { f.Payload = make([]byte, 4) })}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},
	{name: "READ with pad", send: func(tg *target) []*peer.Frame {
		return []*peer.Frame{peer.ReadRequest(nicQP, 0x200, tg.mr.Addr(), tg.mr.RKey(), 8).With(func(f *peer.Frame) { f.PadCount, f.PadBytes = new(uint8(3)), make([]byte, 3) })}
	}, nak: peer.SynNakInvalid, event: "QP_REQ_ERR"},

	// SEND longer than the receive.
	{name: "SEND Only longer than the receive", change: func(o *rcOptions) { o.MTU = 4096 }, recvs: 2, send: func(*target) []*peer.Frame {
		return []*peer.Frame{peer.SendOnly(nicQP, 0x200, make([]byte, 2049))}
	}, nak: peer.SynNakInvalid, wc: "LOC_LEN_ERR"},
	{name: "SEND of packets longer than the receive", recvs: 2, send: func(*target) []*peer.Frame { return sendOf(0x200, mtu, make([]byte, 2049)) },
		nak: peer.SynNakInvalid, at: 2, wc: "LOC_LEN_ERR"},
}

// Every violation of SEND, WRITE and READ on RC: the responder answers with the NAK, goes to
// ERR, and tells by the completion of the receive that it holds, else by one event; the rest
// is flushed.
func TestViolations(t *testing.T) {
	for _, v := range violations {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{Latency: time.Microsecond})
			c := l.rc(v.change)
			tg := &target{conn: c, mr: l.mr(4096, all), local: l.mr(4096, device.LocalWrite), readOnly: l.mr(4096, device.RemoteRead)}
			tg.foreign = must(must(l.ctx.AllocPD()).RegMR(make([]byte, 4096), all))
			for _, m := range []*device.MR{tg.mr, tg.foreign, tg.local, tg.readOnly} {
				copy(m.Bytes(), filled(0x55, 4096))
			}
			buf := l.mr(4096, all)
			for i := range v.recvs {
				c.recv(uint64(i+1), buf, 2048)
			}
			c.gets(v.send(tg)...)
			got := l.take()
			// Before the NAK there may be the answers to what was right.
			if len(got) == 0 {
				t.Fatalf("no answer (drops: %s)", l.drops())
			}
			want(t, "answer", brief(got[len(got)-1]), fmt.Sprintf("ACKNOWLEDGE %06x %02x m%d", 0x200+v.at, uint8(v.nak), v.msn))
			for _, f := range got[:len(got)-1] {
				if f.Op == peer.OpAck && f.AETH.Syndrome != peer.SynAck {
					t.Fatalf("a second NAK: %v", f)
				}
			}
			c.state(device.StateErr)
			var wc []string
			for i := range v.recvs {
				s := "WR_FLUSH_ERR"
				if i == 0 && v.wc != "" {
					s = v.wc
				}
				wc = append(wc, fmt.Sprintf("%d %s", i+1, s))
			}
			c.received(wc...)
			if v.event != "" {
				l.events(v.event)
			} else {
				l.events()
			}
			l.counts("drop_bad-request=1")
			// Memory that the request had no right to is untouched.
			for _, m := range []*device.MR{tg.foreign, tg.local, tg.readOnly} {
				wantBytes(t, "memory", m.Bytes(), filled(0x55, 4096))
			}
			// A connection in ERR is silent.
			c.gets(peer.SendOnly(nicQP, 0x200, nil), peer.SendOnly(nicQP, 0x201, nil), peer.SendOnly(nicQP, 0x210, nil))
			l.emits()
			l.events()
		})
	}
	bubble(t, "nothing of a message is stored when its range is wrong", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(4096, all)
		c.gets(peer.WriteFirst(nicQP, 0x200, mr.Addr()+2048, mr.RKey(), 2049, filled(9, mtu)))
		l.emits("ACKNOWLEDGE 000200 62 m0")
		wantBytes(t, "memory", mr.Bytes(), make([]byte, 4096))
	})
	// A SEND that goes on where a WRITE has begun must not find its way into the buffer of the SEND
	// before.
	bubble(t, "SEND Last inside a WRITE after a SEND", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr, buf := l.mr(4096, all), l.mr(64, all)
		c.recv(1, buf, 64)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("first")))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.gets(peer.WriteFirst(nicQP, 0x201, mr.Addr(), mr.RKey(), 2000, make([]byte, mtu)), peer.SendLast(nicQP, 0x202, []byte("evil")))
		l.emits("ACKNOWLEDGE 000202 61 m1")
		c.received("1 SUCCESS RECV 5")
		l.events("QP_REQ_ERR")
		wantBytes(t, "buffer", buf.Bytes()[:6], []byte("first\x00"))
	})
	// Zero-length WRITE and READ need no key and no address (C9-88).
	bubble(t, "length 0 needs no key", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.recv(1, nil, 0)
		c.gets(peer.WriteOnly(nicQP, 0x200, 99, 99, nil))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.gets(peer.ReadRequest(nicQP, 0x201, 99, 99, 0))
		l.emits("READ_RESPONSE_ONLY 000201 1f m2")
		c.gets(peer.WriteOnlyImm(nicQP, 0x202, 99, 99, 5, nil))
		l.emits("ACKNOWLEDGE 000202 1f m3")
		c.received("1 SUCCESS RECV_RDMA_WITH_IMM 0 imm=00000005")
	})
	// A responder cannot tell an over-deep peer from one whose READs have finished: with the
	// answers out, the next is served (case 17).
	bubble(t, "more READs than max_dest_rd_atomic, each answered", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.Resp = 3 }) // rounded up to 4
		a, _ := c.qp.Query()
		want(t, "max_dest_rd_atomic", a.MaxDestRdAtomic, 4)
		mr := l.mr(64, all)
		for i := range uint32(20) {
			c.gets(peer.ReadRequest(nicQP, 0x200+i, mr.Addr(), mr.RKey(), 8))
			l.emits(fmt.Sprintf("READ_RESPONSE_ONLY %06x 1f m%d [8]", 0x200+i, i+1))
		}
		c.state(device.StateRTS)
	})
	// RNR before the key (design.md 8, as rxe).
	bubble(t, "no receive and a bad key", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		f := peer.WriteOnlyImm(nicQP, 0x200, 1, 99, 1, []byte{1})
		c.gets(f)
		l.emits("ACKNOWLEDGE 000200 2c m0")
		c.state(device.StateRTS)
		c.recv(1, nil, 0)
		c.gets(f)
		l.emits("ACKNOWLEDGE 000200 62 m0")
		c.received("1 REM_ACCESS_ERR")
	})
	bubble(t, "no receive and a bad length", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		c.gets(peer.SendOnly(nicQP, 0x200, make([]byte, mtu+1)))
		l.emits("ACKNOWLEDGE 000200 2c m0")
	})
}

// Receive buffers that cannot be written: NAK 63, LOC_PROT_ERR (rxe: LOC_QP_OP_ERR).
func TestReceiveBufferErrors(t *testing.T) {
	for _, v := range []struct {
		name string
		sge  func(l *lab) device.SGE
	}{
		{"bad key", func(l *lab) device.SGE { s := l.mr(64, all).SGE(0, 64); s.LKey ^= 0x100; return s }},
		{"R_Key in place of the L_Key", func(l *lab) device.SGE { m := l.mr(64, all); s := m.SGE(0, 64); s.LKey = m.RKey(); return s }},
		{"no local write", func(l *lab) device.SGE { return l.mr(64, device.RemoteRead).SGE(0, 64) }},
		{"range", func(l *lab) device.SGE { return l.mr(64, all).SGE(32, 64) }},
		{"another protection domain", func(l *lab) device.SGE {
			return must(must(l.ctx.AllocPD()).RegMR(make([]byte, 64), all)).SGE(0, 64)
		}},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			if err := c.qp.PostRecv(&device.RecvWR{ID: 1, SGE: []device.SGE{v.sge(l)}}); err != nil {
				t.Fatal(err)
			}
			c.recv(2, nil, 0)
			c.gets(peer.SendOnly(nicQP, 0x200, make([]byte, 50)))
			l.emits("ACKNOWLEDGE 000200 63 m0")
			c.state(device.StateErr)
			c.received("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
			l.events() // the completion tells
			l.counts("resp_cqe_error=1")
		})
		// What does not touch the bad entry does not meet it.
		bubble(t, v.name+", not reached", func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mr := l.mr(64, all)
			if err := c.qp.PostRecv(&device.RecvWR{ID: 1, SGE: []device.SGE{mr.SGE(0, 64), v.sge(l)}}); err != nil {
				t.Fatal(err)
			}
			c.gets(peer.SendOnly(nicQP, 0x200, make([]byte, 64)))
			l.emits("ACKNOWLEDGE 000200 1f m1")
			c.received("1 SUCCESS RECV 64")
		})
	}
	// A WRITE with immediate does not look at the receive's buffer.
	bubble(t, "WRITE with immediate", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		if err := c.qp.PostRecv(&device.RecvWR{ID: 1, SGE: []device.SGE{{Addr: 1, Length: 2, LKey: 3}}}); err != nil {
			t.Fatal(err)
		}
		c.gets(peer.WriteOnlyImm(nicQP, 0x200, mr.Addr(), mr.RKey(), 0x01020304, make([]byte, 50)))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.received("1 SUCCESS RECV_RDMA_WITH_IMM 50 imm=01020304")
	})
}

// The receive completion queue is full: CQ error event, QP to ERR with QP_FATAL, and the packet
// is not answered (design.md 8).
func TestReceiveCQFull(t *testing.T) {
	for _, imm := range []bool{false, true} {
		bubble(t, fmt.Sprintf("imm=%v", imm), func(t *testing.T) {
			l := newLab(t, labConfig{Latency: time.Microsecond})
			c := l.rc(func(o *rcOptions) { o.CQ = 3 })
			for i := range uint64(6) {
				c.recv(i, nil, 0)
			}
			req := func(psn uint32) *peer.Frame {
				if imm {
					return peer.WriteOnlyImm(nicQP, psn, 0, 0, 1, nil)
				}
				return peer.SendOnly(nicQP, psn, nil)
			}
			for i := range uint32(3) {
				c.gets(req(0x200 + i))
				l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", 0x200+i, i+1))
			}
			// With others behind it in the same burst: neither it nor they are answered.
			c.gets(req(0x203), req(0x204), req(0x203))
			l.emits()
			c.state(device.StateErr)
			l.events("CQ_ERR", "QP_FATAL")
			got := drain(c.rcq)
			want(t, "completions", len(got), 3)
			for i, w := range got {
				want(t, "completion", fmt.Sprint(w.ID, w.Status), fmt.Sprint(i, device.StatusSuccess))
			}
			l.p.ExpectSilence(t, time.Second)
			l.events()
		})
	}
	bubble(t, "datagrams", func(t *testing.T) {
		l := newLab(t, labConfig{Latency: time.Microsecond})
		cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 2}))
		l.dice.push(udQP)
		qp := must(l.pd.CreateQP(device.QPInit{Type: device.UD, SendCQ: cq, RecvCQ: cq, Cap: device.Cap{RecvWR: 8}}))
		if err := qp.Activate(qkey, 0); err != nil {
			t.Fatal(err)
		}
		mr := l.mr(100, all)
		for i := range uint64(6) {
			if err := qp.PostRecv(&device.RecvWR{ID: i, SGE: sge(mr, 100)}); err != nil {
				t.Fatal(err)
			}
		}
		for range 5 {
			l.p.Send(t, peer.UDSend(udQP, 0, qkey, peerUD, nil))
		}
		l.emits()
		l.events("CQ_ERR", "QP_FATAL")
		want(t, "state", qp.State(), device.StateErr)
		sameList(t, "completions", briefWC(drain(cq)), []string{"0 SUCCESS RECV 40", "1 SUCCESS RECV 40"})
	})
	bubble(t, "send queue", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.SendCQ = 2 })
		mr := l.mr(64, all)
		for range 4 {
			c.send(mr, 1)
		}
		l.take()
		c.gets(ack(0x103, 4))
		c.state(device.StateErr)
		l.events("CQ_ERR", "QP_FATAL")
		c.sent("1 SUCCESS SEND 1", "2 SUCCESS SEND 1")
	})
}

// What is not for the queue pair at all is dropped in silence, each under its reason.
func TestSilentDrops(t *testing.T) {
	for _, v := range []struct {
		name, drop string
		f          *peer.Frame
	}{
		{"reserved opcode to QPN 0", "no-qp", peer.NewFrame(0x15, 0, 0x200)},
		{"reserved opcode to QPN 1", "no-qp", peer.NewFrame(0x15, 1, 0x200)},
		{"reserved opcode to QPN FFFFFF", "no-qp", peer.NewFrame(0x15, 0xFFFFFF, 0x200)},
		{"unknown QPN", "no-qp", peer.SendOnly(nicQP+1, 0x200, nil)},
		{"UC opcode", "wrong-service", peer.SendOnly(nicQP, 0x200, nil).AsUC()},
		{"reserved UC opcode", "wrong-service", peer.NewFrame(0x35, nicQP, 0x200)},
		{"UD opcode", "wrong-service", peer.UDSend(nicQP, 0x200, qkey, 1, nil)},
		{"XRC opcode", "wrong-service", peer.SendOnly(nicQP, 0x200, nil).AsXRC(5)},
		{"opcode FF", "wrong-service", peer.NewFrame(0xFF, nicQP, 0x200)},
		{"another source", "wrong-peer", peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.Src, f.Dst = netip.MustParseAddr("192.0.2.3"), nic4 })},
		{"another of our addresses", "wrong-peer", peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.Src, f.Dst = peer4, nic4b })},
		{"the other IP version", "wrong-peer", peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.Src, f.Dst = peer6, nic6 })},
		{"not our address", "no-address", peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.Src, f.Dst = peer4, netip.MustParseAddr("192.0.2.3") })},
		{"P_Key", "pkey", peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.PKey = 0x9234 })},
		{"P_Key 0", "pkey", peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.PKey = 0 })},
		{"TVer", "transport-version", peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.TVer = 1 })},
		{"fragment", "fragment", peer.SendOnly(nicQP, 0x200, nil).With(func(f *peer.Frame) { f.MF = true })},
		{"reserved opcode, wrong ICRC", "icrc", peer.NewFrame(0x15, nicQP, 0x200).With(func(f *peer.Frame) { f.Src, f.Dst = peer4, nic4 }).SpoilICRC()},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			c.recv(1, nil, 0)
			c.gets(v.f)
			l.emits()
			c.received()
			l.events()
			c.state(device.StateRTS)
			want(t, "drops", l.drops(), v.drop+"=1")
			c.gets(peer.SendOnly(nicQP, 0x200, nil))
			l.emits("ACKNOWLEDGE 000200 1f m1")
		})
	}
	for _, v := range []struct {
		name   string
		change func(f *peer.Frame)
	}{
		{"limited P_Key", func(f *peer.Frame) { f.PKey = 0x7FFF }},
		{"MigReq 0", func(f *peer.Frame) { f.Migrated = false }},
		{"reserved bits", func(f *peer.Frame) { f.Resv6, f.Resv7 = 63, 127 }},
		{"FECN and BECN", func(f *peer.Frame) { f.FECN, f.BECN = true, true }},
		{"any source port and TTL", func(f *peer.Frame) { f.SrcPort, f.TTL = 7, 1 }},
		{"capable of ECN", func(f *peer.Frame) { f.TOS = 2 }}, // marked: TestCongestionNotification
		{"trailing bytes", func(f *peer.Frame) { f.Trailer = make([]byte, 18) }},
		{"IP ID", func(f *peer.Frame) { f.ID = 0xBEEF }},
		{"DF clear", func(f *peer.Frame) { f.DF = false }},
	} {
		bubble(t, "accepted/"+v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			c.recv(1, nil, 0)
			c.gets(peer.SendOnly(nicQP, 0x200, nil).With(v.change))
			f := l.emits("ACKNOWLEDGE 000200 1f m1")[0]
			want(t, "TOS of the answer", f.TOS, 0)
			want(t, "drops", l.drops(), "")
		})
	}
}

// The requester's side: which status a NAK gives, which answers no request can have.
func TestRequesterStatus(t *testing.T) {
	setup := func(t *testing.T) (*lab, *conn) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		c.write(mr, 8)
		c.send(mr, 8)
		c.send(mr, 8)
		want(t, "sent", len(l.take()), 3)
		return l, c
	}
	for _, v := range []struct {
		f      *peer.Frame // to the second of three
		status string
	}{
		{nak(0x101, peer.SynNakInvalid), "REM_INV_REQ_ERR"},
		{nak(0x101, peer.SynNakAccess), "REM_ACCESS_ERR"},
		{nak(0x101, peer.SynNakOperation), "REM_OP_ERR"},
		// design.md 8: an answer that is malformed or that nothing asked for is BAD_RESP_ERR (rxe
		// reports unknown NAK codes as REM_OP_ERR and the rest as success, rxe-lab.md C2).
		{nak(0x101, 0x64), "BAD_RESP_ERR"},
		{nak(0x101, 0x7F), "BAD_RESP_ERR"},
		{nak(0x101, 0x40), "BAD_RESP_ERR"},
		{nak(0x101, 0x5F), "BAD_RESP_ERR"},
		{nak(0x101, 0x80), "BAD_RESP_ERR"},
		{nak(0x101, 0x9F), "BAD_RESP_ERR"},
		{nak(0x101, 0xE0), "BAD_RESP_ERR"},
		{peer.ReadRespOnly(nicQP, 0x101, 1, nil), "BAD_RESP_ERR"},
		{peer.ReadRespMiddle(nicQP, 0x101, make([]byte, 1024)), "BAD_RESP_ERR"},
		{peer.AtomicAck(nicQP, 0x101, 1, 0), "BAD_RESP_ERR"},
	} {
		bubble(t, brief(v.f), func(t *testing.T) {
			l, c := setup(t)
			c.gets(v.f)
			got := drain(c.scq)
			want(t, "completions", len(got), 3)
			// A NAK acknowledges the WRITE before it; nothing can be said of it after a
			// response that makes no sense.
			first := got[0].Status
			if v.f.Op == peer.OpAck && v.f.AETH.Syndrome.IsNak() && v.f.AETH.Syndrome <= 0x63 {
				want(t, "first", first, device.StatusSuccess)
			}
			i := 1
			if first != device.StatusSuccess {
				i = 0
			}
			want(t, "the request", briefWC(got[i : i+1])[0], fmt.Sprintf("%d %s", i+1, v.status))
			for _, w := range got[i+1:] {
				want(t, "behind it", w.Status, device.StatusFlush)
			}
			c.state(device.StateErr)
			l.emits()
			l.events()
			l.counts("req_cqe_error=1")
		})
	}
	// Local errors: found when the request is executed, after those before it are answered.
	for _, v := range []struct {
		name string
		sge  func(l *lab) device.SGE
	}{
		{"bad key", func(l *lab) device.SGE { s := l.mr(64, all).SGE(0, 64); s.LKey ^= 0x100; return s }},
		{"range", func(l *lab) device.SGE { return l.mr(64, all).SGE(1, 64) }},
		{"another protection domain", func(l *lab) device.SGE {
			return must(must(l.ctx.AllocPD()).RegMR(make([]byte, 64), all)).SGE(0, 64)
		}},
	} {
		for _, op := range []device.WROp{device.OpSend, device.OpWrite} {
			bubble(t, fmt.Sprintf("local/%v/%s", op, v.name), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.rc(nil)
				mr := l.mr(64, all)
				c.send(mr, 8)
				c.post(device.SendWR{Op: op, SGE: []device.SGE{mr.SGE(0, 8), v.sge(l)}, RemoteAddr: remoteVA, RKey: remoteKey})
				c.send(mr, 8)
				// Nothing of it is on the wire, and the good request before it is not lost (rxe flushes
				// all three, rxe-lab.md S11).
				l.emits("SEND_ONLY 000100 ar [8]")
				c.sent()
				c.state(device.StateRTS)
				c.gets(ack(0x100, 1))
				c.sent("1 SUCCESS SEND 8", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
				c.state(device.StateErr)
				l.emits()
				l.events()
			})
		}
		bubble(t, "local/READ/"+v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			mr := l.mr(64, all)
			c.post(device.SendWR{Op: device.OpRead, SGE: []device.SGE{mr.SGE(0, 8), v.sge(l)}, RemoteAddr: remoteVA, RKey: remoteKey})
			c.send(mr, 8)
			l.take() // the request may be sent: the local buffer is looked at when the answer comes
			c.gets(peer.ReadRespOnly(nicQP, 0x100, 1, make([]byte, 72)))
			c.sent("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
			c.state(device.StateErr)
		})
	}
	bubble(t, "local/READ into memory without local write", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, device.RemoteRead)
		c.read(mr, 8)
		l.take()
		c.gets(peer.ReadRespOnly(nicQP, 0x100, 1, filled(1, 8)))
		c.sent("1 LOC_PROT_ERR")
		wantBytes(t, "memory", mr.Bytes(), make([]byte, 64))
	})
	bubble(t, "local/second packet of a SEND", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(1024, all)
		bad := mr.SGE(0, 8)
		bad.LKey ^= 0x100
		c.post(device.SendWR{Op: device.OpSend, SGE: []device.SGE{mr.SGE(0, 1024), bad}})
		l.emits("SEND_FIRST 000100 [1024]")
		c.sent("1 LOC_PROT_ERR")
		c.state(device.StateErr)
	})
	bubble(t, "refused at post", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		big := must(l.pd.RegMemory(bigMemory{}, 0, 1<<33, device.LocalWrite))
		g := device.SGE{Length: 0x60000000, LKey: big.LKey()}
		for _, wr := range []device.SendWR{
			{Op: device.OpSend, SGE: []device.SGE{{Length: 1<<31 + 1, LKey: big.LKey()}}},
			{Op: device.OpWrite, SGE: []device.SGE{g, g, g}}, // 4.5 GiB: the low 32 bits are 0.5 GiB
			{Op: device.OpSend, SGE: make([]device.SGE, 5)},
			{Op: device.OpSend, Flags: device.Inline, InlineData: make([]byte, 65)},
			{Op: device.OpRead, Flags: device.Inline, InlineData: make([]byte, 5)},
			{Op: 77},
		} {
			errno(t, c.qp.PostSend(&wr), device.EINVAL)
		}
		l.emits()
		c.sent()
	})
}
