package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"regexp"
	"strings"
	"testing"
	"time"
)

// small returns a test of 100 messages.
func small(latency bool, op Op, change func(*Config)) Config {
	c := Default(latency, op)
	c.Iters = 100
	if change != nil {
		change(&c)
	}
	return c
}

func openPair(t *testing.T) *Pair {
	t.Helper()
	p, err := OpenPair(PairOptions{Link: LinkPipe, Stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestRun measures a little of everything over memory. How fast it is does not matter here; that all was moved does.
func TestRun(t *testing.T) {
	type variant struct {
		name   string
		change func(*Config)
	}
	waits := []variant{
		{"poll", nil},
		{"block", func(c *Config) { c.Wait = Block }},
		{"events", func(c *Config) { c.Wait = Events }},
	}
	queues := []variant{
		{"lists", func(c *Config) { c.List, c.Depth, c.Size = 7, 20, 64 }},
		{"queue pairs", func(c *Config) { c.QPs, c.Depth, c.Size = 9, 4, 3000 }},
		{"one at a time", func(c *Config) { c.Depth, c.Size = 1, 10000 }},
		{"small MTU", func(c *Config) { c.PathMTU, c.Size = 256, 3001 }},
		{"peer polls", func(c *Config) { c.PeerPoll, c.Size = true, 1 }},
		{"rare completions", func(c *Config) { c.Depth, c.CQMod, c.Size = 30, 30, 100 }},
	}
	for _, latency := range []bool{false, true} {
		for _, op := range Ops() {
			variants := waits
			if !latency {
				variants = append(waits[:len(waits):len(waits)], queues...)
			}
			for _, v := range variants {
				c := small(latency, op, v.change)
				if op == Atomic {
					c.Size = 8
				}
				t.Run(c.title()+"/"+v.name, func(t *testing.T) {
					p := openPair(t)
					r, err := Run(t.Context(), p.Device, p.Other, c)
					if err != nil {
						t.Fatal(err)
					}
					if r.Iterations != 100 || !r.Verified || r.Interrupted || r.Seconds <= 0 || r.Processes != 1 {
						t.Errorf("%+v", r)
					}
					least := 100 * ((c.Size + c.PathMTU - 1) / c.PathMTU)
					if r.Packets < uint64(least) {
						t.Errorf("%d packets, at least %d are needed", r.Packets, least)
					}
					if latency != (r.Times != nil) {
						t.Errorf("latency %v, times %v", latency, r.Times)
					}
					if r.Times != nil && (r.Times.Min <= 0 || r.Times.Min > r.Times.Typical || r.Times.Typical > r.Times.P99 || r.Times.P99 > r.Times.Max) {
						t.Errorf("%+v", r.Times)
					}
				})
			}
		}
	}
}

// TestDuration goes by the clock, and ends with a completion.
func TestDuration(t *testing.T) {
	p := openPair(t)
	c := small(false, Write, func(c *Config) { c.Duration = 30 * time.Millisecond; c.Size = 64; c.CQMod = 16 })
	r, err := Run(t.Context(), p.Device, p.Other, c)
	if err != nil {
		t.Fatal(err)
	}
	if r.Seconds < 0.03 || r.Iterations == 0 || r.Iterations%c.CQMod != 0 {
		t.Errorf("%+v", r)
	}
}

// TestInterrupted ends tests before they begin: nothing was measured, and that is an error.
func TestInterrupted(t *testing.T) {
	for _, latency := range []bool{false, true} {
		p := openPair(t)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if r, err := Run(ctx, p.Device, p.Other, small(latency, Write, nil)); !errors.Is(err, errNothing) {
			t.Errorf("latency %v: %v, %+v", latency, err, r)
		}
	}
}

// TestInterruptedLater ends tests somewhere in the middle, behind a warm-up of 200 ms; which may be longer where others want the processors.
func TestInterruptedLater(t *testing.T) {
	for _, op := range []Op{Write, Send} {
		for _, latency := range []bool{false, true} {
			var r *Result
			err := errNothing
			for after := 300 * time.Millisecond; errors.Is(err, errNothing) && after < 2*time.Second; after *= 2 {
				p := openPair(t)
				ctx, cancel := context.WithTimeout(t.Context(), after)
				defer cancel()
				r, err = Run(ctx, p.Device, p.Other, small(latency, op, func(c *Config) { c.Duration = 2 * time.Second }))
			}
			if err != nil || !r.Interrupted || !r.Verified || r.Seconds > 1.5 {
				t.Errorf("%s, latency %v: %v, %+v", op, latency, err, r)
				continue
			}
			var out bytes.Buffer
			r.Print(&out)
			if !strings.Contains(out.String(), "interrupted after") {
				t.Error(out.String())
			}
		}
	}
}

// TestWarmUp: the longest test has a warm-up of no more than a second.
func TestWarmUp(t *testing.T) {
	for _, c := range []struct {
		c           Config
		warm, timed int
		time        time.Duration
	}{
		{Config{Iters: 1000}, 100, 1000, time.Second},
		{Config{Iters: 5}, 1, 5, time.Second},
		{Config{Duration: time.Second}, 0, 0, 100 * time.Millisecond},
		{Config{Duration: time.Hour}, 0, 0, time.Second},
	} {
		if w, n, d := c.c.parts(); w != c.warm || n != c.timed || d != c.time {
			t.Errorf("%+v: %d, %d, %v", c.c, w, n, d)
		}
	}
}

// FuzzServe has the other side asked for anything: it answers or ends.
func FuzzServe(f *testing.F) {
	for _, s := range []string{
		`{"step":"ready"}{"step":"hello"}`,
		`{"step":"hello","version":1,"config":{"op":"write","size":8,"qps":1,"tx_depth":4,"post_list":1,"iters":5,"path_mtu":1024,"wait":"poll"},"remotes":[{"GID":"10.117.17.1","QPN":17,"PSN":5}],"regions":[{"out":0,"in":64,"rkey":1}]}{"step":"check"}{"step":"start"}{"step":"stop"}`,
		`{"step":"hello","version":1,"config":{"latency":true,"op":"send","size":8,"qps":1,"tx_depth":1,"post_list":1,"iters":5,"path_mtu":256,"wait":"events"},"remotes":[{"GID":"10.117.17.1","QPN":17,"PSN":5}],"regions":[{}]}{"step":"start"}{"step":"start"}`,
		`{"step":"stop"}[`,
	} {
		f.Add([]byte(s))
	}
	long := regexp.MustCompile("[0-9]{6}")
	f.Fuzz(func(t *testing.T, asked []byte) {
		if long.Match(asked) {
			t.Skip("it asks for more memory or time than a fuzzer has")
		}
		p := openPair(t)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		var answers bytes.Buffer
		_ = Serve(ctx, p.Device, struct {
			io.Reader
			io.Writer
		}{bytes.NewReader(asked), &answers})
		for d := json.NewDecoder(&answers); d.More(); {
			var m message
			if err := d.Decode(&m); err != nil {
				t.Fatalf("no answer: %v", err)
			}
		}
	})
}

// TestDataIsCompared spoils a byte of what a side sends, or adds to what atomics add to.
func TestDataIsCompared(t *testing.T) {
	for op, want := range map[Op]string{Write: "write: byte 7 of 64", Send: "send: byte 7 of 64", Read: "read: byte 7 of 64", Atomic: "and their sum is"} {
		p := openPair(t)
		c := small(false, op, func(c *Config) { c.Size, c.List = 64, 1 })
		if op == Atomic {
			c.Size = 8
		}
		spoil := &spoiler{op: op}
		near, far := net.Pipe()
		go func() {
			spoil.serve(p, far)
			far.Close()
		}()
		_, err := spoil.run(t.Context(), p, near, c)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", op, err, want)
		}
		near.Close()
	}
}

// spoiler runs a test on two ends of one device and spoils the data of the end that sends it.
type spoiler struct{ op Op }

func (s *spoiler) serve(p *Pair, rw io.ReadWriter) {
	srv := &server{dev: p.Device, stream: newStream(rw)}
	defer srv.end()
	for {
		var m message
		if srv.stream.in.Decode(&m) != nil {
			return
		}
		r, err := srv.step(context.Background(), m)
		if m.Step == "hello" {
			switch s.op {
			case Read:
				srv.side.lanes[0].out[7] ^= 1
			case Atomic:
				srv.side.lanes[0].in[0]++
			}
		}
		if r.Step = m.Step; err != nil {
			r.Error = err.Error()
		}
		if srv.stream.out.Encode(&r) != nil {
			return
		}
	}
}

func (s *spoiler) run(ctx context.Context, p *Pair, rw io.ReadWriter, c Config) (*Result, error) {
	if err := c.Check(); err != nil {
		return nil, err
	}
	e, err := newEnd(p.Device, c)
	if err != nil {
		return nil, err
	}
	defer e.close()
	t := &test{e: e, stream: newStream(rw), r: &Result{Config: c}}
	if err := t.connect(); err != nil {
		return nil, err
	}
	if s.op == Write || s.op == Send {
		e.lanes[0].out[7] ^= 1
	}
	if err := t.verify(ctx); err != nil {
		return nil, err
	}
	return t.r, t.measure(ctx)
}

// TestServeIsAsked says wrong things to the other side, which answers with what is wrong and goes on.
func TestServeIsAsked(t *testing.T) {
	p := openPair(t)
	good := small(false, Write, nil)
	for _, c := range []struct {
		m    message
		want string
	}{
		{message{Step: "start"}, `"start" before "hello"`},
		{message{Step: "hello", Config: &good}, "different versions"},
		{message{Step: "hello", Version: version}, "different versions"},
		{message{Step: "hello", Version: version, Config: &Config{}}, "is no operation"},
		{message{Step: "hello", Version: version, Config: &good}, "the other side has 0 queue pairs, this one 1"},
		{message{Step: "hello", Version: version, Config: &good}, `"hello" is no step here`},
	} {
		_, err := newStream(p.Other).ask(c.m)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v, want %q", c.m, err, c.want)
		}
	}
}

// TestOtherSideGoes has the other side end in the middle.
func TestOtherSideGoes(t *testing.T) {
	p := openPair(t)
	near, far := net.Pipe()
	go func() {
		var m message
		_ = json.NewDecoder(far).Decode(&m)
		far.Close()
	}()
	_, err := Run(t.Context(), p.Device, near, small(false, Write, nil))
	if err == nil || !strings.Contains(err.Error(), `the other side ended during "hello"`) {
		t.Error(err)
	}
}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"op", func(c *Config) { c.Op = "wirte" }, `"wirte" is no operation`},
		{"wait", func(c *Config) { c.Wait = "sleep" }, `"sleep" is no way to wait`},
		{"no bytes", func(c *Config) { c.Size = 0 }, "-s 0: want 1 to"},
		{"no messages", func(c *Config) { c.Iters = 0 }, "-n 0: want 1 to"},
		{"MTU", func(c *Config) { c.PathMTU = 1500 }, "-m 1500: want 256, 512"},
		{"the past", func(c *Config) { c.Duration = -1 }, "-D -1ns has passed"},
		{"memory", func(c *Config) { c.QPs, c.Size = 100, 1<<28 }, "-s 268435456 -q 100: want at most 1073741824 bytes"},
		{"list", func(c *Config) { c.List, c.Depth = 8, 4 }, "-l 8: a list is not longer than the queue (-t 4)"},
		{"cq mod", func(c *Config) { c.CQMod, c.Depth = 8, 4 }, "-Q 8: with -t 4 and -l 1 the queue would be full"},
		{"cq mod, lists", func(c *Config) { c.CQMod, c.List, c.Depth = 12, 6, 16 }, ""},
		{"cq mod, broken lists", func(c *Config) { c.CQMod, c.List, c.Depth = 9, 6, 16 }, "-Q 9 and -l 6: one is to be a multiple"},
		{"too many", func(c *Config) { c.QPs = 1000 }, "-q 1000 -t 128: a completion queue has 32767 entries"},
		{"receives", func(c *Config) { c.Op, c.QPs, c.RXDepth = Send, 100, 512 }, "-r 512: with -q 100 and -t 128 the completion queue has room for 199 each"},
	} {
		cfg := Default(false, Write)
		c.change(&cfg)
		err := cfg.Check()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
	atomic := Default(false, Atomic)
	atomic.Size = 16
	if err := atomic.Check(); err == nil {
		t.Error("an atomic of 16 bytes")
	}
	lat := Default(true, Write)
	lat.QPs = 2
	if err := lat.Check(); err == nil {
		t.Error("a latency test over two queue pairs")
	}
	c := Default(false, Write)
	c.List, c.Depth = 16, 128
	if err := c.Check(); err != nil || c.CQMod != 16 || c.RXDepth != 512 {
		t.Errorf("%v: %+v", err, c)
	}
}

