package pingpong

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/softnic/softnic/device"
)

// DestLen is the length of an address on the wire.
const DestLen = len("0000:000000:000000:") + 32 + 1

// format is what people are told to send.
const format = "LLLL:QQQQQQ:PPPPPP:GID in hexadecimal and a zero byte"

// done is what the client says at the end.
var done = []byte("done\x00")

// Dest is what a side tells the other about its queue pair.
type Dest struct {
	LID uint16     `json:"lid"` // always 0 on RoCE
	QPN uint32     `json:"qpn"` // 24 bits
	PSN uint32     `json:"psn"` // 24 bits
	GID device.GID `json:"gid"`
}

// Append appends the DestLen bytes of d.
func (d Dest) Append(b []byte) []byte {
	return fmt.Appendf(b, "%04x:%06x:%06x:%s\x00", d.LID, d.QPN&0xFFFFFF, d.PSN&0xFFFFFF, d.GID.Hex())
}

// String is the address as the tools print it.
func (d Dest) String() string {
	return fmt.Sprintf("LID 0x%04x, QPN 0x%06x, PSN 0x%06x, GID %s", d.LID, d.QPN, d.PSN, d.GID)
}

// ParseDest reads the DestLen bytes of an address.
func ParseDest(b []byte) (d Dest, err error) {
	bad := func(what string) (Dest, error) {
		return Dest{}, fmt.Errorf("%s: expected %s (%d bytes), got %s", what, format, DestLen, quote(b))
	}
	if len(b) != DestLen || b[DestLen-1] != 0 {
		return bad("not an address")
	}
	field := func(from, n int) (v uint32) {
		for _, c := range b[from : from+n] { // strconv would take signs and underscores
			x := strings.IndexByte("0123456789abcdef", c)
			if c >= 'A' && c <= 'F' {
				x = int(c-'A') + 10
			}
			if x < 0 {
				err = strconv.ErrSyntax
			}
			v = v<<4 | uint32(x&15)
		}
		return v
	}
	d.LID, d.QPN, d.PSN = uint16(field(0, 4)), field(5, 6), field(12, 6)
	if b[4] != ':' || b[11] != ':' || b[18] != ':' {
		err = strconv.ErrSyntax
	}
	if _, herr := hex.Decode(d.GID[:], b[19:51]); err != nil || herr != nil {
		return bad("not an address")
	}
	return d, nil
}

// quote shows the beginning of what came.
func quote(b []byte) string {
	const most = 64
	switch {
	case len(b) == 0:
		return "nothing"
	case len(b) > most:
		return fmt.Sprintf("%q...", b[:most])
	}
	return fmt.Sprintf("%q", b)
}

// Listen opens the port on which a server waits.
func Listen(ctx context.Context, port int) (net.Listener, error) {
	var c net.ListenConfig
	l, err := c.Listen(ctx, "tcp", net.JoinHostPort("", strconv.Itoa(port)))
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("TCP port %d is in use: end the other server, or use another port on both sides (-p)", port)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("TCP port %d is not for this user: use one above 1023 on both sides (-p)", port)
	case err != nil:
		return nil, err
	}
	return l, nil
}

// Serve waits for one client and does the server's part. connect moves the
// queue pair to RTS, as the server must before it answers. The listener is closed in
// any case. Each step of the peer may take limit.
func Serve(ctx context.Context, l net.Listener, local Dest, limit time.Duration, connect func(Dest) error) (Dest, error) {
	stop := context.AfterFunc(ctx, func() { l.Close() })
	conn, err := l.Accept()
	stop()
	l.Close()
	if err != nil {
		return Dest{}, because(ctx, err)
	}
	x := start(ctx, conn, limit)
	defer x.end()
	remote, err := x.readDest()
	if err != nil {
		return Dest{}, err
	}
	if err := connect(remote); err != nil {
		return Dest{}, err
	}
	if err := x.write(local.Append(nil)); err != nil {
		return Dest{}, err
	}
	got, err := x.read(len(done))
	if err != nil || !bytes.Equal(got, done) {
		return Dest{}, x.expected(fmt.Sprintf("%q", done), got, err)
	}
	return remote, nil
}

