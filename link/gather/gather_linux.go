package gather

import "golang.org/x/sys/unix"

// joinMost is how long a piece is at most that is copied.
const joinMost = 512

// roomy is how many bytes there is room for at first: a burst of 64 packets with headers and ICRC.
const roomy = 4096

// Pieces are those of some messages, one after the other. The zero value is ready.
type Pieces struct {
	list   []unix.Iovec
	joined []byte // copies, one behind the other
	from   int    // of what is in no piece yet
	first  int    // piece of the message at hand
}

// Add adds b to the message at hand. A long b must stay as it is until Reset.
func (p *Pieces) Add(b []byte) {
	if len(b) > joinMost {
		p.cut()
		p.add(b)
		return
	}
	if len(p.joined)+len(b) > cap(p.joined) { // another place: the kernel will be told where the old one is
		p.cut()
		p.joined, p.from = make([]byte, 0, max(roomy, 2*cap(p.joined))), 0
	}
	p.joined = append(p.joined, b...)
}

// End ends the message and returns its pieces, good until Reset. There are fewer than the kernel takes in one message (UIO_MAXIOV, 1024),
// however many were added, as long as the message fits into a packet of IP.
func (p *Pieces) End() []unix.Iovec {
	p.cut()
	l := p.list[p.first:len(p.list):len(p.list)]
	p.first = len(p.list)
	return l
}

// Reset forgets all messages, and keeps no memory of others alive.
func (p *Pieces) Reset() {
	clear(p.list)
	p.list, p.joined, p.from, p.first = p.list[:0], p.joined[:0], 0, 0
}

// cut makes a piece of what was copied since the last.
func (p *Pieces) cut() {
	if p.from < len(p.joined) {
		p.add(p.joined[p.from:])
		p.from = len(p.joined)
	}
}

func (p *Pieces) add(b []byte) {
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	p.list = append(p.list, v)
}
