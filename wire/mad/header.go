package mad

import (
	"encoding/binary"
	"fmt"
)

const (
	// Len is the length of a management datagram in bytes: always the same.
	Len = 256
	// HeaderLen is the length of the common header.
	HeaderLen = 24
	// BaseVersion is the one that there is.
	BaseVersion = 1
)

var be = binary.BigEndian

// Class is a management class; values as IB_MGMT_CLASS_… of rdma/ib_mad.h.
type Class uint8

// The classes.
const (
	SubnLIDRouted Class = 0x01
	SubnAdm       Class = 0x03
	PerfMgmt      Class = 0x04
	CommMgmt      Class = 0x07
	SubnDirected  Class = 0x81
)

var classNames = map[Class]string{SubnLIDRouted: "SubnLID", SubnAdm: "SubnAdm", PerfMgmt: "Perf", CommMgmt: "CM", SubnDirected: "SubnDR"}

// String returns a short name.
func (c Class) String() string {
	if n := classNames[c]; n != "" {
		return n
	}
	return fmt.Sprintf("class 0x%02x", uint8(c))
}

// Subnet reports whether the class is one of the two of subnet management, which only queue pair 0 knows.
func (c Class) Subnet() bool { return c == SubnLIDRouted || c == SubnDirected }

// Method is what a datagram does. Bit 7 is set in responses.
type Method uint8

// The methods.
const (
	Get         Method = 0x01
	Set         Method = 0x02
	Send        Method = 0x03
	Trap        Method = 0x05
	Report      Method = 0x06
	TrapRepress Method = 0x07
	GetResp     Method = 0x81
	ReportResp  Method = 0x86
)

var methodNames = map[Method]string{
	Get: "Get", Set: "Set", Send: "Send", Trap: "Trap", Report: "Report", TrapRepress: "TrapRepress",
	GetResp: "GetResp", ReportResp: "ReportResp",
}

// String returns the name.
func (m Method) String() string {
	if n := methodNames[m]; n != "" {
		return n
	}
	return fmt.Sprintf("method 0x%02x", uint8(m))
}

// AttrID is an attribute of a class.
type AttrID uint16

// ClassPortInfo is the attribute that every class but subnet management has.
const ClassPortInfo AttrID = 0x0001

// Status is the result in a response; the classes have bits of their own above these.
type Status uint16

// The results.
const (
	StatusOK          Status = 0x0000
	StatusBusy        Status = 0x0001
	StatusRedirect    Status = 0x0002
	StatusBadVersion  Status = 0x0004 // base or class version
	StatusBadMethod   Status = 0x0008
	StatusBadAttr     Status = 0x000C // method and attribute do not go together
	StatusBadArgument Status = 0x001C // a value in the attribute, or its modifier
)

// Header is a view of the header that all classes share, 24 bytes.
//
//	+---------------+---------------+---------------+-+-------------+
//	|  base version |     class     | class version |R|   method    |
//	+---------------+---------------+---------------+-+-------------+
//	|            status             |         class specific        |
//	+-------------------------------+-------------------------------+
//	|                    transaction ID (64 bits)                   |
//	|                                                               |
//	+-------------------------------+-------------------------------+
//	|          attribute ID         |            reserved           |
//	+-------------------------------+-------------------------------+
//	|                       attribute modifier                      |
//	+---------------------------------------------------------------+
type Header []byte

// Valid reports whether b is a whole datagram of the base version that there is.
func Valid(b []byte) bool { return len(b) == Len && b[0] == BaseVersion }

// Class returns the management class.
func (h Header) Class() Class { return Class(h[1]) }

// ClassVersion returns the version of the class.
func (h Header) ClassVersion() uint8 { return h[2] }

// Method returns the method, with the response bit.
func (h Header) Method() Method { return Method(h[3]) }

// Status returns the status, without the direction bit that directed routes have in its place.
func (h Header) Status() Status {
	s := be.Uint16(h[4:])
	if h.Class() == SubnDirected {
		s &= 0x7FFF
	}
	return Status(s)
}

// ClassSpecific returns the 16 bits that each class uses as it likes.
func (h Header) ClassSpecific() uint16 { return be.Uint16(h[6:]) }

// TID returns the transaction ID.
func (h Header) TID() uint64 { return be.Uint64(h[8:]) }

// Attr returns the attribute ID.
func (h Header) Attr() AttrID { return AttrID(be.Uint16(h[16:])) }

// Modifier returns the attribute modifier.
func (h Header) Modifier() uint32 { return be.Uint32(h[20:]) }

// HeaderFields is the content of a header.
type HeaderFields struct {
	Class         Class
	ClassVersion  uint8
	Method        Method
	Status        Status
	ClassSpecific uint16
	TID           uint64
	Attr          AttrID
	Modifier      uint32
}

// Fields returns all fields.
func (h Header) Fields() HeaderFields {
	return HeaderFields{h.Class(), h.ClassVersion(), h.Method(), h.Status(), h.ClassSpecific(), h.TID(), h.Attr(), h.Modifier()}
}

// Encode writes the header; reserved bits become 0.
func (h Header) Encode(f *HeaderFields) {
	h[0], h[1], h[2], h[3] = BaseVersion, byte(f.Class), f.ClassVersion, byte(f.Method)
	be.PutUint16(h[4:], uint16(f.Status))
	be.PutUint16(h[6:], f.ClassSpecific)
	be.PutUint64(h[8:], f.TID)
	be.PutUint16(h[16:], uint16(f.Attr))
	be.PutUint16(h[18:], 0)
	be.PutUint32(h[20:], f.Modifier)
}

// Respond makes the header of a Get or Set that of its response. A directed route turns round: its
// direction bit is set.
func (h Header) Respond(s Status) {
	h[3] = byte(GetResp)
	if h.Class() == SubnDirected {
		s |= direction
	}
	be.PutUint16(h[4:], uint16(s))
}
