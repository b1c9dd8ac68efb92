package report

import "github.com/softnic/softnic/wire/bth"

// Mark is what a dot of a picture stands for.
type Mark uint8

// The marks.
const (
	MarkFirst   Mark = iota // a request, for the first time
	MarkAck                 // an ACK
	MarkData                // a READ response or atomic ACK
	MarkAgain               // a request, sent again
	MarkNak                 // a NAK
	MarkRNR                 // an RNR NAK
	MarkDropped             // a packet that its receiver did not take
	MarkLost                // a packet that was lost on purpose, or has a wrong ICRC
	Marks                   // number of marks
)

// Dot is a packet in a picture.
type Dot struct {
	Time int64 // ns since 1970
	PSN  int64 // relative to the first of its row, not wrapped
	Mark Mark
}

// dots are the packets of one PSN space of a row, thinned out: common ones first, what went wrong only where
// there is too much of that too.
type dots struct {
	started     bool
	first, last bth.PSN
	rel         int64
	plain, rare thinned
}

// thinned keeps every so many-th dot.
type thinned struct {
	dots []Dot
	skip int // of so many one is kept, less one
	n    int
}

// maxDots bounds the dots of one kind in a row; a picture has hardly so many columns.
const maxDots = 16384

func (d *dots) add(psn bth.PSN, time int64, m Mark) {
	if !d.started {
		d.started, d.first, d.last = true, psn, psn
	}
	d.rel += int64(psn.Sub(d.last))
	d.last = psn
	if m >= MarkAgain {
		d.rare.add(Dot{time, d.rel, m})
		return
	}
	d.plain.add(Dot{time, d.rel, m})
}

func (t *thinned) add(d Dot) {
	t.n++
	if t.n%(t.skip+1) != 0 {
		return
	}
	if len(t.dots) == maxDots {
		for i := range t.dots[:maxDots/2] {
			t.dots[i] = t.dots[2*i+1]
		}
		t.dots = t.dots[:maxDots/2]
		t.skip = 2*t.skip + 1
	}
	t.dots = append(t.dots, d)
}

func (d *dots) size() int { return cap(d.plain.dots) + cap(d.rare.dots) }
