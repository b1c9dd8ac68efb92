//go:build linux

// Package uverbs lets unmodified verbs programs use a device: it serves the kernel's uverbs
// interface (include/uapi/rdma/ib_user_verbs.h and rdma_user_rxe.h) over a Unix
// socket. In the program the stock libibverbs and its rxe provider do what they
// always do; the library of package preload carries their open, write and close to this
// package instead of to a kernel.
//
//	program ─ libibverbs ─ librxe            unmodified
//	              │ open, write, ioctl, close
//	        libsoftnic.so (LD_PRELOAD)       carries bytes and file descriptors
//	              │ SEQPACKET: hello, command, doorbell
//	        Server ─ conn ─ commands ─ device.Context
//	              │                       │
//	        memfd with the rings     memory of the program (process_vm_*, /proc/PID/mem)
//
// One open of the device is one connection and one device.Context: its end, however it
// comes, frees all that the program had. A Server also keeps the folder PATH.d, in which
// programs find the preload library and the tree that stands for their /sys.
//
// What a program writes, into the socket or its rings, is hostile: every handle is
// resolved in its own context, every index and work request is copied before it is looked at.
//
// It never makes packets or keeps queue pair state: that is the device's.
//
// # Protocol
//
// protocol.go has the records between library and daemon. They are private to one build: the
// library that a program loads is the one that its daemon keeps in PATH.d.
package uverbs
