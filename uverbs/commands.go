//go:build linux

package uverbs

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// command is one command of the interface: lengths of its core structures in bytes, and what it
// does. Of a legacy command the request is without its 8-byte header.
type command struct {
	req, resp int
	run       func(c *conn, r *request, a *answer) error
}

// commands has the commands that are served. A later one is a line here.
var commands = map[uint32]*command{
	cmdGetContext:        {8, 8, getContext},
	cmdQueryDevice:       {8, queryDeviceLen, queryDevice},
	cmdQueryPort:         {16, 40, queryPort},
	cmdAllocPD:           {8, 4, allocPD},
	cmdDeallocPD:         {4, 0, destroys(0, deallocPD)},
	cmdCreateAH:          {56, 4, createAH},
	cmdDestroyAH:         {4, 0, destroys(0, destroyAH)},
	cmdRegMR:             {40, 12, regMR},
	cmdDeregMR:           {4, 0, destroys(0, deregMR)},
	cmdAllocMW:           {16, 8, allocMW},
	cmdDeallocMW:         {4, 0, destroys(0, deallocMW)},
	cmdCreateCompChannel: {8, 4, createCompChannel},
	cmdCreateCQ:          {32, 8, createCQ},
	cmdResizeCQ:          {16, 8, resizeCQ},
	cmdDestroyCQ:         {16, 8, destroys(8, destroyCQ)},
	cmdReqNotifyCQ:       {8, 0, reqNotifyCQ},
	cmdCreateQP:          {56, 32, createQP},
	cmdQueryQP:           {16, 128, queryQP},
	cmdModifyQP:          {112, 0, modifyQP},
	cmdDestroyQP:         {16, 4, destroys(8, destroyQP)},
	cmdPostSend:          {24, 4, postSend},
	cmdAttachMcast:       {24, 0, attachMcast},
	cmdDetachMcast:       {24, 0, detachMcast},
	cmdCreateSRQ:         {32, 16, createSRQ},
	cmdModifySRQ:         {16, 0, modifySRQ},
	cmdQuerySRQ:          {16, 16, querySRQ},
	cmdDestroySRQ:        {16, 4, destroys(8, destroySRQ)},
}

// extended has the commands that have an extended form. The response length here is what a
// program must have room for (uverbs_std_types: UAPI_DEF_WRITE_UDATA_IO_EX).
var extended = map[uint32]*command{
	cmdQueryDevice: {8, queryDeviceLen + 8, queryDeviceEx},
	cmdCreateCQ:    {32, 16, createCQ},
	cmdCreateQP:    {52, 40, createQP},
	cmdModifyQP:    {112, 8, modifyQP},
}

func init() {
	// Only a context that has been got can do anything else.
	for n, m := range commands {
		if n != cmdGetContext {
			m.run = afterContext(m.run)
		}
	}
	for _, m := range extended {
		m.run = afterContext(m.run)
	}
}

func afterContext(run func(*conn, *request, *answer) error) func(*conn, *request, *answer) error {
	return func(c *conn, r *request, a *answer) error {
		if c.async == nil {
			return device.EINVAL
		}
		return run(c, r, a)
	}
}

func find(n uint32, ex bool) *command {
	if ex {
		return extended[n]
	}
	return commands[n]
}

// getContext makes the context usable and gives the program its event fd.
func getContext(c *conn, _ *request, a *answer) error {
	if c.async != nil {
		return device.EINVAL
	}
	p, end, err := newEventPipe()
	if err != nil {
		return emfile
	}
	c.async = p
	c.ctx.OnAsyncEvent(func(e device.AsyncEvent) { c.asyncEvent(p, e) })
	a.fd = end
	a.core = le.AppendUint32(make([]byte, 4), uint32(runtime.NumCPU()))
	a.undo = func(c *conn) {
		c.ctx.OnAsyncEvent(nil)
		p.close()
		c.async = nil // it may be got once more
	}
	return nil
}

const emfile = device.Errno(unix.EMFILE)