func TestSummarize(t *testing.T) {
	var s []time.Duration
	for i := 1000; i >= 1; i-- {
		s = append(s, time.Duration(i)*time.Microsecond)
	}
	got := summarize(s, 1)
	// 1 … n: the mean is (n+1)/2, the variance (n²-1)/12.
	want := Latency{Min: 1, Max: 1000, Typical: 500.5, Average: 500.5, Stdev: 288.67, P99: 990, P999: 999}
	got.Stdev = float64(int(got.Stdev*100)) / 100
	if got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := summarize([]time.Duration{4 * time.Microsecond}, 2); got != (Latency{Min: 2, Max: 2, Typical: 2, Average: 2, P99: 2, P999: 2}) {
		t.Errorf("one sample: %+v", got)
	}
	if got := summarize(nil, 2); got != (Latency{}) {
		t.Errorf("no sample: %+v", got)
	}
}

func TestMeter(t *testing.T) {
	at := time.Unix(100, 0)
	m := &meter{last: at}
	for _, s := range []struct {
		ms   int
		done int
	}{{5, 500}, {10, 600}, {20, 800}, {60, 9000}} { // 60000, 20000, 205000 a second
		m.at(at.Add(time.Duration(s.ms)*time.Millisecond), s.done)
	}
	if m.peak != 205000 {
		t.Error(m.peak)
	}
}

