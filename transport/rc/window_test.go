package rc

import (
	"testing"

	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire/bth"
)

// asked returns the PSNs of what is on the transmit list.
func (s *side) asked(now transport.Time) (l []bth.PSN) {
	for _, v := range s.sent(now) {
		l = append(l, v.BTH().PSN())
	}
	return l
}

// wideOpen makes the window no bound.
func wideOpen(s *side) { s.req.window = 1 << 24 }

// TestFewerThan2to23: never as many as 2^23 PSNs unanswered, READs included (roce.md B.1). Of two READs of
// 2^22 responses the second waits for one response of the first.
func TestFewerThan2to23(t *testing.T) {
	s := newSide(nil, func(s *side, c *Config) { s.attr.PathMTU, c.Window = 512, 1<<24; s.mem = make(arena, 512) })
	wideOpen(s)
	s.post(1, transport.OpRead, 1<<31)
	s.post(1, transport.OpRead, 1<<31)
	s.post(1, transport.OpSend, 0)
	if l := s.asked(1); len(l) != 1 || l[0] != 0 {
		t.Fatalf("asked for %v", l)
	}
	wideOpen(s)
	s.Receive(2, packet(bth.ReadResponseFirst, 0, 0, 0, make([]byte, 512)))
	s.EndBurst(2)
	if l := s.asked(2); len(l) != 1 || l[0] != 1<<22 {
		t.Fatalf("asked for %v after a response", l)
	}
	// 2^23-1 are out: the SEND does not fit.
	if l := s.asked(3); len(l) != 0 {
		t.Fatalf("sent %v beyond the limit", l)
	}
}

// TestReadsFillTheWindow: responses that were asked for count, also when they are asked for again.
func TestReadsFillTheWindow(t *testing.T) {
	s := newSide(make(arena, 1<<20), func(s *side, c *Config) { c.Window = 100 })
	for range 8 {
		s.queue = append(s.queue, transport.SendWR{Op: transport.OpRead, Flags: transport.Signaled, SGE: []transport.SGE{{Length: 40 * 256}}})
	}
	s.Doorbell(1)
	want := func(now transport.Time, psns ...bth.PSN) {
		t.Helper()
		got := s.asked(now)
		if len(got) != len(psns) {
			t.Fatalf("asked for %v, want %v", got, psns)
		}
		for i := range got {
			if got[i] != psns[i] {
				t.Fatalf("asked for %v, want %v", got, psns)
			}
		}
	}
	want(1, 0, 40, 80) // the third begins within the window
	want(1)
	d := s.Deadline()
	s.Timer(d)
	want(d, 0, 40) // the retry has halved it
}
