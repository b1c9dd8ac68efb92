package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Blocks takes a pcapng file apart into its blocks and hands each on whole, so that what is written ends between two of them
// whenever it ends. It counts what passes. The zero value is not usable; see NewBlocks.
type Blocks struct {
	Packets uint64 // packets until now
	Lost    uint64 // packets that the statistics say are missing, from the end of the file

	next interface{ block(b []byte) error }
	part []byte
	err  error
}

// maxBlock bounds a block: a packet is no longer than 64 KiB.
const maxBlock = 1 << 20

// NewBlocks returns Blocks that write to w.
func NewBlocks(w io.Writer) *Blocks { return &Blocks{next: whole{w}} }

type whole struct{ io.Writer }

func (w whole) block(b []byte) error {
	_, err := w.Write(b)
	return err
}

// Write implements io.Writer.
func (c *Blocks) Write(p []byte) (int, error) {
	if c.err != nil {
		return 0, c.err
	}
	c.part = append(c.part, p...)
	rest := c.part
	for len(rest) >= 8 {
		n := int(le.Uint32(rest[4:]))
		if n < 12 || n%4 != 0 || n > maxBlock {
			c.err = fmt.Errorf("this is not the pcapng file that softnic writes: a block of %d bytes", n)
			return 0, c.err
		}
		if len(rest) < n {
			break
		}
		c.count(rest[:n])
		if c.err = c.next.block(rest[:n]); c.err != nil {
			return 0, c.err
		}
		rest = rest[n:]
	}
	c.part = append(c.part[:0], rest...)
	return len(p), nil
}

// Tally counts the packets of a file by interface, where not all of them are passed on. The zero value is ready.
type Tally struct{ n map[uint32]uint64 }

// Count counts a packet.
func (t *Tally) Count(block []byte) {
	if t.n == nil {
		t.n = map[uint32]uint64{}
	}
	t.n[le.Uint32(block[8:])]++
}

// Correct has the statistics of an interface, if the block is that, say how many packets were counted. What is lost stays.
func (t *Tally) Correct(block []byte) {
	if len(block) < 24 || le.Uint32(block) != blockStatistic {
		return
	}
	for o := block[20 : len(block)-4]; len(o) >= 12; {
		code, n := le.Uint16(o), int(le.Uint16(o[2:]))
		if code == optEnd || 4+n > len(o) {
			return
		}
		if code == statisticReceived && n == 8 {
			le.PutUint64(o[4:], t.n[le.Uint32(block[8:])])
		}
		o = o[min(len(o), 4+(n+3)&^3):]
	}
}

// IsPacket reports whether a block is a packet.
func IsPacket(block []byte) bool { return len(block) >= 4 && le.Uint32(block) == blockPacket }

func (c *Blocks) count(b []byte) {
	switch le.Uint32(b) {
	case blockPacket:
		c.Packets++
	case blockStatistic:
		if len(b) < 24 {
			return
		}
		for o := b[20 : len(b)-4]; len(o) >= 12; {
			code, n := le.Uint16(o), int(le.Uint16(o[2:]))
			if code == optEnd || 4+n > len(o) {
				return
			}
			if code == statisticDropped && n == 8 {
				c.Lost += le.Uint64(o[4:])
			}
			o = o[min(len(o), 4+(n+3)&^3):]
		}
	}
}

// Ring is a ring of pcapng files: a new one is begun when one has grown to a size, and the oldest is removed
// when there are too many. Each can be read without the others; only the last says how many packets it has, and how many are missing
// from all. It is for a Writer, or for what one has written.
//
// With PATH nic.pcapng the files are nic_00001.pcapng, nic_00002.pcapng, ..., as dumpcap names them but for the date.
type Ring struct {
	*Blocks
	path  string
	size  int64
	files int

	head  []byte // section and interfaces, with which each file begins
	file  *os.File
	n     int // number of the file
	has   int64
	tally Tally // of the file
}

// NewRing returns a ring of files of about size bytes, 1 or more, of which it keeps the last files; 0: all. The first file is
// made when there is something to write, and replaces one of that name.
func NewRing(path string, size int64, files int) *Ring {
	r := &Ring{path: path, size: size, files: files}
	r.Blocks = &Blocks{next: r}
	return r
}

// Name returns the path of file n, from 1 on.
func (r *Ring) Name(n int) string {
	ext := filepath.Ext(r.path)
	return fmt.Sprintf("%s_%05d%s", strings.TrimSuffix(r.path, ext), n, ext)
}

func (r *Ring) block(b []byte) error {
	typ := le.Uint32(b)
	header := typ == blockSection || typ == blockInterface
	if header {
		r.head = append(r.head, b...)
	}
	if full := r.has > int64(len(r.head)) && r.has+int64(len(b)) > r.size; r.file == nil || full && typ == blockPacket {
		if err := r.turn(); err != nil {
			return err
		}
		if header { // it is in the head
			return nil
		}
	}
	switch typ {
	case blockPacket:
		r.tally.Count(b)
	case blockStatistic:
		b = bytes.Clone(b)
		r.tally.Correct(b)
	}
	n, err := r.file.Write(b)
	r.has += int64(n)
	return err
}

// turn begins the next file.
func (r *Ring) turn() error {
	if err := r.Close(); err != nil {
		return err
	}
	r.n++
	r.tally = Tally{}
	f, err := os.Create(r.Name(r.n))
	if err != nil {
		return err
	}
	r.file = f
	n, err := f.Write(r.head)
	r.has = int64(n)
	if old := r.n - r.files; err == nil && r.files > 0 && old > 0 {
		if err = os.Remove(r.Name(old)); errors.Is(err, fs.ErrNotExist) {
			err = nil // somebody was tidy
		}
	}
	return err
}

// Close closes the file that is written. It is idempotent.
func (r *Ring) Close() error {
	if r.file == nil {
		return nil
	}
	err := r.file.Close()
	r.file = nil
	return err
}
