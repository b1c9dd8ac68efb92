package cases

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
)

// list splits n bytes at offset off of mr into entries, empty ones among them. Three
// shapes: one entry, many, and none where n is 0.
func list(mr *device.MR, off, n, shape int) []device.SGE {
	switch {
	case shape == 2 && n == 0:
		return nil
	case shape != 1:
		return []device.SGE{mr.SGE(off, n)}
	}
	a, b := n/3, n/2
	return []device.SGE{{LKey: 12345}, mr.SGE(off, a), {}, mr.SGE(off+a, b-a), mr.SGE(off+b, 0), mr.SGE(off+b, n-b), {Addr: 1}}
}

// fastKey gives a fast-registered region memory through the node, and returns its key. A region whose key was not taken
// away since the last time cannot be registered.
func (x *node) fastKey(t *testing.T, f *device.FastMR, mem []byte, a device.Access) uint32 {
	t.Helper()
	if err := x.qp.PostSend(&device.SendWR{Op: device.OpRegMR, Reg: regOf(f, mem, a), Flags: device.Signaled}); err != nil {
		t.Fatal(err)
	}
	sameList(t, "registration", briefWC(drain(x.scq)), []string{"0 SUCCESS IB_WC_REG_MR 0"})
	return f.LKey()
}

// postRecv posts a receive to the node.
func (x *node) postRecv(wr device.RecvWR) error {
	if x.srq != nil {
		return x.srq.PostRecv(&wr)
	}
	return x.qp.PostRecv(&wr)
}

