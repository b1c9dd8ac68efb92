//go:build linux

package uverbs

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
)

const (
	eBUSY   = syscall.EBUSY
	eINVAL  = syscall.EINVAL
	eNOENT  = syscall.ENOENT
	eNOSPC  = syscall.ENOSPC
	eNOTSUP = syscall.EOPNOTSUPP
	eBADF   = syscall.EBADF
	eFAULT  = syscall.EFAULT
	eNOMEM  = syscall.ENOMEM
	ePERM   = syscall.EPERM
	eMFILE  = syscall.EMFILE
)

// handleCommand makes a command that is a handle and nothing else.
func handleCommand(num uint32, h uint32) []byte { return legacyBytes(num, le.AppendUint32(nil, h), 0) }

func ahCommand(pd uint32, gid device.GID) structure {
	return newStruct("ib_uverbs_create_ah").put("pd_handle", uint64(pd)).bytes("attr.grh.dgid", gid[:]).put("attr.grh.sgid_index", 1).
		put("attr.grh.hop_limit", 3).put("attr.is_global", 1).put("attr.port_num", 1)
}

// ah gives a handle and the number that work requests name it by.
func (p *program) ah(pd uint32, gid device.GID) (h, num uint32) {
	p.tb.Helper()
	r := p.do(legacy(cmdCreateAH, ahCommand(pd, gid), 4+8))
	return le.Uint32(r.b), uint32(view("rxe_create_ah_resp", r.b[4:]).get("ah_num"))
}

type srq_ struct {
	p      *program
	handle uint32
	user   uint64
	q      queue
}

func srqCommand(pd uint32, user uint64, n, sge int) structure {
	return newStruct("ib_uverbs_create_srq").put("user_handle", user).put("pd_handle", uint64(pd)).put("max_wr", uint64(n)).put("max_sge", uint64(sge))
}

func (p *program) srq(pd uint32, n, sge int) *srq_ {
	p.tb.Helper()
	user := 0x5555000000000000 + users.Add(16)
	r := p.do(legacy(cmdCreateSRQ, srqCommand(pd, user, n, sge), 16+at("rxe_create_srq_resp").off))
	s := view("ib_uverbs_create_srq_resp", r.b)
	return &srq_{p, uint32(s.get("srq_handle")), user, p.mapQueue(view("rxe_create_srq_resp", r.b[16:]).at("mi"))}
}

func (s *srq_) destroyCommand() []byte {
	return legacy(cmdDestroySRQ, newStruct("ib_uverbs_destroy_srq").put("srq_handle", uint64(s.handle)), 4)
}

// Lengths, as uverbs_main.c:verify_hdr looks at them.
func TestCommandLengths(t *testing.T) {
	p := newDaemon(t).open(how{})
	for num, c := range commands {
		if num == cmdGetContext {
			continue
		}
		good := legacyBytes(num, make([]byte, c.req), c.resp)
		word := slices.Clone(good)
		le.PutUint16(word[4:], le.Uint16(word[4:])+1)
		p.fails(eINVAL, word)
		p.fails(eINVAL, good[:len(good)-1])
		p.fails(eNOSPC, legacyBytes(num, make([]byte, c.req-4), c.resp))
		if c.resp > 0 {
			p.fails(eNOSPC, legacyBytes(num, make([]byte, c.req), c.resp-4))
		}
	}
	for num, c := range extended {
		core := make([]byte, (c.req+7)&^7)
		out := (c.resp + 7) &^ 7
		change := func(f func(b []byte)) []byte {
			b := ex(num, core, out, 0)
			f(b)
			return b
		}
		p.fails(eINVAL, ex(num, core, out, 0)[:23])
		p.fails(eINVAL, change(func(b []byte) { le.PutUint16(b[4:], le.Uint16(b[4:])+1) }))
		p.fails(eINVAL, change(func(b []byte) { le.PutUint16(b[16:], 1) }))
		p.fails(eNOSPC, ex(num, core[:len(core)-8], out, 0))
		p.fails(eINVAL, change(func(b []byte) { b[20] = 1 }))              // reserved
		p.fails(eINVAL, change(func(b []byte) { le.PutUint64(b[8:], 0) })) // room and no response
		p.fails(eINVAL, change(func(b []byte) { le.PutUint16(b[6:], 0) })) // a response without room
		p.fails(eNOSPC, change(func(b []byte) { le.PutUint16(b[6:], uint16(out/8)-1); le.PutUint16(b[18:], 1) }))
		p.fails(eNOTSUP, ex(num, append(slices.Clone(core), 0, 0, 0, 0, 0, 0, 0, 1), out, 0)) // a field from the future
		p.fails(eINVAL, change(func(b []byte) { le.PutUint16(b[18:], 0xFFFF) }))              // more room than any answer has
	}
	for _, b := range [][]byte{{}, {1}, make([]byte, 7), legacyBytes(0x100, nil, 0), legacyBytes(1<<30, nil, 0), legacyBytes(cmdQueryDevice|1<<30|cmdExtended, nil, 0)} {
		p.fails(eINVAL, b)
	}
	for _, num := range []uint32{6, 12, 21, 22, 29, 40, 50, 51, 255, cmdExtended | cmdAllocPD, cmdExtended | 50, cmdExtended | 255} {
		p.fails(eNOTSUP, legacyBytes(num, make([]byte, 64), 64))
	}
	// What is behind the structure of a command is the provider's, and is not looked at.
	p.do(legacyBytes(cmdAllocPD, make([]byte, 128), 4))
}

