package tap

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
	"golang.org/x/sys/unix"
)

// Tap is a NIC's end of a TAP interface. It implements link.Endpoint.
type Tap struct {
	name  string // as configured: for messages
	file  *os.File
	conn  syscall.RawConn
	dev   *netdev
	clock clock.Clock
	log   *slog.Logger
	addrs []netip.Prefix
	mac   net.HardwareAddr
	host  []netip.Prefix

	info  atomic.Pointer[link.Info]
	watch atomic.Pointer[func()]
	other atomic.Pointer[func(frame []byte) bool] // Divert
	dirty chan struct{}                           // Info changed
	gone  atomic.Bool                             // somebody removed the interface
	ended atomic.Bool                             // Close was called

	// The node, its timer, and what emit uses.
	mu      sync.Mutex
	node    *node
	timer   clock.Timer
	timerAt time.Time // when the timer fires; zero: it is not set
	ctl     []byte    // for writeControl
	ctlCall func(fd uintptr)

	// For the caller of Send.
	tx     []*link.Frame
	iov    []unix.Iovec
	txCall func(fd uintptr)

	// For the caller of Recv.
	rx     *buffers
	rxWait bool
	rxErr  syscall.Errno
	rxCall func(fd uintptr) bool

	count   counters
	release sync.Once
	warning string
	err     error
}

var (
	_ link.Endpoint = (*Tap)(nil)
	_ link.Diverter = (*Tap)(nil)
)

// Open makes the interface and returns the NIC's end of it. Every error is one
// line that names the interface and says what to do. errors.Is finds ErrConfig for a Config that cannot work, and os.ErrExist for a
// name that is taken.
func Open(cfg Config) (*Tap, error) {
	s, err := cfg.check(machineID())
	if err != nil {
		return nil, err
	}
	if !s.routeHintOK {
		s.log.Warn("no address of the NIC is in the network of a host address: the host needs a route", "nic", s.addrs, "host", s.host)
	}
	dev, fd, err := newNetdev(s)
	if err != nil {
		return nil, fmt.Errorf("tap %s: %w", s.name, err)
	}
	t := &Tap{
		name: s.name, dev: dev, clock: s.clock, log: s.log.With("tap", s.name),
		addrs: s.addrs, mac: net.HardwareAddr(s.mac[:]), host: s.host, dirty: make(chan struct{}, 1),
	}
	// Now that the descriptor has its interface, it can be polled.
	t.file = os.NewFile(uintptr(fd), tunPath)
	t.conn, err = t.file.SyscallConn()
	if err == nil {
		err = t.file.SetDeadline(time.Time{})
	}
	if err != nil {
		t.file.Close()
		dev.close()
		return nil, fmt.Errorf("tap %s: %s cannot be polled: %w", s.name, tunPath, err)
	}
	t.node = newNode(s.mac, s.addrs, t.log, t.writeControl)
	t.ctlCall, t.txCall, t.rxCall = t.controlOut, t.sendAll, t.readAll
	if err := t.startWatch(); err != nil {
		t.file.Close()
		dev.close()
		return nil, fmt.Errorf("tap %s: cannot watch the interface: %w", s.name, err)
	}
	return t, nil
}

// Info returns what the interface is now. Its slices are not to be changed.
func (t *Tap) Info() link.Info { return *t.info.Load() }

// Watch has f called when Info changed: MTU, name and state of the interface. An interface that is down for less time than it
// takes to look at it, on the kernel's news, may not be seen down. The addresses are the NIC's own and not the interface's: they do not change.
func (t *Tap) Watch(f func()) {
	if f == nil {
		t.watch.Store(nil)
		return
	}
	t.watch.Store(&f)
}

// Counters returns the endpoint's counters, in frames or packets, in a fixed order.
func (t *Tap) Counters() []stats.Value { return t.count.values(&t.node.count) }

// Send transmits the frames in order, after filling in their Ethernet headers.
// Payload is not copied, unless a neighbour has to be asked for first. After Close the error is net.ErrClosed.
func (t *Tap) Send(frames []*link.Frame) error {
	if t.ended.Load() {
		return net.ErrClosed
	}
	t.tx = frames
	err := t.conn.Control(t.txCall)
	t.tx = nil
	if err != nil { // the file is closed
		return net.ErrClosed
	}
	return nil
}

