// Package link moves RoCEv2 packets between a device and a network.
//
// Endpoint is the I/O end: package udp, package pipe and, outside, package tap
// implement it. Port stands between a device and its Endpoint: it impairs,
// frames and captures what goes out, loops back what is for the device itself,
// and captures what came in together with the verdict on it. Sink is who takes
// the captures; Queue is what packets wait in where there is no kernel to hold them.
//
//	out: impair (packets) -> burst, IP ID, ICRC -> [impair (bytes)] -> Endpoint, then capture
//	in:  Endpoint -> parse, ICRC -> impair -> the device -> capture with verdicts
//
// Packages below link import package wire and nothing of the device or the
// engines. Nothing here knows a queue pair, retransmits, or answers a packet.
package link
