// Package nic opens the NIC that a command's flags describe: on a TAP
// interface or on a UDP socket, with impairment and captures.
//
// The commands run and pingpong call Flags.Open and, in the end, NIC.Close. The package
// decides nothing about queue pairs, and starts no daemon.
package nic

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/link/udp"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/tap"
)

// Flags are what a user says of a NIC, as text.
type Flags struct {
	TAP          string   // name of the interface to make
	Plain        bool     // no bursts: see udp.Options.Plain and tap.Config.Plain
	UDP          string   // address of the host, with or without port; one of the two is needed
	Addrs        []string // of the NIC on a TAP, with prefix length
	HostAddrs    []string // of the host's side of a TAP
	Profile      string   // see device.ProfileByName
	CNP          string   // see device.ParseCNP; "": as the profile says
	PKeys        []string // the P_Key table, see device.ParsePKeys; nil: the default partition
	MTU          int      // largest IP packet; 0: 1500 on a TAP, that of the host's interface with UDP
	Capture      string   // pcapng file
	CaptureSize  int      // million bytes after which another pcapng file is begun; 0: never
	CaptureFiles int      // how many of those are kept; 0: all
	PacketLog    string   // file of JSON lines
	Impair       []string // rules
	Quirks       []string // peers' faults to go along with, see QuirkNames
	LogLevel     string   // debug, info, warn, error; "": warn
}

// rxeFlushICRC is the quirk of link.PortOptions.RxeFlushICRC.
const rxeFlushICRC = "rxe-flush-icrc"

// QuirkNames lists what Flags.Quirks may name.
func QuirkNames() []string { return []string{rxeFlushICRC} }

// UsageError is a mistake in the flags.
type UsageError struct{ Err error }

// Error implements error.
func (e *UsageError) Error() string { return e.Err.Error() }

// Unwrap returns what was wrong.
func (e *UsageError) Unwrap() error { return e.Err }

func usage(format string, a ...any) error { return &UsageError{fmt.Errorf(format, a...)} }

// NIC is an open NIC.
type NIC struct {
	Device *device.Device
	// Failed gets an error if the link ends by itself: somebody removed the interface.
	Failed <-chan error

	// Taps is where captures are attached while the NIC runs.
	Taps *capture.Tee

	tap     *tap.Tap
	closers []func() error // captures, in order
	undo    []func()       // removes their files
}

// Open opens the NIC. stderr takes the log. If it fails nothing is left behind.
func (f *Flags) Open(stderr io.Writer) (_ *NIC, err error) {
	if err := f.Check(); err != nil {
		return nil, err
	}
	log, err := f.logger(stderr)
	if err != nil {
		return nil, err
	}
	rules, err := impair.New(f.Impair...)
	if err != nil {
		return nil, &UsageError{err}
	}
	cnp, err := f.cnp()
	if err != nil {
		return nil, err
	}
	pkeys, err := f.pkeys()
	if err != nil {
		return nil, err
	}
	n := &NIC{}
	ep, err := f.endpoint(n, log)
	if err != nil {
		return nil, err
	}
	n.Taps, err = n.captures(f, ep.Info(), log)
	if err != nil {
		ep.Close()
		n.abandon()
		return nil, err
	}
	n.Device, err = device.Open(ep, device.Options{Logger: log, Profile: f.Profile, CNP: cnp, PKeys: pkeys, Link: link.PortOptions{Impair: rules, Capture: n.Taps, RxeFlushICRC: slices.Contains(f.Quirks, rxeFlushICRC)}})
	if err != nil {
		ep.Close()
		n.abandon()
		return nil, err
	}
	n.Taps.Drive(n.Device.Port())
	return n, nil
}

// Check finds the flags that contradict each other, before anything is opened.
func (f *Flags) Check() error {
	switch {
	case f.TAP == "" && f.UDP == "":
		return usage("where is the NIC to be? --tap NAME makes a network interface, --udp ADDR uses an address of this host")
	case f.TAP != "" && f.UDP != "":
		return usage("--tap and --udp: a NIC is on one of the two")
	case f.UDP != "" && len(f.Addrs)+len(f.HostAddrs) > 0:
		return usage("--addr and --host-addr go with --tap: with --udp the NIC has the address of the socket")
	}
	switch {
	case f.CaptureSize < 0 || f.CaptureFiles < 0:
		return usage("--capture-size and --capture-files are counted from 1 on")
	case f.Capture == "" && f.CaptureSize > 0:
		return usage("--capture-size %d goes with --capture FILE", f.CaptureSize)
	case f.CaptureSize == 0 && f.CaptureFiles > 0:
		return usage("--capture-files %d goes with --capture-size: how large is a file to become?", f.CaptureFiles)
	}
	if _, err := device.ProfileByName(f.Profile); err != nil {
		return usage("--profile: %w", err)
	}
	for _, q := range f.Quirks {
		if !slices.Contains(QuirkNames(), q) {
			return usage("--quirk %s: there is %s", q, strings.Join(QuirkNames(), ", "))
		}
	}
	if _, err := f.pkeys(); err != nil {
		return err
	}
	_, err := f.cnp()
	return err
}