// asyncEvent sends an asynchronous event to the program (struct ib_uverbs_async_event_desc). It is
// called under locks of the device.
func (c *conn) asyncEvent(to *eventPipe, e device.AsyncEvent) {
	var of any
	switch {
	case e.QP != nil:
		of = e.QP
	case e.CQ != nil:
		of = e.CQ
	case e.SRQ != nil:
		of = e.SRQ
	}
	element := uint64(1) // the port, also where the device has failed. No object counts these, as in the kernel
	var o *counted
	if v, ok := c.objects.events.Load(of); ok {
		o = v.(*counted)
		element = o.user
	} else if of != nil {
		return // it has just been made or is going
	}
	var b [16]byte
	le.PutUint64(b[0:], element)
	le.PutUint32(b[8:], uint32(e.Type))
	if to.send(b[:]) && o != nil {
		o.async.Add(1)
	}
}

// reported takes back the events of an object that nobody has read, and returns how many
// were (asynchronous, of a completion channel).
func (c *conn) reported(o *counted, object any, ch *channel) (async, comp uint32) {
	c.objects.events.Delete(object)
	mine := func(b []byte) bool { return le.Uint64(b) == o.user }
	n := o.async.Load()
	if n > 0 {
		// Events of the port are nobody's, also where a program calls an object 1.
		n -= int32(c.async.withdraw(func(b []byte) bool { return mine(b) && !device.EventType(le.Uint32(b[8:])).Unaffiliated() }))
	}
	k := o.comp.Load()
	if k > 0 && ch != nil {
		k -= int32(ch.withdraw(mine))
	}
	// Below zero when the program gave two objects one name.
	return uint32(max(n, 0)), uint32(max(k, 0))
}

func allocPD(c *conn, _ *request, a *answer) error {
	pd, err := c.ctx.AllocPD()
	if err != nil {
		return err
	}
	a.made(c.objects.add(pd), deallocPD)
	return nil
}

func deallocPD(c *conn, h uint32, _ *answer) error {
	pd, err := doomed[*device.PD](&c.objects, h)
	if err != nil {
		return err
	}
	if err := pd.Dealloc(); err != nil {
		return err
	}
	c.objects.remove(h)
	return nil
}

// ahAttr reads struct ib_uverbs_qp_dest, which has the fields of an address vector in another
// order than struct ib_uverbs_ah_attr.
func (r *request) ahAttr(gid, flow, index, hops, class, global, port int) (device.AHAttr, error) {
	at := device.AHAttr{
		DGID: device.GID(r.body[gid : gid+16]), FlowLabel: r.u32(flow) & 0xFFFFF, SGIDIndex: int(r.u8(index)),
		HopLimit: r.u8(hops), TrafficClass: r.u8(class), Port: int(r.u8(port)),
	}
	switch {
	case at.Port != 1:
		return at, refusal{fmt.Sprintf("port %d: the device has port 1", at.Port)}
	case r.u8(global) == 0:
		return at, refusal{"RoCE needs a GID index, add -g 1"}
	}
	return at, nil
}

func createAH(c *conn, r *request, a *answer) error {
	const grh, rest = 24, 48
	pd, err := get[*device.PD](&c.objects, r.u32(16))
	if err != nil {
		return err
	}
	at, err := r.ahAttr(grh, grh+16, grh+20, grh+21, grh+22, rest+5, rest+6)
	if err != nil {
		return hinted{refusal{"address handle refused: " + err.Error()}}
	}
	ah, err := pd.CreateAH(at)
	if err != nil {
		return err
	}
	h := c.objects.add(ah)
	a.made(h, destroyAH)
	a.driver = le.AppendUint32(le.AppendUint32(nil, h), 0) // ah_num: how work requests name it
	return nil
}

func destroyAH(c *conn, h uint32, _ *answer) error {
	ah, err := doomed[*device.AH](&c.objects, h)
	if err != nil {
		return err
	}
	if err := ah.Destroy(); err != nil {
		return err
	}
	c.objects.remove(h)
	return nil
}

// invalid is an EINVAL with the reason in words.
func invalid(format string, a ...any) error { return refusal{fmt.Sprintf(format, a...)} }

// refusal is an EINVAL with the reason in words.
type refusal struct{ text string }

func (r refusal) Error() string { return r.text }
func (r refusal) Unwrap() error { return device.EINVAL }