// errNobody is the error of Dial that waiting may cure.
var errNobody = errors.New("nobody listens")

// dialEvery is how often a client that waits looks for the server.
const dialEvery = 200 * time.Millisecond

// dialUntil is Dial that tries again, for as long as wait, while nobody listens.
func dialUntil(ctx context.Context, host string, port int, local Dest, limit, wait time.Duration) (Dest, error) {
	until := time.Now().Add(wait)
	for {
		d, err := Dial(ctx, host, port, local, limit)
		if !errors.Is(err, errNobody) || time.Now().After(until) {
			return d, err
		}
		select {
		case <-time.After(dialEvery):
		case <-ctx.Done():
			return Dest{}, because(ctx, ctx.Err())
		}
	}
}

// Dial does the client's part with the server on host.
func Dial(ctx context.Context, host string, port int, local Dest, limit time.Duration) (Dest, error) {
	d := net.Dialer{Timeout: limit}
	addr := net.JoinHostPort(host, strconv.Itoa(port))
	conn, err := d.DialContext(ctx, "tcp", addr)
	var dns *net.DNSError
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return Dest{}, because(ctx, err)
	case errors.Is(err, syscall.ECONNREFUSED):
		return Dest{}, fmt.Errorf("%w on %s: start the server first, with the same -p, or --wait for it", errNobody, addr)
	case errors.As(err, &dns):
		return Dest{}, fmt.Errorf("host %s: %s", host, dns.Err)
	default:
		return Dest{}, fmt.Errorf("server %s cannot be reached: %w", addr, err)
	}
	x := start(ctx, conn, limit)
	defer x.end()
	if err := x.write(local.Append(nil)); err != nil {
		return Dest{}, err
	}
	remote, err := x.readDest()
	if err != nil {
		return Dest{}, err
	}
	return remote, x.write(done)
}

// because prefers the reason for which ctx ended.
func because(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil {
		return c
	}
	return err
}

// exchange is a connection to the peer.
type exchange struct {
	ctx   context.Context
	conn  net.Conn
	limit time.Duration
	stop  func() bool
}

func start(ctx context.Context, conn net.Conn, limit time.Duration) *exchange {
	// A close, and not a deadline in the past: each step sets a deadline anew.
	return &exchange{ctx, conn, limit, context.AfterFunc(ctx, func() { conn.Close() })}
}

func (x *exchange) end() {
	x.stop()
	x.conn.Close()
}

func (x *exchange) write(b []byte) error {
	if err := x.conn.SetDeadline(time.Now().Add(x.limit)); err != nil {
		return because(x.ctx, err)
	}
	if _, err := x.conn.Write(b); err != nil {
		return because(x.ctx, fmt.Errorf("peer %v went away: %w", x.conn.RemoteAddr(), err))
	}
	return nil
}

// read reads n bytes; with an error it returns those that came.
func (x *exchange) read(n int) ([]byte, error) {
	if err := x.conn.SetDeadline(time.Now().Add(x.limit)); err != nil {
		return nil, err
	}
	b := make([]byte, n)
	n, err := io.ReadFull(x.conn, b)
	return b[:n], err
}

func (x *exchange) readDest() (Dest, error) {
	b, err := x.read(DestLen)
	if err != nil {
		return Dest{}, x.expected(fmt.Sprintf("%s (%d bytes)", format, DestLen), b, err)
	}
	d, err := ParseDest(b)
	if err != nil {
		return Dest{}, fmt.Errorf("peer %v: %w", x.conn.RemoteAddr(), err)
	}
	return d, nil
}

// expected says what was to come and what came instead.
func (x *exchange) expected(what string, got []byte, err error) error {
	how := ""
	switch {
	case x.ctx.Err() != nil:
		return because(x.ctx, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		how = ", then the end of the connection"
	case errors.Is(err, os.ErrDeadlineExceeded):
		how = fmt.Sprintf(", then nothing for %v", x.limit)
	case err != nil:
		how = ", then " + err.Error()
	}
	return fmt.Errorf("peer %v: expected %s, got %s%s", x.conn.RemoteAddr(), what, quote(got), how)
}
