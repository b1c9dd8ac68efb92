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

	"github.com/softnic/softnic/clock"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
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
	vnet  bool // a vnet stands before each frame, and frames may be bursts

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
	ctl     writer    // for writeControl
	ctlCall func(fd uintptr)

	// For the caller of Send.
	tx     []*link.Frame
	out    writer
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
		addrs: s.addrs, mac: net.HardwareAddr(s.mac[:]), host: s.host, vnet: dev.vnet, dirty: make(chan struct{}, 1),
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
