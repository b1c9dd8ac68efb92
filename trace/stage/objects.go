package stage

import (
	"fmt"

	"github.com/softnic/softnic/device"
)

// made has create make an object that gets number, of those that are drawn. If it gets another one it is dropped, and taken says why.
func made[T any](n *NIC, number uint32, taken string, create func() (T, error), has func(T) uint32, drop func(T) error) (T, error) {
	n.numbers.draw(number)
	defer n.numbers.clear()
	o, err := create()
	if err == nil && has(o) != number {
		_ = drop(o)
		err = fmt.Errorf(taken, number)
	}
	if err != nil {
		var none T
		return none, err
	}
	return o, nil
}

// keyTaken is over a key of an object that may change the low 8 bits of it.
const keyTaken = "key 0x%x cannot be had: another begins with the same 24 bits"

// CreateQP makes a queue pair with the number given: 0x10 ... 0xFFFFFE, and not in use. It may be an XRC target, of the NIC's XRC domain.
func (n *NIC) CreateQP(qpn uint32, in device.QPInit) (*device.QP, error) {
	if qpn < 0x10 || qpn >= 0xFFFFFF {
		return nil, fmt.Errorf("queue pair number 0x%x: 0x10 ... 0xfffffe are possible", qpn)
	}
	in.SendCQ = n.CQ
	if in.Type != device.XRCIni {
		in.RecvCQ = n.CQ
	}
	return made(n, qpn, "queue pair 0x%x exists already", func() (*device.QP, error) {
		if in.Type == device.XRCTgt {
			return n.XRCD.CreateXRCTarget(in.Handler)
		}
		return n.PD.CreateQP(in)
	}, (*device.QP).Num, (*device.QP).Destroy)
}

// CreateSRQ makes a shared receive queue of the NIC's XRC domain, with the number by which XRC requests name it: 1 ... 0xFFFFFF, and not in
// use. It completes to CQ.
func (n *NIC) CreateSRQ(num uint32, maxWR int) (*device.SRQ, error) {
	if num == 0 || num > 0xFFFFFF {
		return nil, fmt.Errorf("shared receive queue number 0x%x: 1 ... 0xffffff are possible", num)
	}
	return made(n, num, "shared receive queue 0x%x exists already", func() (*device.SRQ, error) {
		return n.PD.CreateSRQ(device.SRQInit{MaxWR: maxWR, MaxSGE: device.MaxSRQSGE, XRCD: n.XRCD, CQ: n.CQ})
	}, (*device.SRQ).Num, (*device.SRQ).Destroy)
}

// Register makes a region of size bytes from va on, with the key given for both sides: anything but 0 and all ones,
// and not in use.
func (n *NIC) Register(key uint32, va, size uint64, access device.Access) (*device.MR, *Memory, error) {
	if key == 0 || key == ^uint32(0) {
		return nil, nil, fmt.Errorf("key 0x%x cannot be one of a region", key)
	}
	m := NewMemory()
	mr, err := made(n, key, "key 0x%x exists already", func() (*device.MR, error) { return n.PD.RegMemory(m, va, size, access) }, (*device.MR).RKey, (*device.MR).Dereg)
	if err != nil {
		return nil, nil, err
	}
	return mr, m, nil
}

// Alloc makes a region that is invalid, for up to size bytes, with a key that the peer can invalidate. Its top 24 bits are
// those of no other key.
func (n *NIC) Alloc(key uint32, size uint64) (*device.FastMR, error) {
	return made(n, key, keyTaken, func() (*device.FastMR, error) { return n.PD.AllocMR(size) }, (*device.FastMR).RKey, (*device.FastMR).Dereg)
}

// AllocMW makes a memory window of a type that is not bound, with the key given: its top 24 bits are those of no other key.
func (n *NIC) AllocMW(key uint32, typ device.MWType) (*device.MW, error) {
	return made(n, key, keyTaken, func() (*device.MW, error) { return n.PD.AllocMW(typ) }, (*device.MW).RKey, (*device.MW).Dealloc)
}
