//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
)

// transfer is what a probe of the lab measures: the same for both kinds of NIC, as far as their programs have it.
type transfer struct {
	latency bool
	size    int
	mtu     int
	n       int // messages: about a second in an emulated machine
	list    int // with one doorbell; 0: one
	lossy   bool
}

var (
	large = transfer{size: 65536, mtu: 4096, n: 1000}
	small = transfer{size: 65536, mtu: 1024, n: 400}
	lossy = transfer{size: 65536, mtu: 4096, n: 300, lossy: true}
	tiny  = transfer{size: 64, mtu: 4096, n: 20000}
	lists = transfer{size: 64, mtu: 4096, n: 60000, list: 64}
	ping  = transfer{latency: true, size: 8, mtu: 4096, n: 3000}
)

// labProbes run in the lab's virtual machine.
var labProbes = []probe{
	{"rxe", inGuest(large, rxe, rxe)},
	{"softnic", inGuest(large, softnic, softnic)},
	{"softnic-to-rxe", inGuest(large, softnic, rxe)},
	{"rxe-to-softnic", inGuest(large, rxe, softnic)},
	{"rxe-1024", inGuest(small, rxe, rxe)},
	{"softnic-1024", inGuest(small, softnic, softnic)},
	{"rxe-64", inGuest(tiny, rxe, rxe)},
	{"softnic-64-list", inGuest(lists, softnic, softnic)},
	{"rxe-lat", inGuest(ping, rxe, rxe)},
	{"softnic-lat", inGuest(ping, softnic, softnic)},
	{"rxe-lossy", inGuest(lossy, rxe, rxe)},
	{"softnic-lossy", inGuest(lossy, softnic, softnic)},
}

// benchPort is the TCP port of perftest and of softnic bench serve; every server has ended before the next begins.
const benchPort = "18515"

// inGuest returns a run over the veth pair, between two kinds of NIC: softnic bench where both are softnic; perftest where one is the kernel's, which
// at a softnic runs by softnic exec.
func inGuest(t transfer, near, far string) func(context.Context, *bench) (sample, error) {
	return func(ctx context.Context, b *bench) (sample, error) {
		t := t
		if b.lab.short {
			t.n = max(t.n/50, 2*t.list)
		}
		w := &wire{b: b, near: end{0, near}, far: end{1, far}, lossy: t.lossy}
		if err := w.setUp(ctx); err != nil {
			return nil, err
		}
		measure := w.perftest
		if near == softnic && far == softnic {
			measure = w.softnicBench
		}
		s, err := measure(ctx, t)
		for range 3 { // an emulated clock may run so unevenly that perftest gives up
			if errors.Is(err, errUnevenClock) {
				s, err = measure(ctx, t)
			}
		}
		if err != nil {
			return nil, err
		}
		p, err := w.sent(ctx, w.near)
		if err == nil && !(b.lab.short && t.lossy) { // of so few packets none may be lost
			err = p.check(w, t.n, t.size, t.mtu)
		}
		return s, err
	}
}

// at returns a bench whose programs run at an end.
func (w *wire) at(e end) *bench {
	b := *w.b
	b.prefix = e.in()
	return &b
}

// softnicBench measures with softnic bench on both sides.
func (w *wire) softnicBench(ctx context.Context, t transfer) (sample, error) {
	nic := func(e end) []string {
		if w.lossy {
			return []string{"--udp", e.addr(), "-p", benchPort, "--plain"}
		}
		return []string{"--udp", e.addr(), "-p", benchPort}
	}
	s, err := w.at(w.far).start(ctx, w.b.softnic, append([]string{"bench", "serve"}, nic(w.far)...)...)
	if err != nil {
		return nil, err
	}
	defer s.end()
	if err := s.line(ctx); err != nil {
		return nil, err
	}
	args := append(append([]string{"bench"}, t.softnic(w.b.wait)...), nic(w.near)...)
	out, err := w.at(w.near).output(ctx, w.b.softnic, append(args, w.far.addr())...)
	if err != nil {
		return nil, err
	}
	return readSoftnic(out)
}

// softnic returns the arguments of softnic bench.
func (t transfer) softnic(wait string) []string {
	kind := []string{"bw", "write", "-t", "16", wait}
	switch {
	case t.latency:
		kind = []string{"lat", "write", "--poll"}
	case t.list > 0:
		kind = []string{"bw", "write", "-t", strconv.Itoa(2 * t.list), "-l", strconv.Itoa(t.list), wait}
	}
	if !t.latency && wait == "--poll" {
		kind = append(kind, "--peer-poll")
	}
	return append(kind, "-j", "-s", strconv.Itoa(t.size), "-m", strconv.Itoa(t.mtu), "-n", strconv.Itoa(t.n))
}

// perftest returns the command line of the stock program, with its own defaults for what is not said.
func (t transfer) perftest() []string {
	program := "ib_write_bw"
	if t.latency {
		program = "ib_write_lat"
	}
	// -x 1 is the GID of the IPv4 address.
	return []string{program, "-F", "-x", "1", "-p", benchPort, "-s", strconv.Itoa(t.size), "-m", strconv.Itoa(t.mtu), "-n", strconv.Itoa(t.n)}
}

// perftest measures with the stock program on both sides.
func (w *wire) perftest(ctx context.Context, t transfer) (sample, error) {
	var lines [2][]string
	for i, e := range w.ends() {
		if e.nic == rxe {
			lines[i] = append(t.perftest(), "-d", e.rxe())
			continue
		}
		dir, err := os.MkdirTemp("", "snb")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		sock := filepath.Join(dir, "s")
		d, err := w.at(e).start(ctx, w.b.softnic, "run", "--udp", e.addr(), "--socket", sock)
		if err != nil {
			return nil, err
		}
		defer d.end()
		if err := d.line(ctx); err != nil {
			return nil, err
		}
		lines[i] = append([]string{w.b.softnic, "exec", "--socket", sock, "--"}, t.perftest()...)
	}
	near, far := lines[0], lines[1]
	s, err := w.at(w.far).start(ctx, far[0], far[1:]...)
	if err != nil {
		return nil, err
	}
	defer s.end()
	out, err := w.at(w.near).untilThere(ctx, s, near[0], append(near[1:], w.far.addr())...)
	if err != nil {
		return nil, err
	}
	return readPerftest(out)
}
