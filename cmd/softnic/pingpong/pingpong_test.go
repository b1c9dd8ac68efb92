package pingpong

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/pipe"
)

// nics returns two devices on a pipe. The rules are those of the first.
func nics(t *testing.T, mtu int, rules ...string) (a, b *device.Device) {
	t.Helper()
	r, err := impair.New(rules...)
	if err != nil {
		t.Fatal(err)
	}
	config := func(n int) pipe.Config {
		return pipe.Config{Name: fmt.Sprint("nic ", n), MTU: mtu, Addrs: []netip.Prefix{
			netip.MustParsePrefix(fmt.Sprintf("10.8.0.%d/24", n)), netip.MustParsePrefix(fmt.Sprintf("fd08::%d/64", n)),
		}}
	}
	x, y := pipe.New(config(1), config(2))
	open := func(e link.Endpoint, r *impair.Rules) *device.Device {
		d, err := device.Open(e, device.Options{Link: link.PortOptions{Impair: r}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { d.Close() })
		return d
	}
	return open(x, r), open(y, nil)
}

type outcome struct {
	r   *Result
	err error
	out string
}

// both runs a server on a and a client on b to their ends.
func both(t *testing.T, a, b *device.Device, server, client Config) (s, c outcome) {
	t.Helper()
	return untilOne(t, a, b, server, client, false)
}

// untilOne is both, and with one the other is stopped where one fails.
func untilOne(t *testing.T, a, b *device.Device, server, client Config, one bool) (s, c outcome) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var port int
	server.Listener, port = listen(t)
	client.Host, client.Port = "127.0.0.1", port
	game := func(d *device.Device, c Config) (o outcome) {
		if o = play(ctx, d, c); o.err != nil && one {
			cancel()
		}
		return o
	}
	done := make(chan outcome, 1)
	go func() { done <- game(a, server) }()
	c = game(b, client)
	return <-done, c
}

func play(ctx context.Context, d *device.Device, c Config) outcome {
	var out strings.Builder
	c.Out = &out
	r, err := Run(ctx, d, c)
	if err == nil {
		r.Print(&out)
	}
	return outcome{r, err, out.String()}
}

func TestGame(t *testing.T) {
	for _, c := range []struct {
		name  string
		c     Config
		rules []string
		mtu   int
	}{
		{name: "as the stock tool", c: Config{Service: device.RC, Size: 4096}},
		{name: "seeded", c: Config{Service: device.RC, Size: 5000, Pattern: Seeded, Seed: 7, Iters: 300}},
		{name: "seeded, 1 MiB", c: Config{Service: device.RC, Size: 1 << 20, MTU: 4096, Pattern: Seeded, Seed: 7, Iters: 6}},
		{name: "one byte", c: Config{Service: device.RC, Size: 1, Iters: 50}},
		{name: "no byte", c: Config{Service: device.RC, Iters: 50}},
		{name: "events", c: Config{Service: device.RC, Size: 3000, Events: true, Iters: 300}},
		{name: "pages marked", c: Config{Service: device.RC, Size: 3 * pageSize, Check: true, Iters: 50}},
		{name: "one receive", c: Config{Service: device.RC, Size: 100, RXDepth: 1, Iters: 100}},
		{name: "IPv6", c: Config{Service: device.RC, Size: 3000, GIDIndex: 2, Iters: 100}},
		{name: "link-local", c: Config{Service: device.RC, Size: 3000, GIDIndex: 0, Iters: 100}},
		{name: "small link", c: Config{Service: device.RC, Size: 3000, MTU: 256, Iters: 50}, mtu: 400},
		{
			name: "bad path", c: Config{Service: device.RC, Size: 20000, Pattern: Seeded, Seed: 7, Iters: 40, Linger: 200 * time.Millisecond},
			rules: []string{"tx drop=1% seed=1", "rx drop=1% seed=2", "tx reorder p=1% seed=3", "rx duplicate p=1% seed=4"},
		},
		{
			// The server's answer is all that the client waits for; the server then asks for an acknowledgement again.
			name: "last ACK lost", c: Config{Service: device.RC, Size: 100, Iters: 5, Linger: 200 * time.Millisecond},
			rules: []string{"rx opcode=ACKNOWLEDGE nth=5 drop"},
		},
		{name: "UD", c: Config{Service: device.UD, Size: 2048, Iters: 300}},
		{name: "UD, seeded", c: Config{Service: device.UD, Size: 4096, Pattern: Seeded, Seed: 7, Iters: 300}},
		{name: "UD, events", c: Config{Service: device.UD, Size: 1, Events: true, Iters: 300}},
		{name: "UD, IPv6", c: Config{Service: device.UD, Size: 1000, GIDIndex: 2, Iters: 100}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if !strings.Contains(c.name, "v6") && !strings.Contains(c.name, "local") {
				c.c.GIDIndex = -1
			}
			a, b := nics(t, c.mtu, c.rules...)
			server, client := both(t, a, b, c.c, c.c)
			iters := c.c.Iters
			if iters == 0 {
				iters = 1000
			}
			for role, o := range map[string]outcome{"server": server, "client": client} {
				if o.err != nil {
					t.Fatalf("%s: %v", role, o.err)
				}
				v := o.r.Verified
				if o.r.Role != role || v.Messages != iters || c.c.Pattern != Seeded && v.Bytes != int64(iters*c.c.Size) {
					t.Errorf("%s: %+v", role, o.r)
				}
				if _, err := json.Marshal(o.r); err != nil {
					t.Error(err)
				}
			}
			if server.r.Bytes != client.r.Bytes || server.r.Bytes != server.r.Verified.Bytes+client.r.Verified.Bytes {
				t.Errorf("%d and %d bytes, of which %d and %d were verified",
					server.r.Bytes, client.r.Bytes, server.r.Verified.Bytes, client.r.Verified.Bytes)
			}
			if server.r.Local != client.r.Remote || server.r.Remote != client.r.Local {
				t.Errorf("addresses: %+v, %+v", server.r, client.r)
			}
			if o := a.NewContext().Objects(); o != (device.Objects{}) || len(a.QPs()) != 0 {
				t.Errorf("left in the device: %+v, %v", o, a.QPs())
			}
		})
	}
}

