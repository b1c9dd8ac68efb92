package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
	"github.com/softnic/softnic/stats"
)

// newDevice returns a device on a pipe of which the test has the other end.
func newDevice(t *testing.T) (*device.Device, *pipe.Raw) {
	t.Helper()
	end, raw := pipe.NewRaw(pipe.Config{Name: "a pipe", Addrs: []netip.Prefix{netip.MustParsePrefix("10.8.0.2/24")}})
	dev, err := device.Open(end, device.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev, raw
}

// serve serves dev and returns the path of the socket and a client.
func serve(t *testing.T, dev *device.Device) (string, *Client) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	s := NewServer(dev, Options{Version: "v1.2.3"})
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path + Suffix); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the socket is still there: %v", err)
		}
	})
	return path, NewClient(path)
}

func TestRoundTrip(t *testing.T) {
	dev, raw := newDevice(t)
	_, c := serve(t, dev)
	ctx := context.Background()

	d, err := c.Daemon(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if want := (Daemon{os.Getpid(), "v1.2.3", "rxe_softnic0", "a pipe"}); d != want {
		t.Errorf("daemon %+v, want %+v", d, want)
	}

	devs, err := c.Devs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(devs) != 1 || devs[0].Name != "rxe_softnic0" || devs[0].NodeType != "ca" || devs[0].Firmware != "v1.2.3" ||
		devs[0].NodeGUID != "0000:0aff:fe08:0002" || devs[0].MaxQP != device.MaxQP ||
		!slices.Contains(devs[0].Caps, "ATOMIC_WRITE") || devs[0].AtomicCap != "ATOMIC_HCA" || devs[0].MaskedAtomicCap != "ATOMIC_HCA" {
		t.Errorf("devices %+v", devs)
	}

	links, err := c.Links(ctx)
	if err != nil {
		t.Fatal(err)
	}
	want := []Link{{
		Port: 1, Name: "rxe_softnic0", State: "ACTIVE", PhysicalState: "LINK_UP", Link: "a pipe", LinkMTU: 4200, ActiveMTU: 4096,
		MaxMTU: 4096, IPID: "written", MAC: "02:00:0a:08:00:02",
		GIDs:  []GID{{0, "fe80::aff:fe08:2", "RoCE v2"}, {1, "::ffff:10.8.0.2", "RoCE v2"}},
		Drops: []Drop{},
	}}
	if diff := cmp.Diff(want, links); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}

	qp := addQP(t, dev)
	qps, err := c.QPs(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(qps) != 1 || qps[0].LQPN != qp.Num() || qps[0].Type != "RC" || qps[0].State != "RESET" || qps[0].PID != os.Getpid() {
		t.Errorf("queue pairs %+v", qps)
	}

	of, err := c.QPStatistics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(of) != 1 || of[0].LQPN != qp.Num() || of[0].Type != "RC" || !cmp.Equal(of[0].Counters, qp.Statistics()) {
		t.Errorf("counters of queue pairs %+v", of)
	}

	if err := raw.Write([]byte{0x45, 0, 0}); err != nil {
		t.Fatal(err)
	}
	await(t, func() bool { return len((&Server{dev: dev}).statistic().Drops()) > 0 })
	st, err := c.Statistics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if len(st) != 1 || st[0].Name != "rxe_softnic0" || st[0].Port != 1 || st[0].Counters[0].Name != "sent_pkts" {
		t.Fatalf("statistic %+v", st)
	}
	if diff := cmp.Diff([]Drop{{"malformed", 1}}, st[0].Drops()); diff != "" {
		t.Errorf("drops (-want +got):\n%s", diff)
	}
}

func addQP(t *testing.T, dev *device.Device) *device.QP {
	t.Helper()
	c := dev.NewContext()
	pd, err := c.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	cq, err := c.CreateCQ(device.CQInit{Entries: 1})
	if err != nil {
		t.Fatal(err)
	}
	qp, err := pd.CreateQP(device.QPInit{Type: device.RC, SendCQ: cq, RecvCQ: cq})
	if err != nil {
		t.Fatal(err)
	}
	return qp
}

// await polls for what another goroutine does.
func await(t *testing.T, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !ok(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it does not happen")
		}
	}
}

