package bth

import (
	"fmt"
	"testing"
	"time"
)

func TestSyndromes(t *testing.T) {
	nak := map[int]string{0x60: "NAK_SEQUENCE", 0x61: "NAK_INVALID_REQUEST", 0x62: "NAK_REMOTE_ACCESS",
		0x63: "NAK_REMOTE_OPERATIONAL", 0x64: "NAK_INVALID_RD"}
	for n := range 256 {
		s := Syndrome(n)
		if s.Value() != n%32 {
			t.Errorf("%02x: value %d", n, s.Value())
		}
		want := [3]bool{n <= 0x1F, n >= 0x20 && n <= 0x3F, n >= 0x60 && n <= 0x7F}
		if got := [3]bool{s.IsAck(), s.IsRNR(), s.IsNak()}; got != want {
			t.Errorf("%02x: ACK, RNR, NAK = %v, want %v", n, got, want)
		}
		name, ok := nak[n]
		switch {
		case ok:
		case n == 0x1F:
			name = "ACK"
		case n < 0x1F:
			c, _ := s.Credits()
			name = fmt.Sprintf("ACK credits=%d", c)
		case n >= 0x20 && n <= 0x3F:
			name = fmt.Sprintf("RNR_NAK timer=%d", n-0x20)
		default:
			name = fmt.Sprintf("SYNDROME_%02X", n)
		}
		if s.String() != name {
			t.Errorf("%02x: %q, want %q", n, s, name)
		}
	}
}

func TestCredits(t *testing.T) {
	want := []int{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536,
		2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768}
	for c, w := range want {
		if n, limited := Syndrome(c).Credits(); n != w || !limited {
			t.Errorf("code %d: %d, %v, want %d", c, n, limited, w)
		}
		if s := AckCredits(w); int(s) != c {
			t.Errorf("AckCredits(%d) = %v", w, s)
		}
		if s := AckCredits(w - 1); c > 0 && int(s) != c-1 {
			t.Errorf("AckCredits(%d) = %v", w-1, s)
		}
	}
	if n, limited := AckUnlimited.Credits(); n != 0 || limited {
		t.Errorf("code 31: %d, %v", n, limited)
	}
	if AckCredits(-1) != 0 || AckCredits(1<<30) != 30 {
		t.Error("AckCredits out of range")
	}
}

func TestRNRTime(t *testing.T) {
	ms := []float64{655.36, 0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.12, 0.16, 0.24, 0.32, 0.48, 0.64, 0.96, 1.28, 1.92,
		2.56, 3.84, 5.12, 7.68, 10.24, 15.36, 20.48, 30.72, 40.96, 61.44, 81.92, 122.88, 163.84, 245.76, 327.68, 491.52}
	for c, w := range ms {
		if got, want := RNRTime(c), time.Duration(w*1000+0.5)*time.Microsecond; got != want {
			t.Errorf("code %d: %v, want %v", c, got, want)
		}
		if s := RNR(c); !s.IsRNR() || s.Value() != c {
			t.Errorf("RNR(%d) = %v", c, s)
		}
	}
}