func (f *Flags) pkeys() ([]uint16, error) {
	t, err := device.ParsePKeys(f.PKeys)
	if err != nil {
		return nil, usage("--pkey: %w", err)
	}
	return t, nil
}

func (f *Flags) cnp() (device.CNPPacing, error) {
	if f.CNP == "" {
		return device.CNPPacing{}, nil
	}
	p, err := device.ParseCNP(f.CNP)
	if err != nil {
		return p, usage("--cnp: %w", err)
	}
	return p, nil
}

func (f *Flags) logger(w io.Writer) (*slog.Logger, error) {
	level := slog.LevelWarn
	if f.LogLevel != "" {
		if err := level.UnmarshalText([]byte(f.LogLevel)); err != nil {
			return nil, usage("--log-level %s: one of debug, info, warn, error", f.LogLevel)
		}
	}
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: level})), nil
}

// endpoint opens the link.
func (f *Flags) endpoint(n *NIC, log *slog.Logger) (link.Endpoint, error) {
	failed := make(chan error, 1)
	n.Failed = failed
	if f.UDP != "" {
		addr, err := udp.ParseAddr(f.UDP)
		if err != nil {
			return nil, usage("--udp: %w", err)
		}
		ep, err := udp.Open(addr, udp.Options{Logger: log, Plain: f.Plain})
		if err != nil {
			return nil, err
		}
		info := ep.Info()
		if f.MTU > info.MTU || f.MTU < 0 || f.MTU > 0 && device.ActiveMTU(f.MTU) == 0 {
			ep.Close()
			return nil, fmt.Errorf("--mtu %d: %s carries IP packets of up to %d bytes, and RDMA needs at least %d", f.MTU, info.Name, info.MTU, tap.MinMTU)
		}
		return &endpoint{Endpoint: ep, mtu: f.MTU, failed: failed}, nil
	}
	addrs, err := prefixes("--addr", f.Addrs)
	if err != nil {
		return nil, err
	}
	hosts, err := prefixes("--host-addr", f.HostAddrs)
	if err != nil {
		return nil, err
	}
	if f.MTU < 0 {
		return nil, usage("--mtu %d is not a length", f.MTU)
	}
	n.tap, err = tap.Open(tap.Config{Name: f.TAP, Addrs: addrs, HostAddrs: hosts, MTU: f.MTU, Plain: f.Plain, Logger: log})
	if err != nil {
		return nil, err
	}
	return &endpoint{Endpoint: n.tap, failed: failed}, nil
}

func prefixes(flag string, l []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range l {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			if a, aerr := netip.ParseAddr(s); aerr == nil {
				bits := 64
				if a.Is4() {
					bits = 24
				}
				return nil, usage("%s %s: the prefix length is missing: %s/%d", flag, s, s, bits)
			}
			return nil, usage("%s %s: want an address with prefix length, as 10.8.0.2/24", flag, s)
		}
		out = append(out, p)
	}
	return out, nil
}

