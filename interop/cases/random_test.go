package cases

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// seeds gives the random tests their seeds: a few that are always the same and one that
// is new. Each test prints its own.
func seeds(t *testing.T, f func(t *testing.T, r *rand.Rand)) {
	for i := range 7 {
		seed := uint64(i)
		if i == 6 {
			seed = rand.Uint64()
		}
		bubble(t, fmt.Sprintf("seed %d", i), func(t *testing.T) {
			t.Logf("seed %d", seed)
			f(t, rand.New(rand.NewPCG(seed, 0)))
		})
	}
}

// As responder, against a peer whose network loses, repeats and reorders requests: every
// message is executed once and in order, READs are answered with the right bytes whenever
// they are answered, and nothing is fatal.
func TestRandomRequests(t *testing.T) {
	seeds(t, func(t *testing.T, r *rand.Rand) {
		const mtu, messages = 256, 150
		start := uint32(0xFFFF80)
		l := newLab(t, labConfig{Latency: time.Duration(r.IntN(2)) * time.Microsecond})
		c := l.rc(func(o *rcOptions) { o.MTU, o.RQPSN, o.Resp = mtu, start, 16 }) // 10 READs at most come at once
		// READs read one half, WRITEs write the other, so that a READ has one answer.
		mr := l.mr(1<<16, all)
		copy(mr.Bytes(), pattern(1, 1<<15))
		model := bytes.Clone(mr.Bytes())
		buf := l.mr(messages*1024, all)
		var frames []*peer.Frame // what the peer has to say, in PSN order; a READ takes several PSNs
		var wantRecv []string
		reads := map[uint32][]byte{} // answer, by PSN offset
		psn, recvs := uint32(0), 0
		for m := range messages {
			n := r.IntN(4 * mtu)
			data := pattern(byte(m), n)
			switch r.IntN(3) {
			case 0:
				c.recvAt(uint64(recvs), buf, recvs*1024)
				wantRecv = append(wantRecv, fmt.Sprintf("%d SUCCESS RECV %d", recvs, n))
				recvs++
				for _, f := range sendOf(start+psn, mtu, data) {
					frames = append(frames, f)
					psn++
				}
			case 1:
				off := 1<<15 + r.IntN(1<<14)
				copy(model[off:], data)
				fs := sendOf(start+psn, mtu, data)
				for i, f := range fs {
					f.Op += peer.OpWriteFirst
					if i == 0 {
						f.RETH = peer.RETH{VA: mr.Addr() + uint64(off), RKey: mr.RKey(), Len: uint32(n)}
					}
					frames = append(frames, f)
					psn++
				}
			case 2:
				off := r.IntN(1 << 14)
				frames = append(frames, peer.ReadRequest(nicQP, start+psn, mr.Addr()+uint64(off), mr.RKey(), uint32(n)))
				for i := range max(1, (n+mtu-1)/mtu) {
					reads[psn] = model[off+i*mtu : off+min((i+1)*mtu, n)]
					psn++
				}
			}
		}
		// The loss: at each step the next frame in order, an old one, or a later one.
		next := 0
		for next < len(frames) {
			for range 1 + r.IntN(5) {
				switch k := r.IntN(10); {
				case k < 6 && next < len(frames):
					c.gets(frames[next])
					next++
				case k < 8:
					// READs older than the depth go unanswered; that is no error.
					c.gets(frames[r.IntN(min(next+1, len(frames)))])
					if next < len(frames) && r.IntN(2) == 0 {
						c.gets(frames[next])
						next++
					}
				default:
					c.gets(frames[min(len(frames)-1, next+1+r.IntN(3))])
				}
			}
			for _, f := range l.take() {
				off := (f.PSN - start) & 0xFFFFFF
				switch {
				case f.Op == peer.OpAck && (f.AETH.Syndrome == peer.SynAck || f.AETH.Syndrome == peer.SynNakSequence):
				case f.Op.IsResponse() && f.Op != peer.OpAck:
					if !bytes.Equal(f.Payload, reads[off]) {
						t.Fatalf("READ response at +%d has the wrong bytes: %v", off, f)
					}
				default:
					t.Fatalf("answer %v", f)
				}
			}
		}
		// Everything once more in order: duplicates, or what a gap held up.
		for _, f := range frames {
			c.gets(f)
			l.take()
		}
		c.state(device.StateRTS)
		l.events()
		sameList(t, "receives", briefWC(drain(c.rcq)), wantRecv)
		if !bytes.Equal(mr.Bytes(), model) {
			t.Fatal("memory is not what the WRITEs say")
		}
		c.gets(peer.WriteOnly(nicQP, start+psn, 0, 0, nil))
		l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", (start+psn)&0xFFFFFF, messages+1))
	})
}

