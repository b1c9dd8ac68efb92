package peer

import "fmt"

// Op is the first byte of a BTH: three bits of transport service, five bits of
// operation.
//
//	  7   6   5   4   3   2   1   0
//	+-----------+-------------------+
//	|  service  |     operation     |
//	+-----------+-------------------+
type Op uint8

// The transport services: the upper three bits of an [Op]. UC|OpSendOnly is the
// UC SEND Only. RC is zero, so that the operations by themselves are those of RC.
const (
	RC  Op = 0x00
	UC  Op = 0x20
	RD  Op = 0x40
	UD  Op = 0x60
	XRC Op = 0xA0
)

// The operations, and with that the RC opcodes.
const (
	OpSendFirst      Op = 0x00
	OpSendMiddle     Op = 0x01
	OpSendLast       Op = 0x02
	OpSendLastImm    Op = 0x03
	OpSendOnly       Op = 0x04
	OpSendOnlyImm    Op = 0x05
	OpWriteFirst     Op = 0x06
	OpWriteMiddle    Op = 0x07
	OpWriteLast      Op = 0x08
	OpWriteLastImm   Op = 0x09
	OpWriteOnly      Op = 0x0A
	OpWriteOnlyImm   Op = 0x0B
	OpReadRequest    Op = 0x0C
	OpReadRespFirst  Op = 0x0D
	OpReadRespMiddle Op = 0x0E
	OpReadRespLast   Op = 0x0F
	OpReadRespOnly   Op = 0x10
	OpAck            Op = 0x11
	OpAtomicAck      Op = 0x12
	OpCmpSwap        Op = 0x13
	OpFetchAdd       Op = 0x14
	OpResync         Op = 0x15 // RD only; reserved elsewhere
	OpSendLastInv    Op = 0x16
	OpSendOnlyInv    Op = 0x17
	OpFlush          Op = 0x1C
	OpAtomicWrite    Op = 0x1D
)

// Opcodes outside the service-and-operation scheme.
const (
	OpUDSendOnly     Op = 0x64
	OpUDSendOnlyImm  Op = 0x65
	OpCNP            Op = 0x81
	OpMaskedCmpSwap  Op = 0xD3 // manufacturer range, see MaskedETH
	OpMaskedFetchAdd Op = 0xD4 // manufacturer range, AtomicETH
)

// Headers is a set of extended headers. On the wire they stand in the order of
// the constants.
type Headers uint16

// The extended headers, in wire order.
const (
	HasRDETH Headers = 1 << iota
	HasDETH
	HasXRCETH
	HasFETH
	HasRETH
	HasAtomicETH
	HasMaskedETH
	HasAETH
	HasAtomicAckETH
	HasImmDt
	HasIETH
	HasCNP // the sixteen reserved bytes of a CNP
)

// headerNames and headerSizes go with the constants above, in their order.
var (
	headerNames = []string{"RDETH", "DETH", "XRCETH", "FETH", "RETH", "AtomicETH",
		"MaskedETH", "AETH", "AtomicAckETH", "ImmDt", "IETH", "CNP"}
	headerSizes = []int{4, 8, 4, 4, 16, 28, 44, 4, 8, 4, 4, 16}
)

// Has reports whether h holds all of x.
func (h Headers) Has(x Headers) bool { return h&x == x }

// Len is the number of bytes that the set takes on the wire.
func (h Headers) Len() int {
	n := 0
	for i, size := range headerSizes {
		if h.Has(1 << i) {
			n += size
		}
	}
	return n
}

// String lists the names, in wire order.
func (h Headers) String() string {
	s := ""
	for i, name := range headerNames {
		if h.Has(1 << i) {
			if s != "" {
				s += "+"
			}
			s += name
		}
	}
	return s
}

// kind tells what the three bits of service add to an operation's headers.
type kind uint8

const (
	request kind = iota
	response
)

// operation is one row of the table: what the five low bits mean.
type operation struct {
	name     string
	kind     kind
	headers  Headers
	services string // which services have it: c = RC, u = UC, d = RD, x = XRC
}