// Nothing but GET_CONTEXT works before GET_CONTEXT, which works once (uverbs_cmd.c:ib_init_ucontext).
func TestContextFirst(t *testing.T) {
	p := newDaemon(t).dial()
	if e, err := p.hello(how{}); e != 0 || err != nil {
		t.Fatal(e, err)
	}
	for num, c := range commands {
		if num != cmdGetContext {
			p.fails(eINVAL, legacyBytes(num, make([]byte, c.req), c.resp))
		}
	}
	for num, c := range extended {
		p.fails(eINVAL, ex(num, make([]byte, (c.req+7)&^7), (c.resp+7)&^7, 0))
	}
	p.getContext()
	p.fails(eINVAL, legacy(cmdGetContext, newStruct("ib_uverbs_get_context"), 8))
	p.pd()
}

// Every command with a handle that is none, and with one of every other kind.
func TestHandles(t *testing.T) {
	d := newDaemon(t)
	p, other := d.open(how{}), d.open(how{})
	for range 30 {
		other.pd()
	}
	foreign := other.cq(1, nil).handle // p has no such handle
	pd := p.pd()
	gid, _ := d.dev.QueryGID(1, 1)
	c := p.cq(1, nil)
	q := p.qp(pd, qpInit{typ: device.RC, scq: c})
	s := p.srq(pd, 1, 1)
	m := p.mr(pd, p.alloc(64), allAccess)
	ah, _ := p.ah(pd, gid)
	mw, _ := p.window(pd, device.MW1)
	handles := map[string]uint32{"mw": mw, "pd": pd, "cq": c.handle, "qp": q.handle, "srq": s.handle, "mr": m.handle, "ah": ah}
	for _, k := range []struct {
		name, kind string
		none       syscall.Errno // for a handle that is none
		cmd        func(h uint32) []byte
	}{
		{"dealloc pd", "pd", eNOENT, func(h uint32) []byte { return handleCommand(cmdDeallocPD, h) }},
		{"dereg mr", "mr", eNOENT, func(h uint32) []byte { return handleCommand(cmdDeregMR, h) }},
		{"dealloc mw", "mw", eNOENT, func(h uint32) []byte { return handleCommand(cmdDeallocMW, h) }},
		{"alloc mw", "pd", eINVAL, func(h uint32) []byte {
			return legacy(cmdAllocMW, newStruct("ib_uverbs_alloc_mw").put("pd_handle", uint64(h)).put("mw_type", 1), 8)
		}},
		{"destroy ah", "ah", eNOENT, func(h uint32) []byte { return handleCommand(cmdDestroyAH, h) }},
		{"destroy cq", "cq", eNOENT, func(h uint32) []byte { return (&cq_{handle: h}).destroyCommand() }},
		{"destroy qp", "qp", eNOENT, func(h uint32) []byte { return (&qp_{handle: h}).destroyCommand() }},
		{"destroy srq", "srq", eNOENT, func(h uint32) []byte { return (&srq_{handle: h}).destroyCommand() }},
		{"req notify", "cq", eINVAL, func(h uint32) []byte {
			return legacy(cmdReqNotifyCQ, newStruct("ib_uverbs_req_notify_cq").put("cq_handle", uint64(h)), 0)
		}},
		{"query qp", "qp", eINVAL, func(h uint32) []byte {
			return legacy(cmdQueryQP, newStruct("ib_uverbs_query_qp").put("qp_handle", uint64(h)), 128)
		}},
		{"modify qp", "qp", eINVAL, func(h uint32) []byte {
			return legacy(cmdModifyQP, (&qp_{handle: h}).modifyStruct(device.StateReset, device.AttrState), 0)
		}},
		{"post send", "qp", eINVAL, func(h uint32) []byte {
			return legacy(cmdPostSend, newStruct("ib_uverbs_post_send").put("qp_handle", uint64(h)), 4)
		}},
		{"reg mr", "pd", eINVAL, func(h uint32) []byte { return regCommand(h, addressOf(p.ram), 8, addressOf(p.ram), 1) }},
		{"create ah", "pd", eINVAL, func(h uint32) []byte { return legacy(cmdCreateAH, ahCommand(h, gid), 12) }},
		{"create srq", "pd", eINVAL, func(h uint32) []byte { return legacy(cmdCreateSRQ, srqCommand(h, 1, 1, 1), 40) }},
		{"qp with pd", "pd", eINVAL, func(h uint32) []byte {
			return legacy(cmdCreateQP, qpCommand(h, 1, qpInit{typ: device.RC, scq: c, rcq: c}), qpRoom)
		}},
		{"qp with send cq", "cq", eINVAL, func(h uint32) []byte {
			return legacy(cmdCreateQP, qpCommand(pd, 1, qpInit{typ: device.RC, scq: &cq_{handle: h}, rcq: c}), qpRoom)
		}},
		{"qp with receive cq", "cq", eINVAL, func(h uint32) []byte {
			return legacy(cmdCreateQP, qpCommand(pd, 1, qpInit{typ: device.RC, scq: c, rcq: &cq_{handle: h}}), qpRoom)
		}},
		{"qp with srq", "srq", eINVAL, func(h uint32) []byte {
			return legacy(cmdCreateQP, qpCommand(pd, 1, qpInit{typ: device.RC, scq: c, rcq: c}).put("is_srq", 1).put("srq_handle", uint64(h)), qpRoom)
		}},
	} {
		for _, h := range []uint32{0, 1000, 1 << 31, ^uint32(0), foreign} {
			if r, err := p.write(k.cmd(h)); err != nil || r.errno != k.none {
				t.Errorf("%s of %d: %v %v, want %v", k.name, h, r.errno, err, k.none)
			}
		}
		for kind, h := range handles {
			if kind == k.kind {
				continue
			}
			if r, err := p.write(k.cmd(h)); err != nil || r.errno != eINVAL {
				t.Errorf("%s of a %s: %v %v", k.name, kind, r.errno, err)
			}
		}
	}
	other.do((&cq_{handle: foreign}).destroyCommand())
}

