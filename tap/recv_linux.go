package tap

import (
	"net"
	"syscall"
	"time"
	"unsafe"

	"github.com/softnic/softnic/link"
	"golang.org/x/sys/unix"
)

// bufLen is what a received frame may be long that is one packet: one byte more than the longest
// there should be, to tell one that is cut off.
const bufLen = ethLen + vlanLen + MaxMTU + 1

// buffers is what Recv keeps with a link.Batch: what was read, and how far that has been taken.
type buffers struct {
	slab  []byte
	most  int      // room that a read must have
	end   int      // of what was read, in slab
	reads [][]byte // as the kernel gave them, in slab
	n     int      // how many
	at    int      // the next one to be taken
	all   bool     // there were no more
	when  time.Time
	burst burst           // the one before that, if it is one: what is left of it
	heads [][headLen]byte // of the packets of bursts in the batch
	whole []byte          // the same packets, each in one piece: for who diverts frames
}

// stride is how far frames lie apart: whole cache lines.
const stride = (bufLen + 63) &^ 63

func newBuffers(n int, vnet bool) *buffers {
	r := &buffers{most: bufLen, reads: make([][]byte, n)}
	if vnet {
		r.most = vnetLen + maxFrame + 1
		r.heads = make([][headLen]byte, n)
	}
	r.slab = make([]byte, n*stride+r.most)
	return r
}

// Recv fills b with RoCE packets; see link.Endpoint. All else that arrives is
// dealt with on the way. The error is net.ErrClosed after Close, and when the interface is gone.
func (t *Tap) Recv(b *link.Batch, wait bool) error {
	b.Packets = b.Packets[:0]
	room := cap(b.Packets)
	if t.ended.Load() {
		return net.ErrClosed
	}
	if room == 0 {
		return nil
	}
	r := b.Scratch(func() any { return newBuffers(room, t.vnet) }).(*buffers)
	for r.all = false; ; {
		// First what the last read left: a burst may have more packets than there was room for.
		if t.sort(b, r); len(b.Packets) > 0 || r.all && !wait {
			return nil
		}
		t.rx, t.rxWait = r, wait
		err := t.conn.Read(t.rxCall)
		t.rx = nil
		r.when = t.clock.Now()
		switch {
		case err != nil: // closed by us, or the poller saw the interface go
			return t.readError(unix.EBADFD)
		case t.rxErr != 0 && r.n == 0:
			return t.readError(t.rxErr)
		}
	}
}

// readAll reads what there is. It returns false when there is nothing and the
// caller is to wait.
func (t *Tap) readAll(fd uintptr) bool {
	r := t.rx
	r.n, r.at, r.end, t.rxErr = 0, 0, 0, 0
	for r.n < len(r.reads) && len(r.slab)-r.end >= r.most {
		buf := r.slab[r.end : r.end+r.most]
		read, _, errno := unix.RawSyscall(unix.SYS_READ, fd, uintptr(unsafe.Pointer(&buf[0])), uintptr(len(buf)))
		switch n := int(read); errno {
		case 0:
			r.reads[r.n] = buf[:n:n]
			r.n++
			r.end += (n + 63) &^ 63
		case unix.EINTR:
		case unix.EAGAIN:
			r.all = true
			return r.n > 0 || !t.rxWait
		default:
			t.rxErr = errno
			return true
		}
	}
	return true
}

// Divert has Recv bring in other frames than RoCE packets too; see link.Diverter. Those that the NIC answers by itself
// are answered all the same.
func (t *Tap) Divert(f func(frame []byte) bool) {
	if f == nil {
		t.other.Store(nil)
		return
	}
	t.other.Store(&f)
}

// sort puts RoCE packets into the batch and deals with the rest, until the batch is full.
func (t *Tap) sort(b *link.Batch, r *buffers) {
	other := t.other.Load()
	for len(b.Packets) < cap(b.Packets) {
		switch {
		case len(r.burst.rest) > 0:
			t.takeNext(b, r, other)
		case r.at < r.n:
			r.at++
			t.take(b, r, r.reads[r.at-1], other)
		default:
			return
		}
	}
}

