package bth

import "encoding/binary"

// Len is the length of the base transport header in bytes.
const Len = 12

// MaxHeader bounds BTH plus all extended headers of any opcode
// (XRC compare-and-swap: 12 + 4 + 28 = 44; masked atomics, 12 + 4 + 44 = 60).
const MaxHeader = 64

// BTH is a view of a base transport header; the slice must hold at least Len
// bytes. Reading never allocates and never checks again.
//
//	 0               1               2               3
//	+---------------+-+-+---+-------+-------------------------------+
//	|    OpCode     |S|M|Pad| TVer  |             P_Key             |
//	+-+-+-----------+---------------+-------------------------------+
//	|F|B|  resv6    |                   DestQP                      |
//	+-+-+-----------+---------------+-------------------------------+
//	|A|   resv7     |                     PSN                       |
//	+-+-------------+-----------------------------------------------+
type BTH []byte

// Opcode returns byte 0.
func (b BTH) Opcode() Opcode { return Opcode(b[0]) }

// Solicited returns the SE bit.
func (b BTH) Solicited() bool { return b[1]&0x80 != 0 }

// MigReq returns the M bit: 1 is the migrated, that is the normal, state.
func (b BTH) MigReq() bool { return b[1]&0x40 != 0 }

// Pad returns the pad count, 0 ... 3.
func (b BTH) Pad() int { return int(b[1]>>4) & 3 }

// TVer returns the transport header version; 0 is the only one.
func (b BTH) TVer() int { return int(b[1]) & 0xF }

// PKey returns the partition key; bit 15 is full membership.
func (b BTH) PKey() uint16 { return binary.BigEndian.Uint16(b[2:]) }

// FECN returns the forward congestion bit.
func (b BTH) FECN() bool { return b[4]&0x80 != 0 }

// BECN returns the backward congestion bit.
func (b BTH) BECN() bool { return b[4]&0x40 != 0 }

// DestQP returns the 24-bit destination queue pair number.
func (b BTH) DestQP() uint32 { return binary.BigEndian.Uint32(b[4:]) & 0xFFFFFF }

// AckReq returns the A bit.
func (b BTH) AckReq() bool { return b[8]&0x80 != 0 }

// PSN returns the packet sequence number.
func (b BTH) PSN() PSN { return PSN(binary.BigEndian.Uint32(b[8:]) & PSNMask) }

// Fields is everything a BTH holds, for building one. The zero value is an
// RC SEND FIRST to QP 0 with P_Key 0.
type Fields struct {
	Opcode    Opcode
	Solicited bool
	MigReq    bool
	Pad       int
	TVer      int
	PKey      uint16
	FECN      bool
	BECN      bool
	Resv6     uint8 // 6 bits beside FECN and BECN
	DestQP    uint32
	AckReq    bool
	Resv7     uint8 // 7 bits beside AckReq
	PSN       PSN
}

// Encode writes the fields over b, which must hold at least Len bytes.
func (b BTH) Encode(f *Fields) {
	b[0] = byte(f.Opcode)
	b[1] = bit(f.Solicited, 7) | bit(f.MigReq, 6) | byte(f.Pad&3)<<4 | byte(f.TVer&0xF)
	binary.BigEndian.PutUint16(b[2:], f.PKey)
	binary.BigEndian.PutUint32(b[4:], f.DestQP&0xFFFFFF)
	b[4] = bit(f.FECN, 7) | bit(f.BECN, 6) | f.Resv6&0x3F
	binary.BigEndian.PutUint32(b[8:], uint32(f.PSN)&PSNMask)
	b[8] = bit(f.AckReq, 7) | f.Resv7&0x7F
}

// Fields returns all fields of the view.
func (b BTH) Fields() Fields {
	return Fields{
		Opcode: b.Opcode(), Solicited: b.Solicited(), MigReq: b.MigReq(), Pad: b.Pad(),
		TVer: b.TVer(), PKey: b.PKey(), FECN: b.FECN(), BECN: b.BECN(), Resv6: b[4] & 0x3F,
		DestQP: b.DestQP(), AckReq: b.AckReq(), Resv7: b[8] & 0x7F, PSN: b.PSN(),
	}
}

