//go:build linux

package uverbs

import (
	"fmt"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/transport"
)

// Access flags that are not those of package transport (enum ib_uverbs_access_flags).
const (
	accessMWBind   = 1 << 4
	accessHugeTLB  = 1 << 7
	accessKnown    = 0x3FF       // the others are nobody's (verbs.h: ib_check_mr_access)
	accessOptional = 0x3FF << 20 // relaxed ordering among them: may be ignored
)

// regMR registers memory of the program. Nothing is pinned: a page that goes away
// fails the work that needs it.
func regMR(c *conn, r *request, a *answer) error {
	start, length, iova, access := r.u64(8), r.u64(16), r.u64(24), r.u32(36)
	pd, err := get[*device.PD](&c.objects, r.u32(32))
	if err != nil {
		return err
	}
	switch {
	case length == 0, start+length < start, iova+length < iova, (start^iova)&4095 != 0, access&^(accessKnown|accessOptional) != 0:
		return invalid("reg_mr: %d bytes at 0x%x, access flags 0x%x", length, start, access)
	}
	access &^= accessOptional | accessHugeTLB
	if access&uint32(device.ZeroBased) != 0 { // as rxe, whose library has no other address for it
		return device.EOPNOTSUPP
	}
	if r.fork {
		return hinted{fmt.Errorf("reg_mr: this process is a fork of the one that opened the device, and its memory cannot be reached: open the device after the fork: %w", device.EPERM)}
	}
	if !c.reach() {
		return hinted{fmt.Errorf("reg_mr: the memory of process %d cannot be reached: it is not dumpable, or /proc is not mounted there: %w", c.pid, device.EPERM)}
	}
	mem := region{c.mem, start - iova}
	var first, last [1]byte
	if mem.ReadV([]transport.Extent{{VA: iova, Buf: first[:]}, {VA: iova + length - 1, Buf: last[:]}}) != nil {
		return device.EFAULT
	}
	mr, err := pd.RegMemory(mem, iova, length, device.Access(access))
	if err != nil {
		return err
	}
	a.made(c.objects.add(mr), deregMR)
	a.core = le.AppendUint32(a.core, mr.LKey())
	a.core = le.AppendUint32(a.core, mr.RKey())
	return nil
}

// reach decides once how the memory of the program is reached.
func (c *conn) reach() bool {
	if !c.probed {
		c.probed, c.reachable = true, c.mem.probe(c.helloAddr, c.helloValue)
	}
	return c.reachable
}

func deregMR(c *conn, h uint32, _ *answer) error {
	mr, err := doomed[*device.MR](&c.objects, h)
	if err != nil {
		return err
	}
	if err := mr.Dereg(); err != nil {
		return err
	}
	c.objects.remove(h)
	return nil
}

func allocMW(c *conn, r *request, a *answer) error {
	pd, err := get[*device.PD](&c.objects, r.u32(8))
	if err != nil {
		return err
	}
	typ := device.MWType(r.u8(12))
	if typ != device.MW1 && typ != device.MW2B {
		return device.EINVAL
	}
	w, err := pd.AllocMW(typ)
	if err != nil {
		return err
	}
	a.made(c.objects.add(w), deallocMW)
	a.core = le.AppendUint32(a.core, w.RKey())
	return nil
}

func deallocMW(c *conn, h uint32, _ *answer) error {
	w, err := doomed[*device.MW](&c.objects, h)
	if err != nil {
		return err
	}
	if err := w.Dealloc(); err != nil {
		return err
	}
	c.objects.remove(h)
	return nil
}