// TestOutput checks the lines against those of the stock tools.
func TestOutput(t *testing.T) {
	for _, c := range []struct {
		service device.QPType
		colon   string // ibv_ud_pingpong has another one here
	}{{device.RC, ","}, {device.UD, ":"}} {
		a, b := nics(t, 0)
		s, _ := both(t, a, b, Config{Service: c.service, Size: 64, Iters: 10, GIDIndex: 1}, Config{Service: c.service, Size: 64, Iters: 10, GIDIndex: 1})
		want := regexp.MustCompile(`^  local address:  LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}` + c.colon + ` GID ::ffff:10\.8\.0\.1
  remote address: LID 0x0000, QPN 0x[0-9a-f]{6}, PSN 0x[0-9a-f]{6}, GID ::ffff:10\.8\.0\.2
1280 bytes in \d+\.\d\d seconds = \d+\.\d\d Mbit/sec
10 iters in \d+\.\d\d seconds = \d+\.\d\d usec/iter
data verified: 10 messages, 640 bytes
$`)
		if s.err != nil || !want.MatchString(s.out) {
			t.Errorf("%v: %v\n%s", c.service, s.err, s.out)
		}
	}
}

func TestWrong(t *testing.T) {
	rc := Config{Service: device.RC, Size: 2000, Iters: 20, GIDIndex: -1, Stall: 5 * time.Second}
	ud := rc
	ud.Service = device.UD
	with := func(c Config, f func(*Config)) Config { f(&c); return c }
	for _, c := range []struct {
		name           string
		server, client Config
		rules          []string
		s, c           string // what the two say; "": not asked
	}{
		{
			name: "other seed", server: with(rc, func(c *Config) { c.Pattern, c.Seed = Seeded, 1 }), client: with(rc, func(c *Config) { c.Pattern, c.Seed = Seeded, 2 }),
			s: "invalid data: message 1, byte 0 of 2000 is 0x",
		},
		{
			name: "other pattern", server: rc, client: with(rc, func(c *Config) { c.Pattern, c.Seed = Seeded, 2 }),
			s: "expected 0x7b",
		},
		{
			name: "pages not marked", server: with(rc, func(c *Config) { c.Check = true }), client: rc,
			s: "invalid data: message 1, byte 0 of 2000 is 0x7b, expected 0x00",
		},
		{
			name: "too long", server: with(rc, func(c *Config) { c.Size = 1000 }), client: rc,
			s: "IBV_WC_LOC_LEN_ERR (1) while receiving: the peer's message is longer than -s", c: "IBV_WC_REM_INV_REQ_ERR (9) while sending: the peer refused it",
		},
		{
			name: "too short", server: rc, client: with(rc, func(c *Config) { c.Size = 1000 }),
			s: "invalid data: message 1 has 1000 bytes, expected 2000: give both sides the same -s",
		},
		{
			name: "families", server: with(rc, func(c *Config) { c.GIDIndex = 2 }), client: rc,
			s: "one is IPv4, the other IPv6; choose another on one side (-g)", c: "then the end of the connection",
		},
		{
			name: "datagram lost", server: with(ud, func(c *Config) { c.Stall = 200 * time.Millisecond; c.Size = 1000 }),
			client: with(ud, func(c *Config) { c.Stall = 200 * time.Millisecond; c.Size = 1000 }), rules: []string{"rx nth=5 drop"},
			s: "nothing came for 200ms: the peer has ended, or a datagram was lost, which nobody sends again (4 of 20 messages received, 4 sent)", c: "nothing came for 200ms",
		},
		{
			name: "path gone", server: rc, client: rc, rules: []string{"rx opcode=SEND*,ACK* drop"},
			c: "IBV_WC_RETRY_EXC_ERR (12) while sending: the peer does not answer",
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			a, b := nics(t, 0, c.rules...)
			s, cl := untilOne(t, a, b, c.server, c.client, c.s == "" || c.c == "")
			if c.s != "" {
				checkLine(t, s.err, c.s)
			}
			if c.c != "" {
				checkLine(t, cl.err, c.c)
			}
		})
	}
}

