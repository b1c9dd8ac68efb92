//go:build linux

package uverbs

import (
	"encoding/binary"
	"fmt"

	"github.com/softnic/softnic/device"
)

// The interface is in host order; the structures are those of 64-bit little-endian
// Linux (include/uapi/rdma/ib_user_verbs.h).
var le = binary.LittleEndian

// Command numbers (enum ib_uverbs_write_cmds). A program sets cmdExtended for the
// extended form of one.
const (
	cmdGetContext        = 0
	cmdQueryDevice       = 1
	cmdQueryPort         = 2
	cmdAllocPD           = 3
	cmdDeallocPD         = 4
	cmdCreateAH          = 5
	cmdDestroyAH         = 8
	cmdRegMR             = 9
	cmdDeregMR           = 13
	cmdAllocMW           = 14
	cmdDeallocMW         = 16
	cmdCreateCompChannel = 17
	cmdCreateCQ          = 18
	cmdResizeCQ          = 19
	cmdDestroyCQ         = 20
	cmdReqNotifyCQ       = 23
	cmdCreateQP          = 24
	cmdQueryQP           = 25
	cmdModifyQP          = 26
	cmdDestroyQP         = 27
	cmdPostSend          = 28
	cmdAttachMcast       = 30
	cmdDetachMcast       = 31
	cmdCreateSRQ         = 32
	cmdModifySRQ         = 33
	cmdQuerySRQ          = 34
	cmdDestroySRQ        = 35

	cmdMask     = 0xFF
	cmdExtended = 1 << 31
)

var commandNames = map[uint32]string{
	cmdGetContext: "get_context", cmdQueryDevice: "query_device", cmdQueryPort: "query_port", cmdAllocPD: "alloc_pd",
	cmdDeallocPD: "dealloc_pd", cmdCreateAH: "create_ah", cmdDestroyAH: "destroy_ah", cmdRegMR: "reg_mr", 11: "rereg_mr",
	cmdDeregMR: "dereg_mr", cmdAllocMW: "alloc_mw", cmdDeallocMW: "dealloc_mw", cmdCreateCompChannel: "create_comp_channel",
	cmdCreateCQ: "create_cq", cmdResizeCQ: "resize_cq", cmdDestroyCQ: "destroy_cq", cmdReqNotifyCQ: "req_notify_cq", cmdCreateQP: "create_qp",
	cmdQueryQP: "query_qp", cmdModifyQP: "modify_qp", cmdDestroyQP: "destroy_qp", cmdPostSend: "post_send",
	30: "attach_mcast", 31: "detach_mcast", cmdCreateSRQ: "create_srq", cmdModifySRQ: "modify_srq", cmdQuerySRQ: "query_srq",
	cmdDestroySRQ: "destroy_srq", 36: "open_xrcd", 37: "close_xrcd", 38: "create_xsrq", 39: "open_qp", 50: "create_flow",
}

// commandName names a command for people.
func commandName(word uint32) string {
	if n := commandNames[word&cmdMask]; n != "" {
		return n
	}
	return fmt.Sprintf("command %d", word&cmdMask)
}

// request is a command that was taken apart.
type request struct {
	*command
	body     []byte // the core structure of a legacy command with what follows it; of an extended one without its header
	response uint64 // where the answer goes in the program
	room     int    // bytes there for the core structure
	driver   int    // bytes there for what is the provider's
	extended bool
	fd       int  // the file descriptor that came along, or -1
	fork     bool // it comes from a fork of the process that opened the device
}

func (r *request) u8(off int) uint8   { return r.body[off] }
func (r *request) u16(off int) uint16 { return le.Uint16(r.body[off:]) }
func (r *request) u32(off int) uint32 { return le.Uint32(r.body[off:]) }
func (r *request) u64(off int) uint64 { return le.Uint64(r.body[off:]) }

