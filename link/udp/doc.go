// Package udp is a link over one UDP socket of the host: RoCEv2 without privileges.
//
// The device and the program call Open. The socket is never connected and asks for path
// MTU discovery, because Linux then sends every datagram with DF and the IP ID 0 (in
// a burst of UDP_SEGMENT the index of each), which the ICRC covers and which
// therefore must be known beforehand. That rule is verified at start where a packet
// socket may be opened. A received datagram comes without its IP header: the header is rebuilt from
// what the socket tells (addresses, TOS, TTL), and the ID is left to the ICRC check, which
// solves for it and keeps 16 bits of checking.
//
// A burst of equal packets is one call and, for the host, one datagram until somebody has to take it apart (UDP_SEGMENT), and
// what has come together is received together (UDP_GRO): that is most of the speed of the link. Bursts want a UDP checksum, where
// RoCE has 0; the ICRC does not cover it. Packet filters, netem and captures of the host see the bursts. Options.Plain
// gives each packet to the host alone.
//
// The flow label of IPv6, which the ICRC does not cover either, is always sent as 0.
//
// A multicast group that the device listens to has a socket of its own, bound to the group and a member on the interface
// of the NIC's address, because Linux gives multicast to no socket that is bound to an address of the host. Several NICs
// of one host may listen to one group and hear each other; the loopback interface brings every datagram to all of them
// once, the sender too (whose copy is dropped: the port has its own loop), whatever IP_MULTICAST_LOOP says. IPv6 has no
// multicast on the loopback interface. All of that was measured on Linux 6.18.
//
// The package never routes, never resolves neighbours and never fragments: the host does
// the first two, and what exceeds the MTU is not sent. On other systems than
// Linux it uses a plain socket, and how the host numbers its packets stays
// unverified.
package udp
