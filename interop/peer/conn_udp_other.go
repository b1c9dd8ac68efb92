//go:build !linux

package peer

import "net"

// On other systems the socket is used as it is: TOS and TTL are the kernel's on
// what is sent and unknown on what is received.

func prepareSocket(*net.UDPConn, bool) error { return nil }

func sendControl(datagram) []byte { return nil }

func receivedControl([]byte, *datagram) {}
