package bth

import "fmt"

// Opcode is the first byte of the BTH: transport service (3 bits) and
// operation (5 bits).
type Opcode uint8

// Service is the transport part of an opcode.
type Service uint8

// The transport services (kernel include/rdma/ib_pack.h). Manufacturers have
// 0xC0 and 0xE0; softnic knows two opcodes there, the masked atomics.
const (
	RC     Service = 0x00
	UC     Service = 0x20
	RD     Service = 0x40
	UD     Service = 0x60
	CNP    Service = 0x80
	XRC    Service = 0xA0
	Vendor Service = 0xC0
)

// String returns the prefix of the opcode names: "RC", "CNP" and so on.
func (s Service) String() string {
	switch s {
	case RC:
		return "RC"
	case UC:
		return "UC"
	case RD:
		return "RD"
	case UD:
		return "UD"
	case CNP:
		return "CNP"
	case XRC:
		return "XRC"
	case Vendor:
		return "VENDOR"
	}
	return fmt.Sprintf("SERVICE_%02X", uint8(s))
}

// Operation is the operation part of an opcode, the same for RC, UC and XRC.
type Operation uint8

// The operations (kernel include/rdma/ib_pack.h; FLUSH and ATOMIC WRITE
// rxe_opcode.c). Make joins one with a Service to an Opcode.
const (
	SendFirst          Operation = 0x00
	SendMiddle         Operation = 0x01
	SendLast           Operation = 0x02
	SendLastImm        Operation = 0x03
	SendOnly           Operation = 0x04
	SendOnlyImm        Operation = 0x05
	WriteFirst         Operation = 0x06
	WriteMiddle        Operation = 0x07
	WriteLast          Operation = 0x08
	WriteLastImm       Operation = 0x09
	WriteOnly          Operation = 0x0A
	WriteOnlyImm       Operation = 0x0B
	ReadRequest        Operation = 0x0C
	ReadResponseFirst  Operation = 0x0D
	ReadResponseMiddle Operation = 0x0E
	ReadResponseLast   Operation = 0x0F
	ReadResponseOnly   Operation = 0x10
	Acknowledge        Operation = 0x11
	AtomicAcknowledge  Operation = 0x12
	CompareSwap        Operation = 0x13
	FetchAdd           Operation = 0x14
	SendLastInv        Operation = 0x16
	SendOnlyInv        Operation = 0x17
	Flush              Operation = 0x1C
	AtomicWrite        Operation = 0x1D
)

// Opcodes outside the RC/UC/XRC scheme.
const (
	UDSendOnly    = Opcode(UD) | Opcode(SendOnly)
	UDSendOnlyImm = Opcode(UD) | Opcode(SendOnlyImm)
	CNPNotify     = Opcode(CNP) | 0x01

	// Masked atomics on a reliable connection. No published form is known; this one is
	// softnic's own.
	MaskedCompareSwap = Opcode(Vendor) | Opcode(CompareSwap)
	MaskedFetchAdd    = Opcode(Vendor) | Opcode(FetchAdd)
)

// Make joins a service and an operation.
func Make(s Service, o Operation) Opcode { return Opcode(s) | Opcode(o) }

// Service returns the transport part.
func (o Opcode) Service() Service { return Service(o & 0xE0) }

// Operation returns the operation part.
func (o Opcode) Operation() Operation { return Operation(o & 0x1F) }

// Flags describe what an opcode means to the engines.
type Flags uint16

// Opcode flags.
const (
	Start      Flags = 1 << iota // first packet of a message (FIRST or ONLY)
	Middle                       // neither first nor last
	End                          // last packet of a message (LAST or ONLY)
	Request                      // travels from requester to responder
	Response                     // travels from responder to requester
	Recv                         // takes a receive work request
	Comp                         // makes a receive completion
	HasPayload                   // a payload may follow the headers
	FullMTU                      // the payload is exactly one path MTU
	Send                         // SEND family
	Write                        // RDMA WRITE family
	Read                         // READ request or response
	Atomic                       // CmpSwap, FetchAdd, atomic acknowledge
)