// TestUse counts a process once, and two processes together.
func TestUse(t *testing.T) {
	here := usage{Process: process, CPU: time.Second, HasCPU: true, Mallocs: 10, Packets: 60}
	there := usage{Process: process, CPU: 2 * time.Second, HasCPU: true, Mallocs: 20, Packets: 40}
	r := &Result{Config: Config{Size: 1000}}
	r.use(here, there, 1e6)
	if r.Processes != 1 || r.Packets != 100 || r.AllocsPerPacket != 0.1 || *r.CPUSeconds != 1 || *r.CPUPerGB != 1 {
		t.Errorf("%+v", r)
	}
	there.Process++
	r.use(here, there, 1e6)
	if r.Processes != 2 || r.Packets != 100 || r.AllocsPerPacket != 0.3 || *r.CPUSeconds != 3 || *r.CPUPerGB != 3 {
		t.Errorf("%+v", r)
	}
	there.HasCPU = false
	r = &Result{}
	r.use(here, there, 0)
	if r.CPUSeconds != nil || r.CPUPerGB != nil {
		t.Errorf("%+v", r)
	}
}

// TestPrint holds the table of perftest: the header is that of perftest 4.5, and the columns fit.
func TestPrint(t *testing.T) {
	cpu, per := 1.5, 0.5
	r := &Result{Config: Config{Size: 65536, PathMTU: 4096, QPs: 1, Depth: 16, List: 1, Wait: Poll}, Title: "RDMA Write BW Test", Link: "udp 127.0.0.1:4791", Processes: 2,
		Iterations: 5000, Seconds: 0.3125, BytesPerSec: 1000 * mib, PeakPerSec: 1200 * mib, MsgPerSec: 16000, Packets: 81000, CPUSeconds: &cpu, CPUPerGB: &per, Verified: true}
	var out bytes.Buffer
	r.Print(&out)
	for _, want := range []string{
		"\n #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]\n",
		"\n 65536      5000           1200.00            1000.00              0.016000\n",
		"2 processes, waits by poll, 1 queue pair, tx depth 16, lists of 1\n",
		" 1.50 s of CPU, 0.50 s per GB, 81000 packets sent, 0.000 allocations per packet; data verified\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	r.Times, r.Latency = &Latency{Min: 3, Max: 90.5, Typical: 4.25, Average: 5, Stdev: 1, P99: 20, P999: 80}, true
	out.Reset()
	r.Print(&out)
	want := "\n 65536   5000           3.00           90.50        4.25               5.00           1.00            20.00                  80.00"
	if !strings.Contains(out.String(), want) {
		t.Errorf("no %q in\n%s", want, out.String())
	}
}