func bit(v bool, n uint) byte {
	if v {
		return 1 << n
	}
	return 0
}

// RETH is a view of an RDMA extended transport header, 16 bytes.
//
//	+-------------------------------+
//	|   virtual address (64 bits)   |
//	+---------------+---------------+
//	|    R_Key      |  DMA length   |
//	+---------------+---------------+
type RETH []byte

// VA returns the remote virtual address.
func (h RETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the remote key.
func (h RETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// Length returns the length of the whole message in bytes.
func (h RETH) Length() uint32 { return binary.BigEndian.Uint32(h[12:]) }

// Put writes the header.
func (h RETH) Put(va uint64, rkey, length uint32) {
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint32(h[12:], length)
}

// AtomicETH is a view of an atomic extended transport header, 28 bytes.
//
//	+-------------------------------+
//	|   virtual address (64 bits)   |
//	+---------------+---------------+
//	|    R_Key      | swap or add...|
//	+---------------+---------------+
//	|...swap or add |  compare ...  |
//	+---------------+---------------+
//	|... compare    |
//	+---------------+
type AtomicETH []byte

// VA returns the remote virtual address.
func (h AtomicETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the remote key.
func (h AtomicETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// SwapAdd returns the swap value of a compare-and-swap, the addend of a fetch-and-add.
func (h AtomicETH) SwapAdd() uint64 { return binary.BigEndian.Uint64(h[12:]) }

// Compare returns the compare value; unspecified for fetch-and-add.
func (h AtomicETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:]) }

// Put writes the header.
func (h AtomicETH) Put(va uint64, rkey uint32, swapAdd, compare uint64) {
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	binary.BigEndian.PutUint64(h[12:], swapAdd)
	binary.BigEndian.PutUint64(h[20:], compare)
}

// MaskedETH is a view of the header of a masked compare-and-swap, 44 bytes.
//
//	+-------------------------------+
//	|   virtual address (64 bits)   |
//	+---------------+---------------+
//	|    R_Key      |    swap ...   |
//	+---------------+---------------+
//	|   ... swap    |  compare ...  |
//	+---------------+---------------+
//	|  ... compare  | swap mask ... |
//	+---------------+---------------+
//	| ... swap mask | compare mask..|
//	+---------------+---------------+
//	|..compare mask |
//	+---------------+
type MaskedETH []byte

// VA returns the remote virtual address.
func (h MaskedETH) VA() uint64 { return binary.BigEndian.Uint64(h) }

// RKey returns the remote key.
func (h MaskedETH) RKey() uint32 { return binary.BigEndian.Uint32(h[8:]) }

// Swap returns the swap value.
func (h MaskedETH) Swap() uint64 { return binary.BigEndian.Uint64(h[12:]) }

// Compare returns the compare value.
func (h MaskedETH) Compare() uint64 { return binary.BigEndian.Uint64(h[20:]) }

// SwapMask returns which bits are swapped.
func (h MaskedETH) SwapMask() uint64 { return binary.BigEndian.Uint64(h[28:]) }

// CompareMask returns which bits are compared.
func (h MaskedETH) CompareMask() uint64 { return binary.BigEndian.Uint64(h[36:]) }

// Put writes the header.
func (h MaskedETH) Put(va uint64, rkey uint32, swap, compare, swapMask, compareMask uint64) {
	binary.BigEndian.PutUint64(h, va)
	binary.BigEndian.PutUint32(h[8:], rkey)
	for i, v := range [...]uint64{swap, compare, swapMask, compareMask} {
		binary.BigEndian.PutUint64(h[12+8*i:], v)
	}
}

// AETH is a view of an ACK extended transport header, 4 bytes.
//
//	+---------------+-----------------------------------------------+
//	|   Syndrome    |                     MSN                       |
//	+---------------+-----------------------------------------------+
type AETH []byte

// Syndrome returns the AETH syndrome.
func (h AETH) Syndrome() Syndrome { return Syndrome(h[0]) }

// MSN returns the 24-bit message sequence number.
func (h AETH) MSN() uint32 { return binary.BigEndian.Uint32(h) & 0xFFFFFF }

// Put writes the header.
func (h AETH) Put(s Syndrome, msn uint32) {
	binary.BigEndian.PutUint32(h, msn&0xFFFFFF)
	h[0] = byte(s)
}

// AtomicAckETH is a view of the 8 bytes that an atomic acknowledge returns.
type AtomicAckETH []byte

// Original returns the value before the operation.
func (h AtomicAckETH) Original() uint64 { return binary.BigEndian.Uint64(h) }

// Put writes the header.
func (h AtomicAckETH) Put(v uint64) { binary.BigEndian.PutUint64(h, v) }

// DETH is a view of a datagram extended transport header, 8 bytes.
//
//	+---------------------------------------------------------------+
//	|                            Q_Key                              |
//	+---------------+-----------------------------------------------+
//	|   reserved    |                   source QP                   |
//	+---------------+-----------------------------------------------+
type DETH []byte

// QKey returns the queue key.
func (h DETH) QKey() uint32 { return binary.BigEndian.Uint32(h) }

// SrcQP returns the 24-bit source queue pair number.
func (h DETH) SrcQP() uint32 { return binary.BigEndian.Uint32(h[4:]) & 0xFFFFFF }

// Put writes the header.
func (h DETH) Put(qkey, srcQP uint32) {
	binary.BigEndian.PutUint32(h, qkey)
	binary.BigEndian.PutUint32(h[4:], srcQP&0xFFFFFF)
}

// XRCETH is a view of an XRC extended transport header, 4 bytes: 8 reserved
// bits and the 24-bit number of the target SRQ.
type XRCETH []byte

// SRQN returns the number of the target SRQ.
func (h XRCETH) SRQN() uint32 { return binary.BigEndian.Uint32(h) & 0xFFFFFF }

// Put writes the header.
func (h XRCETH) Put(srqn uint32) { binary.BigEndian.PutUint32(h, srqn&0xFFFFFF) }

// RDETH is a view of a reliable datagram extended transport header, 4 bytes: 8
// reserved bits and the 24-bit EE context.
type RDETH []byte

// EECN returns the EE context number.
func (h RDETH) EECN() uint32 { return binary.BigEndian.Uint32(h) & 0xFFFFFF }

// Put writes the header.
func (h RDETH) Put(eecn uint32) { binary.BigEndian.PutUint32(h, eecn&0xFFFFFF) }

// ImmDt is a view of immediate data: four opaque bytes, in the order in which
// the sender gave them.
type ImmDt []byte

// Data returns the four bytes as a big-endian number: what ibv_wc.imm_data
// holds in network order.
func (h ImmDt) Data() uint32 { return binary.BigEndian.Uint32(h) }

// Put writes the header.
func (h ImmDt) Put(v uint32) { binary.BigEndian.PutUint32(h, v) }

// IETH is a view of an invalidate extended transport header: the R_Key that
// the responder is to invalidate.
type IETH []byte

// RKey returns the key.
func (h IETH) RKey() uint32 { return binary.BigEndian.Uint32(h) }

// Put writes the header.
func (h IETH) Put(rkey uint32) { binary.BigEndian.PutUint32(h, rkey) }

// FETH is a view of a flush extended transport header, 4 bytes.
//
//	+-----------------------------------------------+-----+---------+
//	|                reserved (26 bits)             | SEL |   PLT   |
//	+-----------------------------------------------+-----+---------+
type FETH []byte

// Selectivity returns SEL: 0 memory range, 1 whole memory region.
func (h FETH) Selectivity() int { return int(h[3]>>4) & 3 }

// Placement returns PLT: bit 0 global visibility, bit 1 persistence.
func (h FETH) Placement() int { return int(h[3]) & 0xF }

// Put writes the header; its reserved bits become 0.
func (h FETH) Put(sel, plt int) {
	binary.BigEndian.PutUint32(h, uint32(sel&3)<<4|uint32(plt&0xF))
}
