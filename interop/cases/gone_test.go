package cases

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/transport"
)

// ownedMemory is the memory of a program that may have ended.
type ownedMemory struct {
	hookMemory
	err error
}

func (m *ownedMemory) ReadV([]transport.Extent) error                     { return m.err }
func (m *ownedMemory) WriteV([]transport.Extent) error                    { return m.err }
func (m *ownedMemory) Atomic64(uint64, *transport.Atomic) (uint64, error) { return 7, m.err }
func (m *ownedMemory) Store64(uint64, uint64) error                       { return m.err }

// The owner of memory ends before its queue pairs do: what comes for it meanwhile is dropped without an answer, and
// changes nothing (transport.ErrGone); memory that fails otherwise is an error of the peer's request, or of the
// receive.
func TestOwnerGone(t *testing.T) {
	for _, v := range []struct {
		name string
		f    func(mr *device.MR) *peer.Frame
		nak  string // when the memory fails otherwise
	}{
		{"WRITE", func(mr *device.MR) *peer.Frame {
			return peer.WriteOnly(nicQP, 0x200, mr.Addr(), mr.RKey(), []byte("data"))
		}, "62 m0"},
		{"READ", func(mr *device.MR) *peer.Frame { return peer.ReadRequest(nicQP, 0x200, mr.Addr(), mr.RKey(), 8) }, "62 m1"},
		{"atomic", func(mr *device.MR) *peer.Frame { return peer.FetchAdd(nicQP, 0x200, mr.Addr(), mr.RKey(), 1) }, "62 m0"},
		{"ATOMIC WRITE", func(mr *device.MR) *peer.Frame {
			return peer.AtomicWrite(nicQP, 0x200, mr.Addr(), mr.RKey(), make([]byte, 8))
		}, "62 m0"},
		{"SEND", func(*device.MR) *peer.Frame { return peer.SendOnly(nicQP, 0x200, []byte("data")) }, "63 m0"},
	} {
		for _, gone := range []bool{true, false} {
			bubble(t, fmt.Sprintf("%s/gone=%v", v.name, gone), func(t *testing.T) {
				l := newLab(t, labConfig{})
				c := l.rc(allOps)
				mem := &ownedMemory{err: transport.ErrGone}
				if !gone {
					mem.err = device.EFAULT
				}
				mr := must(l.pd.RegMemory(mem, 0x10000, 4096, every))
				c.recv(1, mr, 64)
				c.gets(v.f(mr))
				if !gone {
					l.emits("ACKNOWLEDGE 000200 " + v.nak)
					c.state(device.StateErr)
					return
				}
				l.emits()
				l.p.ExpectSilence(t, time.Second)
				c.received()
				c.sent()
				l.events()
				c.state(device.StateRTS)
				if v.name != "READ" { // which was executed: its answer is what is missing
					want(t, "drops", l.drops(), "local-memory=1")
				}
			})
		}
	}
	// What is sent from it is an error like any other: there is still a queue to tell.
	for _, err := range []error{transport.ErrGone, device.EFAULT} {
		bubble(t, fmt.Sprintf("requester/%v", err), func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			good, mem := l.mr(64, 0), &ownedMemory{err: err}
			mr := must(l.pd.RegMemory(mem, 0x10000, 4096, 0))
			c.send(good, 8)
			c.send(mr, 8)
			c.send(good, 8)
			l.emits("SEND_ONLY 000100 ar [8]")
			c.sent()
			c.gets(ack(0x100, 1))
			c.sent("1 SUCCESS SEND 8", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
			c.state(device.StateErr)
		})
	}
}

// programRing is the queues of a program: what it has posted, and how many places it has back.
type programRing struct {
	mu             sync.Mutex
	sends          []device.SendWR
	recvs          []device.RecvWR
	retired, fetch int
}

type programSends struct{ *programRing }
type programRecvs struct{ *programRing }

func (r programSends) Fetch(wr *device.SendWR) (device.Status, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sends) == 0 {
		return 0, false
	}
	wr.CopyFrom(&r.sends[0])
	r.sends = r.sends[1:]
	return 0, true
}
func (r programSends) Retire(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.retired += n
}
func (r programSends) Clear() {}

func (r programRecvs) Fetch(wr *device.RecvWR) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fetch++
	if len(r.recvs) == 0 {
		return false
	}
	wr.CopyFrom(&r.recvs[0])
	r.recvs = r.recvs[1:]
	return true
}
func (r programRecvs) Retire(int) {}
func (r programRecvs) Clear()     {}

