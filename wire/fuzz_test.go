package wire

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// testdata/fuzz holds inputs that fuzzing found, each of which reached code that
// the ones before it did not. An input that breaks something is kept there
// too, under a name that says what it broke.

func FuzzParseIP(f *testing.F) {
	for _, g := range golden {
		f.Add(unhex(g.packet))
	}
	for _, c := range faultCases(f) {
		f.Add(c.packet)
	}
	f.Fuzz(func(t *testing.T, packet []byte) {
		whole := bytes.Clone(packet)
		var v View
		fault := ParseIP(packet, &v)
		checkView(t, fault, &v)
		checkIdentity(t, fault, &v, packet)
		if !bytes.Equal(whole, packet) {
			t.Error("the packet was changed")
		}
	})
}

func FuzzParseEthernet(f *testing.F) {
	for _, g := range golden {
		eth := make([]byte, EthVLANLen)
		f.Add(append(eth[:PutEthernet(eth, [6]byte{2, 1}, [6]byte{2, 2}, g.spec.Path.EtherType())], unhex(g.packet)...))
		eth = make([]byte, EthVLANLen)
		f.Add(append(eth[:PutEthernetVLAN(eth, [6]byte{2, 1}, [6]byte{2, 2}, 100, g.spec.Path.EtherType())], unhex(g.packet)...))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		whole := bytes.Clone(frame)
		var v, w View
		fault := ParseEthernet(frame, &v)
		checkView(t, fault, &v)
		checkIdentity(t, fault, &v, frame)
		if !bytes.Equal(whole, frame) {
			t.Error("the frame was changed")
		}
		if len(v.Eth) != 0 && fault != Malformed {
			if got := ParseIP(frame[len(v.Eth):], &w); got != fault {
				t.Errorf("%v, without the Ethernet header %v", fault, got)
			}
		}
		// Without the look at the UDP checksum only that fault may go away.
		if got := ParseEthernetNoSum(frame, &w); got != fault && fault != UDPChecksum {
			t.Errorf("%v, without a look at the UDP checksum %v", fault, got)
		}
	})
}

func FuzzParseSplit(f *testing.F) {
	for _, g := range golden {
		p := unhex(g.packet)
		f.Add(p[:g.spec.Path.NetLen()], p[g.spec.Path.NetLen():])
	}
	f.Fuzz(func(t *testing.T, input, ib []byte) {
		whole, net := bytes.Clone(input), bytes.Clone(input)
		var known, blind View
		fault := ParseSplit(net, ib, true, &known)
		right := CheckICRC(&known)
		checkView(t, fault, &known)
		if !bytes.Equal(whole, net) {
			t.Error("CheckICRC changed a header that was complete")
		}
		if got := ParseSplit(net, ib, false, &blind); got != fault {
			t.Fatalf("%v, with the ID unknown %v", fault, got)
		}
		solved := CheckICRC(&blind)
		checkView(t, fault, &blind)
		if right && !solved {
			t.Error("right ICRC, but no ID found")
		}
		if solved {
			// What was solved is now a packet that passes the full check.
			blind.IDKnown = true
			if !CheckICRC(&blind) {
				t.Errorf("solved for ID %04x, which is wrong", blind.ID())
			}
			if right && blind.ID() != known.ID() {
				t.Errorf("ID %04x, want %04x", blind.ID(), known.ID())
			}
			if !blind.V6 && fold(sum(0, blind.Net[:ipLen4])) != 0xFFFF {
				t.Error("wrong header checksum after solving")
			}
		}
	})
}

// checkIdentity checks that Build makes of the description of a valid packet
// the packet again.
func checkIdentity(t *testing.T, fault Fault, v *View, frame []byte) {
	t.Helper()
	if fault != OK && fault != TransportVersion && fault != ReservedOpcode {
		return
	}
	n := len(v.Eth) + len(v.Net) + len(v.IB)
	if !bytes.Equal(frame[:n], bytes.Join([][]byte{v.Eth, v.Net, v.IB}, nil)) {
		t.Fatal("the view's slices are not the frame")
	}
	s := SpecOf(v)
	s.Trailer = frame[n:]
	ip := len(v.Eth)
	want := bytes.Clone(frame)
	if odd(v) {
		// The few things that a description has no field for.
		s.Edit = func(p []byte) { copy(p, v.IP()) }
		if !v.V6 {
			PutIPChecksum(want[ip:]) // 0xFFFF is 0 written otherwise
		}
	}
	if fault != ReservedOpcode && !CheckICRC(v) {
		copy(want[n-ICRCLen:n], Build(&s)[n-ICRCLen:n])
		if s.UDPSum {
			PutUDPChecksum(want[ip:ip+len(v.Net)], want[ip+len(v.Net):n])
		}
	}
	if got := Build(&s); !bytes.Equal(got, want) {
		t.Errorf("built\n%x, want\n%x", got, want)
	}
	// The same with everything that the fields cannot hold given verbatim.
	if s.IB == nil {
		s.RawExt = v.IB[12:v.Info.Len:v.Info.Len]
		if got := Build(&s); !bytes.Equal(got, want) {
			t.Errorf("built from verbatim headers\n%x, want\n%x", got, want)
		}
	}
}

// odd reports whether the IP header of v is not as PutNet writes it.
func odd(v *View) bool {
	ip, udp := v.IP(), int(binary.BigEndian.Uint16(v.Net[len(v.Net)-4:]))
	if v.V6 {
		return ip[7] == 0 || int(binary.BigEndian.Uint16(ip[4:])) != udp
	}
	return ip[8] == 0 || binary.BigEndian.Uint16(ip[6:]) != flagDF || int(binary.BigEndian.Uint16(ip[2:])) != ipLen4+udp ||
		binary.BigEndian.Uint16(ip[10:]) == 0xFFFF
}
