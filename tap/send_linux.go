package tap

import (
	"net"
	"time"
	"unsafe"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/wire"
	"golang.org/x/sys/unix"
)

// maxSegs is how many packets a burst may have: as many as with UDP_SEGMENT, which Linux goes by elsewhere.
const maxSegs = 64

// writer puts one frame together for the kernel. Its zero value is ready; it is not to be copied.
type writer struct {
	list [4]unix.Iovec // vnet, Ethernet header, IP and UDP header, packets
	n    int
	vnet bool
	head [vnetLen + ethLen + wire.MaxNetLen]byte // before a frame, or in place of the headers of a burst
}

// begin forgets the frame before. The vnet is of zeros, where the kernel wants one: a single packet, and
// no checksum to compute.
func (w *writer) begin(vnet bool) {
	w.reset()
	w.vnet = vnet
	clear(w.head[:vnetLen])
}

// add adds a piece.
func (w *writer) add(b []byte) {
	if len(b) == 0 {
		return
	}
	w.list[w.n].Base = &b[0]
	w.list[w.n].SetLen(len(b))
	w.n++
}

// addVnet adds what is before a frame.
func (w *writer) addVnet() {
	if w.vnet {
		w.add(w.head[:vnetLen])
	}
}

// reset keeps no memory of others alive.
func (w *writer) reset() {
	clear(w.list[:w.n])
	w.n = 0
}

// write gives the frame to the kernel, and reports whether that has taken it.
func (w *writer) write(fd uintptr) bool {
	iov := w.list[:w.n]
	errno := unix.EINTR
	for errno == unix.EINTR {
		// which does not wait: see link/udp, trySend
		_, _, errno = unix.RawSyscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&iov[0])), uintptr(len(iov)))
	}
	w.reset()
	return errno == 0
}

// Send transmits the frames in order, after filling in their Ethernet headers; a burst is one frame for the host.
// After Close the error is net.ErrClosed.
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
	for i, n := 0, 0; i < len(t.tx); i += n {
		f := t.tx[i]
		n = 1
		if f.Packet == nil || !f.Raw && (f.Path == nil || len(f.Eth) < ethLen) {
			t.count.refused.Inc()
			continue
		}
		t.out.begin(t.vnet)
		if f.Raw {
			t.out.addVnet()
			t.out.add(f.IB)
		} else {
			if f.Path != path {
				if !t.resolve(f, &mac, now) {
					path = nil // the others of a burst wait for the neighbour one by one
					continue
				}
				path = f.Path
			}
			for t.vnet && i+n < len(t.tx) && t.tx[i+n].Segment > 0 {
				n++
			}
			t.addBurst(t.tx[i:i+n], mac)
		}
		if !t.out.write(fd) {
			t.count.refused.Add(n)
		}
	}
}

// addBurst adds the packets of a burst, or a single one, to a frame that has begun.
func (t *Tap) addBurst(burst []*link.Frame, mac hw) {
	w, first := &t.out, burst[0]
	for _, f := range burst {
		t.putEth(f, mac)
	}
	ib := link.Burst(burst)
	if len(burst) == 1 {
		w.addVnet()
		w.add(first.Eth[:ethLen])
		w.add(first.Net)
	} else {
		n := ethLen + len(first.Net)
		vnet(w.head[:vnetLen]).putBurst(n, len(first.IB))
		w.addVnet()
		head := append(append(w.head[:vnetLen], first.Eth[:ethLen]...), first.Net...)[vnetLen:]
		joinHead(head, len(ib))
		w.add(head)
	}
	w.add(ib)
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
	t.node.hold(nb, f.AppendTo(make([]byte, 0, ethLen+len(f.Net)+len(f.IB))))
	return false
}

// writeControl is the node's emit; t.mu is held.
func (t *Tap) writeControl(frame []byte) {
	t.ctl.begin(t.vnet)
	t.ctl.addVnet()
	t.ctl.add(frame)
	if t.conn.Control(t.ctlCall) != nil {
		t.count.refused.Inc()
	}
}

func (t *Tap) controlOut(fd uintptr) {
	if !t.ctl.write(fd) {
		t.count.refused.Inc()
	}
}
