//go:build linux

package stock

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/interop/judge"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
)

// pair is a server and a client of one program.
type pair struct {
	argv []string // of both, without port and the host of the client
	size int      // of a message
	msgs int      // that pass between the two, in both directions together
	mtu  int
	poll bool // both spin on their queues
}

// String is a name for the subtest.
func (p pair) String() string {
	return strings.NewReplacer(" -g 1", "", " -x 1", "", " -F", "", " -", "-", " ", "").Replace(strings.Join(p.argv, " "))
}

// packets is how many hold the messages.
func (p pair) packets() int64 { return int64(p.msgs * max(1, (p.size+p.mtu-1)/p.mtu)) }

// pingpong is a run of one of the ibv_*_pingpong, with check of the data as far as that goes.
func pingpong(service string, size, iters int, flags ...string) pair {
	p := pair{size: size, msgs: 2 * iters, mtu: 1024}
	if service == "ud" || slices.Contains(flags, "4096") {
		p.mtu = 4096
	}
	p.argv = append([]string{"ibv_" + service + "_pingpong", "-g", "1", "-c", "-s", strconv.Itoa(size), "-n", strconv.Itoa(iters)}, flags...)
	return p
}

// perf is a run of a program of perftest, whose MTU is the link's.
func perf(name string, size, msgs int, flags ...string) pair {
	return pair{size: size, msgs: msgs, mtu: 4096, poll: !slices.Contains(flags, "-e"), argv: append([]string{name, "-x", "1", "-F"}, flags...)}
}

// complaints are what a program may print and exit 0 all the same.
var complaints = regexp.MustCompile(`(?i)invalid data|mismatch|failed|error|couldn't|unable|softnic:`)

