//go:build linux

package uverbs

import "testing"

// TestBell: the byte of each handle says what is so of its queue pair, and nothing of another's.
func TestBell(t *testing.T) {
	mem := make([]byte, arenaOff)
	states := mem[stateOff:armOff]
	var b [8]bell
	want := make([]byte, len(b))
	for i := range b {
		b[i].of(states, uint32(i))
	}
	for step := range 4 * len(b) {
		i := step * 5 % len(b)
		b[i].open, b[i].quiet = step&1 != 0, step&2 != 0
		b[i].tell()
		switch {
		case !b[i].open:
			want[i] = stateShut
		case b[i].quiet:
			want[i] = stateQuiet
		default:
			want[i] = stateOpen
		}
		if got := states[:len(b)]; string(got) != string(want) {
			t.Fatalf("step %d: % x, want % x", step, got, want)
		}
	}
	var none bell
	none.of(states, maxStates) // a handle beyond has none
	none.open = true
	none.tell()
}