func TestConfig(t *testing.T) {
	a, _ := nics(t, 1500)
	rc := Config{Service: device.RC, Size: 100, GIDIndex: -1}
	for want, f := range map[string]func(*Config){
		"service UC: rc and ud are there": func(c *Config) { c.Service = device.UC },
		"size -1 (-s)":                    func(c *Config) { c.Size = -1 },
		"size 1025 (-s) is larger than the port's active MTU 1024, which limits datagrams": func(c *Config) { c.Service, c.Size = device.UD, 1025 },
		"path MTU 1000 (-m): 256, 512, 1024, 2048 or 4096":                                 func(c *Config) { c.MTU = 1000 },
		"path MTU 4096 (-m) is above the port's active MTU: use -m 1024 on both sides":     func(c *Config) { c.MTU = 4096 },
		"rx-depth -5 (-r)": func(c *Config) { c.RXDepth = -5 },
		"iters -1 (-n)":    func(c *Config) { c.Iters = -1 },
		"port 70000 (-p)":  func(c *Config) { c.Port = 70000 },
		`pattern "zebra": one of constant, echo, seeded`:                                     func(c *Config) { c.Pattern = "zebra" },
		"GID index 5 (-g) is empty; have 0 fe80::aff:fe08:1, 1 ::ffff:10.8.0.1, 2 fd08::1":   func(c *Config) { c.GIDIndex = 5 },
		"GID index 100 (-g) is empty; have 0 fe80::aff:fe08:1, 1 ::ffff:10.8.0.1, 2 fd08::1": func(c *Config) { c.GIDIndex = 100 },
	} {
		c := rc
		f(&c)
		_, err := Run(context.Background(), a, c)
		checkLine(t, err, want)
	}
}

// A peer without -g has no GID.
func TestNoGID(t *testing.T) {
	a, _ := nics(t, 0)
	l, port := listen(t)
	done := make(chan outcome, 1)
	go func() {
		done <- play(context.Background(), a, Config{Service: device.RC, Size: 1, Listener: l, GIDIndex: -1})
	}()
	_, _ = Dial(context.Background(), "127.0.0.1", port, Dest{QPN: 17}, time.Minute)
	checkLine(t, (<-done).err, "RoCE needs a GID index, add -g 1 there")
}

func TestInterrupted(t *testing.T) {
	a, b := nics(t, 0)
	why := errors.New("interrupted")
	ctx, cancel := context.WithCancelCause(context.Background())
	l, port := listen(t)
	done := make(chan error, 1)
	c := Config{Service: device.RC, Size: 1, Iters: 1 << 30, GIDIndex: -1}
	server := c
	server.Listener, server.judge = l, deaf{}
	go func() {
		_, err := Run(ctx, a, server)
		done <- err
	}()
	client := c
	client.Host, client.Port, client.Stall = "127.0.0.1", port, 200*time.Millisecond
	client.judge = &after{n: 100, f: func() { cancel(why) }}
	if _, err := Run(context.Background(), b, client); err == nil {
		t.Error("the client did not notice")
	}
	cancel(why)
	if err := <-done; !errors.Is(err, why) {
		t.Errorf("the server: %v", err)
	}
}

