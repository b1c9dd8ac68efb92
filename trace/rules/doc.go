// Package rules judges RoCEv2 traffic: whether the packets of a capture keep the rules of
// the transports. It is the core of softnic trace, and tests of the engines have it look over
// what they captured.
//
//	c := rules.New(rules.Options{})
//	for each packet, in order of time {
//		c.Add(&rules.Packet{Number: n, Time: ns, Dir: rules.Tx, View: &view})
//	}
//	for _, f := range c.Findings() { ... }
//
// # What is judged, and from where
//
// A rule binds a sender, and what a sender did can be told only from packets that it sent.
// A capture has each packet from one of three places: at its sender (Tx), at its
// receiver (Rx), or somewhere between (Unknown). A request that is missing at the receiver was
// lost or never sent; at the sender it was never sent. So each verdict asks first whether
// the packets it needs were seen from the right place, and is "unknown", with the reason, if
// not. A capture that begins in mid-conversation, misses one direction or whose connections
// cannot be told apart gives "unknown" and never a false "broken".
//
// The halves of a connection are four small machines per direction: what the requester sent
// (requester.go), what reached the responder (arrival.go), what the responder answered
// (responder.go) and what of that reached the requester (knowledge.go). Where both places of a packet
// are in the capture, the first and the third go by the sender's sighting, the others by the
// receiver's.
//
// What a host takes in one moment it may take in another order than the capture has it, and its timer
// may run out just then: a verdict that hangs on such an order is "unknown".
//
// RC packets name only the queue pair they go to. The two directions of a connection are
// joined by Options, by a CM exchange in the capture, or when answers fit the
// unanswered requests of exactly one queue pair (pair.go).
//
// # Bounds
//
// A checker keeps a fixed number of conversations and of remembered packets; what is
// oldest is forgotten, and what would need it is unknown. It allocates when a conversation
// is new or grows, and for the text of the first violations of a rule, never otherwise.
//
// The package reads no file, and never changes or keeps a packet.
package rules