// Header names one extended header; the table lists them in wire order.
type Header uint8

// The extended headers (kernel rxe_hdr.h).
const (
	HNone Header = iota
	HRDETH
	HDETH
	HXRCETH
	HRETH
	HAtomicETH
	HAETH
	HAtomicAckETH
	HImmDt
	HIETH
	HFETH
	HCNP // 16 reserved bytes of a CNP
	HMaskedETH
)

// Len returns the length of the header in bytes.
func (h Header) Len() int { return int(headerLen[h]) }

// String returns the name of the header as the specification spells it.
func (h Header) String() string {
	if int(h) < len(headerName) {
		return headerName[h]
	}
	return fmt.Sprintf("HEADER_%d", uint8(h))
}

var headerName = [...]string{
	HNone: "none", HRDETH: "RDETH", HDETH: "DETH", HXRCETH: "XRCETH", HRETH: "RETH", HAtomicETH: "AtomicETH",
	HAETH: "AETH", HAtomicAckETH: "AtomicAckETH", HImmDt: "ImmDt", HIETH: "IETH", HFETH: "FETH", HCNP: "CNP", HMaskedETH: "MaskedAtomicETH",
}

var headerLen = [...]uint8{
	HNone: 0, HRDETH: 4, HDETH: 8, HXRCETH: 4, HRETH: 16, HAtomicETH: 28, HAETH: 4,
	HAtomicAckETH: 8, HImmDt: 4, HIETH: 4, HFETH: 4, HCNP: 16, HMaskedETH: 44,
}

// Info is a row of the opcode table: everything the codec and the engines
// need to know of an opcode. A row with an empty Name is a reserved opcode; it
// has no headers and Len 0.
type Info struct {
	Name    string    // service and operation, e.g. "RC_SEND_ONLY_IMM"
	Flags   Flags     // meaning
	Headers [4]Header // extended headers after the BTH, in wire order
	Len     int       // BTH plus extended headers, bytes
	offset  [13]uint8 // offset of each Header from the start of the BTH, 0 if absent
}

// Has reports whether all flags of f are set.
func (i *Info) Has(f Flags) bool { return i.Flags&f == f }

// Offset returns where header h starts, from the first byte of the BTH, and
// whether the opcode carries it.
func (i *Info) Offset(h Header) (int, bool) {
	o := int(i.offset[h])
	return o, o != 0
}

// Known reports whether the row describes an assigned opcode.
func (i *Info) Known() bool { return i.Name != "" }

// Info returns the table row of the opcode; never nil.
func (o Opcode) Info() *Info { return &table[o] }

// String returns the table's name, or the number for a reserved opcode.
func (o Opcode) String() string {
	if n := table[o].Name; n != "" {
		return n
	}
	return fmt.Sprintf("OPCODE_%02X", uint8(o))
}

var table [256]Info