// Objects in random order: what others stand on is busy, and goes when they have gone, once.
func TestDestroyOrder(t *testing.T) {
	rnd := seeded(t)
	d := newDaemon(t)
	p := d.open(how{})
	gid, _ := d.dev.QueryGID(1, 1)
	for range 20 {
		type object struct {
			cmd []byte
			on  []string
		}
		pd := p.pd()
		c1, c2 := p.cq(3, nil), p.cq(3, nil)
		s := p.srq(pd, 3, 1)
		ah, _ := p.ah(pd, gid)
		live := map[string]object{
			"pd": {handleCommand(cmdDeallocPD, pd), nil}, "c1": {c1.destroyCommand(), nil}, "c2": {c2.destroyCommand(), nil},
			"s": {s.destroyCommand(), []string{"pd"}}, "ah": {handleCommand(cmdDestroyAH, ah), []string{"pd"}},
			"mr": {handleCommand(cmdDeregMR, p.mr(pd, p.ram, 1).handle), []string{"pd"}},
			"q1": {p.qp(pd, qpInit{typ: device.RC, scq: c1, rcq: c2}).destroyCommand(), []string{"pd", "c1", "c2"}},
			"q2": {p.qp(pd, qpInit{typ: device.UD, scq: c1}).destroyCommand(), []string{"pd", "c1"}},
		}
		r := p.do(legacy(cmdCreateQP, qpCommand(pd, 1, qpInit{typ: device.RC, scq: c2, rcq: c2}).put("is_srq", 1).put("srq_handle", uint64(s.handle)), qpRoom))
		live["q3"] = object{(&qp_{handle: le.Uint32(r.b)}).destroyCommand(), []string{"pd", "c2", "s"}}
		var names []string
		for n := range live {
			names = append(names, n)
		}
		slices.Sort(names)
		gone := map[string]object{}
		for len(live) > 0 {
			n := names[rnd.IntN(len(names))]
			if o, ok := gone[n]; ok {
				p.fails(eNOENT, o.cmd)
				continue
			}
			busy := false
			for _, o := range live {
				busy = busy || slices.Contains(o.on, n)
			}
			o := live[n]
			if busy {
				p.fails(eBUSY, o.cmd)
				continue
			}
			p.do(o.cmd)
			delete(live, n)
			gone[n] = o
		}
	}
	p.do(legacy(cmdQueryDevice, newStruct("ib_uverbs_query_device"), queryDeviceLen)) // an answer with bytes: after it the objects can be looked at
	if o := d.conns()[0].ctx.Objects(); o != (device.Objects{}) {
		t.Fatalf("%+v", o)
	}
	if c := d.conns()[0]; len(c.objects.objects) != 0 || c.objects.next > 20 {
		t.Fatalf("%d objects, %d handles", len(c.objects.objects), c.objects.next)
	}
}

func TestCreateCQ(t *testing.T) {
	d := newDaemon(t)
	p, other := d.open(how{}), d.open(how{})
	ch, och := p.channel(), other.channel()
	pipe := make([]int, 2)
	if err := unix.Pipe(pipe); err != nil {
		t.Fatal(err)
	}
	defer closeAll(pipe)
	s := func() structure {
		return newStruct("ib_uverbs_create_cq").put("user_handle", 7).put("cqe", 10).put("comp_channel", 0xFFFFFFFF)
	}
	for _, c := range []struct {
		name string
		s    structure
		want syscall.Errno
		fds  []int
	}{
		{"no entries", s().put("cqe", 0), eINVAL, nil},
		{"too many", s().put("cqe", device.MaxCQE+1), eINVAL, nil},
		{"-1", s().put("cqe", 0xFFFFFFFF), eINVAL, nil},
		{"vector", s().put("comp_vector", uint64(runtime.NumCPU())), eINVAL, nil},
		{"a number without a descriptor", s().put("comp_channel", 5), eBADF, nil},
		{"a pipe", s().put("comp_channel", 5), eBADF, pipe[:1]},
		{"the async fd", s().put("comp_channel", 5), eBADF, []int{p.async}},
		{"the memfd", s().put("comp_channel", 5), eBADF, []int{p.fd}},
		{"a channel of another context", s().put("comp_channel", 5), eBADF, []int{och.fd}},
	} {
		r, err := p.write(legacy(cmdCreateCQ, c.s, 24), c.fds...)
		if err != nil || r.errno != c.want {
			t.Errorf("%s: %v %v, want %v", c.name, r.errno, err, c.want)
		}
	}
	for _, n := range []int{1, 2, 3, 4, 10, 1000, device.MaxCQE} {
		r := p.do(legacy(cmdCreateCQ, s().put("cqe", uint64(n)).put("comp_vector", uint64(runtime.NumCPU()-1)), 24))
		v := view("ib_uverbs_create_cq_resp", r.b)
		q := p.mapQueue(r.b[8:])
		if got := int(v.get("cqe")); got < n || got != int(q.mask()) {
			t.Errorf("%d of %d entries, the ring has %d", got, n, q.mask())
		}
		p.do((&cq_{handle: uint32(v.get("cq_handle"))}).destroyCommand())
	}
	// A response without room for the provider's part, and with more.
	if r := p.do(legacy(cmdCreateCQ, s(), 8)); len(r.b) != 8 || r.addr != response {
		t.Errorf("%d bytes at 0x%x", len(r.b), r.addr)
	}
	if r := p.do(legacy(cmdCreateCQ, s(), 8+100)); len(r.b) != 24 {
		t.Errorf("%d bytes", len(r.b))
	}

	x := func() structure {
		return newStruct("ib_uverbs_ex_create_cq").put("user_handle", 7).put("cqe", 10).put("comp_channel", 0xFFFFFFFF)
	}
	p.fails(eINVAL, ex(cmdCreateCQ, x().put("comp_mask", 1).b, 16, 16))
	p.fails(eNOTSUP, ex(cmdCreateCQ, x().put("flags", 1).b, 16, 16))
	p.fails(eINVAL, ex(cmdCreateCQ, x().put("reserved", 1).b, 16, 16))
	p.fails(eBADF, ex(cmdCreateCQ, x().put("comp_channel", 3).b, 16, 16))
	r := p.do(ex(cmdCreateCQ, x().put("comp_channel", 3).b, 16, 16), ch.fd)
	if v := view("ib_uverbs_ex_create_cq_resp", r.b); v.get("response_length") != 16 || v.get("comp_mask") != 0 {
		t.Errorf("% x", r.b)
	}
	q := p.mapQueue(r.b[16:])
	if q.mask() != 15 {
		t.Error(q.mask())
	}
	// With more room for the core structure the provider's part stands behind it, and between is zero.
	r = p.do(ex(cmdCreateCQ, x().b, 64, 16))
	if len(r.b) != 80 || !bytes.Equal(r.b[16:64], make([]byte, 48)) || p.mapQueue(r.b[64:]).mask() != 15 {
		t.Errorf("% x", r.b)
	}
	r = p.do(ex(cmdCreateCQ, x().b, 64, 0))
	if len(r.b) != 64 {
		t.Errorf("% x", r.b)
	}
	if r = p.do(ex(cmdCreateCQ, x().b, 0, 0)); len(r.b) != 0 {
		t.Errorf("% x", r.b)
	}
	// A closed channel is none.
	if err := p.record(kindClosed, 0, ch.id, nil); err != nil {
		t.Fatal(err)
	}
	p.fails(eBADF, legacy(cmdCreateCQ, s().put("comp_channel", 3), 24), ch.fd)
}

