//go:build linux

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The anchors are what the host's UDP can do with nothing on top: two threads of one process, two sockets of the loopback network. Their
// sockets are raw file descriptors, blocking, each used by a thread of its own.
var anchors = map[string]func() (sample, error){
	"udp-gso":      func() (sample, error) { return udpStream(true) },
	"udp-plain":    func() (sample, error) { return udpStream(false) },
	"ping-spin":    func() (sample, error) { return pingPong(true) },
	"ping-block":   func() (sample, error) { return pingPong(false) },
	"ping-netpoll": pingNetpoll,
}

// runAnchor is what this program does as `bench anchor NAME`: it prints a sample as JSON.
func runAnchor(name string) error {
	f, ok := anchors[name]
	if !ok {
		return fmt.Errorf("there is no anchor %q", name)
	}
	s, err := f()
	if err != nil {
		return fmt.Errorf("anchor %s: %w", name, err)
	}
	return json.NewEncoder(os.Stdout).Encode(s)
}

const (
	payload   = 4096
	header    = 16   // bytes of each datagram that are not payload: about what a BTH and an ICRC are
	window    = 256  // datagrams that may be under way
	creditFor = 64   // as many arrive for one credit
	segments  = 15   // of a GSO burst: with 16 it would be longer than a UDP datagram can be
	buffer    = 8e6  // bytes of a socket buffer
	pingBytes = 64   // of a message to and fro
	pings     = 1000 // that are not timed
)

// socketPair returns two UDP sockets that are connected to each other.
func socketPair() (a, b int, err error) {
	open := func() (int, error) {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return -1, err
		}
		for _, o := range []int{unix.SO_RCVBUFFORCE, unix.SO_SNDBUFFORCE} {
			if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o, buffer) != nil { // without the right to: what is allowed
				_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, map[int]int{unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF}[o], buffer)
			}
		}
		return fd, unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	}
	if a, err = open(); err != nil {
		return
	}
	if b, err = open(); err != nil {
		return
	}
	for _, p := range [][2]int{{a, b}, {b, a}} {
		to, err := unix.Getsockname(p[1])
		if err != nil {
			return a, b, err
		}
		if err := unix.Connect(p[0], to); err != nil {
			return a, b, err
		}
	}
	return a, b, nil
}

// udpStream sends datagrams one way as fast as they are taken. The receiver answers every creditFor-th with a datagram, and the sender
// waits for that when window are under way, as any reliable protocol would.
func udpStream(offload bool) (sample, error) {
	tx, rx, err := socketPair()
	if err != nil {
		return nil, err
	}
	const size = payload + header
	if offload {
		if err := unix.SetsockoptInt(tx, unix.IPPROTO_UDP, unix.UDP_SEGMENT, size); err != nil {
			return nil, fmt.Errorf("UDP_SEGMENT: %w", err)
		}
		if err := unix.SetsockoptInt(rx, unix.IPPROTO_UDP, unix.UDP_GRO, 1); err != nil {
			return nil, fmt.Errorf("UDP_GRO: %w", err)
		}
	}
	var stop atomic.Bool
	failed := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		failed <- takeStream(rx, size, &stop)
	}()
	runtime.LockOSThread()
	burst := 1
	if offload {
		burst = segments
	}
	buf, credit := make([]byte, burst*size), make([]byte, 8)
	sent, taken := 0, 0
	begin := func(d time.Duration) error {
		for end := time.Now().Add(d); time.Now().Before(end); {
			for sent-taken+burst > window {
				if _, err := unix.Read(tx, credit); err != nil {
					return err
				}
				taken += creditFor
			}
			if _, err := unix.Write(tx, buf); err != nil {
				return err
			}
			sent += burst
		}
		return nil
	}
	if err := begin(seconds * time.Second / 10); err != nil {
		return nil, err
	}
	start, from := time.Now(), sent
	if err := begin(seconds * time.Second); err != nil {
		return nil, err
	}
	rate := float64(sent-from) / time.Since(start).Seconds()
	stop.Store(true)
	if _, err := unix.Write(tx, buf[:size]); err != nil { // wakes the receiver
		return nil, err
	}
	return sample{bytesPerSec: rate * payload, msgsPerSec: rate}, <-failed
}

func takeStream(rx, size int, stop *atomic.Bool) error {
	buf, credit := make([]byte, 65536), make([]byte, 8)
	for n := 0; !stop.Load(); {
		got, err := unix.Read(rx, buf)
		if err != nil {
			return err
		}
		if got%size != 0 {
			return fmt.Errorf("%d bytes came, which are no datagrams of %d", got, size)
		}
		for n += got / size; n >= creditFor; n -= creditFor {
			if _, err := unix.Write(rx, credit); err != nil {
				return err
			}
		}
	}
	return nil
}

// pingPong sends a datagram to and fro; who waits spins on a socket that does not block, or sleeps in read.
func pingPong(spin bool) (sample, error) {
	a, b, err := socketPair()
	if err != nil {
		return nil, err
	}
	for _, fd := range []int{a, b} {
		if err := unix.SetNonblock(fd, spin); err != nil {
			return nil, err
		}
	}
	go func() {
		runtime.LockOSThread()
		buf := make([]byte, pingBytes)
		for wait(b, buf, spin) == nil && put(b, buf) == nil {
		}
	}()
	runtime.LockOSThread()
	buf := make([]byte, pingBytes)
	return timePings(func() error {
		if err := put(a, buf); err != nil {
			return err
		}
		return wait(a, buf, spin)
	})
}

func put(fd int, b []byte) error {
	_, err := unix.Write(fd, b)
	return err
}

// wait reads a datagram. Who spins makes system calls of which the scheduler of Go does not hear.
func wait(fd int, b []byte, spin bool) error {
	if !spin {
		_, err := unix.Read(fd, b)
		return err
	}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		if errno == 0 {
			return nil
		}
		if !errors.Is(errno, unix.EAGAIN) {
			return errno
		}
	}
}

// pingNetpoll is the same with the sockets of package net and goroutines.
func pingNetpoll() (sample, error) {
	local := netip.MustParseAddrPort("127.0.0.1:0")
	a, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil, err
	}
	b, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil, err
	}
	go func() {
		buf := make([]byte, pingBytes)
		for {
			_, from, err := b.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			if _, err := b.WriteToUDPAddrPort(buf, from); err != nil {
				return
			}
		}
	}()
	buf, to := make([]byte, pingBytes), b.LocalAddr().(*net.UDPAddr).AddrPort()
	return timePings(func() error {
		if _, err := a.WriteToUDPAddrPort(buf, to); err != nil {
			return err
		}
		_, _, err := a.ReadFromUDPAddrPort(buf)
		return err
	})
}

// timePings returns the median of half a round trip.
func timePings(ping func() error) (sample, error) {
	for range pings {
		if err := ping(); err != nil {
			return nil, err
		}
	}
	var took []time.Duration
	last := time.Now()
	for end := last.Add(seconds * time.Second); last.Before(end); {
		if err := ping(); err != nil {
			return nil, err
		}
		now := time.Now()
		took = append(took, now.Sub(last))
		last = now
	}
	slices.Sort(took)
	return sample{usec: float64(took[len(took)/2]) / 2e3}, nil
}
