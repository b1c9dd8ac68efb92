package replay

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/stage"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// scene is one NIC, and the conversations in which it is the responder.
type scene struct {
	o     Options
	nic   *stage.NIC
	talks []*talk
	mem   map[uint32]*area
	cur   *talk      // whose packet is being fed
	fault wire.Fault // what came of it
	begin int64
	qps   map[uint32]*device.QP // by number
	own   map[uint32]*pool      // receives of a queue pair, which all have that send to one of UD; and of an XRC domain's
	srqs  map[uint32]*pool      // shared receive queues
	pools []*pool               // all of them, from 1 on: a receive has the index as its ID, and nothing else has one
	pkeys []uint16
	valid *device.QP // makes keys valid again
}

// pool is a queue of receives.
type pool struct {
	id   uint64
	n    int // that are posted and not taken
	post func(*device.RecvWR) error
}

// scratchKey is that of the region where receives end; scratchLen is as long as a message can be.
const (
	scratchKey = 0xFFFFFFFE
	scratchLen = 1<<31 + 4096
)

// act replays the conversations of the responders at an address.
func act(addr netip.Addr, talks []*talk, o Options) (err error) {
	s := &scene{o: o, talks: talks, qps: map[uint32]*device.QP{}, own: map[uint32]*pool{}, srqs: map[uint32]*pool{}, pools: []*pool{nil}, mem: areas(talks, &o)}
	profile := s.profile()
	s.setPKeys()
	s.nic, err = stage.New(stage.Options{
		Addr: addr, Profile: profile, PKeys: s.pkeys, RxeFlushICRC: profile == "rxe",
		Sent: s.sent, Taken: func(f wire.Fault) { s.fault = f },
	})
	if err != nil {
		return err
	}
	defer s.nic.Close()
	s.regions()
	if err := s.shared(); err != nil {
		return err
	}
	remember(s.mem, talks)
	type event struct {
		t      *talk
		s      *seen
		answer bool
	}
	var l []event
	for _, t := range talks {
		t.c.Profile = profile
		t.left = len(t.f.requests) - t.start + len(t.answers)
		for _, q := range t.f.requests[t.start:] {
			l = append(l, event{t, q, false})
		}
		for _, a := range t.answers {
			l = append(l, event{t, a, true})
		}
	}
	slices.SortStableFunc(l, func(a, b event) int { return cmp.Compare(a.s.at, b.s.at) })
	for _, e := range l {
		if s.begin == 0 {
			s.begin = e.s.time
		}
		if e.answer {
			e.t.answer(s, e.s)
		} else {
			s.feed(e.t, e.s)
		}
		if e.t.left--; e.t.left == 0 {
			s.leave(e.t)
		}
	}
	return nil
}

// leave ends a conversation.
func (s *scene) leave(t *talk) {
	if t.qp != nil && t.f.key.service != bth.UD { // several may send to one of UD
		delete(s.qps, t.qp.Num())
		delete(s.own, t.qp.Num())
		_ = t.qp.Destroy()
	}
	t.finish()
}

// profile is that of the options, or what the answers look like.
func (s *scene) profile() string {
	if s.o.Profile != "" {
		return s.o.Profile
	}
	with, without := 0, 0
	for _, t := range s.talks {
		for _, a := range t.answers {
			if a.v.BTH().MigReq() {
				with++
			} else {
				without++
			}
		}
	}
	if without <= with {
		return "ibta"
	}
	for _, t := range s.talks {
		t.note("profile rxe: recorded answers have MigReq 0 (--profile)")
	}
	return "rxe"
}

// setPKeys makes a P_Key table of the partitions that requests name.
func (s *scene) setPKeys() {
	for _, t := range s.talks {
		if k := t.typical().v.BTH().PKey() | 0x8000; k&0x7FFF != 0 && !slices.Contains(s.pkeys, k) && len(s.pkeys) < device.MaxPKeys {
			s.pkeys = append(s.pkeys, k)
		}
	}
	if len(s.pkeys) == 0 {
		s.pkeys = nil
	}
}