// play runs a pair, the server on a and the client on b.
func (p pair) play(t testing.TB, a, b options) (server, client result) {
	t.Helper()
	port := freePort(t)
	argv := append(append([]string{}, p.argv...), "-p", port)
	s := start(t, a, argv...)
	s.listens(port)
	c := start(t, b, append(argv, "127.0.0.1")...)
	// The one that fails may leave the other waiting.
	end := time.Now().Add(3 * time.Minute)
	for s.running() || c.running() {
		failed := func(p *proc) bool { return !p.running() && p.cmd.ProcessState.ExitCode() != 0 }
		if failed(s) || failed(c) {
			if soon := time.Now().Add(3 * time.Second); soon.Before(end) {
				end = soon
			}
		}
		if time.Now().After(end) {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	return s.result(), c.result()
}

// good holds that both ended well.
func good(t testing.TB, results ...result) {
	t.Helper()
	for _, r := range results {
		if r.Code != 0 || complaints.MatchString(r.Stdout+r.Stderr) {
			t.Errorf("failed: %v", r)
		}
	}
}

// run plays a pair between two daemons, or on one, and holds that the packets which it takes passed.
func (p pair) run(t *testing.T, a, b *daemon) {
	t.Helper()
	t.Run(p.String(), func(t *testing.T) {
		before := map[*daemon]counters{a: a.counters(), b: b.counters()}
		var prefix []string
		if p.poll {
			// Two programs that spin leave two processors to nobody: an adapter would not need one.
			prefix = []string{"chrt", "--idle", "0"}
		}
		s, c := p.play(t, a.exec(prefix...), b.exec(prefix...))
		for range 3 {
			// What perftest says of itself where the machine does not give it its time evenly: its clock is no clock.
			if !strings.Contains(s.Stdout+s.Stderr+c.Stdout+c.Stderr, "Correlation coefficient r^2") {
				break
			}
			t.Log("again, because perftest could not tell how fast the processor's clock is")
			s, c = p.play(t, a.exec(prefix...), b.exec(prefix...))
		}
		good(t, s, c)
		for d, old := range before {
			now := d.counters()
			grown := func(names ...string) (n int64) {
				for _, name := range names {
					n += now[name] - old[name]
				}
				return n
			}
			if n := grown("sent_pkts", "rcvd_pkts"); n < p.packets() || grown("sent_pkts") == 0 || grown("rcvd_pkts") == 0 {
				t.Errorf("%d packets were sent and received on %s, the messages alone take %d", n, d.addr, p.packets())
			}
			if n := grown("sent_bytes", "rcvd_bytes"); n < int64(p.msgs)*int64(p.size) {
				t.Errorf("%d bytes were sent and received on %s, the messages alone have %d", n, d.addr, p.msgs*p.size)
			}
		}
		a.free()
		b.free()
		if t.Failed() {
			t.Logf("server's daemon: %s", a.moved(before[a]))
			t.Logf("client's daemon: %s", b.moved(before[b]))
			t.Log(s)
			t.Log(c)
		}
	})
}

// TestPingpong plays the ping-pong tools of libibverbs. With -c they look at the data, though at one byte a page only.
func TestPingpong(t *testing.T) {
	needStock(t)
	modes(t, daemonOptions{}, func(t *testing.T, a, b *daemon) {
		for _, size := range []int{1, 100, 1024, 4096, 65536, 1 << 20} {
			iters := max(10, min(100, 1<<22/size))
			pingpong("rc", size, iters).run(t, a, b)
			pingpong("rc", size, iters, "-e").run(t, a, b)
			pingpong("srq", size, max(iters, 20), "-e").run(t, a, b)
			pingpong("uc", size, iters).run(t, a, b)
			if size <= 4096 { // a datagram is one packet
				pingpong("ud", size, iters).run(t, a, b)
				pingpong("ud", size, iters, "-e").run(t, a, b)
			}
		}
		pingpong("rc", 65536, 20, "-m", "4096").run(t, a, b)
	})
}

// TestPerftest runs perftest, which measures, and does not look at the data.
func TestPerftest(t *testing.T) {
	needStock(t)
	modes(t, daemonOptions{}, func(t *testing.T, a, b *daemon) {
		perf("ib_send_bw", 65536, 1000).run(t, a, b)
		perf("ib_send_lat", 2, 2000).run(t, a, b)
		perf("ib_write_bw", 65536, 5000).run(t, a, b)
		perf("ib_write_lat", 2, 2000).run(t, a, b)
		perf("ib_read_bw", 65536, 1000).run(t, a, b)
		perf("ib_read_lat", 2, 1000).run(t, a, b)

		// Where there is a queue of completions to sleep on: not for ib_write_bw and ib_write_lat.
		perf("ib_send_bw", 65536, 1000, "-e").run(t, a, b)
		perf("ib_send_lat", 2, 10000, "-n", "5000", "-e").run(t, a, b) // counts on the completion of what it sent before that of the answer
		perf("ib_read_bw", 65536, 1000, "-e").run(t, a, b)
		perf("ib_read_lat", 2, 1000, "-e").run(t, a, b)

		// Only programs of bandwidth have several queue pairs.
		perf("ib_send_bw", 65536, 8*200, "-q", "8", "-n", "200").run(t, a, b)
		perf("ib_write_bw", 65536, 8*200, "-q", "8", "-n", "200").run(t, a, b)
		perf("ib_read_bw", 65536, 8*200, "-q", "8", "-n", "200").run(t, a, b)
		perf("ib_send_bw", 65536, 4*200, "-q", "4", "-n", "200", "--use-srq").run(t, a, b)
		perf("ib_atomic_bw", 8, 1000, "-A", "FETCH_AND_ADD").run(t, a, b)
		perf("ib_atomic_lat", 8, 500, "-A", "CMP_AND_SWAP", "-n", "500").run(t, a, b)
		perf("ib_atomic_bw", 8, 8*200, "-A", "CMP_AND_SWAP", "-q", "8", "-n", "200").run(t, a, b)
		perf("ib_atomic_bw", 8, 1000, "-A", "FETCH_AND_ADD", "-e").run(t, a, b)
		perf("ib_atomic_lat", 8, 500, "-A", "FETCH_AND_ADD", "-n", "500", "-e").run(t, a, b)
		perf("ib_write_lat", 2, 1000, "-c", "UC").run(t, a, b)
		perf("ib_send_lat", 2, 1000, "-c", "UD").run(t, a, b)

		// All sizes up to 8 MiB; together they are as much as two of the largest.
		for _, name := range []string{"ib_send_lat", "ib_write_lat", "ib_read_lat", "ib_send_bw", "ib_write_bw", "ib_read_bw"} {
			perf(name, 1<<24, 100, "-a", "-n", "100").run(t, a, b)
		}
	})
}

// TestCaptured has every frame of short runs in captures: each is looked at here with the codec and the ICRC of
// interop/peer, and by interop/judge with tshark where SOFTNIC_JOB keeps them.
func TestCaptured(t *testing.T) {
	needStock(t)
	pairs := []pair{
		pingpong("rc", 4096, 20),
		pingpong("rc", 1, 5, "-e"),
		pingpong("rc", 65536, 5, "-m", "4096"),
		pingpong("ud", 1000, 20),
		perf("ib_send_lat", 2, 40, "-n", "20", "-e"),
		perf("ib_write_bw", 10000, 20, "-n", "20", "-s", "10000"),
		perf("ib_read_bw", 10000, 20, "-n", "20", "-s", "10000"),
		perf("ib_atomic_bw", 8, 20, "-A", "FETCH_AND_ADD", "-n", "20"),
		perf("ib_atomic_lat", 8, 20, "-A", "CMP_AND_SWAP", "-n", "20"),
	}
	captured := func(t *testing.T, name, log string) (*daemon, string) {
		path := jobFile(t, name+".pcapng")
		return startDaemon(t, daemonOptions{options: options{}, flags: []string{"--capture", path, "--packet-log", jobFile(t, name+log)}}), path
	}
	check := func(t *testing.T, d *daemon, path string) {
		t.Helper()
		want := int64(0)
		for _, p := range pairs {
			want += p.packets()
		}
		counted := d.counters()
		d.stop()
		findings, err := judge.File(path)
		for _, f := range findings {
			t.Error(f)
		}
		frames := 0
		if err == nil {
			err = judge.Packets(path, func(judge.Packet) error { frames++; return nil })
		}
		if err != nil {
			t.Fatal(err)
		}
		if int64(frames) < want || int64(frames) < counted["sent_pkts"] {
			t.Errorf("%s has %d frames; the messages alone take %d, and %d were sent", path, frames, want, counted["sent_pkts"])
		}
		if b, err := os.ReadFile(judge.LogOf(path)); err == nil {
			if findings, err = judge.AgainstLog(path, judge.LogOf(path)); err != nil {
				t.Errorf("%v\n%.200s", err, b)
			}
			for _, f := range findings {
				t.Error(f)
			}
		}
	}
	t.Run("one", func(t *testing.T) {
		// Both directions have one address there, which is how the judge tells them apart: the log is kept from it.
		d, path := captured(t, "inside", ".jsonl")
		for _, p := range pairs {
			p.run(t, d, d)
		}
		check(t, d, path)
	})
	t.Run("two", func(t *testing.T) {
		a, path := captured(t, "server", ".log.jsonl")
		b, other := captured(t, "client", ".log.jsonl")
		for _, p := range pairs {
			p.run(t, a, b)
		}
		check(t, a, path)
		check(t, b, other)
	})
}

// TestLoss has reliable connections on a path that loses one packet in a hundred in each direction. What was captured of that
// at either end, and at both, breaks no rule.
func TestLoss(t *testing.T) {
	needStock(t)
	files := []string{jobFile(t, "lossy-a.pcapng"), jobFile(t, "lossy-b.pcapng")}
	lossy := func(file string) daemonOptions {
		return daemonOptions{flags: []string{"--impair", "rx drop=1% seed=7", "--capture", file}}
	}
	a, b := startDaemon(t, lossy(files[0])), startDaemon(t, lossy(files[1]))
	// Nobody waits for the other at the end of ibv_rc_pingpong: where the very last ACK is lost, the one that has
	// sent asks a queue pair that is gone, on any device. That is one run in a hundred.
	for _, p := range []pair{pingpong("rc", 4096, 200), pingpong("rc", 65536, 200, "-e")} {
		t.Run(p.String(), func(t *testing.T) {
			for try := 1; ; try++ {
				s, c := p.play(t, a.exec(), b.exec())
				if try < 4 && s.Code+c.Code == 1 && strings.Contains(s.Stderr+c.Stderr, "transport retry counter exceeded") {
					t.Logf("once more: %v\n%v", s, c)
					continue
				}
				good(t, s, c)
				return
			}
		})
	}
	for _, p := range []pair{
		perf("ib_send_bw", 65536, 200, "-n", "200"),
		perf("ib_send_lat", 1024, 400, "-n", "200", "-s", "1024"),
		perf("ib_write_bw", 65536, 200, "-n", "200"),
		perf("ib_write_lat", 1024, 400, "-n", "200", "-s", "1024"),
		perf("ib_read_bw", 65536, 200, "-n", "200"),
		perf("ib_read_lat", 1024, 200, "-n", "200", "-s", "1024"),
	} {
		p.run(t, a, b)
	}
	for _, d := range []*daemon{a, b} {
		c := d.counters()
		if c["rx_impaired"] == 0 || c["completer_retry_err"]+c["packet_seq_err"]+c["out_of_seq_request"]+c["implied_nak_seq_err"] == 0 {
			t.Errorf("nothing was lost on %s: %s", d.addr, d.moved(nil))
		}
	}
	a.stop()
	b.stop()
	for _, names := range [][]string{files[:1], files[1:], files} {
		var in []trace.Input
		for _, name := range names {
			file, err := os.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			in = append(in, trace.Input{Name: name, R: file})
		}
		r, err := report.Analyze(in, report.Options{Rules: rules.Options{Examples: 3}})
		if err != nil {
			t.Fatal(err)
		}
		var text strings.Builder
		check := r.Text(&text)
		again := uint64(0)
		for _, c := range r.Conversations {
			for _, d := range []*report.Direction{c.AB, c.BA} {
				if d != nil {
					again += d.Retransmissions.Sum()
				}
			}
		}
		if check != nil || r.Broken != 0 || !r.Capture.Complete || again == 0 || r.Rules[rules.GBNSender].Kept == 0 {
			t.Errorf("%v: rules are broken %d times, %d packets were sent again\n%s", names, r.Broken, again, text.String())
		}
	}
}

// TestNoGID is the mistake that everybody makes once.
func TestNoGID(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	s, _ := pair{argv: []string{"ibv_rc_pingpong"}}.play(t, d.exec(), d.exec())
	const want = "softnic: RTR refused: RoCE needs a GID index, add -g 1"
	n := 0
	for line := range strings.Lines(s.Stderr) {
		if strings.TrimSuffix(line, "\n") == want {
			n++
		}
	}
	if s.Code == 0 || n != 1 {
		t.Errorf("want %q once: %v", want, s)
	}
	if r := tool(t, d.exec(), "sh", "-c", fmt.Sprintf("exit %d", 42)); r.Code != 42 {
		t.Errorf("the exit code is not the program's: %v", r)
	}
}
