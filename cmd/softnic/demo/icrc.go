package demo

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// errShort is the error for a packet that ends too early.
var errShort = errors.New("the packet is cut off")

// icrc computes the invariant CRC of a RoCEv2 packet: ip begins with the IPv4 or IPv6
// header and ends before the ICRC.
//
// It is the CRC of Ethernet over eight bytes of ones and the packet, in which everything
// that routers and peers may change counts as ones:
//
//	IPv4   type of service, time to live, checksum
//	IPv6   traffic class, flow label, hop limit
//	UDP    checksum
//	BTH    FECN, BECN and what is reserved beside them
func icrc(ip []byte) (uint32, error) {
	udp := 20
	if len(ip) == 0 {
		return 0, errShort
	}
	ones := map[int]byte{} // offset to bits
	switch ip[0] >> 4 {
	case 4:
		if ip[0] != 0x45 {
			return 0, errors.New("the IPv4 header has options")
		}
		ones[1], ones[8], ones[10], ones[11] = 0xFF, 0xFF, 0xFF, 0xFF
	case 6:
		udp = 40
		ones[0], ones[1], ones[2], ones[3], ones[7] = 0x0F, 0xFF, 0xFF, 0xFF, 0xFF
	default:
		return 0, fmt.Errorf("IP version %d", ip[0]>>4)
	}
	if len(ip) < udp+8+12 {
		return 0, errShort
	}
	ones[udp+6], ones[udp+7], ones[udp+8+4] = 0xFF, 0xFF, 0xFF

	crc := ^uint32(0)
	for range 8 {
		crc = shift(crc, 0xFF)
	}
	for i, b := range ip {
		if i <= udp+8+4 {
			b |= ones[i]
		}
		crc = shift(crc, b)
	}
	return ^crc, nil
}

// shift takes a byte into the CRC, bit by bit, the lowest first.
func shift(crc uint32, b byte) uint32 {
	crc ^= uint32(b)
	for range 8 {
		low := crc & 1
		crc >>= 1
		if low == 1 {
			crc ^= 0xEDB88320
		}
	}
	return crc
}

// checkICRC checks a whole packet, from the IP header to the ICRC.
func checkICRC(ip []byte) error {
	if len(ip) < 4 {
		return errShort
	}
	n := len(ip) - 4
	want, err := icrc(ip[:n])
	if err != nil {
		return err
	}
	if got := binary.LittleEndian.Uint32(ip[n:]); got != want {
		return fmt.Errorf("ICRC %08x, want %08x", got, want)
	}
	return nil
}
