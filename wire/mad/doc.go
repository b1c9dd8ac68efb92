// Package mad is the codec of management datagrams: the 256 bytes that queue pairs 0 and 1 send
// to each other.
//
// It has the common header, subnet management packets (both ways of routing) with the attributes
// that an adapter answers by itself, and those of performance management. Types of its own
// are views of the bytes, as in package bth; a Fields struct beside a view holds all of an attribute, to
// read it and to write it. Offsets are those of the kernel's rdma/ib_mad.h, ib_smi.h and ib_pma.h, which
// draw the same layouts.
//
// The device and connection management use it. It knows no queue pair and sends nothing: what is
// answered, and how, the device decides.
package mad
