package udp

import (
	"errors"
	"net"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// TestDescriptor: a socket is closed once, and not while a call on it runs; after Close none begins.
func TestDescriptor(t *testing.T) {
	open := func(fd int) bool {
		_, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		return err == nil
	}
	for range 200 {
		var pipe [2]int
		if err := unix.Pipe2(pipe[:], unix.O_CLOEXEC); err != nil {
			t.Fatal(err)
		}
		// A number that nobody else gets, as long as there are lower ones.
		fd, err := unix.FcntlInt(uintptr(pipe[0]), unix.F_DUPFD_CLOEXEC, 700)
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(pipe[0])
		d := &descriptor{fd: fd}
		began, end := make(chan bool), make(chan bool)
		var wg sync.WaitGroup
		wg.Go(func() {
			_ = d.Control(func(fd uintptr) {
				close(began)
				<-end
				if !open(int(fd)) {
					t.Error("closed while a call runs")
				}
			})
		})
		<-began
		for range 4 {
			wg.Go(func() { d.Close() })
			wg.Go(func() {
				_ = d.Read(func(fd uintptr) bool {
					if !open(int(fd)) {
						t.Error("closed while a call runs")
					}
					return true
				})
			})
		}
		d.Close()
		if err := d.Write(func(uintptr) bool { t.Error("a call after Close"); return true }); !errors.Is(err, net.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if !open(d.fd) {
			t.Error("closed while a call runs")
		}
		close(end)
		wg.Wait()
		if open(d.fd) {
			t.Error("still open")
		}
		// The number is another's now, and stays that.
		other, err := unix.FcntlInt(uintptr(pipe[1]), unix.F_DUPFD_CLOEXEC, d.fd)
		if err != nil || other != d.fd {
			t.Fatal(other, err)
		}
		d.Close()
		_ = d.Control(func(uintptr) { t.Error("a call after Close") })
		if !open(other) {
			t.Error("closed twice")
		}
		unix.Close(other)
		unix.Close(pipe[1])
	}
}
