//go:build linux

package uverbs

import (
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

// unstored is what the library says after an answer that the program's memory did not take.
func (p *program) unstored(seq uint32) {
	p.tb.Helper()
	if err := p.record(kindUnstored, seq, 0, nil); err != nil {
		p.tb.Fatal(err)
	}
}

// holds tells all that the daemon keeps for the only program.
func (p *program) holds() string {
	p.tb.Helper()
	p.do(legacy(cmdQueryDevice, newStruct("ib_uverbs_query_device"), queryDeviceLen)) // after the answer nothing runs there
	c := p.d.conns()[0]
	events := 0
	c.objects.events.Range(func(any, any) bool { events++; return true })
	c.objects.mu.RLock()
	handles := len(c.objects.objects)
	c.objects.mu.RUnlock()
	c.arena.mu.Lock()
	rings := c.arena.end
	for n, l := range c.arena.free {
		rings -= n * uint64(len(l))
	}
	c.arena.mu.Unlock()
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	return fmt.Sprintf("%+v, %d handles, %d with events, %d bytes of rings, descriptors %v", c.ctx.Objects(), handles, events, rings, c.s.perUser)
}

// A program whose memory does not take the answer of a command sees EFAULT, and what the command has made goes, as in the
// kernel, where uverbs_response fails before the object is committed (uverbs_cmd.c).
func TestUnstoredAnswers(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	gid, _ := d.dev.QueryGID(1, 1)
	pd, ch := p.pd(), p.channel()
	c := p.cq(4, &ch)
	buf := p.alloc(64)
	qp := qpCommand(pd, 9, qpInit{typ: device.RC, scq: c, rcq: c, send: 3, recv: 3})
	exQP := newStruct("ib_uverbs_ex_create_qp")
	copy(exQP.b, qp.b[8:])
	exCQ := newStruct("ib_uverbs_ex_create_cq").put("user_handle", 7).put("cqe", 10).put("comp_channel", 0xFFFFFFFF)
	commands := []struct {
		name string
		cmd  []byte
		fds  []int
		gone func(h uint32) []byte // nil: a channel
	}{
		{"alloc pd", legacy(cmdAllocPD, newStruct("ib_uverbs_alloc_pd"), 4), nil, func(h uint32) []byte { return handleCommand(cmdDeallocPD, h) }},
		{"create ah", legacy(cmdCreateAH, ahCommand(pd, gid), 12), nil, func(h uint32) []byte { return handleCommand(cmdDestroyAH, h) }},
		{"reg mr", regCommand(pd, addressOf(buf), 64, addressOf(buf), allAccess), nil, func(h uint32) []byte { return handleCommand(cmdDeregMR, h) }},
		{"alloc mw", legacy(cmdAllocMW, newStruct("ib_uverbs_alloc_mw").put("pd_handle", uint64(pd)).put("mw_type", 2), 8), nil,
			func(h uint32) []byte { return handleCommand(cmdDeallocMW, h) }},
		{"create comp channel", legacy(cmdCreateCompChannel, newStruct("ib_uverbs_create_comp_channel"), 4), nil, nil},
		{"create cq", legacy(cmdCreateCQ, newStruct("ib_uverbs_create_cq").put("cqe", 10).put("comp_channel", 0xFFFFFFFF), 24), nil,
			func(h uint32) []byte { return (&cq_{handle: h}).destroyCommand() }},
		{"create cq on a channel", legacy(cmdCreateCQ, newStruct("ib_uverbs_create_cq").put("cqe", 10).put("comp_channel", 3), 24), []int{ch.fd},
			func(h uint32) []byte { return (&cq_{handle: h}).destroyCommand() }},
		{"create cq, extended", ex(cmdCreateCQ, exCQ.b, 16, 16), nil, func(h uint32) []byte { return (&cq_{handle: h}).destroyCommand() }},
		{"create qp", legacy(cmdCreateQP, qp, qpRoom), nil, func(h uint32) []byte { return (&qp_{handle: h}).destroyCommand() }},
		{"create qp, extended", ex(cmdCreateQP, exQP.b, 40, 32), nil, func(h uint32) []byte { return (&qp_{handle: h}).destroyCommand() }},
		{"create srq", legacy(cmdCreateSRQ, srqCommand(pd, 5, 10, 3), 40), nil, func(h uint32) []byte { return (&srq_{handle: h}).destroyCommand() }},
	}
	tested := map[uint32]bool{}
	for _, x := range commands {
		t.Run(x.name, func(t *testing.T) {
			tested[le.Uint32(x.cmd)] = true
			before := p.holds()
			r := p.do(x.cmd, x.fds...)
			if r.fd >= 0 {
				unix.Close(r.fd)
			}
			p.unstored(p.seq - 1) // another's
			p.unstored(p.seq + 1)
			p.unstored(p.seq)
			p.unstored(p.seq) // it is gone already
			if x.gone != nil {
				p.fails(eNOENT, x.gone(le.Uint32(r.b)))
			}
			if after := p.holds(); after != before {
				t.Errorf("the daemon holds %s, before it was %s", after, before)
			}
			// What was stored stays, whatever is said later.
			r = p.do(x.cmd, x.fds...)
			p.unstored(p.seq - 1)
			p.holds()
			p.unstored(p.seq - 1)
			p.unstored(p.seq)
			if x.gone == nil {
				unix.Close(r.fd)
				if err := p.record(kindClosed, 0, r.fdID, nil); err != nil {
					t.Fatal(err)
				}
			} else {
				p.do(x.gone(le.Uint32(r.b)))
			}
			if after := p.holds(); after != before {
				t.Errorf("the daemon holds %s in the end, before it was %s", after, before)
			}
		})
	}
	// Every command with which something is made is above.
	for n, name := range commandNames {
		if !strings.HasPrefix(name, "create_") && !strings.HasPrefix(name, "alloc_") && name != "reg_mr" {
			continue
		}
		for _, word := range []uint32{n, n | cmdExtended} {
			if find(n, word != n) != nil && !tested[word] {
				t.Errorf("%s (0x%x) is not tested", name, word)
			}
		}
	}

	// Commands that make nothing have nothing to be taken back: an object that was destroyed is gone.
	h := p.pd()
	p.do(handleCommand(cmdDeallocPD, h))
	p.unstored(p.seq)
	p.fails(eNOENT, handleCommand(cmdDeallocPD, h))
}

// The context can be got again when its event descriptor was lost.
func TestUnstoredContext(t *testing.T) {
	d := newDaemon(t)
	p := d.dial()
	if e, err := p.hello(how{}); e != 0 || err != nil {
		t.Fatal(e, err)
	}
	p.fails(eINVAL, legacy(cmdAllocPD, newStruct("ib_uverbs_alloc_pd"), 4)) // after it hello is over in the daemon
	before := openFiles(t)
	for range 10 {
		p.getContext()
		unix.Close(p.async)
		p.unstored(p.seq)
		p.fails(eINVAL, legacy(cmdAllocPD, newStruct("ib_uverbs_alloc_pd"), 4))
	}
	if n := openFiles(t); n != before {
		t.Errorf("%d descriptors, there were %d", n, before)
	}
	p.getContext()
	p.fails(eINVAL, legacy(cmdGetContext, newStruct("ib_uverbs_get_context"), 8))
	// Events come on the last one.
	s := newSide(p, device.RC, 64)
	peer := newSide(d.open(how{}), device.RC, 64)
	connect(s.q, peer.q)
	peer.q.post(request_{id: 1, op: device.OpWrite, inline: []byte("x"), remote: 1, rkey: 1})
	peer.c.expect(1, device.StatusRemoteAccess)
	var b [16]byte
	if n, err := unix.Read(p.async, b[:]); n != 16 || err != nil || le.Uint64(b[:]) != s.q.user || le.Uint32(b[8:]) != uint32(device.EventQPAccessErr) {
		t.Errorf("%d %v % x", n, err, b)
	}
}

// A program that uses what it says it never heard of harms itself only: what is in use stays.
func TestUnstoredInUse(t *testing.T) {
	_, b, _ := opened(t)
	window, key := b.window(b.dom, device.MW2B)
	m := b.mr(b.dom, b.buf, uint32(everyRight))
	seq := b.seq
	b.q.postWQE(bindMW(5, key, device.IncRKey(key), m.lkey, addressOf(b.buf), 8, device.RemoteRead))
	b.c.expect(5, device.StatusSuccess)
	b.unstored(seq)
	b.fails(eINVAL, handleCommand(cmdDeregMR, m.handle)) // as rxe_dereg_mr says of a region with windows
	b.do(handleCommand(cmdDeallocMW, window))
	b.do(handleCommand(cmdDeregMR, m.handle))
}