// stock is the buffer of a stock tool: it sends what it got.
type stock struct{ buf []byte }

func (s *stock) make(_ int, b []byte) int { return copy(b, s.buf) }

func (s *stock) judge(_ int, got []byte) error {
	copy(s.buf, got)
	return nil
}

// TestEcho plays against a peer that behaves as the stock tools do.
func TestEcho(t *testing.T) {
	for _, c := range []struct {
		name   string
		c      Config
		server bool // ours is the server
		marked bool // the peer has -c
	}{
		{"client", Config{Service: device.RC, Size: 5000, Pattern: Echo, Seed: 3}, false, false},
		{"server", Config{Service: device.RC, Size: 5000, Pattern: Echo, Seed: 3}, true, false},
		{"server, pages marked", Config{Service: device.RC, Size: 9000, Pattern: Echo, Seed: 3}, true, true},
		{"UD client", Config{Service: device.UD, Size: 1500, Pattern: Echo, Seed: 3}, false, false},
		{"UD server", Config{Service: device.UD, Size: 1500, Pattern: Echo, Seed: 3}, true, false},
		{"constant client", Config{Service: device.RC, Size: 9000}, false, false},
		{"constant client, pages marked", Config{Service: device.RC, Size: 9000, Check: true}, false, false},
		{"constant server", Config{Service: device.RC, Size: 9000}, true, false},
		{"constant server, pages marked", Config{Service: device.RC, Size: 9000, Check: true}, true, true},
		{"constant server, pages marked by the client only", Config{Service: device.RC, Size: 9000}, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			a, b := nics(t, 0)
			c.c.GIDIndex, c.c.Iters = -1, 100
			peer := c.c
			s := &stock{make([]byte, c.c.Size)}
			for i := range s.buf {
				s.buf[i] = stockByte
			}
			if c.marked {
				zeroPages(s.buf)
			}
			peer.judge = s
			var ours outcome
			if c.server {
				ours, _ = both(t, a, b, c.c, peer)
			} else {
				_, ours = both(t, a, b, peer, c.c)
			}
			if ours.err != nil || ours.r.Verified.Messages != 100 || ours.r.Verified.Bytes != int64(100*c.c.Size) {
				t.Errorf("%v %+v", ours.err, ours.r)
			}
			if c.c.Check && s.buf[0] != 0 {
				t.Error("at the end the stock tool's -c would say that the data is invalid")
			}
		})
	}
	// A peer that does not return what it got.
	a, b := nics(t, 0)
	c := Config{Service: device.RC, Size: 500, Pattern: Echo, Seed: 3, GIDIndex: -1, Iters: 10}
	peer := c
	peer.judge = deaf{}
	_, ours := untilOne(t, a, b, peer, c, true)
	checkLine(t, ours.err, "invalid data: message 1, byte 0 of 500 is 0x00, expected 0x")
}

// deaf always sends the same.
type deaf struct{}

func (deaf) make(_ int, b []byte) int { return len(b) }

func (deaf) judge(int, []byte) error { return nil }

// after calls f with message n.
type after struct {
	deaf
	n int
	f func()
}

func (a *after) judge(i int, _ []byte) error {
	if i == a.n {
		a.f()
	}
	return nil
}

func TestLengths(t *testing.T) {
	seen := map[int]bool{}
	for i := range 200 {
		n := length(5, i, false, 9)
		if n < 0 || n > 9 {
			t.Fatalf("message %d has %d bytes", i, n)
		}
		seen[n] = true
	}
	if len(seen) != 10 || length(5, 0, true, 9) != 9 || length(5, 1, true, 9) != 0 || length(5, 2, true, 9) != 1 || length(5, 2, true, 0) != 0 {
		t.Errorf("lengths %v", seen)
	}
	x, y := make([]byte, 21), make([]byte, 21)
	fill(x, 5, 1, false)
	fill(y, 5, 1, true)
	if string(x) == string(y) {
		t.Error("both directions have one pattern")
	}
	fill(y, 5, 2, false)
	if string(x) == string(y) {
		t.Error("two messages have one pattern")
	}
}