func TestCreateQP(t *testing.T) {
	p := newDaemon(t).open(how{})
	pd, c, c2 := p.pd(), p.cq(10, nil), p.cq(10, nil)
	in := qpInit{typ: device.RC, scq: c, rcq: c2, send: 5, recv: 6, ssge: 3, rsge: 2, inline: 100, sigAll: true}
	s := func() structure { return qpCommand(pd, 9, in) }
	for member, v := range map[string]uint64{
		"max_send_wr": device.MaxQPWR + 1, "max_recv_wr": device.MaxQPWR + 1, "max_send_sge": device.MaxSGE + 1, "max_recv_sge": device.MaxSGE + 1,
		"max_inline_data": device.MaxInline + 1,
	} {
		for _, v := range []uint64{v, 1 << 31, 1<<32 - 1} {
			p.fails(eINVAL, legacy(cmdCreateQP, s().put(member, v), qpRoom))
		}
	}
	for _, typ := range []uint64{8, 9, 10, 100, 255} { // RAW_PACKET, XRC
		p.fails(eNOTSUP, legacy(cmdCreateQP, s().put("qp_type", typ), qpRoom))
	}
	for _, n := range []struct{ send, recv, ssge, rsge, inline, wantS, wantR, wantSSGE, wantRSGE, wantInline int }{
		{0, 0, 0, 0, 0, 0, 0, 1, 1, 16},
		{1, 1, 1, 1, 1, 1, 1, 1, 1, 16},
		{2, 3, 2, 3, 0, 3, 3, 2, 3, 32},
		{4, 100, 1, 32, 512, 7, 127, 32, 32, 512},
		{4, 4, 1, 1, 500, 7, 7, 31, 1, 500},
	} {
		in := qpInit{typ: device.RC, scq: c, rcq: c2, send: n.send, recv: n.recv, ssge: n.ssge, rsge: n.rsge, inline: n.inline}
		r := p.do(legacy(cmdCreateQP, qpCommand(pd, 9, in), qpRoom))
		v := view("ib_uverbs_create_qp_resp", r.b)
		mi := view("rxe_create_qp_resp", r.b[at("ib_uverbs_create_qp_resp").off:])
		sq, rq := p.mapQueue(mi.at("sq_mi")), p.mapQueue(mi.at("rq_mi"))
		got := fmt.Sprint(v.get("max_send_wr"), v.get("max_recv_wr"), v.get("max_send_sge"), v.get("max_recv_sge"), v.get("max_inline_data"))
		want := fmt.Sprint(n.wantS, n.wantR, n.wantSSGE, n.wantRSGE, n.wantInline)
		if got != want || int(sq.mask()) != n.wantS || int(rq.mask()) != n.wantR {
			t.Errorf("%+v: %s, want %s; rings %d %d", n, got, want, sq.mask(), rq.mask())
		}
		if len(sq.slot(0)) < 208+max(16*n.wantSSGE, n.wantInline) || len(rq.slot(0)) < 40+16*n.wantRSGE {
			t.Errorf("%+v: slots of %d and %d bytes", n, len(sq.slot(0)), len(rq.slot(0)))
		}
		b := p.do(legacy(cmdQueryQP, newStruct("ib_uverbs_query_qp").put("qp_handle", v.get("qp_handle")), 128)).b
		w := view("ib_uverbs_query_qp_resp", b)
		for _, m := range []string{"max_send_wr", "max_recv_wr", "max_send_sge", "max_recv_sge", "max_inline_data"} {
			if w.get(m) != v.get(m) {
				t.Errorf("%+v: query has %s %d, create had %d", n, m, w.get(m), v.get(m))
			}
		}
		p.do((&qp_{handle: uint32(v.get("qp_handle"))}).destroyCommand())
	}
	x := func() structure {
		l := s()
		b := newStruct("ib_uverbs_ex_create_qp")
		copy(b.b, l.b[8:])
		return b
	}
	p.fails(eINVAL, ex(cmdCreateQP, x().put("comp_mask", 1).b, 40, 32))
	p.fails(eINVAL, ex(cmdCreateQP, x().put("reserved", 1).b, 40, 32))
	p.fails(eNOTSUP, ex(cmdCreateQP, x().put("create_flags", 1).b, 40, 32))
	r := p.do(ex(cmdCreateQP, x().b, 40, 32))
	v, mi := view("ib_uverbs_create_qp_resp", r.b), view("rxe_create_qp_resp", r.b[40:])
	if view("ib_uverbs_ex_create_qp_resp", r.b).get("response_length") != 40 || v.get("max_send_wr") != 7 || v.get("max_recv_wr") != 7 {
		t.Errorf("% x", r.b)
	}
	if p.mapQueue(mi.at("sq_mi")).mask() != 7 || p.mapQueue(mi.at("rq_mi")).mask() != 7 {
		t.Error("other rings")
	}
	w := view("ib_uverbs_query_qp_resp", p.do(legacy(cmdQueryQP, newStruct("ib_uverbs_query_qp").put("qp_handle", v.get("qp_handle")), 128)).b)
	if w.get("sq_sig_all") != 1 {
		t.Error("not all requests are signaled")
	}
	if v.get("qpn") == 0 || p.page[stateOff+v.get("qp_handle")] != stateShut {
		t.Error(v.get("qpn"), p.page[stateOff+v.get("qp_handle")])
	}
	// What failed has kept nothing.
	c0 := p.d.conns()[0]
	if o := c0.ctx.Objects(); o.QP != 1 {
		t.Errorf("%+v", o)
	}
}

