// Package stage is one NIC of softnic under virtual time, with a script in place of the network: what
// softnic replay plays captures and scenarios on.
//
// The NIC is a real device.Device, stepped, on an endpoint in memory. What it draws at random is chosen by the
// script, so that queue pairs and memory regions have the numbers, keys and addresses that a recording
// or a scenario names, and packets can be given to it byte for byte.
//
//	n, err := stage.New(stage.Options{Addr: addr, Sent: func(packet []byte) { ... }})
//	mr, err := n.Register(key, va, size, access)
//	q, err := n.CreateQP(qpn, device.QPInit{Type: device.RC})
//	n.Receive(packet)
//	n.Run(10 * time.Millisecond)
//
// Nothing here knows a packet beyond its bytes, judges one, or reads a file. A NIC is not safe for
// concurrent use.
package stage
