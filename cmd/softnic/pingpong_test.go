package main

import (
	"encoding/json"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/cmd/softnic/pingpong"
)

// game runs a server and a client, two processes with a NIC each, and returns what they say.
func game(t *testing.T, service string, last int, args ...string) (server, client string) {
	t.Helper()
	port := freeTCP(t)
	a, b := nicAddr(t, last), nicAddr(t, last+1)
	args = append(args, "-p", port)
	s := start(t, append([]string{"pingpong", service, "--udp", a}, args...)...)
	c := start(t, append([]string{"pingpong", service, "--udp", b, "--wait", patience.String(), "127.0.0.1"}, args...)...)
	code, client, errs := c.wait()
	if code != 0 || errs != "" {
		t.Errorf("client: exit code %d, %s", code, errs)
	}
	code, server, errs = s.wait()
	if code != 0 || errs != "" {
		t.Errorf("server: exit code %d, %s", code, errs)
	}
	return server, client
}

func TestPingpong(t *testing.T) {
	for i, c := range []struct {
		service, args, want string
	}{
		{"rc", "-n 100", "data verified: 100 messages, 409600 bytes"},
		{"ud", "-n 100 -s 1024", "data verified: 100 messages, 102400 bytes"},
		{"rc", "-e -n 20 -s 65536 -m 4096 -c", "data verified: 20 messages, 1310720 bytes"},
	} {
		t.Run(c.service+" "+c.args, func(t *testing.T) {
			t.Parallel()
			server, client := game(t, c.service, 10+2*i, strings.Fields(c.args)...)
			for _, out := range []string{server, client} {
				l := strings.Split(out, "\n")
				if len(l) != 6 || !strings.HasPrefix(l[0], "  local address:  LID 0x0000, QPN 0x") || !strings.HasPrefix(l[1], "  remote address: LID 0x0000, QPN 0x") ||
					!strings.Contains(l[2], " bytes in ") || !strings.Contains(l[3], " iters in ") || l[4] != c.want {
					t.Error(out)
				}
			}
		})
	}
	t.Run("seeded, lossy, JSON", func(t *testing.T) {
		t.Parallel()
		server, client := game(t, "rc", 20, "-j", "--seed", "7", "-n", "50", "-s", "20000", "--impair", "rx drop=1% seed=3", "--impair", "tx reorder p=1%")
		var s, c struct {
			Role     string
			Bytes    int
			Verified pingpong.Verified
		}
		if err := json.Unmarshal([]byte(server), &s); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal([]byte(client), &c); err != nil {
			t.Fatal(err)
		}
		if s.Role != "server" || c.Role != "client" || s.Bytes != c.Bytes || s.Verified.Messages != 50 || c.Verified.Pattern != pingpong.Seeded || c.Verified.Seed != 7 {
			t.Errorf("%s\n%s", server, client)
		}
	})
}

func TestPingpongMistakes(t *testing.T) {
	t.Parallel()
	port := freeTCP(t)
	pingpong := func(last int, args ...string) *program {
		return start(t, append([]string{"pingpong", "rc", "--udp", nicAddr(t, last), "-p", port}, args...)...)
	}
	l, err := net.Listen("tcp", ":"+port)
	if err != nil {
		t.Fatal(err)
	}
	code, _, errs := pingpong(31).wait()
	checkError(t, code, exitFailure, errs, "TCP port "+port+" is in use")
	l.Close()

	s := pingpong(30, "--exchange-timeout", "200ms")
	conn, err := net.Dial("tcp", "127.0.0.1:"+port)
	for end := time.Now().Add(patience); err != nil && time.Now().Before(end); {
		conn, err = net.Dial("tcp", "127.0.0.1:"+port)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "EHLO example.org\r\n"); err != nil {
		t.Fatal(err)
	}
	code, _, errs = s.wait()
	checkError(t, code, exitFailure, errs, `expected LLLL:QQQQQQ:PPPPPP:GID in hexadecimal and a zero byte (52 bytes), got "EHLO example.org\r\n", then nothing for 200ms`)

	code, _, errs = pingpong(32, "127.0.0.1").wait()
	checkError(t, code, exitFailure, errs, "nobody listens on 127.0.0.1:"+port)
	code, _, errs = pingpong(33, "-m", "4096", "-s", "3000000000").wait()
	checkError(t, code, exitFailure, errs, "size 3000000000 (-s)")
	code, _, errs = pingpong(34, "--pattern", "zebra").wait()
	checkError(t, code, exitFailure, errs, "one of constant, echo, seeded")
	code, _, errs = pingpong(35, "-g", "7").wait()
	checkError(t, code, exitFailure, errs, "GID index 7 (-g) is empty; have 0 fe80::")
}