func (c *conn) recvAt(id uint64, mr *device.MR, off int) {
	c.t.Helper()
	if err := c.qp.PostRecv(&device.RecvWR{ID: id, SGE: []device.SGE{mr.SGE(off, 1024)}}); err != nil {
		c.t.Fatalf("post_recv %d: %v", id, err)
	}
}

// As requester, against a peer that is an honest responder behind a bad network: it loses
// requests and answers, is not ready now and then, repeats answers. Everything completes
// with success, once, in order, and READs bring the right bytes.
func TestRandomAnswers(t *testing.T) {
	seeds(t, func(t *testing.T, r *rand.Rand) {
		const mtu, messages = 256, 120
		start := uint32(0xFFFF80)
		l := newLab(t, labConfig{})
		c := l.rc(func(o *rcOptions) { o.MTU, o.SQPSN, o.Init, o.RetryCnt, o.RNRRetry = mtu, start, 1+r.IntN(8), 7, 7 })
		src := l.mr(1<<12, 0)
		copy(src.Bytes(), pattern(2, 1<<12))
		dst := l.mr(messages*1024, device.LocalWrite)
		var wantWC []string
		var lens []int
		for m := range messages {
			n := r.IntN(4*mtu) + 1
			lens = append(lens, n)
			wr := device.SendWR{SGE: sge(src, n), RemoteAddr: remoteVA, RKey: remoteKey}
			switch r.IntN(3) {
			case 0:
				wr.Op = device.OpSend
				wantWC = append(wantWC, fmt.Sprintf("%d SUCCESS SEND %d", m+1, n))
			case 1:
				wr.Op = device.OpWrite
				wantWC = append(wantWC, fmt.Sprintf("%d SUCCESS RDMA_WRITE %d", m+1, n))
			case 2:
				wr.Op, wr.SGE, wr.RemoteAddr = device.OpRead, []device.SGE{dst.SGE(m*1024, n)}, uint64(m)<<16
				wantWC = append(wantWC, fmt.Sprintf("%d SUCCESS RDMA_READ %d", m+1, n))
			}
			c.post(wr)
		}
		// The responder: an expected PSN, and whether a NAK is out.
		e, msn, muted, inMessage, n := start, uint32(0), false, 0, 0
		// What was sent four times is not lost any more, so that retry_cnt suffices.
		times, chance := map[uint32]int{}, func(n int) bool { return r.IntN(n) == 0 }
		answer := func(f *peer.Frame) {
			if !chance(8) {
				c.gets(f)
			}
			if chance(20) {
				c.gets(f)
			}
		}
		var got []string
		for len(got) < messages {
			f := l.nextOrNothing(2 * time.Second)
			if f == nil {
				got = append(got, briefWC(drain(c.scq))...)
				t.Fatalf("the device is silent, state %v, the last of %d completions:\n%v\nfrom PSN %06x on", c.qp.State(), messages, got[max(0, len(got)-3):], e)
			}
			n++
			if n > 200000 {
				t.Fatal("no end")
			}
			got = append(got, briefWC(drain(c.scq))...)
			if times[f.PSN]++; times[f.PSN] > 3 {
				chance = func(int) bool { return false }
			} else {
				chance = func(n int) bool { return r.IntN(n) == 0 }
			}
			if chance(12) {
				continue // lost
			}
			d := int32((f.PSN-e)<<8) >> 8
			read := f.Op == peer.OpReadRequest
			packets := uint32(1)
			if read {
				packets = max(1, (f.RETH.Len+mtu-1)/mtu)
			}
			switch {
			case d > 0:
				if !muted {
					muted = true
					answer(peer.Nak(nicQP, e, peer.SynNakSequence, msn))
				}
				continue
			case d == 0:
				muted = false
				if f.Op == peer.OpSendOnly && chance(10) {
					muted = true
					answer(peer.RNRNak(nicQP, e, uint8(1+r.IntN(12)), msn))
					continue
				}
				switch f.Op {
				case peer.OpSendFirst, peer.OpWriteFirst:
					inMessage = 0
				}
				if !read {
					k := len(f.Payload)
					if !bytes.Equal(f.Payload, src.Bytes()[inMessage*mtu:inMessage*mtu+k]) {
						t.Fatalf("wrong bytes in %v", f)
					}
					inMessage++
				}
				switch f.Op {
				case peer.OpSendFirst, peer.OpSendMiddle, peer.OpWriteFirst, peer.OpWriteMiddle:
				default:
					msn++
					inMessage = 0
				}
				e = (e + packets) & 0xFFFFFF
			}
			switch {
			case read:
				b := make([]byte, f.RETH.Len)
				for i := range b {
					b[i] = hookByte(f.RETH.VA + uint64(i))
				}
				// In the middle of it the network may break down.
				for _, x := range readAnswer(f.PSN, msn, mtu, b) {
					if chance(30) {
						break
					}
					answer(x)
				}
			case f.AckReq && d == 0:
				answer(ack(f.PSN, msn))
			case d < 0:
				answer(ack(e-1, msn))
			}
			l.settle()
			got = append(got, briefWC(drain(c.scq))...)
		}
		sameList(t, "completions", got, wantWC)
		for m, wc := range wantWC {
			if !bytes.Contains([]byte(wc), []byte("READ")) {
				continue
			}
			for i := range lens[m] {
				if b := dst.Bytes()[m*1024+i]; b != hookByte(uint64(m)<<16+uint64(i)) {
					t.Fatalf("READ %d: byte %d is %02x", m+1, i, b)
				}
			}
		}
		l.take()
		c.state(device.StateRTS)
		l.counts("drop_bad-response=0", "drop_ghost-response=0")
	})
}

