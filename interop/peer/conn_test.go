package peer

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

func TestQueueInVirtualTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := NewPipe()
		start := time.Now()
		if _, err := a.Read(start.Add(time.Hour)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("empty queue: %v", err)
		}
		if d := time.Since(start); d != time.Hour {
			t.Errorf("waited %v, want an hour", d)
		}
		// A packet that comes while Read waits.
		go func() {
			<-time.After(time.Minute)
			b.Write([]byte{1})
			b.Write([]byte{2})
		}()
		start = time.Now()
		for want := byte(1); want <= 2; want++ {
			if p, err := a.Read(time.Time{}); err != nil || len(p) != 1 || p[0] != want {
				t.Errorf("got %x, %v", p, err)
			}
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("waited %v, want a minute", d)
		}
		// What is there is read whatever the deadline, and after Close.
		buf := []byte{3}
		b.Write(buf)
		buf[0] = 4 // the queue must have a copy
		if p, err := a.Read(time.Now().Add(-time.Second)); err != nil || p[0] != 3 {
			t.Errorf("got %x, %v", p, err)
		}
		b.Write(buf)
		go a.Close()
		synctest.Wait()
		if p, err := a.Read(time.Time{}); err != nil || p[0] != 4 {
			t.Errorf("got %x, %v", p, err)
		}
		for range 2 {
			if _, err := a.Read(time.Time{}); !errors.Is(err, net.ErrClosed) {
				t.Errorf("closed queue: %v", err)
			}
		}
	})
}

// Several readers and writers of one queue: nothing is lost, nobody sleeps on.
func TestQueueConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := NewPipe()
		const each, many = 100, 4
		counts := make(chan int, many)
		for range many {
			go func() {
				for range each {
					b.Write([]byte{0})
				}
			}()
			go func() {
				n := 0
				for {
					if _, err := a.Read(time.Now().Add(time.Second)); err != nil {
						counts <- n
						return
					}
					n++
				}
			}()
		}
		sum := 0
		for range many {
			sum += <-counts
		}
		if sum != each*many {
			t.Errorf("%d packets read, want %d", sum, each*many)
		}
	})
}

func TestFuncs(t *testing.T) {
	var wrote []byte
	c := Funcs{
		WriteFunc: func(p []byte) error { wrote = p; return nil },
		ReadFunc:  func(time.Time) ([]byte, error) { return []byte{7}, nil },
	}
	if err := c.Write([]byte{5}); err != nil || wrote[0] != 5 {
		t.Error("Write")
	}
	if p, err := c.Read(time.Time{}); err != nil || p[0] != 7 {
		t.Error("Read")
	}
}
