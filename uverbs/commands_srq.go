//go:build linux

package uverbs

import (
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

func createSRQ(c *conn, r *request, a *answer) error {
	pd, err := get[*device.PD](&c.objects, r.u32(16))
	if err != nil {
		return err
	}
	wr, sge, limit := r.u32(20), max(r.u32(24), 1), r.u32(28)
	if wr == 0 || wr > device.MaxSRQWR || sge > device.MaxSRQSGE || limit > wr {
		return invalid("create_srq: max_wr %d, max_sge %d, srq_limit %d: at most %d, %d and max_wr are possible", wr, sge, limit, device.MaxSRQWR, device.MaxSRQSGE)
	}
	s := &sharedReceives{counted: counted{user: r.u64(8)}}
	if s.ring, err = c.arena.get(ringSize(int(wr), recvWQELen+int(sge)*sgeLen)); err != nil {
		return err
	}
	ring := newRecvRing(s.ring, int(wr), int(sge))
	s.SRQ, err = pd.CreateSRQ(device.SRQInit{MaxWR: min(ring.capacity(), device.MaxSRQWR), MaxSGE: int(sge), Limit: int(limit), Ring: ring})
	if err != nil {
		c.arena.put(s.ring)
		return err
	}
	c.objects.events.Store(s.SRQ, &s.counted)
	h := c.objects.add(s)
	a.made(h, destroySRQ)
	for _, v := range [...]uint32{uint32(ring.capacity()), sge, h} {
		a.core = le.AppendUint32(a.core, v)
	}
	a.driver = s.ring.info(nil)
	a.driver = le.AppendUint32(le.AppendUint32(a.driver, h), 0) // srq_num
	return nil
}

// Attributes of a shared receive queue (enum ibv_srq_attr_mask).
const (
	srqMaxWR = 1 << 0
	srqLimit = 1 << 1
)

// modifySRQ serves struct ib_uverbs_modify_srq, behind which stands where librxe wants the place of a new ring (struct mminfo).
func modifySRQ(c *conn, r *request, _ *answer) error {
	s, err := get[*sharedReceives](&c.objects, r.u32(0))
	if err != nil {
		return err
	}
	mask, limit := r.u32(4), int(min(r.u32(12), device.MaxSRQWR+1))
	if mask&^(srqMaxWR|srqLimit) != 0 {
		return device.EINVAL
	}
	if mask&srqMaxWR != 0 {
		if err := c.resizeSRQ(s, r, mask&srqLimit != 0, limit); err != nil {
			return err
		}
	}
	if mask&srqLimit != 0 {
		return s.SetLimit(limit)
	}
	return nil
}

// resizeSRQ gives a shared receive queue a new ring, for which the limit that is set with it, if one is, must be possible.
func (c *conn) resizeSRQ(s *sharedReceives, r *request, limited bool, limit int) error {
	wr := r.u32(8)
	if wr == 0 || wr > device.MaxSRQWR || limited && limit > int(wr) || len(r.body) < 24 {
		return invalid("modify_srq: max_wr %d, srq_limit %d: at most %d and max_wr are possible", wr, limit, device.MaxSRQWR)
	}
	in := s.Query()
	mem, err := c.arena.get(ringSize(int(wr), recvWQELen+in.MaxSGE*sgeLen))
	if err != nil {
		return err
	}
	ring := newRecvRing(mem, int(wr), in.MaxSGE)
	err = s.ReplaceRing(min(ring.capacity(), device.MaxSRQWR), func(old device.SharedRing) (device.SharedRing, error) {
		o := old.(*recvRing)
		if _, ok := ring.takeOver(&o.ring, o.fetched, o.load(ringProducer), int(wr)); !ok {
			return nil, device.EINVAL
		}
		if !c.reach() || (region{c.mem, 0}).WriteV([]transport.Extent{{VA: r.u64(16), Buf: mem.info(nil)}}) != nil {
			return nil, device.EFAULT
		}
		return ring, nil
	})
	if err != nil {
		c.arena.put(mem)
		return err
	}
	c.arena.put(s.ring)
	s.ring = mem
	return nil
}

func querySRQ(c *conn, r *request, a *answer) error {
	s, err := get[*sharedReceives](&c.objects, r.u32(8))
	if err != nil {
		return err
	}
	in := s.Query()
	for _, v := range [...]int{in.MaxWR, in.MaxSGE, in.Limit, 0} {
		a.core = le.AppendUint32(a.core, uint32(v))
	}
	return nil
}

func destroySRQ(c *conn, h uint32, a *answer) error {
	s, err := doomed[*sharedReceives](&c.objects, h)
	if err != nil {
		return err
	}
	if err := s.Destroy(); err != nil {
		return err
	}
	async, _ := c.reported(&s.counted, s.SRQ, nil)
	c.objects.remove(h)
	c.arena.put(s.ring)
	a.core = le.AppendUint32(nil, async)
	return nil
}
