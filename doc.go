// Package softnic is the root of a RoCEv2 RDMA NIC that is a program.
//
// It holds no code. A Go program starts at package device (an adapter with a
// verbs-shaped API) and one of the link endpoints (link/udp, link/pipe, tap);
// the program is cmd/softnic; ARCHITECTURE.md shows the house.
package softnic
