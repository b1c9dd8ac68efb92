package device

import (
	"errors"
	"fmt"
)

// Errno is an error number as verbs programs know it; values as on Linux.
type Errno int

// The error numbers that verbs return. Nothing here makes EPERM, EAGAIN or EFAULT: they are for the kernel's interface to
// programs, which package uverbs has.
const (
	EPERM      Errno = 1
	EIO        Errno = 5 // the context is closed, what was waited for is destroyed, or the link failed
	EAGAIN     Errno = 11
	ENOMEM     Errno = 12 // a queue is full, or a limit of multicast is reached
	EFAULT     Errno = 14
	EBUSY      Errno = 16 // other objects still use it
	EINVAL     Errno = 22 // a value out of its range, a state that does not allow it, an object that is destroyed, a limit of the device
	ENOSPC     Errno = 28 // there can be no more raw packet queue pairs
	EOPNOTSUPP Errno = 95 // this device, or its link, does not have it
)

var errnoText = map[Errno]string{
	EPERM: "operation not permitted", EIO: "device closed", EAGAIN: "try again", ENOMEM: "queue full",
	EFAULT: "bad address", EBUSY: "in use", EINVAL: "invalid argument", ENOSPC: "limit reached",
	EOPNOTSUPP: "not supported",
}

// Error returns a short text, "errno N" for a number that is none of these.
func (e Errno) Error() string {
	if t := errnoText[e]; t != "" {
		return t
	}
	return fmt.Sprintf("errno %d", int(e))
}

// OpError is the error of every method of Device and of its objects: which verb failed, on
// which object, why. It wraps an Errno, or the error of who was asked: of the context.Context that ended a wait, of the link
// (Open, Device.Close), of the function given to ReplaceRing.
type OpError struct {
	Op     string // "modify_qp", "post_send", ...
	Object string // "qp 0x000011", "cq 3"; empty where there is none yet
	Err    error  // why, in words; the rest of the line
}

// Error returns one line.
func (e *OpError) Error() string {
	if e.Object == "" {
		return e.Op + ": " + e.Err.Error()
	}
	return e.Op + " " + e.Object + ": " + e.Err.Error()
}

// Unwrap returns what was wrong.
func (e *OpError) Unwrap() error { return e.Err }

// reason is an Errno with the particular in words.
type reason struct {
	errno Errno
	text  string
}

func (r *reason) Error() string { return r.text }
func (r *reason) Unwrap() error { return r.errno }

// because makes an error that reads as the text and is the errno.
func because(e Errno, format string, args ...any) error {
	return &reason{e, fmt.Sprintf(format, args...)}
}

// ErrnoOf returns the Errno in err, EIO if there is none: also for nil, which is no error, and for the end of a
// context.Context.
func ErrnoOf(err error) Errno {
	var e Errno
	if errors.As(err, &e) {
		return e
	}
	return EIO
}