// operations is the table of InfiniBand operations, by the five low bits.
var operations = map[Op]operation{
	OpSendFirst:      {"SEND_FIRST", request, 0, "cudx"},
	OpSendMiddle:     {"SEND_MIDDLE", request, 0, "cudx"},
	OpSendLast:       {"SEND_LAST", request, 0, "cudx"},
	OpSendLastImm:    {"SEND_LAST_IMM", request, HasImmDt, "cudx"},
	OpSendOnly:       {"SEND_ONLY", request, 0, "cudx"},
	OpSendOnlyImm:    {"SEND_ONLY_IMM", request, HasImmDt, "cudx"},
	OpWriteFirst:     {"WRITE_FIRST", request, HasRETH, "cudx"},
	OpWriteMiddle:    {"WRITE_MIDDLE", request, 0, "cudx"},
	OpWriteLast:      {"WRITE_LAST", request, 0, "cudx"},
	OpWriteLastImm:   {"WRITE_LAST_IMM", request, HasImmDt, "cudx"},
	OpWriteOnly:      {"WRITE_ONLY", request, HasRETH, "cudx"},
	OpWriteOnlyImm:   {"WRITE_ONLY_IMM", request, HasRETH | HasImmDt, "cudx"},
	OpReadRequest:    {"READ_REQUEST", request, HasRETH, "cdx"},
	OpReadRespFirst:  {"READ_RESPONSE_FIRST", response, HasAETH, "cdx"},
	OpReadRespMiddle: {"READ_RESPONSE_MIDDLE", response, 0, "cdx"},
	OpReadRespLast:   {"READ_RESPONSE_LAST", response, HasAETH, "cdx"},
	OpReadRespOnly:   {"READ_RESPONSE_ONLY", response, HasAETH, "cdx"},
	OpAck:            {"ACKNOWLEDGE", response, HasAETH, "cdx"},
	OpAtomicAck:      {"ATOMIC_ACKNOWLEDGE", response, HasAETH | HasAtomicAckETH, "cdx"},
	OpCmpSwap:        {"COMPARE_SWAP", request, HasAtomicETH, "cdx"},
	OpFetchAdd:       {"FETCH_ADD", request, HasAtomicETH, "cdx"},
	OpResync:         {"RESYNC", request, 0, "d"},
	OpSendLastInv:    {"SEND_LAST_INV", request, HasIETH, "cx"},
	OpSendOnlyInv:    {"SEND_ONLY_INV", request, HasIETH, "cx"},
	OpFlush:          {"FLUSH", request, HasFETH | HasRETH, "cdx"},
	OpAtomicWrite:    {"ATOMIC_WRITE", request, HasRETH, "cdx"},
}

// singles are the opcodes outside the scheme, by their full byte.
var singles = map[Op]operation{
	OpUDSendOnly:     {name: "UD_SEND_ONLY", headers: HasDETH},
	OpUDSendOnlyImm:  {name: "UD_SEND_ONLY_IMM", headers: HasDETH | HasImmDt},
	OpCNP:            {name: "CNP", headers: HasCNP},
	OpMaskedCmpSwap:  {name: "MASKED_COMPARE_SWAP", headers: HasMaskedETH},
	OpMaskedFetchAdd: {name: "MASKED_FETCH_ADD", headers: HasAtomicETH},
}

// services maps the upper three bits to the letter used in the table and the
// prefix used in names.
var services = map[Op]struct {
	letter byte
	prefix string
}{RC: {'c', "RC"}, UC: {'u', "UC"}, RD: {'d', "RD"}, XRC: {'x', "XRC"}}

// resolve looks the opcode up: its row with the headers of its service added,
// and the prefix of its name.
func (o Op) resolve() (row operation, prefix string, ok bool) {
	if row, ok := singles[o]; ok {
		return row, "", true
	}
	svc, ok := services[o.Service()]
	if !ok {
		return operation{}, "", false
	}
	row, ok = operations[o.Operation()]
	if !ok {
		return operation{}, "", false
	}
	found := false
	for i := range len(row.services) {
		found = found || row.services[i] == svc.letter
	}
	if !found {
		return operation{}, "", false
	}
	switch o.Service() {
	case RD:
		row.headers |= HasRDETH
		if row.kind == request {
			row.headers |= HasDETH
		}
	case XRC:
		if row.kind == request {
			row.headers |= HasXRCETH
		}
	}
	return row, svc.prefix + "_", true
}

// Service is the upper three bits.
func (o Op) Service() Op { return o & 0xE0 }

// Operation is the lower five bits, which is the RC opcode of the operation.
func (o Op) Operation() Op { return o & 0x1F }

// Known reports whether the opcode is in the table.
func (o Op) Known() bool {
	_, _, ok := o.resolve()
	return ok
}

// Headers is the set of extended headers that follow the BTH; the empty set for
// an opcode that is not in the table.
func (o Op) Headers() Headers {
	row, _, _ := o.resolve()
	return row.headers
}

// CarriesPayload reports whether packets of this opcode may have a payload. One of
// an opcode that is not in the table may.
func (o Op) CarriesPayload() bool {
	switch o {
	case OpCNP, OpMaskedCmpSwap, OpMaskedFetchAdd:
		return false
	}
	if !o.Known() {
		return true
	}
	switch o.Operation() {
	case OpReadRequest, OpAck, OpAtomicAck, OpCmpSwap, OpFetchAdd, OpResync, OpFlush:
		return false
	}
	return true
}

// IsResponse reports whether the opcode travels from responder to requester.
func (o Op) IsResponse() bool {
	row, _, _ := o.resolve()
	return row.kind == response
}

// Short is the name without the service: SEND_ONLY, WRITE_LAST_IMM, ACKNOWLEDGE.
func (o Op) Short() string {
	switch o {
	case OpUDSendOnly, OpUDSendOnlyImm:
		return operations[o.Operation()].name
	}
	row, _, ok := o.resolve()
	if !ok {
		return fmt.Sprintf("OP_0x%02X", uint8(o))
	}
	return row.name
}

// String is the name with the service in front: RC_SEND_ONLY, UD_SEND_ONLY, CNP.
// An opcode that is not in the table is printed as OP_0x15.
func (o Op) String() string {
	row, prefix, ok := o.resolve()
	if !ok {
		return fmt.Sprintf("OP_0x%02X", uint8(o))
	}
	return prefix + row.name
}