// operations holds the rows for RC (kernel rxe_opcode.c:rxe_opcode); the other
// services derive from it. The table is filled once at start because four
// services repeat the same rows with another prefix and, for RD and XRC, one or
// two more headers. RD RESYNC (0x55) has no row: RD is not carried over RoCE.
var operations = [32]struct {
	name    string
	flags   Flags
	headers []Header
}{
	SendFirst:          {"SEND_FIRST", Start | Request | Recv | HasPayload | FullMTU | Send, nil},
	SendMiddle:         {"SEND_MIDDLE", Middle | Request | HasPayload | FullMTU | Send, nil},
	SendLast:           {"SEND_LAST", End | Request | Comp | HasPayload | Send, nil},
	SendLastImm:        {"SEND_LAST_IMM", End | Request | Comp | HasPayload | Send, []Header{HImmDt}},
	SendOnly:           {"SEND_ONLY", Start | End | Request | Recv | Comp | HasPayload | Send, nil},
	SendOnlyImm:        {"SEND_ONLY_IMM", Start | End | Request | Recv | Comp | HasPayload | Send, []Header{HImmDt}},
	WriteFirst:         {"WRITE_FIRST", Start | Request | HasPayload | FullMTU | Write, []Header{HRETH}},
	WriteMiddle:        {"WRITE_MIDDLE", Middle | Request | HasPayload | FullMTU | Write, nil},
	WriteLast:          {"WRITE_LAST", End | Request | HasPayload | Write, nil},
	WriteLastImm:       {"WRITE_LAST_IMM", End | Request | Recv | Comp | HasPayload | Write, []Header{HImmDt}},
	WriteOnly:          {"WRITE_ONLY", Start | End | Request | HasPayload | Write, []Header{HRETH}},
	WriteOnlyImm:       {"WRITE_ONLY_IMM", Start | End | Request | Recv | Comp | HasPayload | Write, []Header{HRETH, HImmDt}},
	ReadRequest:        {"READ_REQUEST", Start | End | Request | Read, []Header{HRETH}},
	ReadResponseFirst:  {"READ_RESPONSE_FIRST", Start | Response | HasPayload | FullMTU | Read, []Header{HAETH}},
	ReadResponseMiddle: {"READ_RESPONSE_MIDDLE", Middle | Response | HasPayload | FullMTU | Read, nil},
	ReadResponseLast:   {"READ_RESPONSE_LAST", End | Response | HasPayload | Read, []Header{HAETH}},
	ReadResponseOnly:   {"READ_RESPONSE_ONLY", Start | End | Response | HasPayload | Read, []Header{HAETH}},
	Acknowledge:        {"ACKNOWLEDGE", Start | End | Response, []Header{HAETH}},
	AtomicAcknowledge:  {"ATOMIC_ACKNOWLEDGE", Start | End | Response | Atomic, []Header{HAETH, HAtomicAckETH}},
	CompareSwap:        {"COMPARE_SWAP", Start | End | Request | Atomic, []Header{HAtomicETH}},
	FetchAdd:           {"FETCH_ADD", Start | End | Request | Atomic, []Header{HAtomicETH}},
	SendLastInv:        {"SEND_LAST_INVALIDATE", End | Request | Comp | HasPayload | Send, []Header{HIETH}},
	SendOnlyInv:        {"SEND_ONLY_INVALIDATE", Start | End | Request | Recv | Comp | HasPayload | Send, []Header{HIETH}},
	Flush:              {"FLUSH", Start | End | Request, []Header{HFETH, HRETH}},
	AtomicWrite:        {"ATOMIC_WRITE", Start | End | Request | HasPayload, []Header{HRETH}},
}

func init() {
	for o := range operations {
		op, row := Operation(o), &operations[o]
		if row.name == "" {
			continue
		}
		set(Make(RC, op), "RC_"+row.name, row.flags, row.headers...)
		if op <= WriteOnlyImm {
			set(Make(UC, op), "UC_"+row.name, row.flags, row.headers...)
		}
		if op != SendLastInv && op != SendOnlyInv {
			h := []Header{HRDETH}
			if row.flags&Request != 0 {
				h = append(h, HDETH)
			}
			set(Make(RD, op), "RD_"+row.name, row.flags, append(h, row.headers...)...)
		}
		h := row.headers
		if row.flags&Request != 0 {
			h = append([]Header{HXRCETH}, h...)
		}
		set(Make(XRC, op), "XRC_"+row.name, row.flags, h...)
	}
	send := operations[SendOnly].flags
	set(UDSendOnly, "UD_SEND_ONLY", send, HDETH)
	set(UDSendOnlyImm, "UD_SEND_ONLY_IMM", send, HDETH, HImmDt)
	set(CNPNotify, "CNP", Start|End, HCNP)
	set(MaskedCompareSwap, "RC_MASKED_COMPARE_SWAP", operations[CompareSwap].flags, HMaskedETH)
	set(MaskedFetchAdd, "RC_MASKED_FETCH_ADD", operations[FetchAdd].flags, HAtomicETH)
}

func set(o Opcode, name string, f Flags, headers ...Header) {
	i := &table[o]
	i.Name, i.Flags, i.Len = name, f, Len
	for n, h := range headers {
		i.Headers[n] = h
		i.offset[h] = uint8(i.Len)
		i.Len += h.Len()
	}
}
