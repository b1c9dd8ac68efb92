// Package replay plays the requester of a recorded conversation against softnic's own NIC, and compares every answer with
// the recorded one.
//
//	r, err := replay.File("capture.pcapng", replay.Options{})
//	if r.Different > 0 { ... }
//
// A capture becomes a regression test by one line, see package replaytest.
//
// For each address that requests go to there is one NIC (package stage) with the recorded numbers, keys and addresses, and
// the packets of the requesters are given to it as they were recorded, in their order and at their times. What was there
// at the recorded NIC and is on no wire is reconstructed (begin.go, plan.go, memory.go, objects.go): regions from the addresses and keys of requests, their first
// content from READ responses and atomics, receives from the messages that took one, the path MTU from the packets.
//
// The verdict on an answer (judge.go) is one of four. Same; declared, where NICs may differ, and how is said; different; or
// unknown, where the capture does not show enough to tell. A capture that lost packets, begins in the middle or shows
// one side only makes answers unknown, never different.
//
// A capture comes from trace.Stream, as package trace/report reads it, and is kept in memory as a whole, since what became of a packet is
// told by what comes later. Its length is bounded.
// The package writes nothing, and never looks at what a requester could have done better: that is package rules'.
package replay
