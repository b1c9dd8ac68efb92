package device

import (
	"sync/atomic"

	"github.com/softnic/softnic/transport"
)

// XRCD is an XRC domain (ibv_xrcd): what binds XRC targets to the shared receive queues that they may
// fill. Contexts of a device share one by OpenXRCD.
type XRCD struct {
	ctx   *Context
	group *xrcGroup
	uses  atomic.Int32
}

// xrcGroup is what the contexts that share a domain have in common.
type xrcGroup struct{ _ byte }

// AllocXRCD makes an XRC domain (ibv_open_xrcd without a file). EINVAL: more than MaxXRCD handles on the device.
func (c *Context) AllocXRCD() (*XRCD, error) { return c.openXRCD(new(xrcGroup)) }

// OpenXRCD returns a handle, owned by c, of the domain that another context of the device
// has made (ibv_open_xrcd with its file). The domain lives as long as there is a handle of it. EINVAL: it is of another
// device, nil or closed, or more than MaxXRCD.
func (c *Context) OpenXRCD(o *XRCD) (*XRCD, error) {
	if o == nil || o.ctx.dev != c.dev {
		return nil, &OpError{"open_xrcd", "", because(EINVAL, "the domain is of another device")}
	}
	o.ctx.mu.Lock()
	err := alive(o.ctx.xrcds, o, "XRC domain")
	o.ctx.mu.Unlock()
	if err != nil {
		return nil, &OpError{"open_xrcd", "", err}
	}
	return c.openXRCD(o.group)
}

func (c *Context) openXRCD(g *xrcGroup) (*XRCD, error) {
	x := &XRCD{ctx: c, group: g}
	if err := own(c, "open_xrcd", c.xrcds, MaxXRCD, x, nil, nil); err != nil {
		return nil, err
	}
	return x, nil
}

// Close gives the handle up (ibv_close_xrcd). EBUSY: there are targets or shared receive queues that were made with it.
// EINVAL: it is closed already.
func (x *XRCD) Close() error {
	c := x.ctx
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := alive(c.xrcds, x, "XRC domain"); err != nil {
		return &OpError{"close_xrcd", "", err}
	}
	if n := x.uses.Load(); n > 0 {
		return &OpError{"close_xrcd", "", because(EBUSY, "%d objects still belong to it", n)}
	}
	delete(c.xrcds, x)
	return nil
}

// CreateXRCTarget makes an XRC target queue pair: it receives into the shared receive queue that each packet names, of those of
// the domain, with the protection domain and the completion queue of that. It cannot send. Its events go to handler, or where
// that is nil to the context's list. QP.Connect connects it. EINVAL: the domain is closed, more than MaxQP queue pairs on the
// device.
func (x *XRCD) CreateXRCTarget(handler func(AsyncEvent)) (*QP, error) {
	return createQP(x.ctx, nil, QPInit{Type: XRCTgt, XRCD: x, Handler: handler})
}

// Num returns the number by which XRC requests name the queue; 0 unless it is of an XRC domain.
func (s *SRQ) Num() uint32 { return s.num }

// selectSRQ finds the receive context that an XRCETH names.
func (q *QP) selectSRQ(srqn uint32) *transport.RecvContext {
	q.dev.qpMu.RLock()
	defer q.dev.qpMu.RUnlock()
	s := q.dev.srqs[srqn]
	if s == nil || s.init.XRCD.group != q.xrcd.group {
		return nil
	}
	return &s.recv
}

// enter has memory looked up in the protection domain of a shared receive queue from now
// on; the queue pair's lock is held.
func (q *QP) enter(c *transport.RecvContext) { q.pd = c.Domain.(*PD) }
