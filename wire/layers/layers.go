package layers

import (
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// The layer types, in gopacket's range for extensions (1000 ... 1999).
const (
	LayerTypeBTH gopacket.LayerType = 1791 + iota
	LayerTypeRDETH
	LayerTypeDETH
	LayerTypeXRCETH
	LayerTypeRETH
	LayerTypeAtomicETH
	LayerTypeAETH
	LayerTypeAtomicAckETH
	LayerTypeImmDt
	LayerTypeIETH
	LayerTypeFETH
	LayerTypeCNP
	LayerTypeMaskedAtomicETH
	LayerTypePayload // named "RoCEPayload", to tell it from gopacket's own
	LayerTypeICRC
)

// layer is what every type here is.
type layer interface {
	gopacket.Layer
	gopacket.DecodingLayer
	gopacket.SerializableLayer
	base() *BTH // the BTH that the layer belongs to, nil if not known
	link(*BTH)  // sets it; on a BTH nothing
}

var makers = map[gopacket.LayerType]func() layer{
	LayerTypeBTH:             func() layer { return new(BTH) },
	LayerTypeRDETH:           func() layer { return new(RDETH) },
	LayerTypeDETH:            func() layer { return new(DETH) },
	LayerTypeXRCETH:          func() layer { return new(XRCETH) },
	LayerTypeRETH:            func() layer { return new(RETH) },
	LayerTypeAtomicETH:       func() layer { return new(AtomicETH) },
	LayerTypeAETH:            func() layer { return new(AETH) },
	LayerTypeAtomicAckETH:    func() layer { return new(AtomicAckETH) },
	LayerTypeImmDt:           func() layer { return new(ImmDt) },
	LayerTypeIETH:            func() layer { return new(IETH) },
	LayerTypeFETH:            func() layer { return new(FETH) },
	LayerTypeCNP:             func() layer { return new(CNP) },
	LayerTypeMaskedAtomicETH: func() layer { return new(MaskedAtomicETH) },
	LayerTypePayload:         func() layer { return new(Payload) },
	LayerTypeICRC:            func() layer { return new(ICRC) },
}

// typeOf maps the headers of the opcode table to layer types.
var typeOf = [...]gopacket.LayerType{
	bth.HRDETH: LayerTypeRDETH, bth.HDETH: LayerTypeDETH, bth.HXRCETH: LayerTypeXRCETH, bth.HRETH: LayerTypeRETH,
	bth.HAtomicETH: LayerTypeAtomicETH, bth.HAETH: LayerTypeAETH, bth.HAtomicAckETH: LayerTypeAtomicAckETH,
	bth.HImmDt: LayerTypeImmDt, bth.HIETH: LayerTypeIETH, bth.HFETH: LayerTypeFETH, bth.HCNP: LayerTypeCNP,
	bth.HMaskedETH: LayerTypeMaskedAtomicETH,
}

func init() {
	name := map[gopacket.LayerType]string{LayerTypeBTH: "BTH", LayerTypePayload: "RoCEPayload", LayerTypeICRC: "ICRC"}
	for h, t := range typeOf {
		name[t] = bth.Header(h).String()
	}
	for t, m := range makers {
		gopacket.RegisterLayerType(int(t), gopacket.LayerTypeMetadata{Name: name[t], Decoder: step{maker: m}})
	}
	layers.RegisterUDPPortLayerType(wire.Port, LayerTypeBTH)
}

// step decodes one layer and hands what follows to the next step. gopacket
// gives the decoder of a layer type bytes alone, so the step carries the BTH.
type step struct {
	maker func() layer
	base  *BTH
}

// Decode implements gopacket.Decoder.
func (s step) Decode(data []byte, p gopacket.PacketBuilder) error {
	l := s.maker()
	l.link(s.base)
	if err := l.DecodeFromBytes(data, p); err != nil {
		return err
	}
	p.AddLayer(l)
	if a, ok := l.(gopacket.ApplicationLayer); ok {
		p.SetApplicationLayer(a)
	}
	next := l.NextLayerType()
	if next == gopacket.LayerTypeZero {
		return nil
	}
	if m := makers[next]; m != nil {
		return p.NextDecoder(step{m, l.base()})
	}
	return p.NextDecoder(next)
}

// Extension is what all layers above the BTH have in common.
type Extension struct {
	layers.BaseLayer
	// Base is the BTH of the packet. It says which layer follows, and how many bytes
	// are pad. nil: an extended header takes what follows it for a payload
	// with no ICRC behind.
	Base *BTH
}

func (e *Extension) base() *BTH  { return e.Base }
func (e *Extension) link(b *BTH) { e.Base = b }

// take makes the first bytes of data the layer's own, as extended header h,
// and returns them.
func (e *Extension) take(h bth.Header, data []byte, df gopacket.DecodeFeedback) ([]byte, error) {
	n := h.Len()
	least := n
	if e.Base != nil {
		least += wire.ICRCLen
	}
	if len(data) < least {
		df.SetTruncated()
		return nil, fmt.Errorf("%v: %d bytes, want %d", h, len(data), least)
	}
	e.Contents, e.Payload = data[:n], data[n:]
	return e.Contents, nil
}

// prepend makes room for extended header h in front of the buffer.
func prepend(buf gopacket.SerializeBuffer, h bth.Header) ([]byte, error) {
	return buf.PrependBytes(h.Len())
}

// next returns the type of the layer after extended header h.
func (e *Extension) next(h bth.Header) gopacket.LayerType {
	if e.Base == nil {
		return gopacket.LayerTypePayload
	}
	return e.Base.after(h, len(e.Payload))
}

// after returns the type of the layer after extended header h, or after the
// BTH for HNone, when rest bytes are left.
func (b *BTH) after(h bth.Header, rest int) gopacket.LayerType {
	list := &b.Opcode.Info().Headers
	n := 0
	if h != bth.HNone {
		for n < len(list) && list[n] != h {
			n++
		}
		n++
	}
	switch {
	case n < len(list) && list[n] != bth.HNone:
		return typeOf[list[n]]
	case rest == wire.ICRCLen && b.Pad == 0:
		return LayerTypeICRC
	}
	return LayerTypePayload
}

// BTH is the base transport header.
type BTH struct {
	layers.BaseLayer
	bth.Fields
}

func (b *BTH) base() *BTH { return b }
func (b *BTH) link(*BTH)  {}

// LayerType returns LayerTypeBTH.
func (b *BTH) LayerType() gopacket.LayerType { return LayerTypeBTH }

// CanDecode returns LayerTypeBTH.
func (b *BTH) CanDecode() gopacket.LayerClass { return LayerTypeBTH }

// NextLayerType returns the first extended header of the opcode, else the
// payload or the ICRC.
func (b *BTH) NextLayerType() gopacket.LayerType { return b.after(bth.HNone, len(b.Payload)) }

// DecodeFromBytes reads the header from the beginning of a UDP payload.
func (b *BTH) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	if len(data) < bth.Len+wire.ICRCLen {
		df.SetTruncated()
		return fmt.Errorf("BTH: %d bytes, want %d", len(data), bth.Len+wire.ICRCLen)
	}
	b.Contents, b.Payload = data[:bth.Len], data[bth.Len:]
	b.Fields = bth.BTH(data).Fields()
	return nil
}

