// Package tap puts a softnic NIC on a TAP interface.
//
// Open makes a TAP (a network interface whose other end is a file descriptor), gives the host's
// side of it an MTU and addresses, and returns a Tap: the link.Endpoint through which a device
// sends and receives whole Ethernet frames. The host's kernel, or whatever the interface is
// bridged to, is the network; `rdma link add rxe0 type rxe netdev sn0` makes the kernel's own
// RoCE driver the peer. The program's run command calls it, and so may anybody who puts a device
// on a link.Port.
//
// # What the NIC answers by itself
//
// A RoCE peer resolves the NIC's address before it sends, so the NIC has to be a neighbour. It
// answers ARP for its IPv4 addresses, and Neighbour Discovery for its IPv6 addresses and for the
// link-local address of its MAC (EUI-64); it announces them when the link comes up, defends them
// against other stations, and answers ICMP and ICMPv6 echo requests that arrive in one piece, so
// that ping works. It reports the multicast groups that the device listens to (IGMPv3 and MLDv2, or
// IGMPv2 and MLDv1 while a router asks in those) when it joins, when it leaves, and when it is asked,
// so that a bridge with multicast snooping lets them through. None of this is shown to the device. It
// gets UDP packets to port 4791 and nothing else: those to an address of the NIC, and those to any
// multicast group, whatever their Ethernet address.
//
// For what it sends, it keeps a table of neighbours, learned from answers, and from requests that
// others send to it. A frame for an unknown neighbour is copied and held (16 a neighbour) while
// three requests go out, a second apart; then the held frames are dropped and counted. An entry
// older than a minute is asked for again at its next use, and used meanwhile.
//
// There is no routing table. A destination within the prefix of a NIC address, or link-local, is
// asked for on the link. Any other goes to the first of Config.HostAddrs of its family (without
// one, to the first address that the host's side has now), for the host to forward. Where the
// host's side has no address of that family, it is asked for on the link.
//
// While a raw packet queue pair asks for other frames, they are brought in as well (Divert), also copies of what the NIC
// answers, and frames to other stations. What such a queue pair sends leaves as it is.
//
// # Bursts
//
// What the device sends to one party at once is one frame for the host (IFF_VNET_HDR, GSO_UDP_L4), and so is what a socket of the host, or
// another TAP on a bridge, sends so; Recv takes it apart. Who takes a burst apart, the kernel too, counts its IPv4 IDs from that of the first packet, and
// the ICRC of each was computed with that. In return for bursts the host leaves its checksums to the NIC: they are computed
// where somebody looks at them, and a RoCE packet, which has an ICRC, is left without one of UDP. TCP is not taken in bursts. The kernel has bursts
// for a TAP since Linux 6.2; with an older one, and with Config.Plain, each packet is a frame, and RoCE packets are sent
// without UDP checksum, where those of bursts have one. Captures, filters and queueing disciplines of the host see bursts, not
// packets. Their lengths come from the kernel, and from whoever else is on the bridge: no more is believed than is checked.
//
// # What it never does
//
// It reassembles no fragments, reports no membership in the groups that neighbour discovery uses (a
// bridge with multicast snooping and an MLD querier may keep solicitations from it), detects no duplicates of its own addresses before it uses
// them, listens to no router, uses no VLAN (a priority tag with VLAN 0 is accepted), and checks
// no ICRC: package wire does that. It turns nothing off on the host. Malformed input is dropped
// and counted, whatever it is.
//
// # The life of the interface
//
// The interface carries the alias "softnic" (ip link show prints it). It lives as long as the
// Tap: the kernel removes it when the file descriptor closes, also when the process is killed.
//
// A kernel RDMA link on the interface (rxe) is in the way of that. The kernel removes such a link
// together with its interface, but in the middle of that it waits, not to be interrupted, for
// every program that has the RDMA device open, and prints `unregister_netdevice: waiting for sn0
// to become free` meanwhile. So Release and Close make the TAP persistent first, then remove the
// RDMA links on it, then make it transient again, then close it. A link that a program still has
// open after two seconds, or that may not be removed (CAP_NET_ADMIN was given up), stays, and so
// does the interface: persistent, and without carrier. Release says so in one line, with the
// commands that finish the work in the order that does not hang.
//
// After kill -9 there is no such care. Without an RDMA link, or with one that no program has open,
// the kernel cleans up all of it. Otherwise the dead process stays in the process table until
// those programs have ended; then the kernel finishes by itself. The interface's name is free at
// once, so the next start works, but the RDMA link's name is not: until then `rdma link add` fails
// ("Too many open files in system").
//
// Open takes over what Release had to leave: a persistent TAP with the alias "softnic" that nobody
// has attached. It removes RDMA links on it, then the interface, and makes a new one, so that
// every start finds what the first one found. Everything else that has the name is left alone and
// is an error.
//
// # Permissions
//
// Making the interface takes CAP_NET_ADMIN (in the user namespace that owns the network namespace,
// so `unshare -rn` will do) and access to /dev/net/tun. The interface is in the network namespace
// of the thread that calls Open. On other systems than Linux, Open fails with one clear error.
package tap