// parse takes a command apart and checks its lengths, as the kernel does
// (uverbs_main.c:verify_hdr).
func parse(b []byte) (r request, err error) {
	if len(b) < 8 {
		return r, device.EINVAL
	}
	word, in, out := le.Uint32(b), int(le.Uint16(b[4:])), int(le.Uint16(b[6:]))
	if word&^(cmdExtended|cmdMask) != 0 {
		return r, device.EINVAL
	}
	r.fd = -1
	r.extended = word&cmdExtended != 0
	if r.command = find(word&cmdMask, r.extended); r.command == nil {
		return r, device.EOPNOTSUPP
	}
	if r.extended {
		return r, r.parseExtended(b, in, out)
	}
	if in*4 != len(b) {
		return r, device.EINVAL
	}
	r.body = b[8:]
	if len(r.body) < r.req || out*4 < r.resp {
		return r, device.ENOSPC
	}
	if r.resp > 0 {
		r.response = r.u64(0)
	}
	r.room, r.driver = r.resp, out*4-r.resp
	return r, nil
}

// parseExtended reads struct ib_uverbs_ex_cmd_hdr, in which words have 8 bytes.
func (r *request) parseExtended(b []byte, in, out int) error {
	if len(b) < 24 {
		return device.EINVAL
	}
	providerIn, providerOut := int(le.Uint16(b[16:])), int(le.Uint16(b[18:]))
	r.response = le.Uint64(b[8:])
	r.body = b[24:]
	switch {
	case (in+providerIn)*8 != len(r.body):
		return device.EINVAL
	case in*8 < r.req:
		return device.ENOSPC
	case le.Uint32(b[20:]) != 0:
		return device.EINVAL
	case r.response == 0 && (out != 0 || providerOut != 0), r.response != 0 && out == 0 && providerOut == 0:
		return device.EINVAL
	case r.response != 0 && out*8 < r.resp:
		return device.ENOSPC
	case (out+providerOut)*8 > maxRecord:
		return device.EINVAL // no answer is that long
	}
	// Fields that are not known here must not ask for anything.
	for _, c := range r.body[r.req : in*8] {
		if c != 0 {
			return device.EOPNOTSUPP
		}
	}
	r.room, r.driver = out*8, providerOut*8
	return nil
}

// answer is what a command gives back.
type answer struct {
	core   []byte // the structure that its number stands for
	driver []byte // what is the provider's (rdma_user_rxe.h)
	fd     int    // to be installed in the program, or -1
	fdAt   int    // where its number goes, from the start of core
	fdID   uint32
	undo   func(c *conn) // takes back what the command made; nil: nothing
}

// destroyer destroys the object with a handle, for the command that asks for it and for one that made it in vain.
type destroyer func(c *conn, h uint32, a *answer) error

// made puts a new object's handle into the answer, and remembers how it goes again.
func (a *answer) made(h uint32, destroy destroyer) {
	a.core = le.AppendUint32(a.core, h)
	a.undo = func(c *conn) { _ = destroy(c, h, new(answer)) } // one that is in use already stays, as when asked
}

// destroys is a command whose handle stands at off.
func destroys(off int, destroy destroyer) func(*conn, *request, *answer) error {
	return func(c *conn, r *request, a *answer) error { return destroy(c, r.u32(off), a) }
}

// bytes returns the answer as the program gets it: at most what it has room for. The
// provider's part stands behind the room for the core structure, of which an extended command gets
// the rest zeroed (uverbs_cmd.c:uverbs_response).
func (a *answer) bytes(r *request) []byte {
	b := append(make([]byte, 0, r.room+r.driver), a.core[:min(len(a.core), r.room)]...)
	if r.extended || len(a.driver) > 0 && r.driver > 0 {
		b = append(b, make([]byte, r.room-len(b))...)
	}
	b = append(b, a.driver[:min(len(a.driver), r.driver)]...)
	return b
}

// mtuCode returns enum ib_mtu of an MTU in bytes, and back.
func mtuCode(bytes int) uint8 {
	for c := uint8(1); c <= 5; c++ {
		if 128<<c == bytes {
			return c
		}
	}
	return 0
}

func mtuBytes(code uint8) int {
	if code < 1 || code > 5 {
		return int(code) // none, and refused where it is used
	}
	return 128 << code
}
