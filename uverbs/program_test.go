//go:build linux

package uverbs

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/link/pipe"
)

// daemon is a server on a device of its own.
type daemon struct {
	tb   testing.TB
	dev  *device.Device
	s    *Server
	path string
	end  *pipe.End
	done chan error
}

// newDaemon serves a device with the address 10.0.0.1.
func newDaemon(tb testing.TB) *daemon {
	tb.Helper()
	a, _ := pipe.New(pipe.Config{Name: "a", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}}, pipe.Config{Name: "b"})
	return serveOn(tb, a)
}

// twoDaemons serves two devices, 10.0.0.1 and 10.0.0.2, on one cable.
func twoDaemons(tb testing.TB) (*daemon, *daemon) {
	tb.Helper()
	a, b := pipe.New(
		pipe.Config{Name: "a", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/24")}},
		pipe.Config{Name: "b", Addrs: []netip.Prefix{netip.MustParsePrefix("10.0.0.2/24")}})
	return serveOn(tb, a), serveOn(tb, b)
}

func serveOn(tb testing.TB, ep *pipe.End) *daemon {
	tb.Helper()
	return serve(tb, ep, device.Options{})
}

// serve is serveOn with a device that differs from the usual one.
func serve(tb testing.TB, ep *pipe.End, o device.Options) *daemon {
	tb.Helper()
	dev, err := device.Open(link.Endpoint(ep), o)
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "uverbs") // t.TempDir may be too long for a socket
	if err != nil {
		tb.Fatal(err)
	}
	d := &daemon{tb: tb, dev: dev, path: filepath.Join(dir, "s"), end: ep, done: make(chan error, 1)}
	l, err := Listen(d.path, ListenOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	if d.s, err = NewServer(dev, l, Options{Version: "1.2.3"}); err != nil {
		tb.Fatal(err)
	}
	go func() { d.done <- d.s.Serve() }()
	tb.Cleanup(func() {
		d.close()
		os.RemoveAll(dir)
	})
	return d
}

func (d *daemon) close() {
	if err := d.s.Close(); err != nil {
		d.tb.Error(err)
	}
	if err := <-d.done; err != nil {
		d.tb.Error(err)
	}
	d.done <- nil
	d.dev.Close()
}

// conns returns the connections that the server has.
func (d *daemon) conns() []*conn {
	d.s.mu.Lock()
	defer d.s.mu.Unlock()
	var l []*conn
	for c := range d.s.conns {
		l = append(l, c)
	}
	return l
}

// program is a program with the preload library, in Go: it speaks the records, has memory, and fills and
// drains rings as librxe does.
type program struct {
	tb      testing.TB
	d       *daemon
	sock    *net.UnixConn
	seq     uint32
	fd      int // the command fd: the memfd
	async   int
	asyncID uint32
	page    []byte // the beginning of the memfd
	ram     []byte // memory for buffers
	ramUsed int
	cookie  *uint64
}

const ramSize = 4 << 20

// how says how a program says hello.
type how struct {
	noMem   bool   // it cannot open its /proc/self/mem
	wrong   bool   // the value is not at the address
	version uint32 // 0: that of the daemon
	memFD   int    // what it passes instead of /proc/self/mem, if not 0
}

// dial connects without a hello.
func (d *daemon) dial() *program {
	d.tb.Helper()
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: d.path, Net: "unixpacket"})
	if err != nil {
		d.tb.Fatal(err)
	}
	p := &program{tb: d.tb, d: d, sock: c, fd: -1, async: -1}
	p.ram = p.mmap(ramSize, unix.PROT_READ|unix.PROT_WRITE)
	p.cookie = (*uint64)(unsafe.Pointer(&p.alloc(8)[0]))
	d.tb.Cleanup(p.close)
	return p
}

// open is ibv_open_device, up to the context.
func (d *daemon) open(h how) *program {
	d.tb.Helper()
	p := d.dial()
	if e, err := p.hello(h); err != nil || e != 0 {
		d.tb.Fatal("hello:", e, err)
	}
	p.getContext()
	return p
}

func (p *program) mmap(n, prot int) []byte {
	p.tb.Helper()
	b, err := unix.Mmap(-1, 0, n, prot, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		p.tb.Fatal(err)
	}
	return b
}

