//go:build linux

package uverbs

import "github.com/softnic/softnic/device"

// attachment is what a program names when it attaches a queue pair. RoCE has no use for the LID, and a program that
// detaches has to give the one that it attached with (uverbs_cmd.c:ib_uverbs_detach_mcast).
type attachment struct {
	gid  device.GID
	mlid uint16
}

// attachment reads struct ib_uverbs_attach_mcast, which that of detach is the same as.
func (r *request) attachment(c *conn) (*queuePair, attachment, error) {
	q, err := get[*queuePair](&c.objects, r.u32(16))
	return q, attachment{device.GID(r.body[:16]), r.u16(20)}, err
}

func attachMcast(c *conn, r *request, _ *answer) error {
	q, at, err := r.attachment(c)
	if err != nil {
		return err
	}
	if _, ok := q.attached[at]; ok {
		return nil
	}
	err = q.Attach(at.gid)
	if err != nil && device.ErrnoOf(err) == device.EIO {
		return hinted{refusal{err.Error()}} // the link has refused it: EIO would be a device that is gone
	}
	if err != nil {
		return err
	}
	if q.attached == nil {
		q.attached = map[attachment]struct{}{}
	}
	q.attached[at] = struct{}{}
	return nil
}

func detachMcast(c *conn, r *request, _ *answer) error {
	q, at, err := r.attachment(c)
	if err != nil {
		return err
	}
	if _, ok := q.attached[at]; !ok {
		return refusal{"it is not attached to " + at.gid.String()}
	}
	delete(q.attached, at)
	for other := range q.attached {
		if other.gid == at.gid {
			return nil // by another LID
		}
	}
	return q.Detach(at.gid)
}
