// Package wire is the RoCEv2 packet: Ethernet, 802.1Q, IPv4, IPv6, UDP around
// the InfiniBand headers of package bth.
//
// It holds the shapes that a packet has inside softnic. Packet is what an
// engine emits: transport headers, a gather list and a Path; Seal makes a frame
// of it. View is what a packet looks like after it was received and parsed
// once. Fault is the reason why one was not accepted; counters, logs and
// captures use its name. Spec describes a packet field by field, right or wrong,
// for tests and tools; Build makes it.
//
// Links, engines and tools call it. It never opens a socket, keeps no state
// and knows nothing of queue pairs.
package wire