// alloc takes n bytes of the memory.
func (p *program) alloc(n int) []byte {
	n = (n + 63) &^ 63
	b := p.ram[p.ramUsed : p.ramUsed+n]
	p.ramUsed += n
	return b
}

func addressOf(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }

// close is the end of the program.
func (p *program) close() {
	p.sock.Close()
	for _, fd := range []*int{&p.fd, &p.async} {
		if *fd >= 0 {
			unix.Close(*fd)
			*fd = -1
		}
	}
	if p.page != nil {
		unix.Munmap(p.page)
		p.page = nil
	}
	if p.ram != nil {
		unix.Munmap(p.ram)
		p.ram = nil
	}
}

// record sends a record.
func (p *program) record(kind, seq, arg uint32, body []byte, fds ...int) error {
	b := le.AppendUint32(nil, kind)
	b = le.AppendUint32(b, seq)
	b = le.AppendUint32(b, uint32(len(body)))
	b = le.AppendUint32(b, arg)
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	_, _, err := p.sock.WriteMsgUnix(append(b, body...), oob, nil)
	return err
}

// reply is an answer of the daemon.
type reply struct {
	errno syscall.Errno
	addr  uint64
	b     []byte
	fd    int
	fdAt  int
	fdID  uint32
	hint  string
}

// answer receives an answer.
func (p *program) answer(seq uint32) (r reply, err error) {
	r.fd = -1
	buf, oob := make([]byte, 1<<16), make([]byte, 256)
	n, on, _, _, err := p.sock.ReadMsgUnix(buf, oob)
	if err != nil {
		return r, err
	}
	if n < answerLen {
		return r, fmt.Errorf("an answer of %d bytes", n)
	}
	if got := le.Uint32(buf); got != seq {
		return r, fmt.Errorf("answer to %d instead of %d", got, seq)
	}
	r.errno, r.addr, r.fdAt, r.fdID = syscall.Errno(le.Uint32(buf[4:])), le.Uint64(buf[8:]), int(int32(le.Uint32(buf[20:]))), le.Uint32(buf[24:])
	length, hint := int(le.Uint32(buf[16:])), int(le.Uint32(buf[28:]))
	if n != answerLen+hint || hint > maxHint {
		return r, fmt.Errorf("an answer of %d bytes with %d of hint", n, hint)
	}
	r.hint = string(buf[answerLen:n])
	if fds := rights(oob[:on]); len(fds) > 0 {
		r.fd = fds[0]
	}
	if length == 0 {
		return r, nil
	}
	r.b = make([]byte, length+1)
	n, err = p.sock.Read(r.b)
	if err == nil && n != length {
		err = fmt.Errorf("%d bytes instead of %d", n, length)
	}
	r.b = r.b[:length]
	return r, err
}