// The longest queues there are.
func TestLongestQueues(t *testing.T) {
	p := newDaemon(t).open(how{})
	pd, c := p.pd(), p.cq(device.MaxCQE, nil)
	big := qpInit{typ: device.RC, scq: c, rcq: c, send: device.MaxQPWR, recv: device.MaxQPWR, ssge: device.MaxSGE, rsge: device.MaxSGE, inline: device.MaxInline}
	var l []*qp_
	for {
		r, err := p.write(legacy(cmdCreateQP, qpCommand(pd, 9, big), qpRoom))
		if err != nil {
			t.Fatal(err)
		}
		if r.errno == eNOMEM {
			break
		}
		l = append(l, &qp_{p: p, handle: le.Uint32(r.b)})
		if r.errno != 0 || len(l) > 10 {
			t.Fatal(r.errno, len(l))
		}
	}
	if len(l) < 2 {
		t.Fatal(len(l))
	}
	for range 3 { // what is given back is there again
		for _, q := range l {
			q.destroy()
		}
		for i := range l {
			l[i] = p.qp(pd, big)
		}
	}
	q := l[0]
	q.rq.push(func([]byte) {})
	if q.rq.count() != 1 {
		t.Fatal("the ring is not shared")
	}
}

// Every attribute that MODIFY_QP sets comes back with QUERY_QP, each with a value of its own.
func TestModifyQuery(t *testing.T) {
	d := newDaemon(t)
	for _, extended := range []bool{false, true} {
		p := d.open(how{})
		pd, c := p.pd(), p.cq(10, nil)
		q := p.qp(pd, qpInit{typ: device.RC, scq: c, send: 3, recv: 3})
		modify := func(s structure, want syscall.Errno) {
			t.Helper()
			b := legacy(cmdModifyQP, s, 0)
			if extended {
				e := newStruct("ib_uverbs_ex_modify_qp")
				copy(e.b, s.b)
				b = ex(cmdModifyQP, e.b, 8, 0)
			}
			r, err := p.write(b)
			if err != nil || r.errno != want {
				t.Fatalf("%v %v %s, want %v", r.errno, err, r.hint, want)
			}
			if extended && want == 0 && view("ib_uverbs_ex_modify_qp_resp", r.b).get("response_length") != 8 {
				t.Fatalf("% x", r.b)
			}
		}
		gid, _ := d.dev.QueryGID(1, 1)
		modify(q.modifyStruct(device.StateInit, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess).
			put("port_num", 1).put("qp_access_flags", uint64(device.RemoteWrite)|uint64(at("IB_UVERBS_ACCESS_RELAXED_ORDERING").off)), 0)
		rtr := func() structure {
			return q.modifyStruct(device.StateRTR, device.AttrState|device.AttrAV|device.AttrPathMTU|device.AttrDestQPN|device.AttrRQPSN|
				device.AttrMaxDestRdAtomic|device.AttrMinRNRTimer).
				bytes("dest.dgid", gid[:]).put("dest.flow_label", 0xABCDE).put("dest.sgid_index", 1).put("dest.hop_limit", 17).
				put("dest.traffic_class", 18).put("dest.is_global", 1).put("dest.port_num", 1).put("rq_psn", 0x123456).put("dest_qp_num", 0x654321).
				put("path_mtu", 4).put("max_dest_rd_atomic", 16).put("min_rnr_timer", 13)
		}
		for member, v := range map[string]uint64{
			"dest.is_global": 0, "dest.port_num": 0, "dest.sgid_index": 9, "path_mtu": 6, "min_rnr_timer": 32, "max_dest_rd_atomic": 200, "qp_state": 7,
			"dest_qp_num": 1 << 24,
		} {
			modify(rtr().put(member, v), eINVAL)
		}
		modify(rtr().put("dest.port_num", 2), eINVAL)
		modify(rtr().put("path_mtu", 0), eINVAL)
		modify(rtr().put("attr_mask", rtr().get("attr_mask")|1<<21), eNOTSUP)
		modify(rtr().put("attr_mask", rtr().get("attr_mask")|1<<31), eNOTSUP)
		if extended {
			modify(rtr().put("attr_mask", rtr().get("attr_mask")|1<<25), eINVAL) // a rate limit, which RC has not
		} else {
			modify(rtr().put("attr_mask", rtr().get("attr_mask")|1<<25), eNOTSUP)
		}
		modify(rtr(), 0)
		if p.page[stateOff+q.handle] != stateShut {
			t.Error("open in RTR")
		}
		p.fails(eINVAL, legacy(cmdPostSend, newStruct("ib_uverbs_post_send").put("qp_handle", uint64(q.handle)), 4))
		modify(q.modifyStruct(device.StateRTS, device.AttrState|device.AttrTimeout|device.AttrRetryCnt|device.AttrRNRRetry|device.AttrSQPSN|device.AttrMaxRdAtomic).
			put("timeout", 19).put("retry_cnt", 5).put("rnr_retry", 6).put("sq_psn", 0xFEDCBA).put("max_rd_atomic", 11), 0)
		if p.page[stateOff+q.handle] != stateOpen {
			t.Error("shut in RTS")
		}
		b := p.do(legacy(cmdQueryQP, newStruct("ib_uverbs_query_qp").put("qp_handle", uint64(q.handle)).put("attr_mask", 1), 128)).b
		v := view("ib_uverbs_query_qp_resp", b)
		for m, want := range map[string]uint64{
			"dest.flow_label": 0xABCDE, "dest.sgid_index": 1, "dest.hop_limit": 17, "dest.traffic_class": 18, "dest.is_global": 1, "dest.port_num": 1,
			"rq_psn": 0x123456, "sq_psn": 0xFEDCBA, "dest_qp_num": 0x654321, "path_mtu": 4, "max_dest_rd_atomic": 16, "min_rnr_timer": 13,
			"timeout": 19, "retry_cnt": 5, "rnr_retry": 6, "max_rd_atomic": 11, "port_num": 1, "qp_state": 3, "cur_qp_state": 3, "pkey_index": 0,
			"qp_access_flags": uint64(device.RemoteWrite), "sq_sig_all": 0, "max_send_wr": 3,
		} {
			if got := v.get(m); got != want {
				t.Errorf("%s %d, want %d", m, got, want)
			}
		}
		if !bytes.Equal(v.at("dest.dgid"), gid[:]) {
			t.Errorf("dgid % x", v.at("dest.dgid"))
		}
		p.do(legacy(cmdPostSend, newStruct("ib_uverbs_post_send").put("qp_handle", uint64(q.handle)), 4))
		// Draining: posts are taken in SQD, and an event tells the end when it was asked for.
		modify(q.modifyStruct(device.StateSQD, device.AttrState|device.AttrSQDNotify).put("en_sqd_async_notify", 1), 0)
		if p.page[stateOff+q.handle] != stateOpen {
			t.Error("shut in SQD")
		}
		if element, typ := p.asyncEvent(); typ != device.EventSQDrained || element != q.user {
			t.Errorf("event %v of %#x", typ, element)
		}
		v = view("ib_uverbs_query_qp_resp", p.do(legacy(cmdQueryQP, newStruct("ib_uverbs_query_qp").put("qp_handle", uint64(q.handle)), 128)).b)
		if v.get("qp_state") != uint64(device.StateSQD) || v.get("sq_draining") != 0 {
			t.Errorf("state %d, draining %d", v.get("qp_state"), v.get("sq_draining"))
		}
		modify(q.modifyStruct(device.StateSQD, device.AttrRetryCnt).put("retry_cnt", 3), 0)
		modify(q.modifyStruct(device.StateRTS, device.AttrState|device.AttrCurState).put("cur_qp_state", uint64(device.StateSQD)), 0)
		modify(q.modifyStruct(device.StateSQD, device.AttrState|device.AttrSQDNotify), 0)
		q.reset()
		if p.page[stateOff+q.handle] != stateShut {
			t.Error("open in RESET")
		}
		u := p.qp(pd, qpInit{typ: device.UD, scq: c})
		u.activate(0x11223344)
		v = view("ib_uverbs_query_qp_resp", p.do(legacy(cmdQueryQP, newStruct("ib_uverbs_query_qp").put("qp_handle", uint64(u.handle)), 128)).b)
		if v.get("qkey") != 0x11223344 || v.get("qp_state") != 3 || v.get("dest.is_global") != 0 {
			t.Errorf("% x", v.b)
		}
		if p.page[stateOff+u.handle] != stateOpen {
			t.Error("shut in RTS")
		}
		u.destroy()
		if p.page[stateOff+u.handle] != stateShut {
			t.Error("open when destroyed")
		}
	}
}

