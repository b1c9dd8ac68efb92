//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sample is what a run of a probe gave.
type sample map[metric]float64

// probe is a program that is measured.
type probe struct {
	name string
	run  func(ctx context.Context, b *bench) (sample, error)
}

// seconds is how long a run goes where it can be said.
const seconds = 1

// bandwidthWait is how both sides wait in the rows that are about bandwidth.
const bandwidthWait = "--block"

var probes = []probe{
	{"iperf3", iperf3},
	{"write-64k", ours("bw write --two -s 65536 -t 16", "-m", "4096")},
	{"udp-gso", anchor("udp-gso")},
	{"ucx-tag-64k", ucx("tag_bw", 65536, 8000)},
	{"write-64k-1024", ours("bw write --two -s 65536 -t 16", "-m", "1024")},
	{"udp-plain", anchor("udp-plain")},
	{"write-1m", ours("bw write --two -s 1048576 -t 4")},
	{"ucx-put-64k", ucx("ucp_put_bw", 65536, 8000)},
	{"read-64k", ours("bw read --two -s 65536 -t 16")},
	{"send-64k", ours("bw send --two -s 65536 -t 16")},
	{"write-64qp", ours("bw write --two -s 65536 -t 16 -q 64")},
	{"write-tap", inNamespace(ours("bw write --two -s 65536 -t 16 --link tap"))},
	{"ucx-put-64", ucx("ucp_put_bw", 64, 150000)},
	{"write-64-list", ours("bw write --two -s 64 -t 128 -l 64")},
	{"write-64", ours("bw write --two -s 64 -t 128")},
	{"ping-spin", anchor("ping-spin")},
	{"lat-poll", ours("lat write --two -s 8 --poll")},
	{"ucx-tag-lat", ucx("tag_lat", 8, 20000)},
	{"lat-fadd", ours("lat atomic --two --poll")},
	{"ucx-put-lat", ucx("ucp_put_lat", 8, 20000)},
	{"ping-block", anchor("ping-block")},
	{"lat-block", ours("lat write --two -s 8 --block")},
	{"ping-netpoll", anchor("ping-netpoll")},
	{"lat-events", ours("lat write --two -s 8 -e")},
	{"write-4k-1", ours("bw write --two -s 4096 -t 1000 -q 1", "-m", "4096")},
	{"write-4k-32", ours("bw write --two -s 4096 -t 31 -q 32", "-m", "4096")},
	{"write-4k-1000", ours("bw write --two -s 4096 -t 1 -q 1000", "-m", "4096")},
	{"ib_write_bw", perftest("ib_write_bw", "-s", "65536", "-t", "16", "-n", "2000", "-m", "4096")},
	{"ib_send_lat", perftest("ib_send_lat", "-e", "-s", "8", "-n", "2000", "-m", "4096")},
	{"ib_send_lat_poll", perftest("ib_send_lat", "-s", "8", "-n", "5000", "-m", "4096")},
	{"ib_write_bw_64", perftest("ib_write_bw", "-s", "64", "-n", "20000", "-m", "4096")},
}

// ours returns a run of `softnic bench`. Bandwidth waits as bench.wait says, unless the arguments do.
func ours(line string, more ...string) func(context.Context, *bench) (sample, error) {
	return func(ctx context.Context, b *bench) (sample, error) {
		args := append([]string{"bench"}, strings.Fields(line)...)
		args = append(append(args, more...), "-j", "-D", fmt.Sprintf("%ds", seconds))
		if strings.HasPrefix(line, "bw ") {
			args = append(args, b.wait)
			if b.wait == "--poll" {
				args = append(args, "--peer-poll")
			}
		}
		out, err := b.output(ctx, b.softnic, args...)
		if err != nil {
			return nil, err
		}
		return readSoftnic(out)
	}
}

// readSoftnic reads the JSON of `softnic bench`.
func readSoftnic(out []byte) (sample, error) {
	var r struct {
		BytesPerSec float64  `json:"bytes_per_s"`
		MsgPerSec   float64  `json:"messages_per_s"`
		CPUPerGB    *float64 `json:"cpu_s_per_gb"`
		Allocs      float64  `json:"allocs_per_packet"`
		LeastShare  *float64 `json:"least_share"`
		Verified    bool     `json:"verified"`
		Times       *struct {
			Typical float64 `json:"t_typical_us"`
		} `json:"times"`
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return nil, fmt.Errorf("softnic bench printed %q: %w", firstLine(out), err)
	}
	if !r.Verified {
		return nil, errors.New("softnic bench has not verified its data")
	}
	s := sample{bytesPerSec: r.BytesPerSec, msgsPerSec: r.MsgPerSec, allocs: r.Allocs}
	if r.CPUPerGB != nil {
		s[cpuPerGB] = *r.CPUPerGB
	}
	if r.LeastShare != nil {
		s[leastShare] = *r.LeastShare
	}
	if r.Times != nil {
		s[usec] = r.Times.Typical
	}
	return s, nil
}

// inNamespace has a probe run in a network namespace of its own, so that its interfaces meet nobody else's.
func inNamespace(run func(context.Context, *bench) (sample, error)) func(context.Context, *bench) (sample, error) {
	return func(ctx context.Context, b *bench) (sample, error) {
		inside := *b
		inside.prefix = []string{"unshare", "-n"}
		if os.Getuid() != 0 {
			inside.prefix = []string{"unshare", "-rn"}
		}
		s, err := run(ctx, &inside)
		b.cpu = inside.cpu
		return s, err
	}
}

