// Package udp is a link over one UDP socket of the host: RoCEv2 without privileges.
//
// The device and the program call Open. The socket is never connected and asks for path
// MTU discovery, because Linux then sends every datagram with DF and the IP ID 0 (the
// index within a GSO burst, were there one), which the ICRC covers and which
// therefore must be known beforehand. That rule is verified at start where a packet
// socket may be opened. A received datagram comes without its IP header: the header is rebuilt from
// what the socket tells (addresses, TOS, TTL), and the ID is left to the ICRC check, which
// solves for it and keeps 16 bits of checking.
//
// The flow label of IPv6, which the ICRC does not cover either, is always sent as 0.
//
// The package never routes, never resolves neighbours and never fragments: the host does
// the first two, and what exceeds the MTU is not sent. On other systems than
// Linux it uses a plain socket, and how the host numbers its packets stays
// unverified.
package udp