// Every message operation between two devices, of 0, 1, MTU-1, MTU, MTU+1 bytes and more, out of lists
// and into lists with empty entries; on XRC too.
func TestOpsSizes(t *testing.T) {
	const m = 1024
	messages := []device.WROp{device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpRead, device.OpReadInv, device.OpSendInv}
	for _, typ := range []device.QPType{device.RC, device.UC, device.XRCIni} {
		for shape := range 3 {
			bubble(t, fmt.Sprintf("%v, shape %d", typ, shape), func(t *testing.T) {
				n := newNet(t, netConfig{pairs: []device.QPType{typ}})
				a, b := n.q[0][0], n.q[0][1]
				srqn := uint32(0)
				if typ == device.XRCIni {
					srqn = b.srq.Num()
				}
				taken, given := must(a.pd.AllocMR(4096)), must(b.pd.AllocMR(4096)) // by READ with invalidate; for SEND with invalidate
				mem := make([]byte, 4096)
				for _, size := range []int{0, 1, 2, m - 1, m, m + 1, 2*m - 1, 3 * m, 3*m + 5} {
					for _, op := range messages {
						if typ == device.UC && (op == device.OpRead || op == device.OpReadInv || op == device.OpSendInv) {
							continue
						}
						clear(b.mr.Bytes())
						clear(a.mr.Bytes()[8192:])
						clear(mem)
						copy(a.mr.Bytes(), pattern(byte(size), 4096))
						copy(b.mr.Bytes()[16384:], pattern(byte(size)+1, 4096))
						if err := b.postRecv(device.RecvWR{ID: 5, SGE: list(b.mr, 8192, 4096, shape)}); err != nil {
							t.Fatal(err)
						}
						wr := device.SendWR{ID: 6, Op: op, SGE: list(a.mr, 0, size, shape), Imm: 0x01020304, RemoteAddr: b.mr.Addr() + 100, RKey: b.mr.RKey(), SRQN: srqn, Flags: device.Signaled}
						got, src := b.mr.Bytes()[8192:], a.mr.Bytes()[:size]
						recv := fmt.Sprintf("5 SUCCESS RECV %d", size)
						send := fmt.Sprintf("6 SUCCESS %s %d", strings.TrimPrefix(op.Completed().String(), "IBV_WC_"), size)
						first := 0 // bytes that go to mem, not to the region
						switch op {
						case device.OpSendImm:
							recv += " imm=01020304"
						case device.OpWrite:
							got, recv = b.mr.Bytes()[100:], ""
						case device.OpWriteImm:
							got, recv = b.mr.Bytes()[100:], fmt.Sprintf("5 SUCCESS RECV_RDMA_WITH_IMM %d imm=01020304", size)
						case device.OpRead:
							wr.RemoteAddr, wr.SGE = b.mr.Addr()+16384, list(a.mr, 8192, size, shape)
							got, src, recv = a.mr.Bytes()[8192:], b.mr.Bytes()[16384:][:size], ""
						case device.OpReadInv: // the key of the first entry is taken away, whatever comes behind it
							if first = size; shape == 1 {
								first = size / 2
							}
							wr.SGE = []device.SGE{{Addr: remoteVA, Length: uint32(first), LKey: a.fastKey(t, taken, mem, device.LocalWrite)}}
							if shape == 1 {
								wr.SGE = append(wr.SGE, device.SGE{}, a.mr.SGE(8192, size-first))
							}
							wr.RemoteAddr = b.mr.Addr() + 16384
							got, src, recv = a.mr.Bytes()[8192:], b.mr.Bytes()[16384:][:size], ""
						case device.OpSendInv:
							if typ == device.XRCIni { // a window is the initiator's, and the target's to take away it is not
								wr.Imm = b.fastKey(t, given, make([]byte, 64), device.LocalWrite|device.RemoteWrite)
							} else {
								wr.Imm = b.window(t)
							}
							recv += fmt.Sprintf(" inv=%08x", wr.Imm)
						}
						if err := a.qp.PostSend(&wr); err != nil {
							t.Fatal(err)
						}
						time.Sleep(time.Second)
						sameList(t, op.String(), briefWC(drain(a.scq)), []string{send})
						if recv == "" { // take the receive for the next one
							sameList(t, op.String(), fullWC(drain(b.rcq)), []string{})
							recv = "5 SUCCESS RECV 0"
							if err := a.qp.PostSend(&device.SendWR{Op: device.OpSend, SRQN: srqn}); err != nil {
								t.Fatal(err)
							}
							time.Sleep(time.Second)
						}
						sameList(t, op.String(), fullWC(drain(b.rcq)), []string{recv})
						wantBytes(t, op.String(), mem[:first], src[:first])
						wantBytes(t, op.String(), got[:size-first], src[first:])
						want(t, "the byte behind", got[size-first], 0)
						want(t, "the byte behind", mem[first], 0)
					}
				}
			})
		}
	}
	// The operations of 8 bytes, and FLUSH.
	for _, typ := range requesters {
		bubble(t, fmt.Sprintf("%v, words", typ), func(t *testing.T) {
			n := newNet(t, netConfig{pairs: []device.QPType{typ}})
			a, b := n.q[0][0], n.q[0][1]
			for shape := range 2 {
				for _, v := range []struct {
					op    device.WROp
					wc    string
					after uint64
					takes bool
				}{
					{device.OpCompareSwap, "COMP_SWAP 8", 77, true}, {device.OpFetchAdd, "FETCH_ADD 8", 2 * was, true},
					{device.OpAtomicWrite, "ATOMIC_WRITE 8", was + 1, false}, {device.OpFlush, "FLUSH 0", was, false},
				} {
					clear(a.mr.Bytes())
					setWord(a.mr, 96, was+1)
					setWord(b.mr, 64, was)
					wr := device.SendWR{ID: 6, Op: v.op, SGE: list(a.mr, 96, 8, shape), CompareAdd: was, Swap: 77, RemoteAddr: b.mr.Addr() + 64, RKey: b.mr.RKey(), Flags: device.Signaled}
					if v.op == device.OpFlush {
						wr.SGE, wr.FlushType, wr.FlushLen = nil, 1, 8
					}
					if typ == device.XRCIni {
						wr.SRQN = b.srq.Num()
					}
					if err := a.qp.PostSend(&wr); err != nil {
						t.Fatal(err)
					}
					time.Sleep(time.Second)
					sameList(t, v.op.String(), briefWC(drain(a.scq)), []string{"6 SUCCESS " + v.wc})
					want(t, "remote", word(b.mr, 64), v.after)
					result := uint64(was + 1)
					if v.takes {
						result = was
					}
					want(t, "local", word(a.mr, 96), result)
				}
			}
		})
	}
}
