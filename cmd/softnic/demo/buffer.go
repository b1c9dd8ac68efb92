package demo

import (
	"bytes"
	"fmt"

	"github.com/softnic/softnic/device"
)

const (
	guard = 64   // bytes before and behind a message, which must not change
	wiped = 0xEE // what memory holds that a message is to overwrite, and its guards
)

// buffer is the memory of one message at one end, registered as it is, with guards around it.
type buffer struct {
	all []byte
	mr  *device.MR
}

// register makes memory for a message. With a pattern it holds that, filled in before the NIC knows it.
func (n *nic) register(size int, p *pattern) (*buffer, error) {
	b := &buffer{all: bytes.Repeat([]byte{wiped}, guard+size+guard)}
	part := b.all[guard : guard+size : guard+size]
	if p != nil {
		p.fill(part)
	}
	var err error
	b.mr, err = n.pd.RegMR(part, device.LocalWrite|device.RemoteWrite|device.RemoteRead)
	return b, err
}

// release ends the registration. From then on the NIC neither reads nor writes the memory: a
// program whose memory a peer reads or writes has no completion to go by.
func (b *buffer) release() error { return b.mr.Dereg() }

// untouched checks that nothing was written.
func (b *buffer) untouched() error {
	for i, x := range b.all {
		if x != wiped {
			return fmt.Errorf("byte %d is 0x%02x: it was written", i-guard, x)
		}
	}
	return nil
}

// verify compares the memory from offset at on with what a message must have made of it.
func (b *buffer) verify(at int, p pattern) error {
	want := make([]byte, p.n)
	p.fill(want)
	for i, x := range b.all[guard+at : guard+at+p.n] {
		if x != want[i] {
			return fmt.Errorf("byte %d of %d is 0x%02x, expected 0x%02x", i, p.n, x, want[i])
		}
	}
	for i := range guard {
		if b.all[i] != wiped || b.all[len(b.all)-1-i] != wiped {
			return fmt.Errorf("memory before or behind the message was overwritten")
		}
	}
	return nil
}
