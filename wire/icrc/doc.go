// Package icrc computes the invariant CRC of RoCEv2: the four bytes at the end
// of every packet that cover what no router on the way may change.
//
// The framer computes it (wire.Packet.Seal), the receive path checks it
// (wire.CheckICRC), the builder and the capture tools do both. A link over a
// UDP socket, which never sees the IP header, solves for the IPv4
// identification with SolveID.
//
// Nothing here allocates, copies a payload, changes its input or checks that
// lengths in the headers agree: the caller has parsed the packet.
//
// # The sum
//
// CRC-32 of Ethernet (reflected polynomial 0xEDB88320, start and end
// complemented) over eight bytes of ones, the place of the InfiniBand local
// route header, and then over the packet from the IP header to the end of the
// pad, in which these are ones (kernel rxe_icrc.c:rxe_icrc_hdr):
//
//	IPv4   type of service, time to live, header checksum
//	IPv6   traffic class, flow label, hop limit
//	UDP    checksum
//	BTH    byte 4: FECN, BECN and six reserved bits
//
// Everything else is covered, the IPv4 identification and the seven reserved
// bits beside AckReq too. It is stored least significant byte first, as an
// Ethernet frame check sequence is.
package icrc
