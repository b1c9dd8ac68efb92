package cases

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// twin6 is V5 over IPv6, with a traffic class, flow label and hop limit to be seen in the GRH area.
func twin6() *peer.Frame {
	f := must(peer.Parse(vector("V5")))
	f.Src, f.Dst, f.TOS, f.FlowLabel, f.TTL, f.DF, f.ID = peer6, nic6, 0x28, 0x12345, 17, false, 0
	return f
}

// Case 41: where the IP header lands in the 40 bytes before a datagram.
func TestCase41_GRHArea(t *testing.T) {
	type form struct {
		name   string
		change func(f *peer.Frame) int // returns the payload length
		imm    bool
	}
	forms := []form{
		{"as it is", func(*peer.Frame) int { return 4 }, false},
		{"0 bytes", func(f *peer.Frame) int { f.Payload = nil; return 0 }, false},
		{"1 byte", func(f *peer.Frame) int { f.Payload = []byte{0x61}; return 1 }, false},
		{"7 bytes", func(f *peer.Frame) int { f.Payload = []byte("abcdefg"); return 7 }, false},
		{"immediate", func(f *peer.Frame) int { f.Op, f.Imm = peer.OpUDSendOnlyImm, 0x89ABCDEF; return 4 }, true},
		{"immediate, 0 bytes", func(f *peer.Frame) int {
			f.Op, f.Imm, f.Payload = peer.OpUDSendOnlyImm, 0x89ABCDEF, nil
			return 0
		}, true},
		{"active MTU", func(f *peer.Frame) int { f.Payload = pattern(1, 4096); return 4096 }, false},
	}
	for _, v6 := range []bool{false, true} {
		for _, hide := range []bool{false, true} {
			for _, split := range []int{0, 40, 20, 39, 41, 8} { // where the first of two entries ends; 0: one entry
				for _, fm := range forms {
					name := fmt.Sprintf("%s/hideIP=%v/split=%d/%s", map[bool]string{false: "IPv4", true: "IPv6"}[v6], hide, split, fm.name)
					bubble(t, name, func(t *testing.T) {
						l := newLab(t, labConfig{HideIP: hide})
						l.dst = netip.Addr{}
						u := l.ud(device.StateRTS)
						mr := l.mr(8192, all)
						copy(mr.Bytes(), filled(0xFF, 8192))
						// Two entries are 100 bytes apart.
						at := func(i int) int { return i }
						if split == 0 {
							u.recv(9, mr.SGE(0, 5000))
						} else {
							u.recv(9, mr.SGE(0, split), mr.SGE(split+100, 5000))
							at = func(i int) int {
								if i >= split {
									i += 100
								}
								return i
							}
						}
						f := must(peer.Parse(vector("V5")))
						if v6 {
							f = twin6()
						}
						n := fm.change(f)
						b := f.Marshal()
						if !v6 && n == 4 && !fm.imm {
							wantBytes(t, "V5", b, vector("V5"))
						}
						l.p.SendRaw(t, b)
						l.emits()
						wcs := drain(u.rcq)
						want(t, "completions", len(wcs), 1)
						wc := wcs[0]
						flags := device.WCGRH
						imm := uint32(0)
						if fm.imm {
							flags, imm = flags|device.WCWithImm, 0x89ABCDEF
						}
						want(t, "completion", wc, device.WC{
							ID: 9, Op: device.WCRecv, Flags: flags, ByteLen: uint32(40 + n), Imm: imm, QPN: udQP, SrcQP: peerUD, PKeyIndex: 0,
							SL: map[bool]uint8{true: 9, false: 10}[v6],
						})
						var grh, got []byte
						for i := range 40 {
							grh = append(grh, mr.Bytes()[at(i)])
						}
						for i := range n {
							got = append(got, mr.Bytes()[at(40+i)])
						}
						if v6 {
							wantBytes(t, "IPv6 header", grh, b[:40])
						} else {
							wantBytes(t, "IPv4 header", grh[20:], b[:20])
							wantBytes(t, "first 20 bytes, as rxe", grh[:20], make([]byte, 20))
						}
						wantBytes(t, "payload", got, f.Payload)
						if split > 0 {
							wantBytes(t, "between the entries", mr.Bytes()[split:split+100], filled(0xFF, 100))
						}
						// No pad and no ICRC.
						wantBytes(t, "behind the payload", mr.Bytes()[at(40+n):at(40+n)+8], filled(0xFF, 8))

						// The way back, made of the completion alone.
						a := ahFromWC(t, l.dev, grh)
						ah := must(l.pd.CreateAH(a))
						u.post(device.SendWR{Op: device.OpSend, Flags: device.Inline, InlineData: []byte("back"), AH: ah, RemoteQPN: wc.SrcQP, RemoteQKey: qkey})
						back := l.take()
						want(t, "replies", len(back), 1)
						if back[0].Src != f.Dst || back[0].Dst != f.Src || back[0].DestQP != peerUD || back[0].DETH.SrcQP != udQP {
							t.Fatalf("reply to %v is %v", f, back[0])
						}
						u.sent("1 SUCCESS SEND 4")
					})
				}
			}
		}
	}
}

// The first 20 bytes hold nothing of the datagram before, which came over IPv6.
func TestCase41_IPv4AfterIPv6(t *testing.T) {
	bubble(t, "one queue pair", func(t *testing.T) {
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		mr := l.mr(200, all)
		u.recv(1, mr.SGE(0, 100))
		u.recv(2, mr.SGE(100, 100))
		l.p.SendRaw(t, twin6().Marshal())
		l.p.SendRaw(t, vector("V5"))
		u.received("1 SUCCESS RECV 44", "2 SUCCESS RECV 44")
		wantBytes(t, "first 20 bytes", mr.Bytes()[100:120], make([]byte, 20))
		wantBytes(t, "IPv4 header", mr.Bytes()[120:140], vector("V5")[:20])
	})
}

// ahFromWC does what ibv_init_ah_from_wc does with the 40 bytes of a datagram (roce.md
// B.10: kernel core/verbs.c ib_get_rdma_header_version): tell IPv4 from IPv6, swap source
// and destination, find the GID.
func ahFromWC(t *testing.T, dev *device.Device, grh []byte) device.AHAttr {
	t.Helper()
	var src, dst netip.Addr
	v4 := grh[20:]
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(v4[i:]))
	}
	for sum > 0xFFFF {
		sum = sum&0xFFFF + sum>>16
	}
	is4 := v4[0] == 0x45 && sum == 0xFFFF
	switch {
	case grh[0]>>4 != 6 && v4[0]>>4 == 4, is4:
		if !is4 {
			t.Fatalf("IPv4 header with a wrong checksum: % x", v4)
		}
		src, dst = netip.AddrFrom4([4]byte(v4[12:])), netip.AddrFrom4([4]byte(v4[16:]))
	case grh[0]>>4 == 6:
		src, dst = netip.AddrFrom16([16]byte(grh[8:])), netip.AddrFrom16([16]byte(grh[24:]))
	default:
		t.Fatalf("no IP header: % x", grh)
	}
	for i := range device.GIDTableLen {
		if must(dev.QueryGID(1, i)) == device.GIDOf(dst) {
			return device.AHAttr{DGID: device.GIDOf(src), SGIDIndex: i, Port: 1}
		}
	}
	t.Fatalf("no GID is %v", dst)
	return device.AHAttr{}
}
