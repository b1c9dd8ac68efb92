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

// Every message operation between two devices, of 0, 1, MTU-1, MTU, MTU+1 bytes and more, out of lists
// and into lists with empty entries.
func TestOpsSizes(t *testing.T) {
	const m = 1024
	for _, typ := range []device.QPType{device.RC, device.UC} {
		for shape := range 3 {
			bubble(t, fmt.Sprintf("%v, shape %d", typ, shape), func(t *testing.T) {
				n := newNet(t, netConfig{pairs: []device.QPType{typ}})
				a, b := n.q[0][0], n.q[0][1]
				for _, size := range []int{0, 1, 2, m - 1, m, m + 1, 2*m - 1, 3 * m, 3*m + 5} {
					for _, op := range []device.WROp{device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm, device.OpRead, device.OpSendInv} {
						if typ == device.UC && (op == device.OpRead || op == device.OpSendInv) {
							continue
						}
						clear(b.mr.Bytes())
						clear(a.mr.Bytes()[8192:])
						copy(a.mr.Bytes(), pattern(byte(size), 4096))
						copy(b.mr.Bytes()[16384:], pattern(byte(size)+1, 4096))
						if err := b.qp.PostRecv(&device.RecvWR{ID: 5, SGE: list(b.mr, 8192, 4096, shape)}); err != nil {
							t.Fatal(err)
						}
						wr := device.SendWR{ID: 6, Op: op, SGE: list(a.mr, 0, size, shape), Imm: 0x01020304, RemoteAddr: b.mr.Addr() + 100, RKey: b.mr.RKey(), Flags: device.Signaled}
						got, src := b.mr.Bytes()[8192:], a.mr.Bytes()[:size]
						recv := fmt.Sprintf("5 SUCCESS RECV %d", size)
						send := fmt.Sprintf("6 SUCCESS %s %d", strings.TrimPrefix(op.Completed().String(), "IBV_WC_"), size)
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
						case device.OpSendInv:
							wr.Imm = b.window(t)
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
							if err := a.qp.PostSend(&device.SendWR{Op: device.OpSend}); err != nil {
								t.Fatal(err)
							}
							time.Sleep(time.Second)
						}
						sameList(t, op.String(), fullWC(drain(b.rcq)), []string{recv})
						wantBytes(t, op.String(), got[:size], src)
						want(t, "the byte behind", got[size], 0)
					}
				}
			})
		}
	}
}
