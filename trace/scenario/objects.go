package scenario

import (
	"fmt"

	"github.com/softnic/softnic/device"
)

// srq is a shared receive queue of the XRC domain, mw a memory window, as the text has made them.
type srq struct {
	name string
	num  uint32
}

type mw struct {
	name string
	key  uint32 // before it is bound
	typ  device.MWType
}

func (p *parser) srq(name string) *srq {
	return find(p.srqs, func(s *srq) bool { return s.name == name })
}

// createSRQ reads create_srq NAME [num=N].
func (p *parser) createSRQ(l []string) (action, error) {
	name, args, err := nameAndArgs(l)
	if err != nil {
		return nil, err
	}
	if p.srq(name) != nil {
		return nil, fmt.Errorf("there is a shared receive queue %s already", name)
	}
	s := &srq{name, 0x31 + uint32(len(p.srqs))}
	for _, a := range args {
		if a.name != "num" {
			return nil, fmt.Errorf("create_srq has num=, not %s", a.name)
		}
		v, err := number(a.value, 24)
		if err != nil {
			return nil, err
		}
		s.num = uint32(v)
	}
	p.srqs = append(p.srqs, s)
	return doCreateSRQ{s}, nil
}

// srqn reads a number, or the name of a shared receive queue.
func (p *parser) srqn(w string) (uint64, error) {
	if s := p.srq(w); s != nil {
		return uint64(s.num), nil
	}
	return number(w, 24)
}

// allocMW reads alloc_mw NAME [key=K] [type=1|2].
func (p *parser) allocMW(l []string) (action, error) {
	name, args, err := nameAndArgs(l)
	if err != nil {
		return nil, err
	}
	if p.mw(name) != nil {
		return nil, fmt.Errorf("there is a window %s already", name)
	}
	w := &mw{name, 0x200000 + 0x100*uint32(len(p.mws)), device.MW2B}
	for _, a := range args {
		var v uint64
		switch a.name {
		case "key":
			v, err = number(a.value, 32)
			w.key = uint32(v)
		case "type":
			w.typ, err = map[string]device.MWType{"1": device.MW1, "2": device.MW2B}[a.value], nil
			if w.typ == 0 {
				err = fmt.Errorf("type=%s: 1 or 2", a.value)
			}
		default:
			err = fmt.Errorf("alloc_mw has key= and type=, not %s", a.name)
		}
		if err != nil {
			return nil, err
		}
	}
	p.mws = append(p.mws, w)
	return doAllocMW{w}, nil
}

func (p *parser) mw(name string) *mw {
	return find(p.mws, func(w *mw) bool { return w.name == name })
}

func (d doCreateSRQ) run(p *player, s *stmt) (err error) {
	p.srqs[d.srq], err = p.nic.CreateSRQ(d.num, 1024)
	p.out(p.nic.Now(), fmt.Sprintf("create_srq %s num=0x%x", d.name, d.num))
	return err
}

func (d doAllocMW) run(p *player, s *stmt) (err error) {
	p.mws[d.mw], err = p.nic.AllocMW(d.key, d.typ)
	p.out(p.nic.Now(), fmt.Sprintf("alloc_mw %s key=0x%x type=%d", d.name, d.key, d.typ))
	return err
}

type (
	doCreateSRQ struct{ *srq }
	doAllocMW   struct{ *mw }
)
