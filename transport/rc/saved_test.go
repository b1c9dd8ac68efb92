package rc

import (
	"testing"

	"github.com/softnic/softnic/wire/bth"
)

// A saved READ is found by the PSNs that it had, in its own time only: 2^24 packets
// later they belong to another request. (Through the wire this would take 2^24 packets.)
func TestSavedReadsOutliveNoWrap(t *testing.T) {
	r := &responder{}
	r.resize(2)
	r.start(0xFFFFFE)
	r.psns = 5
	r.saved.add(resource{first: 0xFFFFFE, place: r.psns, packets: 4})
	r.advance(4, true)
	found := func(psn bth.PSN) bool {
		x, _ := r.saved.find(r.place(psn))
		return x != nil
	}
	for psn, want := range map[bth.PSN]bool{0xFFFFFD: false, 0xFFFFFE: true, 0xFFFFFF: true, 0: true, 1: true, 0x800002: false} {
		if found(psn) != want {
			t.Errorf("PSN %v: found %v, want %v", psn, !want, want)
		}
	}
	r.advance(1<<23-1, false)
	if !found(1) {
		t.Error("PSN 1 is not found 2^23 - 1 packets later")
	}
	r.advance(1<<23+1, false)
	if r.epsn != 2 || found(0xFFFFFE) || found(0) || found(1) {
		t.Errorf("found again 2^24 packets later, at expected PSN %v", r.epsn)
	}
}
