package layers

import (
	"github.com/google/gopacket"

	"github.com/softnic/softnic/wire/bth"
)

// RDETH is the reliable datagram extended transport header.
type RDETH struct {
	Extension
	EECN uint32 // EE context, 24 bits
}

// LayerType returns LayerTypeRDETH.
func (l *RDETH) LayerType() gopacket.LayerType { return LayerTypeRDETH }

// CanDecode returns LayerTypeRDETH.
func (l *RDETH) CanDecode() gopacket.LayerClass { return LayerTypeRDETH }

// NextLayerType returns what the opcode has next.
func (l *RDETH) NextLayerType() gopacket.LayerType { return l.next(bth.HRDETH) }

// DecodeFromBytes reads the header.
func (l *RDETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HRDETH, data, df)
	if err == nil {
		l.EECN = bth.RDETH(p).EECN()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *RDETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HRDETH)
	if err == nil {
		bth.RDETH(p).Put(l.EECN)
	}
	return err
}

// DETH is the datagram extended transport header.
type DETH struct {
	Extension
	QKey  uint32 // queue key
	SrcQP uint32 // source queue pair, 24 bits
}

// LayerType returns LayerTypeDETH.
func (l *DETH) LayerType() gopacket.LayerType { return LayerTypeDETH }

// CanDecode returns LayerTypeDETH.
func (l *DETH) CanDecode() gopacket.LayerClass { return LayerTypeDETH }

// NextLayerType returns what the opcode has next.
func (l *DETH) NextLayerType() gopacket.LayerType { return l.next(bth.HDETH) }

// DecodeFromBytes reads the header.
func (l *DETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HDETH, data, df)
	if err == nil {
		l.QKey, l.SrcQP = bth.DETH(p).QKey(), bth.DETH(p).SrcQP()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *DETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HDETH)
	if err == nil {
		bth.DETH(p).Put(l.QKey, l.SrcQP)
	}
	return err
}

// XRCETH is the XRC extended transport header.
type XRCETH struct {
	Extension
	SRQN uint32 // target SRQ, 24 bits
}

// LayerType returns LayerTypeXRCETH.
func (l *XRCETH) LayerType() gopacket.LayerType { return LayerTypeXRCETH }

// CanDecode returns LayerTypeXRCETH.
func (l *XRCETH) CanDecode() gopacket.LayerClass { return LayerTypeXRCETH }

// NextLayerType returns what the opcode has next.
func (l *XRCETH) NextLayerType() gopacket.LayerType { return l.next(bth.HXRCETH) }

// DecodeFromBytes reads the header.
func (l *XRCETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HXRCETH, data, df)
	if err == nil {
		l.SRQN = bth.XRCETH(p).SRQN()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *XRCETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HXRCETH)
	if err == nil {
		bth.XRCETH(p).Put(l.SRQN)
	}
	return err
}

// RETH is the RDMA extended transport header.
type RETH struct {
	Extension
	VA     uint64 // remote virtual address
	RKey   uint32 // remote key
	Length uint32 // length of the message in bytes
}

// LayerType returns LayerTypeRETH.
func (l *RETH) LayerType() gopacket.LayerType { return LayerTypeRETH }

// CanDecode returns LayerTypeRETH.
func (l *RETH) CanDecode() gopacket.LayerClass { return LayerTypeRETH }

// NextLayerType returns what the opcode has next.
func (l *RETH) NextLayerType() gopacket.LayerType { return l.next(bth.HRETH) }

// DecodeFromBytes reads the header.
func (l *RETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HRETH, data, df)
	if err == nil {
		h := bth.RETH(p)
		l.VA, l.RKey, l.Length = h.VA(), h.RKey(), h.Length()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *RETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HRETH)
	if err == nil {
		bth.RETH(p).Put(l.VA, l.RKey, l.Length)
	}
	return err
}

// AtomicETH is the atomic extended transport header.
type AtomicETH struct {
	Extension
	VA      uint64 // remote virtual address
	RKey    uint32 // remote key
	SwapAdd uint64 // swap value or addend
	Compare uint64 // compare value, of no meaning in a fetch-and-add
}

// LayerType returns LayerTypeAtomicETH.
func (l *AtomicETH) LayerType() gopacket.LayerType { return LayerTypeAtomicETH }

// CanDecode returns LayerTypeAtomicETH.
func (l *AtomicETH) CanDecode() gopacket.LayerClass { return LayerTypeAtomicETH }

// NextLayerType returns what the opcode has next.
func (l *AtomicETH) NextLayerType() gopacket.LayerType { return l.next(bth.HAtomicETH) }

// DecodeFromBytes reads the header.
func (l *AtomicETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HAtomicETH, data, df)
	if err == nil {
		h := bth.AtomicETH(p)
		l.VA, l.RKey, l.SwapAdd, l.Compare = h.VA(), h.RKey(), h.SwapAdd(), h.Compare()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *AtomicETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HAtomicETH)
	if err == nil {
		bth.AtomicETH(p).Put(l.VA, l.RKey, l.SwapAdd, l.Compare)
	}
	return err
}

// MaskedAtomicETH is the header of a masked compare-and-swap (softnic's own opcode).
type MaskedAtomicETH struct {
	Extension
	VA          uint64 // remote virtual address
	RKey        uint32 // remote key
	Swap        uint64
	Compare     uint64
	SwapMask    uint64 // which bits are swapped
	CompareMask uint64 // which bits are compared
}

// LayerType returns LayerTypeMaskedAtomicETH.
func (l *MaskedAtomicETH) LayerType() gopacket.LayerType { return LayerTypeMaskedAtomicETH }

// CanDecode returns LayerTypeMaskedAtomicETH.
func (l *MaskedAtomicETH) CanDecode() gopacket.LayerClass { return LayerTypeMaskedAtomicETH }

// NextLayerType returns what the opcode has next.
func (l *MaskedAtomicETH) NextLayerType() gopacket.LayerType { return l.next(bth.HMaskedETH) }

// DecodeFromBytes reads the header.
func (l *MaskedAtomicETH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	p, err := l.take(bth.HMaskedETH, data, df)
	if err == nil {
		h := bth.MaskedETH(p)
		l.VA, l.RKey, l.Swap, l.Compare, l.SwapMask, l.CompareMask = h.VA(), h.RKey(), h.Swap(), h.Compare(), h.SwapMask(), h.CompareMask()
	}
	return err
}

// SerializeTo prepends the header to the buffer.
func (l *MaskedAtomicETH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := prepend(buf, bth.HMaskedETH)
	if err == nil {
		bth.MaskedETH(p).Put(l.VA, l.RKey, l.Swap, l.Compare, l.SwapMask, l.CompareMask)
	}
	return err
}