// captures opens the files and returns the sink that fills them. A file that exists is
// emptied only when all of them are open.
func (n *NIC) captures(f *Flags, info link.Info, log *slog.Logger) (*capture.Tee, error) {
	single := f.Capture
	if f.CaptureSize > 0 {
		single = "" // it is the ring that makes files
	}
	capFile, err := n.file("--capture", single)
	if err != nil {
		return nil, err
	}
	logFile, err := n.file("--packet-log", f.PacketLog)
	if err != nil {
		return nil, err
	}
	if capFile != nil && logFile != nil && sameFile(capFile, logFile) {
		return nil, usage("--capture and --packet-log: %s cannot be both", f.Capture)
	}
	var sinks []link.Sink
	if f.Capture != "" {
		var w io.Writer
		if f.CaptureSize > 0 {
			r := capture.NewRing(f.Capture, int64(f.CaptureSize)*1e6, f.CaptureFiles)
			n.closers = append(n.closers, r.Close)
			w = r
		} else {
			w = empty(capFile)
		}
		c, err := capture.NewWriter(w, info, capture.Options{Logger: log})
		if err != nil {
			return nil, fmt.Errorf("--capture: %w", err)
		}
		n.closers = append([]func() error{c.Close}, n.closers...)
		sinks = append(sinks, c)
	}
	if logFile != nil {
		l, err := capture.NewLog(empty(logFile), info)
		if err != nil {
			return nil, fmt.Errorf("--packet-log: %w", err)
		}
		n.closers = append([]func() error{l.Close}, n.closers...)
		sinks = append(sinks, l)
	}
	return capture.NewTee(sinks...), nil
}

// file opens a file to be written, and leaves what is in it alone; nil without a path.
func (n *NIC) file(flag, path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	if path == "-" {
		return nil, usage("%s -: name a file", flag)
	}
	_, err := os.Lstat(path)
	fresh := errors.Is(err, fs.ErrNotExist)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o666)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: name a file that can be written", flag, err)
	}
	if fresh {
		n.undo = append(n.undo, func() { os.Remove(path) })
	}
	n.closers = append(n.closers, file.Close)
	return file, nil
}

func sameFile(a, b *os.File) bool {
	x, err1 := a.Stat()
	y, err2 := b.Stat()
	return err1 == nil && err2 == nil && x.Mode().IsRegular() && os.SameFile(x, y)
}

// empty truncates a file; a pipe or a device has nothing to lose.
func empty(f *os.File) *os.File {
	if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
		_ = f.Truncate(0)
	}
	return f
}

// abandon closes and removes the files of a NIC that could not be opened.
func (n *NIC) abandon() {
	_ = n.closeCaptures()
	for _, f := range n.undo {
		f()
	}
}

func (n *NIC) closeCaptures() error {
	var errs []error
	for _, c := range n.closers {
		errs = append(errs, c())
	}
	n.closers = nil
	return errors.Join(errs...)
}

// Close ends everything, and removes a TAP. Where that cannot be removed the warning says
// in one line what is left and what to do.
func (n *NIC) Close() (warning string, err error) {
	if n.tap != nil {
		warning, err = n.tap.Release()
	}
	return warning, errors.Join(err, n.Device.Close(), n.closeCaptures())
}

// Ready is the line that a daemon prints when peers can talk to it.
func (n *NIC) Ready() string {
	info := n.Device.Port().Info()
	var addrs []string
	for i := range device.GIDTableLen {
		g, err := n.Device.QueryGID(1, i)
		if err == nil && !g.IsZero() && i > 0 {
			addrs = append(addrs, g.Addr().String())
		}
	}
	// The link-local address of the MAC is there only where there is a MAC.
	if g, err := n.Device.QueryGID(1, 0); err == nil && (info.Ethernet || len(addrs) == 0) {
		addrs = append(addrs, g.Addr().String())
	}
	active := device.ActiveMTU(info.MTU)
	return fmt.Sprintf("%s on %s: %s, active MTU %d", n.Device.Name(), info.Name, strings.Join(addrs, ", "), active)
}

// endpoint is a link whose MTU may be made smaller, and which tells of its end.
type endpoint struct {
	link.Endpoint
	mtu    int // 0: as it is
	failed chan<- error
	once   sync.Once
}

// Info implements link.Endpoint.
func (e *endpoint) Info() link.Info {
	i := e.Endpoint.Info()
	if e.mtu > 0 {
		i.MTU = min(i.MTU, e.mtu)
	}
	return i
}

// Recv implements link.Endpoint.
func (e *endpoint) Recv(b *link.Batch, wait bool) error {
	err := e.Endpoint.Recv(b, wait)
	if err != nil && err != net.ErrClosed { // that alone is what Close makes
		e.once.Do(func() { e.failed <- err })
	}
	return err
}

// Counters returns those of the link.
func (e *endpoint) Counters() []stats.Value {
	if c, ok := e.Endpoint.(interface{ Counters() []stats.Value }); ok {
		return c.Counters()
	}
	return nil
}

// Unwrap implements link.Wrapper: multicast, and what else the link can do.
func (e *endpoint) Unwrap() link.Endpoint { return e.Endpoint }