// What PostSend refuses is a completion where the queue is a ring of a program: LOC_LEN_ERR for what is too long, else
// LOC_QP_OP_ERR. Those before it are sent, those behind it flushed.
func TestRingRequests(t *testing.T) {
	for _, v := range []struct {
		name   string
		typ    device.QPType
		wr     device.SendWR
		status string // "" if it is good
	}{
		{"good", device.RC, device.SendWR{Op: device.OpSend}, ""},
		{"unknown operation", device.RC, device.SendWR{Op: 77}, "LOC_QP_OP_ERR"},
		{"operation of another service", device.UC, device.SendWR{Op: device.OpRead}, "LOC_QP_OP_ERR"},
		{"more entries than there may be", device.RC, device.SendWR{Op: device.OpSend, SGE: make([]device.SGE, 3)}, "LOC_QP_OP_ERR"},
		{"more inline than there may be", device.RC, device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: make([]byte, 33)}, "LOC_QP_OP_ERR"},
		{"an atomic of 4 bytes", device.RC, device.SendWR{Op: device.OpFetchAdd, SGE: []device.SGE{{Length: 4}}}, "LOC_QP_OP_ERR"},
		{"2^31+1 bytes", device.RC, device.SendWR{Op: device.OpSend, SGE: []device.SGE{{Length: 1 << 31}, {Length: 1}}}, "LOC_LEN_ERR"},
		{"2^32 bytes", device.RC, device.SendWR{Op: device.OpWrite, SGE: []device.SGE{{Length: 1 << 31}, {Length: 1 << 31}}}, "LOC_LEN_ERR"},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 16}))
			r := &programRing{}
			l.dice.push(nicQP)
			q := must(l.pd.CreateQP(device.QPInit{Type: v.typ, SendCQ: cq, RecvCQ: cq, SigAll: true, SendRing: programSends{r}, RecvRing: programRecvs{r},
				Cap: device.Cap{SendWR: 8, RecvWR: 8, SendSGE: 2, RecvSGE: 2, Inline: 32}}))
			if err := q.Connect(0x100, device.Remote{GID: device.GIDOf(peer4), QPN: peerQP, PSN: 0x200}, device.ConnectOptions{}); err != nil {
				t.Fatal(err)
			}
			first, bad, last := device.SendWR{ID: 1, Op: device.OpSend}, v.wr, device.SendWR{ID: 3, Op: device.OpSend}
			bad.ID = 2
			r.sends = []device.SendWR{first, bad, last}
			if err := q.Doorbell(); err != nil {
				t.Fatal(err)
			}
			n := 3
			if v.status != "" {
				n = 1
			}
			want(t, "frames", len(l.take()), n)
			if v.typ == device.RC {
				l.p.Send(t, peer.Ack(nicQP, 0x100+uint32(n)-1, uint32(n)))
			}
			wants := []string{"1 SUCCESS SEND 0", "2 SUCCESS SEND 0", "3 SUCCESS SEND 0"}
			if v.status != "" {
				wants = []string{wants[0], "2 " + v.status, "3 WR_FLUSH_ERR"}
			}
			sameList(t, "completions", briefWC(drain(cq)), wants)
			want(t, "places given back", r.retired, 3)
			if v.typ == device.UC {
				want(t, "state", q.State(), device.StateSQE)
				return
			}
			if v.status == "" {
				if err := q.Modify(&device.QPAttr{State: device.StateErr}, device.AttrState); err != nil {
					t.Fatal(err)
				}
			}
			// In ERR a receive that is posted rings no doorbell: the queue is looked at, now and then.
			r.mu.Lock()
			looks := r.fetch
			r.mu.Unlock()
			time.Sleep(time.Second)
			l.settle()
			r.mu.Lock()
			if n := r.fetch - looks; n < 100 || n > 500 {
				t.Errorf("looked %d times in a second", n)
			}
			r.recvs = append(r.recvs, device.RecvWR{ID: 9})
			r.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			sameList(t, "receive", briefWC(drain(cq)), []string{"9 WR_FLUSH_ERR"})
			// And so are requests: a program that rings no doorbell in ERR has them flushed all the same.
			r.mu.Lock()
			r.sends = append(r.sends, device.SendWR{ID: 10, Op: device.OpSend})
			r.mu.Unlock()
			time.Sleep(5 * time.Millisecond)
			sameList(t, "request", briefWC(drain(cq)), []string{"10 WR_FLUSH_ERR"})
		})
	}
}

