package report

import (
	"cmp"
	"slices"
	"time"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// Picture is what a picture of a conversation shows: the packets of both directions of requests.
type Picture struct {
	Conversation *Conversation
	Start        time.Time // the first RoCE packet of the capture: time 0
	Panels       []Panel
	Thinned      bool // common packets are left out, because there were too many
	ThinnedRare  bool // also of those that went wrong
}

// Panel is the requests that one end sends, and what answers them.
type Panel struct {
	From, To trace.End
	First    uint32 // PSN of the first request, or answer, which dots are relative to
	Dots     []Dot
}

// room bounds the dots of all rows together: 24 bytes each.
const room = 2 << 20

// markOf says what a packet is in a picture.
func markOf(v *wire.View, cause rules.Cause, fate rules.Fate) Mark {
	switch syn := syndrome(v); {
	case fate == rules.Lost:
		return MarkLost
	case fate == rules.Dropped:
		return MarkDropped
	case v.Info.Has(bth.Request) && cause != rules.NotAgain:
		return MarkAgain
	case v.Info.Has(bth.Request):
		return MarkFirst
	case v.BTH().Opcode().Operation() != bth.Acknowledge:
		return MarkData
	case syn.IsRNR():
		return MarkRNR
	case !syn.IsAck():
		return MarkNak
	}
	return MarkAck
}

func syndrome(v *wire.View) bth.Syndrome {
	if h := v.Header(bth.HAETH); h != nil {
		return bth.AETH(h).Syndrome()
	}
	return 0
}

// dot keeps a packet for a picture. Where there is no room, the row with the fewest packets gives its own up.
func (a *analysis) dot(r *row, p *rules.Packet, m Mark) {
	if !a.o.Picture || r.key.service == bth.CNP || r.key.service == bth.UD {
		return
	}
	if t := time.Duration(p.Time - a.first); t < a.o.PictureFrom || a.o.PictureTo > 0 && t > a.o.PictureTo {
		return
	}
	d := &r.requestDots
	if p.View.Info.Has(bth.Response) {
		d = &r.answerDots
	}
	before := d.size()
	d.add(p.View.BTH().PSN(), p.Time, m)
	a.dots += d.size() - before
	for a.dots > room {
		var least *row
		for _, x := range a.rows {
			if x != r && x.requestDots.size()+x.answerDots.size() > 0 && (least == nil || x.packets < least.packets) {
				least = x
			}
		}
		if least == nil {
			return
		}
		a.dots -= least.requestDots.size() + least.answerDots.size()
		least.requestDots, least.answerDots = dots{}, dots{}
	}
}

// Picture returns what the picture of the busiest conversation in the tables shows; nil if there is none, or
// Options.Picture was not set.
func (r *Report) Picture() *Picture { return r.picture }

// picture puts the dots of a conversation together.
func picture(start time.Time, c *Conversation, ab, ba *row) *Picture {
	p := &Picture{Conversation: c, Start: start}
	for _, x := range []struct {
		from, to        trace.End
		requests, reply *row
	}{{c.A, c.B, ab, ba}, {c.B, c.A, ba, ab}} {
		n := Panel{From: x.from, To: x.to}
		var q, w *dots
		if x.requests != nil && x.requests.requestDots.started {
			q = &x.requests.requestDots
		}
		if x.reply != nil && x.reply.answerDots.started {
			w = &x.reply.answerDots
		}
		switch {
		case q != nil:
			n.First = uint32(q.first)
		case w != nil:
			n.First = uint32(w.first)
		default:
			continue
		}
		for _, d := range []*dots{q, w} {
			if d == nil {
				continue
			}
			// Answers and requests each began with a PSN of their own.
			shift := int64(d.first.Sub(bth.PSN(n.First)))
			for _, t := range []*thinned{&d.plain, &d.rare} {
				for _, x := range t.dots {
					n.Dots = append(n.Dots, Dot{x.Time, x.PSN + shift, x.Mark})
				}
			}
			p.Thinned = p.Thinned || d.plain.skip > 0
			p.ThinnedRare = p.ThinnedRare || d.rare.skip > 0
		}
		slices.SortStableFunc(n.Dots, func(a, b Dot) int { return cmp.Compare(a.Time, b.Time) })
		p.Panels = append(p.Panels, n)
	}
	if len(p.Panels) == 0 {
		return nil
	}
	return p
}