// sendAll is Send with the descriptor at hand.
//
// It runs in RawConn.Control and not in RawConn.Write: that would hold the
// file's write lock while resolve takes t.mu, and those who write with t.mu held
// (answers, requests) would wait for each other. The kernel writes a frame
// whole, and a TAP never makes a writer wait.
func (t *Tap) sendAll(fd uintptr) {
	now := t.clock.Now()
	var path *wire.Path
	var mac hw
	for _, f := range t.tx {
		if f.Packet == nil || !f.Raw && (f.Path == nil || len(f.Eth) < ethLen) {
			t.count.refused.Inc()
			continue
		}
		iov := t.iov[:0]
		if !f.Raw {
			if f.Path != path {
				if !t.resolve(f, &mac, now) {
					path = nil
					continue
				}
				path = f.Path
			}
			t.putEth(f, mac)
			iov = appendIovec(iov, f.Eth[:ethLen])
		}
		iov = appendIovec(iov, f.Net)
		iov = appendIovec(iov, f.Head[:f.Len])
		for _, d := range f.Data {
			iov = appendIovec(iov, d)
		}
		iov = appendIovec(iov, f.Tail)
		for {
			_, _, errno := unix.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
			if errno == unix.EINTR {
				continue
			}
			if errno != 0 {
				t.count.refused.Inc()
			}
			break
		}
		clear(iov) // keep nothing
		t.iov = iov[:0]
	}
}

func appendIovec(iov []unix.Iovec, b []byte) []unix.Iovec {
	if len(b) == 0 {
		return iov
	}
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	return append(iov, v)
}

func (t *Tap) putEth(f *link.Frame, dst hw) {
	etype := uint16(typeIPv4)
	if !f.Path.Dst.Is4() {
		etype = typeIPv6
	}
	putEth(f.Eth, dst, t.node.mac, etype)
}

// resolve finds the MAC for f. When it returns false, f is held or lost.
func (t *Tap) resolve(f *link.Frame, mac *hw, now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	m, ok, nb := t.node.resolve(f.Path.Src, f.Path.Dst, now)
	t.arm(now)
	if ok {
		*mac = m
		return true
	}
	if nb == nil || len(nb.held) >= maxHeld {
		t.node.hold(nil, nil) // counts it
		return false
	}
	t.putEth(f, hw{})
	b := make([]byte, 0, ethLen+len(f.Net)+f.Len+f.Size+len(f.Tail))
	b = append(b, f.Eth[:ethLen]...)
	b = append(b, f.Net...)
	b = append(b, f.Head[:f.Len]...)
	for _, d := range f.Data {
		b = append(b, d...)
	}
	t.node.hold(nb, append(b, f.Tail...))
	return false
}

// arm sets the timer to the node's next deadline; t.mu is held.
func (t *Tap) arm(now time.Time) {
	at, ok := t.node.deadline()
	if !ok || t.ended.Load() || (!t.timerAt.IsZero() && !at.Before(t.timerAt)) {
		return
	}
	t.timerAt = at
	if t.timer == nil {
		t.timer = t.clock.AfterFunc(at.Sub(now), t.tick)
		return
	}
	t.timer.Reset(at.Sub(now))
}

// tick is the timer's call.
func (t *Tap) tick() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.timerAt = time.Time{}
	now := t.clock.Now()
	t.node.tick(now)
	t.arm(now)
}

// writeControl is the node's emit; t.mu is held.
func (t *Tap) writeControl(frame []byte) {
	t.ctl = frame
	if t.conn.Control(t.ctlCall) != nil {
		t.count.refused.Inc()
	}
	t.ctl = nil
}

func (t *Tap) controlOut(fd uintptr) {
	for {
		_, err := unix.Write(int(fd), t.ctl)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			t.count.refused.Inc()
		}
		return
	}
}

// bufLen is what a received frame may be long: one byte more than the longest
// there should be, to tell one that is cut off.
const bufLen = ethLen + vlanLen + MaxMTU + 1

// buffers is what Recv keeps with a link.Batch.
type buffers struct {
	slab []byte
	lens []int
	n    int // frames of the last read
}

