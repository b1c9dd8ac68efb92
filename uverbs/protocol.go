//go:build linux

package uverbs

// Records between the preload library and the daemon, one per SEQPACKET datagram,
// integers in host order. From the program:
//
//	 0        4        8        12       16
//	+--------+--------+--------+--------+---- - -
//	|  kind  |  seq   | length |  arg   | length bytes
//	+--------+--------+--------+--------+---- - -
//
// To the program, for Hello and Command only:
//
//	 0        4        8                 16       20       24       28       32
//	+--------+--------+--------+--------+--------+--------+--------+--------+---- - -
//	|  seq   | errno  |     address     | length | fd at  | fd id  | hintlen| hint text
//	+--------+--------+--------+--------+--------+--------+--------+--------+---- - -
//
// A record with length bytes follows when length is not 0: they belong at address in the program's
// memory, the response buffer that its request named. With "fd at" other than noFD a file
// descriptor comes along (SCM_RIGHTS) with the first record; the number that it gets is stored as an int32 at
// address + "fd at", after the bytes, and "fd id" names it in a Closed record. The hint, if any, is a line for
// the user, without the newline.
//
// Library and daemon are of one build: a field is added by changing both.
const (
	// kindHello opens a context. arg is Version; the payload is an address and a value, and
	// /proc/self/mem opened for reading and writing comes along, where the program
	// could open it. The answer carries the command fd: a sealed memfd whose
	// layout is below. Its "fd at" is 0, length 0 and address 0: nothing is stored.
	kindHello = 1
	// kindCommand carries what the program wrote to the command fd. File
	// descriptors that the command names come along. arg is argFork when the process is not the one that said
	// hello, but was forked from it. It is answered.
	kindCommand = 2
	// kindDoorbell carries a POST_SEND command; arg is the queue pair's handle.
	// It is not answered.
	kindDoorbell = 3
	// kindClosed says that the process has closed its last copy of the event fd
	// whose id is arg. It is not answered.
	kindClosed = 4
	// kindPresent says that a program runs that may open the device later: the
	// connection keeps a daemon that ends with its last program. It is not answered.
	kindPresent = 5
	// kindUnstored says that the answer to the command with this seq could not be stored in the program, whose write
	// failed: EFAULT, or no number for the descriptor that came along. What the command made is to go again, as in the
	// kernel. It is sent before the next command is, and is not answered.
	kindUnstored = 6

	argFork = 1

	// Version of the records.
	Version = 3

	headLen   = 16
	answerLen = 32
	noFD      = 0xFFFFFFFF
	maxHint   = 400      // bytes of text
	maxRecord = 16 << 10 // payload of a command; the longest of the interface is below 1 KiB
)

// helloLen is the length of kindHello's payload: an address in the program, and the eight
// bytes that stand there as long as the context is open. The daemon may read them at any
// time to see whether it reaches the memory of the right process.
//
//	u64 address, u64 value
const helloLen = 16

// The memfd, from 0:
//
//	[0, 64)            u32 lock of the library (a futex; 0 free), the rest unused. The daemon never looks.
//	                   The process that said hello holds a POSIX record lock on byte 0: it goes when the
//	                   process ends or starts another program (unless that keeps the memfd open, see tracesAll), and is
//	                   not inherited by a fork, so that the daemon knows whether the process id still stands for the
//	                   memory that was registered.
//	[stateOff, armOff)  a byte per object, by handle: of a queue pair stateShut, stateOpen or stateQuiet, of a completion
//	                   queue stateCQ. The daemon writes, the library reads; handles beyond have none.
//	[armOff, arenaOff)  a u32 per object, by handle: for what a completion queue is armed. The library raises it from
//	                   armNone to armSolicited or armAny, which is REQ_NOTIFY_CQ; the daemon takes it back when
//	                   it makes the event.
//	[arenaOff, ...)    the rings that commands return offsets of.
const (
	stateOff   = 4096
	armOff     = 65536
	maxStates  = armOff - stateOff
	arenaOff   = 311296 // armOff + 4 * maxStates
	stateShut  = 0      // below RTS: write(POST_SEND) is EINVAL
	stateOpen  = 1      // a doorbell record is sent
	stateQuiet = 2      // none is needed: the daemon looks at the ring
	stateCQ    = 3      // it is armed by its word
	lockExtent = 64

	armNone      = 0
	armSolicited = 1
	armAny       = 2
)
