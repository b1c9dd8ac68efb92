package device

import "sync"

// kind is a kind of objects of which a device has a limited number, whoever's they are.
type kind int

const (
	kindPD kind = iota
	kindMR      // fast-registered ones too
	kindMW
	kindCQ
	kindQP
	kindSRQ
	kindXRCD
	kindAH
	kindChannel
	kinds
)

// limits holds the objects of a device against its limits.
type limits struct {
	mu    sync.Mutex   // objects come to be one at a time; before the lock of a context
	bound [kinds]int   // there are no more than so many: those of the last count, and what was made since
	small map[kind]int // of tests: limits that are reached sooner
}

// full reports whether there are as many objects of a kind as there may be. The lock is held, that of no context is. Who
// frees an object need not say so: what is left is counted when it matters.
func (l *limits) full(d *Device, k kind, limit int) (int, bool) {
	if n, ok := l.small[k]; ok {
		limit = n
	}
	if l.bound[k] < limit {
		return limit, false
	}
	d.mu.Lock()
	contexts := keysOf(d.contexts)
	d.mu.Unlock()
	l.bound[k] = 0
	for _, c := range contexts {
		l.bound[k] += c.size(k)
	}
	return limit, l.bound[k] >= limit
}

func kindOf(o any) kind {
	switch o.(type) {
	case *PD:
		return kindPD
	case *MR, *FastMR:
		return kindMR
	case *MW:
		return kindMW
	case *CQ:
		return kindCQ
	case *QP:
		return kindQP
	case *SRQ:
		return kindSRQ
	case *XRCD:
		return kindXRCD
	case *AH:
		return kindAH
	}
	return kindChannel
}

// size counts the objects of a kind that the context has.
func (c *Context) size(k kind) int {
	o := c.Objects()
	return [kinds]int{
		kindPD: o.PD, kindMR: o.MR + o.FastMR, kindMW: o.MW, kindCQ: o.CQ, kindQP: o.QP, kindSRQ: o.SRQ, kindXRCD: o.XRCD, kindAH: o.AH, kindChannel: o.Channel,
	}[k]
}