// The lines for the user, which exec and the library show.
func TestHints(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	pd, c := p.pd(), p.cq(10, nil)
	q := p.qp(pd, qpInit{typ: device.RC, scq: c})
	q.toInit()
	gid, _ := d.dev.QueryGID(1, 1)
	for _, x := range []struct {
		cmd  []byte
		want string
	}{
		{legacy(cmdModifyQP, q.rtrStruct(q).put("dest.is_global", 0), 0), "!RTR refused: RoCE needs a GID index, add -g 1"},
		{legacy(cmdCreateAH, ahCommand(pd, gid).put("attr.is_global", 0), 4), "!address handle refused: RoCE needs a GID index, add -g 1"},
		{legacy(cmdCreateAH, ahCommand(pd, gid).put("attr.port_num", 2), 4), "!address handle refused: port 2: the device has port 1"},
	} {
		if r, err := p.write(x.cmd); err != nil || r.errno != eINVAL || r.hint != x.want {
			t.Errorf("%v %v %q, want %q", r.errno, err, r.hint, x.want)
		}
	}
}

func TestCreateAH(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	pd := p.pd()
	gid, _ := d.dev.QueryGID(1, 1)
	ip6, _ := d.dev.QueryGID(1, 0)
	s := func() structure { return ahCommand(pd, gid) }
	for member, v := range map[string]uint64{"attr.is_global": 0, "attr.port_num": 0, "attr.grh.sgid_index": 9} {
		p.fails(eINVAL, legacy(cmdCreateAH, s().put(member, v), 12))
	}
	p.fails(eINVAL, legacy(cmdCreateAH, s().put("attr.port_num", 2), 12))
	p.fails(eINVAL, legacy(cmdCreateAH, s().put("attr.grh.sgid_index", 255), 12))
	p.fails(eINVAL, legacy(cmdCreateAH, s().bytes("attr.grh.dgid", make([]byte, 16)), 12))
	p.fails(eINVAL, legacy(cmdCreateAH, s().bytes("attr.grh.dgid", ip6[:]), 12))
	if h, num := p.ah(pd, gid); h == 0 || num == 0 {
		t.Error("librxe takes the number 0 for none", h, num)
	}
	r := p.do(legacy(cmdCreateAH, s(), 4))
	if len(r.b) != 4 {
		t.Error(len(r.b))
	}
	c := d.conns()[0]
	want := device.AHAttr{DGID: gid, SGIDIndex: 1, FlowLabel: 0xABCDE, HopLimit: 3, TrafficClass: 4, Port: 1}
	h := le.Uint32(p.do(legacy(cmdCreateAH, s().put("attr.grh.flow_label", 0xABCDE).put("attr.grh.traffic_class", 4), 4)).b)
	if a := c.objects.addressHandle(h); a == nil || a.Attr() != want {
		t.Errorf("%+v", a)
	}
}

