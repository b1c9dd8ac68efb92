package link

import (
	"net/netip"

	"github.com/softnic/softnic/link/impair"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
	"github.com/softnic/softnic/wire/icrc"
)

// What impairment rules do to bytes, and the answers that they forge.

// marked returns pk with other ECN bits, on a path of its own: bursts do not mix paths.
func marked(pk *wire.Packet, ecn uint8) *wire.Packet {
	c, path := *pk, *pk.Path
	path.TClass = path.TClass&^3 | ecn
	c.Path = &path
	return &c
}

// alter makes the changes in a sealed frame.
func (f *Frame) alter(v *portView, c *impair.Change) {
	if c == nil {
		return
	}
	if change(c, f.Net, f.IB) && v.quirk {
		f.sealRxeFlush()
	}
}

// change makes the changes in a whole packet, and makes its ICRC right again unless one of them leaves it as it was: then it
// returns false.
func change(c *impair.Change, net, ib []byte) bool {
	n, bad := len(ib)-icrc.Len, false
	for ; c != nil; c = c.Then {
		c.Do(ib[:n])
		bad = bad || c.BadICRC
	}
	if !bad {
		s := icrc.Start(net, ib[:bth.Len])
		s.Update(ib[bth.Len:n])
		s.Put(ib[n:])
	}
	return !bad
}

// changeRx does to a received packet what a rule wants done to its bytes, and judges it anew; before it is dropped or held back.
func (p *Port) changeRx(pv *portView, pk *Packet, e *impair.Effect) {
	v := &pk.View
	p.count.changedRx.Inc()
	pk.note = e.ChangedBy
	if e.Mark {
		if v.Net[0]>>4 == 4 {
			v.Net[1] = v.Net[1]&^3 | e.ECN
			wire.PutIPChecksum(v.Net)
		} else {
			v.Net[1] = v.Net[1]&^0x30 | e.ECN<<4
		}
	}
	if e.Change != nil {
		copy(v.Net[len(v.Net)-2:], []byte{0, 0}) // no UDP checksum: the ICRC is what is to be wrong, or is not
		change(e.Change, v.Net, v.IB)
	}
	pk.Fault = p.parse(pv, new(wire.Checker), pk, v.IDKnown)
}

// answered makes the answer to a request that is lost: a packet from src, where it was going, to dst.
func (p *Port) answered(request bth.BTH, src, dst netip.Addr, qpn uint32, out bool, syndrome bth.Syndrome) *wire.Packet {
	if p.forge == nil {
		return nil
	}
	f, ok := p.forge(qpn, request.PSN(), out)
	if !ok {
		return nil // nobody would know where to
	}
	p.count.forged.Inc()
	op := bth.Make(request.Opcode().Service(), bth.Acknowledge)
	pk := &wire.Packet{Path: &wire.Path{Src: src, Dst: dst, SrcPort: 0xC000 | uint16(f.To)&0x3FFF}, Len: op.Info().Len, Cause: wire.Reply}
	bth.BTH(pk.Head[:]).Encode(&bth.Fields{Opcode: op, MigReq: request.MigReq(), PKey: request.PKey(), DestQP: f.To, PSN: request.PSN()})
	bth.AETH(pk.Head[bth.Len:]).Put(syndrome, f.MSN)
	return pk
}

// answerTx has the device get the forged answer to a request that it has sent and that is lost, as if the link had brought it.
func (p *Port) answerTx(v *portView, lost *wire.Packet, e *impair.Effect) {
	pk := p.answered(lost.BTH(), lost.Path.Dst, lost.Path.Src, lost.QPN, true, e.Answer)
	if pk == nil {
		return
	}
	var f Frame
	p.tx.frame(&f, v, pk, 0)
	// Behind what it answers and before what is sent because of it, also where time stands still.
	at := p.clk.Now()
	if now := p.txNow(); now.After(at) {
		at = now
	}
	p.tx.forged = at.Add(1)
	p.loop.put(item{passed: true, note: e.Rule, at: p.tx.forged}, f.AppendTo)
}

// answerRx sends the forged answer to a request that has been received and is lost.
func (p *Port) answerRx(v *wire.View, e *impair.Effect) {
	t := &p.tx
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	qpn := v.BTH().DestQP()
	pk := p.answered(v.BTH(), v.Dst(), v.Src(), qpn, false, e.Answer)
	if pk == nil {
		return
	}
	pk.QPN = qpn
	pv := p.view.Load()
	t.begin(p.clk.Now(), p.sink.Load())
	defer t.recorded()
	p.emit(pv, outgoing{Packet: pk, note: e.Rule})
	_ = p.transmit(pv) // a closed endpoint shows again at the next call
}