// slot returns buffer i. They lie apart by whole cache lines.
func (r *buffers) slot(i int) []byte {
	const stride = (bufLen + 63) &^ 63
	return r.slab[i*stride : i*stride+bufLen : i*stride+bufLen]
}

func newBuffers(n int) any {
	const stride = (bufLen + 63) &^ 63
	return &buffers{slab: make([]byte, n*stride), lens: make([]int, n)}
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
	r := b.Scratch(func() any { return newBuffers(room) }).(*buffers)
	for {
		t.rx, t.rxWait = r, wait
		err := t.conn.Read(t.rxCall)
		t.rx = nil
		switch {
		case err != nil: // closed by us, or the poller saw the interface go
			return t.readError(unix.EBADFD)
		case t.rxErr != 0 && r.n == 0:
			return t.readError(t.rxErr)
		}
		full := r.n == len(r.lens)
		if r.n > 0 {
			t.sort(b, r)
		}
		if len(b.Packets) > 0 || !wait && !full {
			return nil
		}
	}
}

// readAll reads what there is. It returns false when there is nothing and the
// caller is to wait.
func (t *Tap) readAll(fd uintptr) bool {
	r := t.rx
	r.n, t.rxErr = 0, 0
	for r.n < len(r.lens) {
		n, err := unix.Read(int(fd), r.slot(r.n))
		switch err {
		case nil:
			r.lens[r.n] = n
			r.n++
		case unix.EINTR:
		case unix.EAGAIN:
			return r.n > 0 || !t.rxWait
		default:
			t.rxErr, _ = err.(syscall.Errno)
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

// sort puts RoCE packets into the batch and deals with the rest.
func (t *Tap) sort(b *link.Batch, r *buffers) {
	now := t.clock.Now()
	other := t.other.Load()
	for i := range r.n {
		if r.lens[i] == bufLen {
			t.count.oversize.Inc()
			continue
		}
		frame := r.slot(i)[:r.lens[i]]
		f := t.node.classify(frame)
		if f.verdict == deliver {
			b.Packets = append(b.Packets, link.Packet{Frame: frame, When: now})
			continue
		}
		if f.verdict == control {
			t.mu.Lock()
			f.verdict = t.node.answer(frame, f, now)
			t.mu.Unlock()
		}
		if other != nil && len(frame) >= ethLen && (*other)(frame) {
			b.Packets = append(b.Packets, link.Packet{Frame: frame, When: now, Other: true})
			continue
		}
		switch f.verdict {
		case ignored:
			t.count.ignored.Inc()
		case foreign:
			t.count.foreign.Inc()
		case malformed:
			t.count.malformed.Inc()
		}
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

// Close is Release with the warning going to Config.Logger.
func (t *Tap) Close() error {
	first := !t.ended.Load()
	warning, err := t.Release()
	if first && warning != "" {
		t.log.Warn(warning)
	}
	return err
}

// Release removes the RDMA links on the interface, then the interface. Where
// a link cannot be removed the interface stays, and the warning, one line, says what is left and
// which commands remove it. Send and Recv work until the interface goes. Later calls return the same.
func (t *Tap) Release() (warning string, err error) {
	t.release.Do(func() { t.warning, t.err = t.remove() })
	return t.warning, t.err
}

func (t *Tap) remove() (warning string, err error) {
	if !t.gone.Load() {
		if why := releaseRDMA(t.dev.rdma(t.persist)); why != "" {
			warning = fmt.Sprintf("tap %s: the interface stays, because %s", t.name, why)
		}
	}
	t.ended.Store(true)
	t.watch.Store(nil)
	t.mu.Lock()
	if t.timer != nil {
		t.timer.Stop()
	}
	t.mu.Unlock()
	t.stopWatch()
	// The last reference to the descriptor: the interface goes with it.
	if err = t.file.Close(); errors.Is(err, os.ErrClosed) {
		err = nil
	}
	t.dev.close()
	return warning, err
}

// persist says whether the interface outlives the descriptor.
func (t *Tap) persist(on bool) error {
	var err error
	if cerr := t.conn.Control(func(fd uintptr) { err = setPersist(int(fd), on) }); cerr != nil {
		return cerr
	}
	return err
}
