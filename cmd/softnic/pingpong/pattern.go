package pingpong

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
)

// Pattern says what is sent and how what comes is judged.
type Pattern string

// The patterns.
const (
	// Constant is what the stock tools do: 0x7b everywhere, and every message returns
	// what came before it. With Config.Check the client has a zero at the
	// beginning of each page, as with the tools' option -c.
	Constant Pattern = "constant"
	// Echo sends a new pattern with each message and expects a stock peer to return
	// it. What a stock client begins with is 0x7b.
	Echo Pattern = "echo"
	// Seeded has both sides, both softnic and with the same seed, send messages
	// of their own, of different length each.
	Seeded Pattern = "seeded"
)

// Patterns lists the patterns for people.
func Patterns() string {
	return strings.Join([]string{string(Constant), string(Echo), string(Seeded)}, ", ")
}

const (
	stockByte = 0x7b // rdma-core's rc_pingpong.c fills its buffer with it
	pageSize  = 4096
)

// judge makes messages and judges those that come. Messages count from 0 in each
// direction.
type judge interface {
	// make fills buf, of the full size, with the next message and returns its length.
	make(i int, buf []byte) int
	// judge compares message i of the peer with what it must be; an error is one line.
	judge(i int, got []byte) error
}

func newJudge(c *Config) judge {
	server := c.Host == ""
	switch c.Pattern {
	case Echo:
		return &echo{mirror: newMirror(c, server), seed: c.Seed, server: server}
	case Seeded:
		return &seeded{size: c.Size, seed: c.Seed, server: server, want: make([]byte, c.Size)}
	}
	m := newMirror(c, server)
	if !server && c.Check {
		zeroPages(m.buf)
	}
	return &m
}

func zeroPages(b []byte) {
	for i := 0; i < len(b); i += pageSize {
		b[i] = 0
	}
}

// mirror is the buffer of a stock tool, which it sends from and receives into.
type mirror struct {
	buf    []byte
	first  bool // nothing was sent yet: what comes is the peer's own
	zeroes bool // and must have the zeroes of option -c
}

func newMirror(c *Config, server bool) mirror {
	m := mirror{buf: make([]byte, c.Size), first: server, zeroes: c.Check}
	for i := range m.buf {
		m.buf[i] = stockByte
	}
	return m
}

func (m *mirror) make(_ int, buf []byte) int {
	m.first = false
	return copy(buf, m.buf)
}

func (m *mirror) judge(i int, got []byte) error {
	if m.first && len(got) == len(m.buf) {
		// A client with -c has zeroes there, one without has not.
		if m.zeroes || len(got) > 0 && got[0] == 0 {
			zeroPages(m.buf)
		}
	}
	return compare(i, got, m.buf)
}

// echo writes a new pattern into the peer's buffer each time. The length varies: what
// is behind a short message stays as it was.
type echo struct {
	mirror
	seed   uint64
	server bool
}

func (e *echo) make(i int, buf []byte) int {
	e.first = false
	n := length(e.seed, i, e.server, len(buf))
	fill(e.mirror.buf[:n], e.seed, i, e.server)
	return copy(buf, e.mirror.buf[:n])
}

// seeded sends messages that the peer makes for itself too, to compare.
type seeded struct {
	size   int
	seed   uint64
	server bool
	want   []byte
}

func (s *seeded) make(i int, buf []byte) int {
	n := length(s.seed, i, s.server, len(buf))
	fill(buf[:n], s.seed, i, s.server)
	return n
}

func (s *seeded) judge(i int, got []byte) error {
	want := s.want[:length(s.seed, i, !s.server, s.size)]
	fill(want, s.seed, i, !s.server)
	return compare(i, got, want)
}

// source returns the random source of a message.
func source(seed uint64, i int, server bool) *rand.PCG {
	n := uint64(i) << 1
	if server {
		n |= 1
	}
	return rand.NewPCG(seed, n)
}

// length is that of message i: the full size, nothing, one byte, and then any.
func length(seed uint64, i int, server bool, size int) int {
	switch i {
	case 0:
		return size
	case 1:
		return 0
	case 2:
		return min(1, size)
	}
	return int(source(seed^0x9E3779B97F4A7C15, i, server).Uint64() % uint64(size+1))
}

// fill writes the bytes of message i.
func fill(b []byte, seed uint64, i int, server bool) {
	r := source(seed, i, server)
	for len(b) >= 8 {
		binary.LittleEndian.PutUint64(b, r.Uint64())
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], r.Uint64())
		copy(b, last[:])
	}
}

// compare compares byte by byte.
func compare(i int, got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("invalid data: message %d has %d bytes, expected %d: give both sides the same -s, --pattern and --seed", i+1, len(got), len(want))
	}
	for k := range got {
		if got[k] != want[k] {
			return fmt.Errorf("invalid data: message %d, byte %d of %d is 0x%02x, expected 0x%02x: do --pattern and --seed agree on both sides?", i+1, k, len(got), got[k], want[k])
		}
	}
	return nil
}