func TestQueries(t *testing.T) {
	d := newDaemon(t)
	p := d.open(how{})
	at := d.dev.Query()
	b := p.do(legacy(cmdQueryDevice, newStruct("ib_uverbs_query_device"), queryDeviceLen)).b
	guid := binary.BigEndian.Uint64(b[8:])
	v := view("ib_uverbs_query_device_resp", b)
	if guid != at.NodeGUID || len(b) != queryDeviceLen {
		t.Errorf("%d bytes, GUID %x, want %x", len(b), guid, at.NodeGUID)
	}
	for m, want := range map[string]uint64{ // rxe of Linux 6.12, uverbs.md section 2
		"max_mr_size": at.MaxMRSize, "vendor_id": 0xFFFFFF, "max_qp": device.MaxQP, "max_qp_wr": 1048576, "device_cap_flags": 0x01223C76, "max_sge": 32,
		"max_sge_rd": 32, "max_cq": device.MaxCQ, "max_cqe": 32767, "max_mr": device.MaxMR, "max_pd": device.MaxPD, "max_qp_rd_atom": 128,
		"max_res_rd_atom": maxResRdAtom, "max_qp_init_rd_atom": 128, "atomic_cap": 1, "max_mcast_grp": 8192, "max_mcast_qp_attach": 56,
		"max_total_mcast_qp_attach": 458752, "max_ah": 32767, "max_srq_wr": 1048576, "max_srq_sge": 27, "max_pkeys": 64,
		"local_ca_ack_delay": 15, "phys_port_cnt": 1, "fw_ver": 0, "vendor_part_id": 0, "hw_ver": 0, "max_ee_rd_atom": 0, "max_ee_init_rd_atom": 0,
		"max_ee": 0, "max_rdd": 0, "max_raw_ipv6_qp": 0, "max_raw_ethy_qp": 0, "max_fmr": 0, "max_map_per_fmr": 0, "sys_image_guid": v.get("node_guid"),
		"page_size_cap": 0xFFFFF000,
	} {
		if got := v.get(m); got != want {
			t.Errorf("%s %d, want %d", m, got, want)
		}
	}
	x := p.do(ex(cmdQueryDevice, make([]byte, 8), 304, 0)).b
	xv := view("ib_uverbs_ex_query_device_resp", x)
	if len(x) != 304 || !bytes.Equal(x[:176], b) || xv.get("response_length") != 304 || xv.get("device_cap_flags_ex") != 0x1C001223C76 {
		t.Errorf("% x", x)
	}
	// What the device cannot do is not told, nor what librxe has no call for.
	if c := capabilities(&device.Attr{}); c != claimed {
		t.Error(c)
	}
	if c := capabilities(&device.Attr{Caps: ^device.Caps(0)}); c&unreachable != 0 {
		t.Error(c)
	}
	if x = p.do(ex(cmdQueryDevice, make([]byte, 8), 184, 0)).b; len(x) != 184 || view("ib_uverbs_ex_query_device_resp", x).get("response_length") != 184 {
		t.Errorf("% x", x)
	}
	if x = p.do(ex(cmdQueryDevice, make([]byte, 8), 400, 0)).b; len(x) != 400 || view("ib_uverbs_ex_query_device_resp", x).get("response_length") != 304 {
		t.Errorf("% x", x)
	}
	p.fails(eINVAL, ex(cmdQueryDevice, newStruct("ib_uverbs_ex_query_device").put("comp_mask", 1).b, 304, 0))
	p.fails(eINVAL, ex(cmdQueryDevice, newStruct("ib_uverbs_ex_query_device").put("reserved", 1).b, 304, 0))

	port := func(n uint64) []byte {
		return legacy(cmdQueryPort, newStruct("ib_uverbs_query_port").put("port_num", n), 40)
	}
	pv := view("ib_uverbs_query_port_resp", p.do(port(1)).b)
	for m, want := range map[string]uint64{
		"max_msg_sz": 1 << 31, "gid_tbl_len": device.GIDTableLen, "pkey_tbl_len": 1, "state": 4, "max_mtu": 5, "active_mtu": 5, "max_vl_num": 1,
		"active_width": 1, "active_speed": 8, "phys_state": 5, "link_layer": 2, "flags": 1, "port_cap_flags": 0x10000,
	} {
		if got := pv.get(m); got != want {
			t.Errorf("%s %d, want %d", m, got, want)
		}
	}
	for _, n := range []uint64{0, 2, 255} {
		p.fails(eINVAL, port(n))
	}
}

