// Package peer is the scripted peer: it crafts and reads single RoCEv2 frames
// and is the ground truth that softnic's tests are held against.
//
// It is called by tests of every level (a device on an in-memory link, a device
// behind a UDP 4791 socket on loopback, a device on a TAP in the VM lab) and by
// interop/judge. A test builds a [Frame] by hand or with one of the short
// constructors, sends it through a [Conn], and says what it expects to come
// back, field by field:
//
//	p := peer.New(conn, local, remote)
//	p.Send(t, peer.WriteOnly(qpn, 0xffffff, va, rkey, []byte("hello")))
//	p.Expect(t, peer.WantAck(0xffffff), peer.WantMSN(1))
//	p.ExpectSilence(t, time.Second)
//
// A frame as it is laid out here, from the IP header on:
//
//	+------------+-----+-----+--------------------+---------+-----+------+---------+
//	| IPv4/IPv6  | UDP | BTH | extended headers   | payload | pad | ICRC | trailer |
//	| 20+ or 40  |  8  |  12 | as the opcode says |         | 0-3 |   4  |         |
//	+------------+-----+-----+--------------------+---------+-----+------+---------+
//	^ ICRC covers from here ...................................^
//	             ^ UDP length counts from here ......................^
//
// # What it never does
//
// It shares no code with softnic and imports only the standard library: its
// opcode table, its header layouts and its CRC are written a second time, so
// that a mistake in the product cannot hide in its own test. It knows nothing of
// PSN windows, retries, queue pairs, memory or connections: what is sent and
// what is expected is said by the test, one frame at a time. It never answers
// anything by itself (no ACK, no ARP), and never sleeps: waiting is done in a
// read with a deadline, so that it runs inside a testing/synctest bubble.
package peer