func TestErrors(t *testing.T) {
	dev, _ := newDevice(t)
	path, c := serve(t, dev)
	for _, q := range []struct {
		method, url string
		code        int
		text        string
	}{
		{"GET", "/v1/nothing", 404, "/v1/nothing does not exist"},
		{"GET", "/", 404, "/ does not exist"},
		{"POST", "/v1/dev", 405, "only GET is possible"},
		{"DELETE", "/v1/qp", 405, "only GET is possible"},
	} {
		req, err := http.NewRequest(q.method, "http://softnic"+q.url, nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.http.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(res.Body)
		res.Body.Close()
		var e Error
		if err != nil || json.Unmarshal(body, &e) != nil || res.StatusCode != q.code || !strings.Contains(e.Message, q.text) {
			t.Errorf("%s %s: %s %s (%v), want %d with %q", q.method, q.url, res.Status, body, err, q.code, q.text)
		}
	}

	// One daemon for one path.
	_, err := Listen(path)
	if err == nil || !strings.Contains(err.Error(), "softnic (pid ") || strings.Contains(err.Error(), "\n") {
		t.Errorf("a second listener: %v", err)
	}
	if _, err := c.Daemon(context.Background()); err != nil {
		t.Errorf("after the second one tried: %v", err)
	}
}

func TestClientErrors(t *testing.T) {
	dir := t.TempDir()
	ask := func(path string) string {
		_, err := NewClient(path).Devs(context.Background())
		if err == nil {
			t.Fatal("no error")
		}
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("more than a line: %q", err)
		}
		return err.Error()
	}
	if e := ask(filepath.Join(dir, "none.sock")); !strings.Contains(e, "no softnic runs on "+filepath.Join(dir, "none.sock")+Suffix+":") {
		t.Error(e)
	}

	// Somebody else who listens there.
	path := filepath.Join(dir, "other.sock")
	for what, reply := range map[string]string{
		"nonsense":      "220 mail.example.org ESMTP\r\n",
		"nothing":       "",
		"not JSON":      "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
		"not ours":      "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}",
		"cut off":       "HTTP/1.1 200 OK\r\nContent-Length: 200\r\n\r\n[{",
		"another error": "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
	} {
		t.Run(what, func(t *testing.T) {
			l, err := net.Listen("unix", path+Suffix)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				if conn, err := l.Accept(); err == nil {
					_, _ = conn.Read(make([]byte, 4096))
					_, _ = io.WriteString(conn, reply)
					conn.Close()
				}
			}()
			if e := ask(path); !strings.Contains(e, path+Suffix+": ") {
				t.Error(e)
			}
			l.Close()
		})
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	fi, err := os.Lstat(path + Suffix)
	if err != nil {
		t.Fatal(err)
	}
	if fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", fi.Mode())
	}

	// A dead process leaves its socket.
	l.(*listener).UnixListener.Close()
	l2, err := Listen(path)
	if err != nil {
		t.Fatalf("after a dead process: %v", err)
	}
	// The dead one's late Close does not take the new one's socket away.
	l.Close()
	if _, err := os.Lstat(path + Suffix); err != nil {
		t.Error(err)
	}
	if err := l2.Close(); err != nil {
		t.Error(err)
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}

	for _, c := range []struct {
		path, text string
		make       func(path string) error
	}{
		{"file", "is not a socket", func(p string) error { return os.WriteFile(p, []byte("mine"), 0o600) }},
		{"folder", "is not a socket", func(p string) error { return os.Mkdir(p, 0o700) }},
		{"no/such/folder", "no socket can be made in", nil},
		{strings.Repeat("x", 120), "use a shorter --socket", nil},
	} {
		p := filepath.Join(dir, c.path)
		if c.make != nil {
			if err := c.make(p + Suffix); err != nil {
				t.Fatal(err)
			}
		}
		_, err := Listen(p)
		if err == nil || !strings.Contains(err.Error(), c.text) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", c.path, err, c.text)
		}
		if c.make != nil {
			if _, err := os.Lstat(p + Suffix); err != nil {
				t.Errorf("%s is gone: %v", c.path, err)
			}
		}
	}
}