// nextOrNothing is the next frame that the device emits within d, nil if there is none.
func (l *lab) nextOrNothing(d time.Duration) *peer.Frame {
	l.t.Helper()
	b, err := l.conn.Read(time.Now().Add(d))
	if err != nil {
		return nil
	}
	return l.check(b)
}

// Frames that are well formed and make no sense, with right ICRCs, at a connection: nothing
// panics, nothing is written that no key allows, and another connection works on.
func TestRandomFrames(t *testing.T) {
	seeds(t, func(t *testing.T, r *rand.Rand) {
		l := newLab(t, labConfig{})
		victim := l.rc(func(o *rcOptions) { o.QPN = 0x55 })
		c := l.rc(nil)
		u := l.ud(device.StateRTS)
		l.destQP = 0
		mr, own := l.mr(4096, device.LocalWrite|device.RemoteRead|device.RemoteWrite), l.mr(8192, device.LocalWrite)
		guard := filled(0x77, 8192)
		copy(own.Bytes(), guard)
		psn := uint32(0x200)
		for i := range 250 {
			f := peer.NewFrame(peer.Op(r.IntN(256)), 0x55, 0x200+uint32(r.IntN(8))-2)
			if r.IntN(2) == 0 {
				f.Op = peer.Op(r.IntN(0x20))
			}
			if r.IntN(5) == 0 {
				f.DestQP = udQP
			}
			if f.Op.IsResponse() {
				f.PSN = 0x100 + uint32(r.IntN(8)) - 2
			}
			f.SE, f.AckReq, f.BECN = r.IntN(2) == 0, r.IntN(2) == 0, r.IntN(2) == 0
			f.Payload = make([]byte, []int{0, 1, 4, 100, 1024, 1028, 4000}[r.IntN(7)])
			if r.IntN(8) == 0 {
				f.PadCount, f.PadBytes = new(uint8(r.IntN(4))), make([]byte, r.IntN(4))
			}
			keys := []uint32{mr.RKey(), mr.LKey(), own.LKey(), own.RKey(), r.Uint32()}
			vas := []uint64{mr.Addr(), mr.Addr() + 4096, own.Addr(), 0, ^uint64(0), r.Uint64()}
			f.RETH = peer.RETH{VA: vas[r.IntN(len(vas))], RKey: keys[r.IntN(len(keys))], Len: []uint32{0, 1, 4, 100, 1024, 4096, 5000, 1 << 31, 1<<31 + 1, ^uint32(0)}[r.IntN(10)]}
			f.Atomic = peer.AtomicETH{VA: f.RETH.VA, RKey: f.RETH.RKey}
			f.AETH = peer.AETH{Syndrome: peer.Syndrome(r.IntN(256)), MSN: r.Uint32()}
			f.DETH = peer.DETH{QKey: qkey, SrcQP: r.Uint32()}
			l.p.Send(t, f)
			l.take()
			// Bring the victim back to life, with work of its own in flight.
			if victim.qp.State() != device.StateRTS || i%60 == 0 {
				for _, s := range []device.State{device.StateReset, device.StateInit, device.StateRTR, device.StateRTS} {
					victim.to(s)
				}
				victim.recv(1, mr, 4096)
				victim.recv(2, nil, 0)
				victim.send(mr, 1500)
				victim.read(mr, 1500)
				victim.write(mr, 8)
			}
			if u.qp.State() != device.StateRTS {
				t.Fatal("a datagram stopped a UD queue pair")
			}
			if i%50 == 0 {
				u.recv(1, mr.SGE(0, 2000))
				drain(u.rcq)
				l.take()
				c.gets(peer.WriteOnly(nicQP, psn, mr.Addr(), mr.RKey(), []byte("alive")))
				l.emits(fmt.Sprintf("ACKNOWLEDGE %06x 1f m%d", psn, psn-0x1FF))
				psn++
			}
			for range 4 {
				if _, ok := l.ctx.TryAsyncEvent(); !ok {
					break
				}
			}
			drain(victim.rcq)
			drain(victim.scq)
		}
		wantBytes(t, "memory that no remote key names", own.Bytes(), guard)
		c.state(device.StateRTS)
	})
}