// anchor returns a run of this program as a bare socket.
func anchor(name string) func(context.Context, *bench) (sample, error) {
	return func(ctx context.Context, b *bench) (sample, error) {
		out, err := b.output(ctx, b.self, "anchor", name)
		if err != nil {
			return nil, err
		}
		var s sample
		if err := json.Unmarshal(out, &s); err != nil {
			return nil, fmt.Errorf("anchor %s printed %q: %w", name, firstLine(out), err)
		}
		return s, nil
	}
}

// iperf3 is TCP on the loopback network, with the program's own defaults.
func iperf3(ctx context.Context, b *bench) (sample, error) {
	port := strconv.Itoa(freePort())
	s, err := b.start(ctx, "iperf3", "-s", "-1", "-p", port, "-B", "127.0.0.1")
	if err != nil {
		return nil, err
	}
	defer s.end()
	out, err := b.untilThere(ctx, s, "iperf3", "-c", "127.0.0.1", "-p", port, "-t", strconv.Itoa(seconds), "-J")
	if err != nil {
		return nil, err
	}
	return readIperf3(out)
}

// readIperf3 reads the JSON of the client.
func readIperf3(out []byte) (sample, error) {
	var r struct {
		Error string
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		}
	}
	err := json.Unmarshal(out, &r)
	if err == nil && r.Error != "" {
		err = errors.New(r.Error)
	}
	if err == nil && r.End.Received.BitsPerSecond <= 0 {
		err = errors.New("no bandwidth in what it printed")
	}
	if err != nil {
		return nil, fmt.Errorf("iperf3: %w", err)
	}
	return sample{bytesPerSec: r.End.Received.BitsPerSecond / 8}, nil
}

// ucx returns a run of ucx_perftest over TCP on lo.
func ucx(test string, size, iters int) func(context.Context, *bench) (sample, error) {
	return func(ctx context.Context, b *bench) (sample, error) {
		inside := *b
		inside.env = []string{"UCX_TLS=tcp", "UCX_NET_DEVICES=lo"}
		port := strconv.Itoa(freePort())
		s, err := inside.start(ctx, "ucx_perftest", "-p", port)
		if err != nil {
			return nil, err
		}
		defer func() { s.end(); b.cpu = inside.cpu }()
		out, err := inside.untilThere(ctx, s, "ucx_perftest", "127.0.0.1", "-p", port, "-t", test, "-s", strconv.Itoa(size), "-n", strconv.Itoa(iters), "-w", "200", "-f")
		if err != nil {
			return nil, err
		}
		return readUCX(out, size)
	}
}

// readUCX reads the last line of ucx_perftest -f: iterations; 50th percentile, average, overall in µs; bandwidth and message
// rate, each average and overall.
func readUCX(out []byte, size int) (sample, error) {
	n, err := numbers(out, 8)
	if err != nil {
		return nil, fmt.Errorf("ucx_perftest: %w", err)
	}
	return sample{usec: n[1], msgsPerSec: n[7], bytesPerSec: n[7] * float64(size)}, nil
}

// perftest returns a run of a stock program over two daemons.
func perftest(program string, args ...string) func(context.Context, *bench) (sample, error) {
	return func(ctx context.Context, b *bench) (sample, error) {
		dir, err := os.MkdirTemp("", "snb")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		var sockets []string
		for i, addr := range []string{"127.0.17.5", "127.0.17.6"} {
			sock := filepath.Join(dir, string(rune('a'+i))+".sock")
			d, err := b.start(ctx, b.softnic, "run", "--udp", addr, "--socket", sock)
			if err != nil {
				return nil, err
			}
			defer d.end()
			if err := d.line(ctx); err != nil {
				return nil, err
			}
			sockets = append(sockets, sock)
		}
		port := strconv.Itoa(freePort())
		line := func(i int, more ...string) []string {
			l := append([]string{"exec", "--socket", sockets[i], "--", program, "-F", "-x", "1", "-p", port}, args...)
			return append(l, more...)
		}
		s, err := b.start(ctx, b.softnic, line(0)...)
		if err != nil {
			return nil, err
		}
		defer s.end()
		out, err := b.untilThere(ctx, s, b.softnic, line(1, "127.0.0.1")...)
		if err != nil {
			return nil, err
		}
		return readPerftest(out)
	}
}

// readPerftest reads the last line of numbers: of a bandwidth test bytes, iterations, peak and average in 2^20 bytes, messages;
// of a latency test bytes, iterations, least, most, typical, ...
func readPerftest(out []byte) (sample, error) {
	if n, err := numbers(out, 9); err == nil {
		return sample{usec: n[4]}, nil
	}
	n, err := numbers(out, 5)
	if err != nil {
		return nil, fmt.Errorf("perftest: %w", err)
	}
	return sample{bytesPerSec: n[3] * (1 << 20), msgsPerSec: n[4] * 1e6}, nil
}

// numbers returns the last line of out that is n numbers and nothing else.
func numbers(out []byte, n int) ([]float64, error) {
	var last []float64
	for l := range strings.Lines(string(out)) {
		f := strings.Fields(l)
		if len(f) != n {
			continue
		}
		var v []float64
		for _, s := range f {
			x, err := strconv.ParseFloat(s, 64)
			if err != nil {
				break
			}
			v = append(v, x)
		}
		if len(v) == n {
			last = v
		}
	}
	if last == nil {
		return nil, fmt.Errorf("no line of %d numbers in what it printed: %q", n, firstLine(out))
	}
	return last, nil
}

func firstLine(out []byte) string {
	l, _, _ := strings.Cut(strings.TrimSpace(string(out)), "\n")
	return l
}
