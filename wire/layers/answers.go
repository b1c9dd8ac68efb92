package layers

import (
	"encoding/binary"
	"fmt"

	"github.com/google/gopacket"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// AETH is the ACK extended transport header.
type AETH struct {
	Extension
	Syndrome bth.Syndrome
	MSN      uint32 // message sequence number, 24 bits
}

// LayerType returns LayerTypeAETH.
func (l *AETH) LayerType() gopacket.LayerType { return LayerTypeAETH }

// CanDecode returns LayerTypeAETH.
func (l *AETH) CanDecode() gopacket.LayerClass { return LayerTypeAETH }

// NextLayerType returns what the opcode has next.
func (l *AETH) NextLayerType() gopacket.LayerType { return l.next(bth.HAETH) }

// DecodeFromBytes reads the header.
func (l *AETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HAETH, data, df)
	if err == nil {
		l.Syndrome, l.MSN = bth.AETH(p).Syndrome(), bth.AETH(p).MSN()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *AETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HAETH)
	if err == nil {
		bth.AETH(p).Put(l.Syndrome, l.MSN)
	}
	return err
}

// AtomicAckETH is the atomic ACK extended transport header.
type AtomicAckETH struct {
	Extension
	Original uint64 // value before the operation
}

// LayerType returns LayerTypeAtomicAckETH.
func (l *AtomicAckETH) LayerType() gopacket.LayerType { return LayerTypeAtomicAckETH }

// CanDecode returns LayerTypeAtomicAckETH.
func (l *AtomicAckETH) CanDecode() gopacket.LayerClass { return LayerTypeAtomicAckETH }

// NextLayerType returns what the opcode has next.
func (l *AtomicAckETH) NextLayerType() gopacket.LayerType { return l.next(bth.HAtomicAckETH) }

// DecodeFromBytes reads the header.
func (l *AtomicAckETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HAtomicAckETH, data, df)
	if err == nil {
		l.Original = bth.AtomicAckETH(p).Original()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *AtomicAckETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HAtomicAckETH)
	if err == nil {
		bth.AtomicAckETH(p).Put(l.Original)
	}
	return err
}

// ImmDt is the immediate data.
type ImmDt struct {
	Extension
	Data uint32 // the four bytes as a big-endian number
}

// LayerType returns LayerTypeImmDt.
func (l *ImmDt) LayerType() gopacket.LayerType { return LayerTypeImmDt }

// CanDecode returns LayerTypeImmDt.
func (l *ImmDt) CanDecode() gopacket.LayerClass { return LayerTypeImmDt }

// NextLayerType returns what the opcode has next.
func (l *ImmDt) NextLayerType() gopacket.LayerType { return l.next(bth.HImmDt) }

// DecodeFromBytes reads the header.
func (l *ImmDt) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HImmDt, data, df)
	if err == nil {
		l.Data = bth.ImmDt(p).Data()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *ImmDt) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HImmDt)
	if err == nil {
		bth.ImmDt(p).Put(l.Data)
	}
	return err
}

// IETH is the invalidate extended transport header.
type IETH struct {
	Extension
	RKey uint32 // key to invalidate
}

// LayerType returns LayerTypeIETH.
func (l *IETH) LayerType() gopacket.LayerType { return LayerTypeIETH }

// CanDecode returns LayerTypeIETH.
func (l *IETH) CanDecode() gopacket.LayerClass { return LayerTypeIETH }

// NextLayerType returns what the opcode has next.
func (l *IETH) NextLayerType() gopacket.LayerType { return l.next(bth.HIETH) }

// DecodeFromBytes reads the header.
func (l *IETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HIETH, data, df)
	if err == nil {
		l.RKey = bth.IETH(p).RKey()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *IETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HIETH)
	if err == nil {
		bth.IETH(p).Put(l.RKey)
	}
	return err
}

// FETH is the flush extended transport header.
type FETH struct {
	Extension
	Selectivity int // 0 memory range, 1 whole memory region
	Placement   int // bit 0 global visibility, bit 1 persistence
}

// LayerType returns LayerTypeFETH.
func (l *FETH) LayerType() gopacket.LayerType { return LayerTypeFETH }

// CanDecode returns LayerTypeFETH.
func (l *FETH) CanDecode() gopacket.LayerClass { return LayerTypeFETH }

// NextLayerType returns what the opcode has next.
func (l *FETH) NextLayerType() gopacket.LayerType { return l.next(bth.HFETH) }

// DecodeFromBytes reads the header.
func (l *FETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HFETH, data, df)
	if err == nil {
		l.Selectivity, l.Placement = bth.FETH(p).Selectivity(), bth.FETH(p).Placement()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *FETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HFETH)
	if err == nil {
		bth.FETH(p).Put(l.Selectivity, l.Placement)
	}
	return err
}

// CNP is the body of a congestion notification: 16 reserved bytes.
type CNP struct {
	Extension
	Reserved [16]byte // zero as everybody sends it
}

// LayerType returns LayerTypeCNP.
func (l *CNP) LayerType() gopacket.LayerType { return LayerTypeCNP }

// CanDecode returns LayerTypeCNP.
func (l *CNP) CanDecode() gopacket.LayerClass { return LayerTypeCNP }

// NextLayerType returns LayerTypeICRC.
func (l *CNP) NextLayerType() gopacket.LayerType { return l.next(bth.HCNP) }

// DecodeFromBytes reads the reserved bytes.
func (l *CNP) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HCNP, data, df)
	copy(l.Reserved[:], p)
	return err
}

// SerializeTo prepends the reserved bytes to the buffer.
func (l *CNP) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HCNP)
	copy(p, l.Reserved[:])
	return err
}

// ICRC is the invariant CRC at the end of the packet.
type ICRC struct {
	Extension
	Sum uint32 // as a number; on the wire its least significant byte stands first
}

// LayerType returns LayerTypeICRC.
func (l *ICRC) LayerType() gopacket.LayerType { return LayerTypeICRC }

// CanDecode returns LayerTypeICRC.
func (l *ICRC) CanDecode() gopacket.LayerClass { return LayerTypeICRC }

// NextLayerType returns gopacket.LayerTypeZero: nothing follows.
func (l *ICRC) NextLayerType() gopacket.LayerType { return gopacket.LayerTypeZero }

// DecodeFromBytes reads the ICRC. It does not check it, see CheckICRC.
func (l *ICRC) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if len(data) < wire.ICRCLen {
		df.SetTruncated()
		return fmt.Errorf("ICRC: %d bytes, want %d", len(data), wire.ICRCLen)
	}
	l.Contents, l.Payload = data[:wire.ICRCLen], data[wire.ICRCLen:]
	l.Sum = binary.LittleEndian.Uint32(data)
	return nil
}

// SerializeTo prepends Sum to the buffer; Serialize computes it.
func (l *ICRC) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := buf.PrependBytes(wire.ICRCLen)
	if err == nil {
		binary.LittleEndian.PutUint32(p, l.Sum)
	}
	return err
}