// What the profiles do is bound to what it is about: retry_cnt 7 alone has no end, and of the specification's
// adapter none of it is seen.
func TestProfileRules(t *testing.T) {
	for _, v := range []struct {
		profile string
		retries int
		ends    bool
	}{{"rxe", 7, false}, {"rxe", 6, true}, {"rxe", 0, true}, {"ibta", 7, true}, {"connectx", 7, true}} {
		bubble(t, fmt.Sprintf("retries/%s/%d", v.profile, v.retries), func(t *testing.T) {
			l := newLab(t, labConfig{Profile: v.profile})
			c := l.rc(func(o *rcOptions) { o.RetryCnt, o.Timeout = v.retries, 8 })
			c.write(l.mr(8, all), 8)
			time.Sleep(time.Second) // T is 1.05 ms
			n := len(l.take())
			if v.ends {
				want(t, "times sent", n, v.retries+1)
				c.sent("1 RETRY_EXC_ERR")
				return
			}
			if n < 100 {
				t.Errorf("sent %d times", n)
			}
			c.state(device.StateRTS)
		})
	}
	for _, v := range []struct {
		profile string
		acks    []string
	}{
		{"rxe", []string{"ACKNOWLEDGE 000200 1f m1", "ACKNOWLEDGE 000201 1f m2", "ACKNOWLEDGE 000202 1f m3"}},
		{"ibta", []string{"ACKNOWLEDGE 000202 1f m3"}},
		{"connectx", []string{"ACKNOWLEDGE 000202 03 m3"}},
	} {
		bubble(t, "acknowledgements/"+v.profile, func(t *testing.T) {
			l := newLab(t, labConfig{Profile: v.profile, Latency: time.Microsecond})
			c := l.rc(nil)
			for i := range uint64(6) {
				c.recv(i, nil, 0)
			}
			c.gets(peer.SendOnly(nicQP, 0x200, nil), peer.SendOnly(nicQP, 0x201, nil), peer.SendOnly(nicQP, 0x202, nil))
			l.emits(v.acks...)
		})
	}
	// A shared queue has no credits to give.
	bubble(t, "credits of a shared queue", func(t *testing.T) {
		l := newLab(t, labConfig{Profile: "connectx"})
		s := l.shared(1, device.SRQInit{MaxWR: 8}, device.RC)
		for i := range uint64(4) {
			s.recv(i, 0)
		}
		s.to(0, peer.SendOnly(nicQP, 0x200, nil))
		l.emits("ACKNOWLEDGE 000200 1f m1")
	})
}

// Receives of a shared queue lie in its own protection domain, whatever that of the queue pair is; what requests name is
// that of the queue pair.
func TestSRQDomain(t *testing.T) {
	for _, typ := range []device.QPType{device.RC, device.UC, device.UD} {
		for _, own := range []bool{true, false} {
			bubble(t, fmt.Sprintf("%v/own=%v", typ, own), func(t *testing.T) {
				l := newLab(t, labConfig{})
				ours, theirs := l.pd, must(l.ctx.AllocPD())
				cq := must(l.ctx.CreateCQ(device.CQInit{Entries: 16}))
				srq := must(theirs.CreateSRQ(device.SRQInit{MaxWR: 4}))
				l.dice.push(nicQP)
				q := must(ours.CreateQP(device.QPInit{Type: typ, SendCQ: cq, RecvCQ: cq, SRQ: srq, SigAll: true, Cap: device.Cap{SendWR: 4}}))
				var f *peer.Frame
				switch typ {
				case device.UD:
					if err := q.Activate(qkey, 0); err != nil {
						t.Fatal(err)
					}
					f = peer.UDSend(nicQP, 0, qkey, peerUD, []byte("data"))
				default:
					if err := q.Connect(0x100, device.Remote{GID: device.GIDOf(peer4), QPN: peerQP, PSN: 0x200}, device.ConnectOptions{}); err != nil {
						t.Fatal(err)
					}
					if f = peer.SendOnly(nicQP, 0x200, []byte("data")); typ == device.UC {
						f.AsUC()
					}
				}
				pd := ours
				if own {
					pd = theirs
				}
				mr := must(pd.RegMR(make([]byte, 64), all))
				if err := srq.PostRecv(&device.RecvWR{ID: 1, SGE: []device.SGE{mr.SGE(0, 64)}}); err != nil {
					t.Fatal(err)
				}
				l.p.Send(t, f)
				l.take()
				if !own {
					sameList(t, "completions", briefWC(drain(cq)), []string{"1 LOC_PROT_ERR"})
					want(t, "state", q.State(), device.StateErr)
					return
				}
				n := len(f.Payload)
				if typ == device.UD {
					n += 40
				}
				sameList(t, "completions", briefWC(drain(cq)), []string{fmt.Sprintf("1 SUCCESS RECV %d", n)})
				if typ != device.RC {
					return
				}
				l.p.Send(t, peer.WriteOnly(nicQP, 0x201, mr.Addr(), mr.RKey(), []byte("evil")))
				l.emits("ACKNOWLEDGE 000201 62 m1")
			})
		}
	}
}