// SerializeTo prepends the header to the buffer.
func (b *BTH) SerializeTo(buf gopacket.SerializeBuffer, _ gopacket.SerializeOptions) error {
	p, err := buf.PrependBytes(bth.Len)
	if err != nil {
		return err
	}
	bth.BTH(p).Encode(&b.Fields)
	return nil
}

// Payload is the payload of a packet, with its pad.
type Payload struct {
	Data []byte // the payload without pad
	Pad  []byte // 0 to 3 bytes, in any value
	Base *BTH   // the BTH, which counts the pad; nil: no pad

	rest []byte
}

func (l *Payload) base() *BTH  { return l.Base }
func (l *Payload) link(b *BTH) { l.Base = b }

// LayerType returns LayerTypePayload.
func (l *Payload) LayerType() gopacket.LayerType { return LayerTypePayload }

// CanDecode returns LayerTypePayload.
func (l *Payload) CanDecode() gopacket.LayerClass { return LayerTypePayload }

// NextLayerType returns LayerTypeICRC.
func (l *Payload) NextLayerType() gopacket.LayerType { return LayerTypeICRC }

// LayerContents returns the payload without pad.
func (l *Payload) LayerContents() []byte { return l.Data }

// LayerPayload returns the bytes after payload and pad.
func (l *Payload) LayerPayload() []byte { return l.rest }

// Payload makes the layer a gopacket.ApplicationLayer; it returns the payload without pad.
func (l *Payload) Payload() []byte { return l.Data }

// DecodeFromBytes takes everything up to the ICRC.
func (l *Payload) DecodeFromBytes(data []byte, df gopacket.DecodeFeedback) error {
	pad := 0
	// A reserved opcode says nothing about what its pad count means.
	if l.Base != nil && l.Base.Opcode.Info().Known() {
		pad = l.Base.Pad
	}
	end := len(data) - wire.ICRCLen
	if end < pad {
		df.SetTruncated()
		return fmt.Errorf("payload: %d bytes, want a pad of %d and the ICRC", len(data), pad)
	}
	l.Data, l.Pad, l.rest = data[:end-pad], data[end-pad:end], data[end:]
	return nil
}

// SerializeTo prepends payload and pad to the buffer. With FixLengths it
// computes the pad and sets the pad count of Base.
func (l *Payload) SerializeTo(buf gopacket.SerializeBuffer, opts gopacket.SerializeOptions) error {
	if opts.FixLengths {
		l.Pad = zeros[:-len(l.Data)&3]
		if l.Base != nil {
			l.Base.Pad = len(l.Pad)
		}
	}
	p, err := buf.PrependBytes(len(l.Data) + len(l.Pad))
	if err != nil {
		return err
	}
	copy(p[copy(p, l.Data):], l.Pad)
	return nil
}

var zeros = make([]byte, 3)
