package device

import "testing"

// TestRegion: parked accesses hold the memory, and do not hold up who takes its key away; they do not go on then.
func TestRegion(t *testing.T) {
	ended := func(r *region) bool {
		select {
		case <-r.gone:
			return true
		default:
			return false
		}
	}
	var m, w region
	m.open(nil, nil)
	w.open(nil, &m)
	w.begin()
	w.Park()
	w.begin()
	w.Park()
	if !w.Resume() {
		t.Fatal("an access does not go on under a valid key")
	}
	w.Park()
	w.invalidate()
	w.quiet()
	if w.Resume() {
		t.Error("an access goes on under an invalid key")
	}
	w.quiet()
	m.Discard()
	w.Discard() // the key
	w.Discard()
	if ended(&w) || ended(&m) {
		t.Error("gone while an access is parked")
	}
	w.Discard()
	if !ended(&w) || !ended(&m) || !w.ended() {
		t.Error("held by nobody, and not gone")
	}
}