// take deals with a frame. Of a burst it takes no packet yet.
func (t *Tap) take(b *link.Batch, r *buffers, frame []byte, other *func([]byte) bool) {
	var h vnet
	if t.vnet {
		if len(frame) < vnetLen {
			t.count.malformed.Inc()
			return
		}
		h, frame = frame[:vnetLen], frame[vnetLen:]
	}
	f := t.node.classify(frame)
	switch {
	case h != nil && h.gso() != gsoNone:
		t.takeBurst(r, h, frame, f.verdict, other != nil)
		return
	case len(frame) >= bufLen:
		t.count.oversize.Inc()
		return
	case h == nil || !h.needsSum():
	case f.verdict == deliver:
		f.clearSum(frame)
	case (f.verdict == control || other != nil) && !h.complete(frame):
		f.verdict = malformed
	}
	if f.verdict == deliver {
		p := b.Add()
		p.Frame, p.When = frame, r.when
		return
	}
	if f.verdict == control {
		t.mu.Lock()
		f.verdict = t.node.answer(frame, f, r.when)
		t.mu.Unlock()
	}
	if other != nil && len(frame) >= ethLen && (*other)(frame) {
		p := b.Add()
		p.Frame, p.When, p.Other = frame, r.when, true
		return
	}
	t.countFrame(f.verdict)
}

// takeBurst begins to take a burst apart, if anybody wants its packets.
func (t *Tap) takeBurst(r *buffers, h vnet, frame []byte, v verdict, diverted bool) {
	if v == control { // nothing that is answered comes in bursts
		v = malformed
	}
	if v != deliver && !diverted {
		t.countFrame(v)
		return
	}
	switch ok, fits := r.burst.open(h, frame); {
	case !ok:
		t.count.malformed.Inc()
	case !fits:
		t.count.oversize.Inc()
	default:
		r.burst.verdict = v
	}
}

// takeNext takes the next packet of a burst. A RoCE packet stays where it is, behind headers of its own, unless somebody diverts frames:
// then it is copied, as other packets are, to be in one piece.
func (t *Tap) takeNext(b *link.Batch, r *buffers, other *func([]byte) bool) {
	s, i := &r.burst, len(b.Packets)
	roce := s.verdict == deliver
	head := r.heads[i][:len(s.head)]
	payload := s.next(head, !roce)
	if roce && other == nil {
		p := b.Add()
		p.Eth, p.Net, p.IB, p.When = head[:s.eth:s.eth], head[s.eth:], payload, r.when
		return
	}
	if r.whole == nil {
		r.whole = make([]byte, len(r.heads)*stride)
	}
	frame := append(append(r.whole[i*stride:i*stride:(i+1)*stride], head...), payload...)
	if !roce && (other == nil || !(*other)(frame)) {
		t.countFrame(s.verdict)
		return
	}
	p := b.Add()
	p.Frame, p.Other, p.When = frame, !roce, r.when
}

// countFrame counts a frame, or a packet of a burst, that is nobody's.
func (t *Tap) countFrame(v verdict) {
	switch v {
	case ignored:
		t.count.ignored.Inc()
	case foreign:
		t.count.foreign.Inc()
	case malformed:
		t.count.malformed.Inc()
	}
}

// readError makes an error of the descriptor the caller's: there is nothing more
// to come, so it is net.ErrClosed.
func (t *Tap) readError(errno syscall.Errno) error {
	if t.ended.Load() {
		return net.ErrClosed
	}
	if errno == unix.EBADFD {
		return errorOf(net.ErrClosed, "tap %s: somebody removed the interface: start again", t.name)
	}
	return errorOf(net.ErrClosed, "tap %s: reading: %v", t.name, errno)
}
