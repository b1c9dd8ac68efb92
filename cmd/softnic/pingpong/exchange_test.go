package pingpong

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
)

// seen is an address as ibv_rc_pingpong sent it (facts: conventions 6.2).
const seen = "0000:000021:59dfd7:00000000000000000000ffff0a01103e\x00"

func TestParseDest(t *testing.T) {
	d, err := ParseDest([]byte(seen))
	if err != nil {
		t.Fatal(err)
	}
	if d.LID != 0 || d.QPN != 0x21 || d.PSN != 0x59dfd7 || d.GID.String() != "::ffff:10.1.16.62" {
		t.Errorf("%+v", d)
	}
	if s := string(d.Append(nil)); s != seen || len(s) != DestLen {
		t.Errorf("%q, want %q", s, seen)
	}
	if s, w := d.String(), "LID 0x0000, QPN 0x000021, PSN 0x59dfd7, GID ::ffff:10.1.16.62"; s != w {
		t.Errorf("%q, want %q", s, w)
	}
	if d, err := ParseDest([]byte("FFFF:FFFFFF:ABCDEF:FE80000000000000A4D627FFFEAE3E3F\x00")); err != nil ||
		d.LID != 0xFFFF || d.QPN != 0xFFFFFF || d.PSN != 0xABCDEF || d.GID.String() != "fe80::a4d6:27ff:feae:3e3f" {
		t.Errorf("upper case: %+v, %v", d, err)
	}
	for _, bad := range []string{
		"", "hello", seen[:DestLen-1], seen + "\x00", seen[:DestLen-1] + "x",
		strings.Replace(seen, ":", " ", 1), strings.Replace(seen, "59dfd7", "59dfg7", 1), strings.Replace(seen, "59dfd7", "-9dfd7", 1),
		strings.Replace(seen, "000021", "0x0021", 1), strings.Replace(seen, "0000:", "+000:", 1), strings.Replace(seen, "000021", "00_021", 1),
		strings.Replace(seen, "0a01103e", "0a01103 ", 1), strings.Repeat("\x00", DestLen), strings.Repeat("\xff", DestLen), strings.Repeat(":", DestLen),
		"GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: none\r\n",
	} {
		d, err := ParseDest([]byte(bad))
		if err == nil || d != (Dest{}) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "expected LLLL:QQQQQQ:PPPPPP:GID") {
			t.Errorf("%q: %+v, %v", bad, d, err)
		}
	}
}

func FuzzParseDest(f *testing.F) {
	f.Add([]byte(seen))
	f.Add([]byte(strings.ToUpper(seen)))
	f.Add([]byte("hello"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := ParseDest(b)
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Errorf("not a line: %q", err)
			}
			return
		}
		if got := string(d.Append(nil)); got != strings.ToLower(string(b)) {
			t.Errorf("%q was read as %q", b, got)
		}
	})
}

// listen returns a listener on a free port.
func listen(t *testing.T) (net.Listener, int) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l, l.Addr().(*net.TCPAddr).Port
}

func dest(n uint32) Dest {
	return Dest{QPN: n, PSN: n << 8, GID: device.GID{10: 0xFF, 11: 0xFF, 12: 10, 15: byte(n)}}
}

func TestExchange(t *testing.T) {
	l, port := listen(t)
	ctx := context.Background()
	type result struct {
		d   Dest
		err error
	}
	server := make(chan result, 1)
	connected := false
	go func() {
		d, err := Serve(ctx, l, dest(1), time.Minute, func(d Dest) error { connected = d == dest(2); return nil })
		server <- result{d, err}
	}()
	d, err := Dial(ctx, "localhost", port, dest(2), time.Minute)
	if err != nil || d != dest(1) {
		t.Errorf("the client got %+v, %v", d, err)
	}
	if r := <-server; r.err != nil || r.d != dest(2) || !connected {
		t.Errorf("the server got %+v, %v; connected %v", r.d, r.err, connected)
	}
}

// nonsense is what a peer says instead of an address, and then closes or not.
var nonsense = []struct {
	name, says string
	stay       bool
	want       string
}{
	{"nothing", "", false, "got nothing, then the end of the connection"},
	{"silence", "", true, "got nothing, then nothing for 50ms"},
	{"a short line", "hello\n", true, `got "hello\n", then nothing for 50ms`},
	{"cut off", seen[:20], false, `got "0000:000021:59dfd7:0", then the end of the connection`},
	{"binary", strings.Repeat("\x16\x03\x01\xff", 20), false, `got "\x16\x03\x01`},
	{"HTTP", "GET / HTTP/1.1\r\nHost: example.org\r\nUser-Agent: none\r\n\r\n", true, `got "GET / HTTP/1.1\r\nHost`},
	{"no zero byte", seen[:DestLen-1] + "\n", true, "got \"0000:000021:59dfd7:"},
}

