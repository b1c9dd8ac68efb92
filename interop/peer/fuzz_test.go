package peer

import (
	"bytes"
	"testing"
)

// FuzzParse: whatever comes in, Parse does not panic, and what it accepts is built
// again byte for byte.
func FuzzParse(f *testing.F) {
	for _, v := range vectors() {
		f.Add(unhex(f, v.bytes))
	}
	for _, frame := range everyFrame() {
		f.Add(frame.MarshalEth())
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		check := func(frame *Frame, err error, marshal func(*Frame) []byte) {
			if err != nil {
				return
			}
			if got := marshal(frame); !bytes.Equal(got, b) {
				t.Errorf("%v\n got %x\nwant %x", frame, got, b)
			}
			_ = frame.Irregular()
		}
		ip, err := Parse(b)
		check(ip, err, (*Frame).Marshal)
		if err == nil && (ip.ICRC == nil) != CheckICRC(b) {
			t.Errorf("Parse and CheckICRC disagree on the ICRC of %x", b)
		}
		eth, err := ParseEth(b)
		check(eth, err, (*Frame).MarshalEth)
		if len(b) < 200 {
			CheckICRCAnyID(b)
		}
		if d, err := dismantle(b); err == nil {
			_ = d.rebuild()
		}
	})
}
