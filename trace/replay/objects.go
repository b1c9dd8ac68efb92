package replay

import (
	"fmt"
	"maps"
	"slices"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/stage"
	"github.com/softnic/softnic/wire/bth"
)

// regions makes the memory.
func (s *scene) regions() {
	loose := map[uint32]bool{} // the first 24 bits of keys that requests take away
	for _, t := range s.talks {
		for _, q := range t.f.requests[t.start:] {
			if h := bth.IETH(q.v.Header(bth.HIETH)); h != nil {
				loose[h.RKey()>>8] = true
				if s.mem[h.RKey()] == nil {
					s.mem[h.RKey()] = &area{end: 4096, access: everything}
				}
			}
		}
	}
	longest := map[uint32]uint64{}
	for k, a := range s.mem {
		longest[k>>8] = max(longest[k>>8], a.end-a.va)
	}
	_, _, _ = s.nic.Register(scratchKey, 0, scratchLen, device.LocalWrite)
	made := map[uint32]*fast{}
	for _, k := range slices.Sorted(maps.Keys(s.mem)) {
		a := s.mem[k]
		if !loose[k>>8] {
			_, a.mem, _ = s.nic.Register(k, a.va, a.end-a.va, a.access)
			continue
		}
		f := made[k>>8]
		if f == nil {
			mr, err := s.nic.Alloc(k, longest[k>>8])
			if err != nil {
				continue
			}
			f = &fast{mr: mr, key: k}
			made[k>>8] = f
		}
		a.fast, a.mem = f, stage.NewMemory()
	}
}

// connect makes the queue pair of a conversation.
func (s *scene) connect(t *talk) error {
	k := t.f.key
	if q := s.qps[k.qpn]; q != nil {
		if k.service != bth.UD || q.Type() != device.UD {
			return fmt.Errorf("queue pair 0x%x has another peer, too", k.qpn)
		}
		t.qp = q
		return nil
	}
	first := t.typical()
	typ := map[bth.Service]device.QPType{bth.RC: device.RC, bth.UC: device.UC, bth.UD: device.UD, bth.XRC: device.XRCTgt}[k.service]
	q, err := s.nic.CreateQP(k.qpn, device.QPInit{Type: typ, Cap: device.Cap{SendWR: 4, RecvWR: max(4, s.o.Recvs)}})
	if err != nil {
		return err
	}
	i := max(0, slices.Index(s.pkeys, first.v.BTH().PKey()|0x8000))
	if typ == device.UD {
		var qkey uint32
		if h := bth.DETH(first.v.Header(bth.HDETH)); h != nil {
			qkey = h.QKey()
		}
		err = q.Modify(&device.QPAttr{State: device.StateInit, Port: 1, QKey: qkey, PKeyIndex: i}, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrQKey)
		if err == nil {
			err = q.Modify(&device.QPAttr{State: device.StateRTR}, device.AttrState)
		}
	} else {
		var gid int
		if gid, err = s.nic.SGIDIndex(); err == nil {
			err = q.Connect(0, device.Remote{GID: device.GIDOf(t.from()), QPN: t.peer(), PSN: uint32(t.first)}, device.ConnectOptions{
				SGIDIndex: gid, PathMTU: t.mtu, Access: t.rights(), Depth: device.MaxRdAtomic, PKeyIndex: i, Timeout: -1,
			})
		}
	}
	if err != nil {
		_ = q.Destroy()
		return err
	}
	t.qp, s.qps[k.qpn] = q, q
	if typ == device.XRCTgt {
		return nil
	}
	s.own[k.qpn], err = s.pool(q.PostRecv)
	return err
}

// pool makes a queue of receives from what posts one.
func (s *scene) pool(post func(*device.RecvWR) error) (*pool, error) {
	p := &pool{id: uint64(len(s.pools)), post: post}
	s.pools = append(s.pools, p)
	for range s.o.Recvs {
		if err := p.add(scratchLen-4096, scratchKey); err != nil {
			return nil, err
		}
	}
	return p, nil
}

// add posts a receive of n bytes.
func (p *pool) add(n int, key uint32) error {
	err := p.post(&device.RecvWR{ID: p.id, SGE: []device.SGE{{Addr: 0, Length: uint32(n), LKey: key}}})
	if err == nil {
		p.n++
	}
	return err
}

// shared makes the shared receive queues that XRC requests name, but for what was refused because of them.
func (s *scene) shared() error {
	for _, t := range s.talks {
		for _, q := range t.f.requests[t.start:] {
			num, ok := srqOf(q)
			if !ok || s.srqs[num] != nil || q.refused == bth.NakInvalidRequest || num == 0 {
				continue
			}
			r, err := s.nic.CreateSRQ(num, max(4, s.o.Recvs))
			if err != nil {
				return err
			}
			if s.srqs[num], err = s.pool(r.PostRecv); err != nil {
				return err
			}
		}
	}
	return nil
}

// srqOf returns the shared receive queue that an XRC request names.
func srqOf(q *seen) (num uint32, ok bool) {
	h := bth.XRCETH(q.v.Header(bth.HXRCETH))
	if h == nil {
		return 0, false
	}
	return h.SRQN(), true
}

// recvs are those that a request takes from: nil if there are none.
func (s *scene) recvs(t *talk, q *seen) *pool {
	if num, ok := srqOf(q); ok {
		return s.srqs[num]
	}
	return s.own[t.qp.Num()]
}

// rights are those of the queue pair: all, but for what it refused as an invalid request and had never taken before. What is behind such a
// request was not taken either, the rest of its message in the first place.
func (t *talk) rights() device.Access {
	var refused, used device.Access
	end := int64(1 << 62)
	for _, q := range t.f.requests[t.start:] {
		if q.refused == bth.NakInvalidRequest {
			refused |= kind(q)
			end = min(end, q.pos)
		}
	}
	for _, q := range t.f.requests[t.start:] {
		if !q.lost && !q.idle() && q.pos < end {
			used |= kind(q)
		}
	}
	return (device.RemoteWrite | device.RemoteRead | device.RemoteAtomic | device.FlushGlobal | device.FlushPersistent) &^ (refused &^ used)
}