func checkLine(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case err == nil:
		t.Error("no error")
	case strings.Contains(err.Error(), "\n"):
		t.Errorf("more than a line: %q", err)
	case !strings.Contains(err.Error(), want):
		t.Errorf("%v\nwant %s", err, want)
	}
}

func TestServeNonsense(t *testing.T) {
	serve := func(t *testing.T, says string, stay bool, connect func(Dest) error) error {
		l, port := listen(t)
		done := make(chan error, 1)
		go func() {
			_, err := Serve(context.Background(), l, dest(1), 50*time.Millisecond, connect)
			done <- err
		}()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, says); err != nil {
			t.Fatal(err)
		}
		if !stay {
			_ = conn.(*net.TCPConn).CloseWrite()
		}
		err = <-done
		if _, derr := Dial(context.Background(), "127.0.0.1", port, dest(1), time.Second); derr == nil {
			t.Error("the port is still open")
		}
		return err
	}
	never := func(Dest) error { return errors.New("it connected") }
	for _, c := range nonsense {
		t.Run(c.name, func(t *testing.T) { checkLine(t, serve(t, c.says, c.stay, never), c.want) })
	}
	ok := func(Dest) error { return nil }
	t.Run("no done", func(t *testing.T) {
		checkLine(t, serve(t, seen, true, ok), `expected "done\x00", got nothing, then nothing for 50ms`)
	})
	t.Run("not done", func(t *testing.T) {
		checkLine(t, serve(t, seen+"never", true, ok), `expected "done\x00", got "never"`)
	})
	t.Run("cannot connect", func(t *testing.T) { checkLine(t, serve(t, seen, true, never), "it connected") })
}

func TestDialNonsense(t *testing.T) {
	for _, c := range nonsense {
		t.Run(c.name, func(t *testing.T) {
			l, port := listen(t)
			end := make(chan struct{})
			go func() {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				defer conn.Close()
				_, _ = io.ReadFull(conn, make([]byte, DestLen))
				_, _ = io.WriteString(conn, c.says)
				if c.stay {
					<-end
				}
			}()
			_, err := Dial(context.Background(), "127.0.0.1", port, dest(2), 50*time.Millisecond)
			close(end)
			checkLine(t, err, c.want)
		})
	}
	l, port := listen(t)
	l.Close()
	_, err := Dial(context.Background(), "127.0.0.1", port, dest(2), time.Second)
	checkLine(t, err, "nobody listens on 127.0.0.1")
	_, err = Dial(context.Background(), "no.such.host.invalid", port, dest(2), time.Second)
	checkLine(t, err, "host no.such.host.invalid: ")
}

func TestExchangeCancelled(t *testing.T) {
	l, _ := listen(t)
	why := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	done := make(chan error, 1)
	go func() {
		_, err := Serve(ctx, l, dest(1), time.Minute, nil)
		done <- err
	}()
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("waiting for a client: %v", err)
	}

	l, port := listen(t)
	ctx, cancel = context.WithCancelCause(context.Background())
	go func() {
		_, err := Dial(ctx, "127.0.0.1", port, dest(2), time.Minute)
		done <- err
	}()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.ReadFull(conn, make([]byte, DestLen)); err != nil {
		t.Fatal(err)
	}
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("waiting for the server: %v", err)
	}
}

func TestListenTaken(t *testing.T) {
	l, err := net.Listen("tcp", ":0") // the wildcard, as Listen
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = Listen(context.Background(), l.Addr().(*net.TCPAddr).Port)
	checkLine(t, err, "is in use: end the other server, or use another port on both sides (-p)")
}

// TestDialWaits has a client that is there before its server.
func TestDialWaits(t *testing.T) {
	l, err := Listen(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	if _, err := dialUntil(t.Context(), "127.0.0.1", port, dest(1), time.Second, time.Millisecond); !errors.Is(err, errNobody) {
		t.Fatalf("nobody came: %v", err)
	}
	got := make(chan error, 1)
	go func() {
		_, err := dialUntil(t.Context(), "127.0.0.1", port, dest(2), 10*time.Second, 30*time.Second)
		got <- err
	}()
	late, err := Listen(t.Context(), port)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Serve(t.Context(), late, dest(1), 10*time.Second, func(Dest) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}