func TestSRQCommands(t *testing.T) {
	p := newDaemon(t).open(how{})
	pd := p.pd()
	s := func() structure { return srqCommand(pd, 5, 10, 3) }
	const room = 16 + 24
	for member, v := range map[string]uint64{"max_wr": 0, "max_sge": 28, "srq_limit": 11} {
		p.fails(eINVAL, legacy(cmdCreateSRQ, s().put(member, v), room))
	}
	p.fails(eINVAL, legacy(cmdCreateSRQ, s().put("max_wr", 1048577), room))
	p.fails(eINVAL, legacy(cmdCreateSRQ, s().put("max_wr", 1<<32-1), room))
	r := p.do(legacy(cmdCreateSRQ, s().put("srq_limit", 2), room))
	v := view("ib_uverbs_create_srq_resp", r.b)
	q := p.mapQueue(view("rxe_create_srq_resp", r.b[16:]).at("mi"))
	if v.get("max_wr") != 15 || v.get("max_sge") != 3 || q.mask() != 15 || len(q.slot(0)) < 40+48 {
		t.Errorf("% x", r.b)
	}
	h := uint32(v.get("srq_handle"))
	query := func() structure {
		return view("ib_uverbs_query_srq_resp", p.do(legacy(at("IB_USER_VERBS_CMD_QUERY_SRQ").num(), newStruct("ib_uverbs_query_srq").put("srq_handle", uint64(h)), 16)).b)
	}
	if v := query(); v.get("max_wr") != 15 || v.get("max_sge") != 3 || v.get("srq_limit") != 2 {
		t.Errorf("% x", v.b)
	}
	modify := func(mask, wr, limit uint64) []byte {
		return legacyBytes(at("IB_USER_VERBS_CMD_MODIFY_SRQ").num(), append(newStruct("ib_uverbs_modify_srq").put("srq_handle", uint64(h)).put("attr_mask", mask).
			put("max_wr", wr).put("srq_limit", limit).b, make([]byte, 8)...), 0)
	}
	p.do(modify(2, 0, 5))
	if v := query(); v.get("srq_limit") != 5 {
		t.Errorf("% x", v.b)
	}
	p.fails(eINVAL, modify(2, 0, 16))
	p.fails(eINVAL, modify(2, 0, 1<<32-1))
	p.fails(eINVAL, modify(4, 0, 0))
	p.do((&srq_{handle: h}).destroyCommand())
	p.fails(eNOENT, (&srq_{handle: h}).destroyCommand())
}

func (p place) num() uint32 { return uint32(p.off) }

func TestHello(t *testing.T) {
	d := newDaemon(t)
	p := d.dial()
	if e, err := p.hello(how{version: Version + 1}); err != nil || e != eINVAL {
		t.Error(e, err)
	}
	if e, err := p.hello(how{}); err != nil || e != 0 { // the right one may follow
		t.Error(e, err)
	}
	if _, err := p.hello(how{}); err == nil {
		t.Error("a second hello")
	}
	for name, f := range map[string]func(p *program) error{
		"a command first":  func(p *program) error { return p.record(kindCommand, 1, 0, make([]byte, 16)) },
		"a doorbell first": func(p *program) error { return p.record(kindDoorbell, 1, 0, nil) },
		"an unknown kind":  func(p *program) error { return p.record(99, 1, 0, nil) },
		"a short hello":    func(p *program) error { return p.record(kindHello, 1, Version, make([]byte, 8)) },
		"a short record":   func(p *program) error { _, err := p.sock.Write(make([]byte, 15)); return err },
		"nothing":          func(p *program) error { _, err := p.sock.Write(nil); return err },
		"a wrong length":   func(p *program) error { _, err := p.sock.Write(le.AppendUint32(make([]byte, 8), 1)); return err },
		"a long record":    func(p *program) error { _, err := p.sock.Write(make([]byte, maxRecord+headLen+1)); return err },
	} {
		p := d.dial()
		if err := f(p); err != nil {
			t.Error(name, err)
		}
		if _, err := p.answer(0); err == nil || strings.Contains(err.Error(), "answer") {
			t.Errorf("%s: %v", name, err)
		}
	}
	eventually(t, "connections stay", func() bool { return len(d.conns()) == 0 })
	// The longest record there may be.
	p = d.open(how{})
	p.fails(eINVAL, make([]byte, maxRecord))
	// Descriptors that nobody asked for are closed.
	before := openFiles(t)
	for range 50 {
		p.fails(eINVAL, make([]byte, 100), 0, 0, 0, 0, 0, p.fd, p.async)
		if err := p.record(kindDoorbell, 0, 5, nil, 0, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
	p.pd()
	if n := openFiles(t); n != before {
		t.Errorf("%d descriptors, there were %d", n, before)
	}
}

func openFiles(tb testing.TB) int {
	tb.Helper()
	l, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		tb.Fatal(err)
	}
	return len(l) - 1
}