// TestListenRace has many start at once where a dead process left its socket: one gets it.
func TestListenRace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.sock")
	dead, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	dead.(*listener).UnixListener.Close()
	const n = 3
	got := make(chan net.Listener, n)
	for range n {
		go func() {
			l, err := Listen(path)
			if err != nil {
				l = nil
			}
			got <- l
		}()
	}
	won := 0
	for range n {
		if l := <-got; l != nil {
			won++
			defer l.Close()
		}
	}
	if won != 1 && runtime.GOOS != "windows" {
		t.Errorf("%d listeners on one path", won)
	}
}

func TestDefaultPath(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("folders have no owner and mode here")
	}
	dir := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", dir)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if p, err := DefaultPath(); err != nil || p != filepath.Join(dir, "softnic.sock") {
		t.Error(p, err)
	}
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(dir, "none"))
	if p, err := DefaultPath(); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Error(p, err)
	}

	t.Setenv("XDG_RUNTIME_DIR", "")
	t.Setenv("TMPDIR", dir)
	mine := filepath.Join(dir, "softnic-"+userName())
	p, err := DefaultPath()
	if err != nil || p != filepath.Join(mine, "softnic.sock") {
		t.Error(p, err)
	}
	if _, err := os.Lstat(mine); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("who asks only has made a folder: %v", err)
	}
	l, err := Listen(p)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if fi, err := os.Lstat(mine); err != nil || fi.Mode().Perm() != 0o700 {
		t.Error(fi, err)
	}
	for what, bad := range map[string]func() error{
		"may be written by others": func() error { return os.Chmod(mine, 0o777) },
		"is not a folder": func() error {
			return errors.Join(os.Chmod(mine, 0o700), os.Rename(mine, mine+"2"), os.Symlink(mine+"2", mine))
		},
	} {
		os.RemoveAll(mine)
		os.RemoveAll(mine + "2")
		if err := os.Mkdir(mine, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := bad(); err != nil {
			t.Fatal(err)
		}
		if l, err := Listen(p); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: Listen: %v %v", what, l, err)
		}
		if p, err := DefaultPath(); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v %v", what, p, err)
		}
	}
	os.RemoveAll(mine)
	if err := os.Mkdir(mine, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(mine, 4242, 4242); err != nil {
		t.Skipf("only root can give a folder away: %v", err)
	}
	if p, err := DefaultPath(); err == nil || !strings.Contains(err.Error(), "belongs to user 4242") {
		t.Error(p, err)
	}
}

func TestStatisticJSON(t *testing.T) {
	s := Statistic{Name: "rxe_softnic0", Port: 1, Counters: []stats.Value{{Name: "sent_pkts", Value: 1 << 63}, {Name: "drop_no-qp", Value: 2}}}
	b, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"ifname":"rxe_softnic0","port":1,"sent_pkts":9223372036854775808,"drop_no-qp":2}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	var back Statistic
	if err := json.Unmarshal(b, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(s, back); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	s.LQPN, s.Type = 17, "RC"
	if b, err = json.Marshal(s); err != nil || !strings.HasPrefix(string(b), `{"ifname":"rxe_softnic0","port":1,"lqpn":17,"type":"RC","sent_pkts":`) {
		t.Errorf("%s, %v", b, err)
	}
	if err := json.Unmarshal(b, &back); err != nil || !cmp.Equal(s, back) {
		t.Errorf("%+v, %v, want %+v", back, err, s)
	}
	for _, bad := range []string{`[]`, `{"a":-1}`, `{"a":"b"}`, `{"port":{}}`, `{"a":1`} {
		if err := json.Unmarshal([]byte(bad), &back); err == nil {
			t.Errorf("%s was taken", bad)
		}
	}
}
