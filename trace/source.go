package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"syscall"
)

// Error says why a capture cannot be read (on).
type Error struct {
	Offset int64  // in bytes, of what could not be read; behind decompression
	Packet uint64 // packets that were read before it
	Text   string
}

// Error is one line: where, and why.
func (e *Error) Error() string {
	if e.Packet == 0 {
		return fmt.Sprintf("at byte %d: %s", e.Offset, e.Text)
	}
	return fmt.Sprintf("at byte %d, after packet %d: %s", e.Offset, e.Packet, e.Text)
}

// source is the bytes of a capture, and where in them the reader is.
type source struct {
	r  *bufio.Reader
	at int64
	gz bool
}

// maxRecord bounds what must be in memory at once: the longest packet that a capture can hold is 256 KiB
// (libpcap's MAXIMUM_SNAPLEN), and options may follow it.
const maxRecord = 1 << 20

func newSource(r io.Reader) (*source, error) {
	s := &source{r: bufio.NewReaderSize(r, maxRecord)}
	if magic, _ := s.r.Peek(2); bytes.Equal(magic, []byte{0x1F, 0x8B}) {
		z, err := gzip.NewReader(s.r)
		if err != nil {
			return nil, s.why(err, "the gzip header is cut off")
		}
		s.r, s.gz = bufio.NewReaderSize(z, maxRecord), true
	}
	return s, nil
}

// peek returns the next n bytes, fewer with an error. They are valid until the next call of anything.
func (s *source) peek(n int) ([]byte, error) { return s.r.Peek(n) }

// skip goes on by n bytes.
func (s *source) skip(n int64) error {
	for n > 0 {
		d, err := s.r.Discard(int(min(n, 1<<30)))
		s.at += int64(d)
		n -= int64(d)
		if err != nil {
			return err
		}
	}
	return nil
}

// why makes an Error of what reading said; cut says what it means that nothing more comes.
func (s *source) why(err error, cut string) *Error {
	e := &Error{Offset: s.at}
	switch {
	case s.gz && errors.Is(err, io.ErrUnexpectedEOF):
		e.Text = "the gzip stream is cut off"
	case errors.Is(err, gzip.ErrHeader), errors.Is(err, gzip.ErrChecksum):
		e.Text = "the gzip stream is damaged: " + err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, bufio.ErrBufferFull):
		e.Text = cut
	case errors.Is(err, syscall.EISDIR):
		e.Text = "it is a directory"
	default:
		e.Text = err.Error()
	}
	return e
}

// take goes on by n bytes that were peeked, which stay valid.
func (s *source) take(n int) error {
	_, err := s.r.Discard(n)
	s.at += int64(n)
	return err
}