// hello opens the context; the error is one of the connection.
func (p *program) hello(h how) (syscall.Errno, error) {
	*p.cookie = 0x1122334455667788 + uint64(uintptr(unsafe.Pointer(p)))
	body := le.AppendUint64(nil, uint64(uintptr(unsafe.Pointer(p.cookie))))
	body = le.AppendUint64(body, *p.cookie)
	if h.wrong {
		*p.cookie = 0
	}
	if h.version == 0 {
		h.version = Version
	}
	var fds []int
	if h.memFD != 0 {
		fds = []int{h.memFD}
	} else if !h.noMem {
		mem, err := unix.Open("/proc/self/mem", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return 0, err
		}
		defer unix.Close(mem)
		fds = []int{mem}
	}
	p.seq++
	if err := p.record(kindHello, p.seq, h.version, body, fds...); err != nil {
		return 0, err
	}
	r, err := p.answer(p.seq)
	if err != nil || r.errno != 0 {
		return r.errno, err
	}
	p.fd = r.fd
	if p.page, err = unix.Mmap(p.fd, 0, arenaOff, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err != nil {
		return 0, err
	}
	return 0, nil
}

// write is write on the command fd.
func (p *program) write(cmd []byte, fds ...int) (reply, error) {
	p.seq++
	if err := p.record(kindCommand, p.seq, 0, cmd, fds...); err != nil {
		return reply{fd: -1}, err
	}
	return p.answer(p.seq)
}

const response = 0x7000 // where responses go; the tests do not care

// legacy makes a command of a structure, with its response pointer where it has one, and room for out bytes.
func legacy(num uint32, s structure, out int) []byte {
	if _, ok := abi[s.name+".response"]; ok {
		s.put("response", response)
	}
	return legacyBytes(num, s.b, out)
}

func legacyBytes(num uint32, body []byte, out int) []byte {
	b := le.AppendUint32(nil, num)
	b = le.AppendUint16(b, uint16((len(body)+8)/4))
	b = le.AppendUint16(b, uint16(out/4))
	return append(b, body...)
}

// ex makes an extended command.
func ex(num uint32, core []byte, out, driverOut int) []byte {
	b := le.AppendUint32(nil, num|cmdExtended)
	b = le.AppendUint16(b, uint16(len(core)/8))
	b = le.AppendUint16(b, uint16(out/8))
	resp := uint64(response)
	if out == 0 && driverOut == 0 {
		resp = 0
	}
	b = le.AppendUint64(b, resp)
	b = le.AppendUint16(b, 0)
	b = le.AppendUint16(b, uint16(driverOut/8))
	b = le.AppendUint32(b, 0)
	return append(b, core...)
}

// do executes a command that must succeed.
func (p *program) do(cmd []byte, fds ...int) reply {
	p.tb.Helper()
	r, err := p.write(cmd, fds...)
	if err != nil || r.errno != 0 {
		p.tb.Fatalf("command %d: %v %v %s", le.Uint32(cmd)&cmdMask, r.errno, err, r.hint)
	}
	return r
}

// fails executes a command that must fail.
func (p *program) fails(want syscall.Errno, cmd []byte, fds ...int) {
	p.tb.Helper()
	r, err := p.write(cmd, fds...)
	if err != nil || r.errno != want {
		p.tb.Errorf("command 0x%x: %v %v %s, want %v", le.Uint32(cmd), r.errno, err, r.hint, want)
	}
	if len(r.b) > 0 || r.fd >= 0 {
		p.tb.Errorf("command 0x%x failed and gave %d bytes, descriptor %d", le.Uint32(cmd), len(r.b), r.fd)
	}
}

func (p *program) getContext() {
	p.tb.Helper()
	r := p.do(legacy(cmdGetContext, newStruct("ib_uverbs_get_context"), 8))
	p.async, p.asyncID = r.fd, r.fdID
	if r.fd < 0 || r.fdAt != at("ib_uverbs_get_context_resp.async_fd").off {
		p.tb.Fatal("no event fd")
	}
}

func (p *program) pd() uint32 {
	p.tb.Helper()
	r := p.do(legacy(cmdAllocPD, newStruct("ib_uverbs_alloc_pd"), 4))
	return uint32(view("ib_uverbs_alloc_pd_resp", r.b).get("pd_handle"))
}

type region_ struct{ handle, lkey, rkey uint32 }

func regCommand(pd uint32, start, length, iova uint64, access uint32) []byte {
	return legacy(cmdRegMR, newStruct("ib_uverbs_reg_mr").put("start", start).put("length", length).put("hca_va", iova).
		put("pd_handle", uint64(pd)).put("access_flags", uint64(access)), 12)
}

const allAccess = uint32(device.LocalWrite | device.RemoteWrite | device.RemoteRead)

// mr registers b.
func (p *program) mr(pd uint32, b []byte, access uint32) region_ {
	p.tb.Helper()
	return p.mrAt(pd, addressOf(b), uint64(len(b)), addressOf(b), access)
}

func (p *program) mrAt(pd uint32, start, length, iova uint64, access uint32) region_ {
	p.tb.Helper()
	s := view("ib_uverbs_reg_mr_resp", p.do(regCommand(pd, start, length, iova, access)).b)
	return region_{uint32(s.get("mr_handle")), uint32(s.get("lkey")), uint32(s.get("rkey"))}
}

// channel_ is a completion channel.
type channel_ struct {
	fd int
	id uint32
}

func (p *program) channel() channel_ {
	p.tb.Helper()
	r := p.do(legacy(cmdCreateCompChannel, newStruct("ib_uverbs_create_comp_channel"), 4))
	if r.fd < 0 {
		p.tb.Fatal("no channel")
	}
	p.tb.Cleanup(func() { unix.Close(r.fd) })
	return channel_{r.fd, r.fdID}
}

// queue is a ring as librxe has it: a mapping of the memfd and the header that says what it is.
type queue struct {
	b       []byte
	shift   uint32
	indices uint32
}

// newQueue reads what the ring is, once.
func newQueue(b []byte) queue {
	q := queue{b: b}
	q.shift, q.indices = *q.word("log2_elem_size"), *q.word("index_mask")
	return q
}

// mapQueue is librxe's mmap after a create command.
func (p *program) mapQueue(mi []byte) queue {
	p.tb.Helper()
	s := view("mminfo", mi)
	b, err := unix.Mmap(p.fd, int64(s.get("offset")), int(s.get("size")), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		p.tb.Fatal(err)
	}
	mapped.Lock()
	defer mapped.Unlock()
	mapped.list = append(mapped.list, b)
	p.tb.Cleanup(func() { unmapQueues() })
	return newQueue(b)
}

// mapped are the rings that programs have mapped. They go at the end of a test, or before where it counts what the
// daemon has.
var mapped struct {
	sync.Mutex
	list [][]byte
}

func unmapQueues() {
	mapped.Lock()
	defer mapped.Unlock()
	for _, b := range mapped.list {
		unix.Munmap(b)
	}
	mapped.list = nil
}

func (q queue) word(member string) *uint32 {
	return (*uint32)(unsafe.Pointer(&q.b[at("rxe_queue_buf."+member).off]))
}

func (q queue) mask() uint32 { return q.indices }

func (q queue) slot(i uint32) []byte {
	n := uint32(1) << q.shift
	o := uint32(at("rxe_queue_buf.data").off) + i*n
	return q.b[o : o+n]
}

func (q queue) count() int {
	return int((atomic.LoadUint32(q.word("producer_index")) - atomic.LoadUint32(q.word("consumer_index"))) & q.mask())
}

// push fills the next slot, as a program does with a send or receive queue; false if it is full.
func (q queue) push(fill func(slot []byte)) bool {
	p := atomic.LoadUint32(q.word("producer_index"))
	next := (p + 1) & q.mask()
	if next == atomic.LoadUint32(q.word("consumer_index")) {
		return false
	}
	s := q.slot(p)
	clear(s)
	fill(s)
	atomic.StoreUint32(q.word("producer_index"), next)
	return true
}

// pop takes the next completion, as ibv_poll_cq does.
func (q queue) pop() (wc, bool) {
	c := atomic.LoadUint32(q.word("consumer_index"))
	if c == atomic.LoadUint32(q.word("producer_index")) {
		return wc{}, false
	}
	w := view("ib_uverbs_wc", append([]byte(nil), q.slot(c)[:at("ib_uverbs_wc").off]...))
	atomic.StoreUint32(q.word("consumer_index"), (c+1)&q.mask())
	return wc{w.get("wr_id"), device.Status(w.get("status")), device.WCOp(w.get("opcode")), uint32(w.get("byte_len")),
		uint32(w.get("qp_num")), uint32(w.get("src_qp")), uint32(w.get("ex.imm_data")), uint32(w.get("wc_flags")), uint8(w.get("port_num"))}, true
}

// wc is a completion.
type wc struct {
	id      uint64
	status  device.Status
	op      device.WCOp
	len     uint32
	qpn     uint32
	src     uint32
	imm     uint32
	flags   uint32
	portNum uint8
}

// cq_ is a completion queue.
type cq_ struct {
	p      *program
	handle uint32
	user   uint64
	q      queue
}

// users gives every object a name of its own, as its address is in a program.
var users atomic.Uint64

func (p *program) cq(entries int, ch *channel_) *cq_ {
	p.tb.Helper()
	user := 0x5555000000000000 + users.Add(16)
	s := newStruct("ib_uverbs_create_cq").put("user_handle", user).put("cqe", uint64(entries)).put("comp_channel", 0xFFFFFFFF)
	var fds []int
	if ch != nil {
		s.put("comp_channel", uint64(ch.fd))
		fds = []int{ch.fd}
	}
	r := p.do(legacy(cmdCreateCQ, s, 8+at("rxe_create_cq_resp").off), fds...)
	return &cq_{p, uint32(view("ib_uverbs_create_cq_resp", r.b).get("cq_handle")), user, p.mapQueue(r.b[8:])}
}

// wait polls for the next completion.
func (c *cq_) wait() wc {
	c.p.tb.Helper()
	for end := time.Now().Add(20 * time.Second); ; {
		if w, ok := c.q.pop(); ok {
			return w
		}
		if time.Now().After(end) {
			c.p.tb.Fatal("no completion")
		}
		runtime.Gosched()
	}
}

// expect waits for a completion with a status.
func (c *cq_) expect(id uint64, st device.Status) wc {
	c.p.tb.Helper()
	w := c.wait()
	if w.id != id || w.status != st {
		c.p.tb.Fatalf("completion %d %v, want %d %v", w.id, w.status, id, st)
	}
	return w
}

func (c *cq_) destroyCommand() []byte {
	return legacy(cmdDestroyCQ, newStruct("ib_uverbs_destroy_cq").put("cq_handle", uint64(c.handle)), 8)
}

// destroy returns how many events were reported.
func (c *cq_) destroy() (comp, async int) {
	c.p.tb.Helper()
	s := view("ib_uverbs_destroy_cq_resp", c.p.do(c.destroyCommand()).b)
	return int(int32(s.get("comp_events_reported"))), int(int32(s.get("async_events_reported")))
}

// arm is what the library does.
func (c *cq_) arm(solicited bool) {
	c.p.tb.Helper()
	if s := c.p.page[stateOff+c.handle]; s != stateCQ {
		c.p.tb.Fatalf("state %d of a completion queue", s)
	}
	want := uint32(armAny)
	if solicited {
		want = armSolicited
	}
	for w := c.armWord(); ; {
		if old := atomic.LoadUint32(w); old >= want || atomic.CompareAndSwapUint32(w, old, want) {
			return
		}
	}
}

func (c *cq_) armWord() *uint32 { return (*uint32)(unsafe.Pointer(&c.p.page[armOff+4*c.handle])) }

// armCommand is REQ_NOTIFY_CQ the long way.
func (c *cq_) armCommand(solicited bool) {
	c.p.tb.Helper()
	s := newStruct("ib_uverbs_req_notify_cq").put("cq_handle", uint64(c.handle))
	if solicited {
		s.put("solicited_only", 1)
	}
	c.p.do(legacy(cmdReqNotifyCQ, s, 0))
}

// qp_ is a queue pair.
type qp_ struct {
	p      *program
	handle uint32
	num    uint32
	user   uint64
	sq, rq queue
}

type qpInit struct {
	typ        device.QPType
	scq, rcq   *cq_
	send, recv int
	ssge, rsge int
	inline     int
	sigAll     bool
}

func qpCommand(pd uint32, user uint64, in qpInit) structure {
	sig := uint64(0)
	if in.sigAll {
		sig = 1
	}
	return newStruct("ib_uverbs_create_qp").put("user_handle", user).put("pd_handle", uint64(pd)).
		put("send_cq_handle", uint64(in.scq.handle)).put("recv_cq_handle", uint64(in.rcq.handle)).
		put("max_send_wr", uint64(in.send)).put("max_recv_wr", uint64(in.recv)).put("max_send_sge", uint64(in.ssge)).
		put("max_recv_sge", uint64(in.rsge)).put("max_inline_data", uint64(in.inline)).put("sq_sig_all", sig).put("qp_type", uint64(in.typ))
}

var qpRoom = at("ib_uverbs_create_qp_resp").off + at("rxe_create_qp_resp").off

func (p *program) qp(pd uint32, in qpInit) *qp_ {
	p.tb.Helper()
	if in.rcq == nil {
		in.rcq = in.scq
	}
	user := 0x5555000000000000 + users.Add(16)
	r := p.do(legacy(cmdCreateQP, qpCommand(pd, user, in), qpRoom))
	s := view("ib_uverbs_create_qp_resp", r.b)
	mi := view("rxe_create_qp_resp", r.b[at("ib_uverbs_create_qp_resp").off:])
	return &qp_{p, uint32(s.get("qp_handle")), uint32(s.get("qpn")), user, p.mapQueue(mi.at("sq_mi")), p.mapQueue(mi.at("rq_mi"))}
}

func (q *qp_) modifyStruct(state device.State, mask device.AttrMask) structure {
	return newStruct("ib_uverbs_modify_qp").put("qp_handle", uint64(q.handle)).put("attr_mask", uint64(mask)).put("qp_state", uint64(state))
}

func (q *qp_) modify(s structure) {
	q.p.tb.Helper()
	q.p.do(legacy(cmdModifyQP, s, 0))
}

func (q *qp_) toInit() {
	q.p.tb.Helper()
	q.modify(q.modifyStruct(device.StateInit, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrAccess).
		put("port_num", 1).put("qp_access_flags", uint64(device.RemoteWrite|device.RemoteRead)))
}

func (q *qp_) rtrStruct(peer *qp_) structure {
	gid, _ := peer.p.d.dev.QueryGID(1, 1)
	return q.modifyStruct(device.StateRTR, device.AttrState|device.AttrAV|device.AttrPathMTU|device.AttrDestQPN|device.AttrRQPSN|
		device.AttrMaxDestRdAtomic|device.AttrMinRNRTimer).
		bytes("dest.dgid", gid[:]).put("dest.sgid_index", 1).put("dest.hop_limit", 5).put("dest.is_global", 1).put("dest.port_num", 1).
		put("path_mtu", 3).put("dest_qp_num", uint64(peer.num)).put("rq_psn", uint64(peer.num&0xFFFF)).put("max_dest_rd_atomic", 4).put("min_rnr_timer", 1)
}

func (q *qp_) rtsStruct() structure {
	return q.modifyStruct(device.StateRTS, device.AttrState|device.AttrTimeout|device.AttrRetryCnt|device.AttrRNRRetry|device.AttrSQPSN|device.AttrMaxRdAtomic).
		put("timeout", 18).put("retry_cnt", 7).put("rnr_retry", 7).put("sq_psn", uint64(q.num&0xFFFF)).put("max_rd_atomic", 4)
}

// connect takes both to RTS.
func connect(a, b *qp_) {
	a.p.tb.Helper()
	for _, x := range [][2]*qp_{{a, b}, {b, a}} {
		q, peer := x[0], x[1]
		q.toInit()
		q.modify(q.rtrStruct(peer))
		q.modify(q.rtsStruct())
	}
}

// activate takes a datagram queue pair to RTS.
func (q *qp_) activate(qkey uint32) {
	q.p.tb.Helper()
	q.modify(q.modifyStruct(device.StateInit, device.AttrState|device.AttrPKeyIndex|device.AttrPort|device.AttrQKey).put("port_num", 1).put("qkey", uint64(qkey)))
	q.modify(q.modifyStruct(device.StateRTR, device.AttrState))
	q.modify(q.modifyStruct(device.StateRTS, device.AttrState|device.AttrSQPSN).put("sq_psn", 7))
}

func (q *qp_) reset() {
	q.p.tb.Helper()
	q.modify(q.modifyStruct(device.StateReset, device.AttrState))
}

func (q *qp_) destroyCommand() []byte {
	return legacy(cmdDestroyQP, newStruct("ib_uverbs_destroy_qp").put("qp_handle", uint64(q.handle)), 4)
}

// destroy returns how many events were reported.
func (q *qp_) destroy() int {
	q.p.tb.Helper()
	return int(int32(view("ib_uverbs_destroy_qp_resp", q.p.do(q.destroyCommand()).b).get("events_reported")))
}

// request is a work request.
type request_ struct {
	id     uint64
	op     device.WROp
	flags  device.SendFlags
	sge    []device.SGE
	inline []byte
	remote uint64
	rkey   uint32
	imm    uint32
	length int        // dma.length if it is not the sum; 0: the sum
	ud     *[3]uint32 // qpn, qkey, ah_num
}

func sges(l ...device.SGE) []device.SGE { return l }

func sge(b []byte, m region_) device.SGE {
	return device.SGE{Addr: addressOf(b), Length: uint32(len(b)), LKey: m.lkey}
}

func putSGE(b []byte, l []device.SGE) {
	for i, s := range l {
		le.PutUint64(b[16*i:], s.Addr)
		le.PutUint32(b[16*i+8:], s.Length)
		le.PutUint32(b[16*i+12:], s.LKey)
	}
}

func (r *request_) fill(b []byte) {
	s := view("rxe_send_wqe", b).put("wr.wr_id", r.id).put("wr.opcode", uint64(r.op)).put("wr.send_flags", uint64(r.flags)).
		put("wr.wr.rdma.remote_addr", r.remote).put("wr.wr.rdma.rkey", uint64(r.rkey))
	n := 0
	for _, e := range r.sge {
		n += int(e.Length)
	}
	if r.inline != nil {
		n = len(r.inline)
		s.put("wr.send_flags", uint64(r.flags|device.Inline))
		copy(b[at("rxe_send_wqe.dma.inline_data").off:], r.inline)
	} else {
		s.put("dma.num_sge", uint64(len(r.sge)))
		putSGE(b[at("rxe_send_wqe.dma.sge").off:], r.sge)
	}
	if r.length != 0 {
		n = r.length
	}
	s.put("dma.length", uint64(n)).put("dma.resid", uint64(n))
	be := r.imm>>24 | r.imm>>8&0xFF00 | r.imm<<8&0xFF0000 | r.imm<<24
	s.put("wr.ex.imm_data", uint64(be))
	if r.ud != nil {
		s.put("wr.wr.ud.remote_qpn", uint64(r.ud[0])).put("wr.wr.ud.remote_qkey", uint64(r.ud[1])).put("wr.wr.ud.ah_num", uint64(r.ud[2]))
	}
}

// post adds a send request and rings, as ibv_post_send does.
func (q *qp_) post(r request_) {
	q.p.tb.Helper()
	if !q.sq.push(r.fill) {
		q.p.tb.Fatal("the send queue is full")
	}
	q.ring()
}

func (q *qp_) ring() {
	q.p.tb.Helper()
	switch q.p.page[stateOff+q.handle] {
	case stateOpen:
		if err := q.p.record(kindDoorbell, 0, q.handle, make([]byte, 32)); err != nil && !errors.Is(err, unix.EPIPE) {
			q.p.tb.Fatal(err)
		}
	case stateQuiet: // the daemon looks by itself
	default:
		q.p.tb.Fatal("the queue pair is shut")
	}
}

// recv posts a receive.
func (q *qp_) recv(id uint64, l ...device.SGE) {
	q.p.tb.Helper()
	if !q.rq.push(func(b []byte) {
		view("rxe_recv_wqe", b).put("wr_id", id).put("dma.num_sge", uint64(len(l)))
		putSGE(b[at("rxe_recv_wqe.dma.sge").off:], l)
	}) {
		q.p.tb.Fatal("the receive queue is full")
	}
}

// side is a program with one of everything.
type side struct {
	*program
	dom uint32
	c   *cq_
	q   *qp_
	buf []byte
	m   region_
}

func newSide(p *program, typ device.QPType, n int) *side {
	p.tb.Helper()
	s := &side{program: p, dom: p.pd(), buf: p.alloc(n)}
	s.c = p.cq(64, nil)
	s.q = p.qp(s.dom, qpInit{typ: typ, scq: s.c, send: 16, recv: 16, ssge: 4, rsge: 4, inline: 64, sigAll: true})
	s.m = p.mr(s.dom, s.buf, allAccess)
	return s
}

// pair returns two connected programs.
func pair(d *daemon, n int) (a, b *side) {
	a, b = newSide(d.open(how{}), device.RC, n), newSide(d.open(how{}), device.RC, n)
	connect(a.q, b.q)
	return a, b
}

// eventually waits until ok.
func eventually(tb testing.TB, what string, ok func() bool) {
	tb.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); {
		if time.Now().After(end) {
			tb.Fatal(what)
		}
		time.Sleep(time.Millisecond)
	}
}
