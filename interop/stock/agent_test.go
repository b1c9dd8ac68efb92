//go:build linux

package stock

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"path/filepath"
	"testing"
	"time"
)

// agent is a program on pyverbs (testdata/agent.py), driven from here. Verbs that fail fail the test; try is for
// those that have to fail.
type agent struct {
	*proc
	d *daemon
}

type args = map[string]any

func startAgent(t testing.TB, d *daemon, o options) *agent {
	t.Helper()
	script, err := filepath.Abs("testdata/agent.py")
	if err != nil {
		t.Fatal(err)
	}
	a := &agent{start(t, o, python, "-B", script, "rxe_softnic0"), d}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(a.result())
		}
	})
	var ready struct{ Ready bool }
	a.ReadJSON(&ready, patience)
	return a
}

// quit ends the program, which destroys nothing by itself.
func (a *agent) quit() {
	a.t.Helper()
	a.stdin.Close()
	if r := a.wait(patience); r.Code != 0 || r.Stderr != "" {
		a.t.Errorf("ended badly: %v", r)
	}
}

type verbError struct {
	Error string
	Errno int
}

// ask starts a verb; answer waits for what it answers.
func (a *agent) ask(verb string, v args) {
	a.t.Helper()
	request := args{"verb": verb}
	for k, x := range v {
		request[k] = x
	}
	a.WriteJSON(request)
}

func (a *agent) answer(out any) (failure verbError) {
	a.t.Helper()
	var answer json.RawMessage
	a.ReadJSON(&answer, 2*patience)
	err := json.Unmarshal(answer, &failure)
	if err == nil && failure.Error == "" && out != nil {
		err = json.Unmarshal(answer, out)
	}
	if err != nil {
		a.t.Fatalf("answer %s: %v", answer, err)
	}
	return failure
}

func (a *agent) try(out any, verb string, v args) verbError {
	a.t.Helper()
	a.ask(verb, v)
	return a.answer(out)
}

func (a *agent) call(out any, verb string, v args) {
	a.t.Helper()
	if failure := a.try(out, verb, v); failure.Error != "" {
		a.t.Fatalf("%s %.300s: %s", verb, fmt.Sprint(v), failure.Error)
	}
}

// create makes an object and returns its number.
func (a *agent) create(verb string, v args) int {
	a.t.Helper()
	var obj struct{ ID int }
	a.call(&obj, verb, v)
	return obj.ID
}

// enum ibv_access_flags.
const (
	localWrite   = 1
	remoteWrite  = 2
	remoteRead   = 4
	remoteAtomic = 8
	mwBind       = 16
	everyAccess  = localWrite | remoteWrite | remoteRead | remoteAtomic | mwBind
)

// memory is a registered buffer.
type memory struct {
	a          *agent
	ID         int
	Addr       uint64
	LKey, RKey uint32
}

func (a *agent) regMR(length, access int) *memory {
	a.t.Helper()
	m := &memory{a: a}
	a.call(m, "reg_mr", args{"length": length, "access": access})
	return m
}

func (m *memory) write(offset int, data []byte) {
	m.a.t.Helper()
	if len(data) > 0 {
		m.a.call(nil, "mr_write", args{"mr": m.ID, "offset": offset, "data": hex.EncodeToString(data)})
	}
}

func (m *memory) read(offset, length int) []byte {
	m.a.t.Helper()
	var answer struct{ Data string }
	m.a.call(&answer, "mr_read", args{"mr": m.ID, "offset": offset, "length": length})
	data, err := hex.DecodeString(answer.Data)
	if err != nil {
		m.a.t.Fatal(err)
	}
	return data
}

// sge is an entry as the agent takes it: address, length, key.
type sge [3]uint64

func (m *memory) sge(offset, length int) sge {
	return sge{m.Addr + uint64(offset), uint64(length), uint64(m.LKey)}
}

// queuePair has completion queues of its own.
type queuePair struct {
	a        *agent
	ID       int
	QPN      uint32
	scq, rcq int
}

const depth = 16

func (a *agent) createQP(typ string) *queuePair {
	a.t.Helper()
	return a.createQPOn(typ, a.create("create_cq", args{"depth": 4 * depth}), a.create("create_cq", args{"depth": 4 * depth}))
}

func (a *agent) createQPOn(typ string, scq, rcq int) *queuePair {
	a.t.Helper()
	return a.createQPWith(typ, scq, rcq, nil)
}

// createQPWith makes one with other arguments than usual.
func (a *agent) createQPWith(typ string, scq, rcq int, change args) *queuePair {
	a.t.Helper()
	q := &queuePair{a: a, scq: scq, rcq: rcq}
	v := args{"type": typ, "scq": scq, "rcq": rcq, "depth": depth, "sge": 4, "sig_all": true}
	maps.Copy(v, change)
	a.call(q, "create_qp", v)
	return q
}

// createQPEx makes an RC queue pair with the extended interface, for the operations of enum ibv_qp_create_send_ops_flags.
func (a *agent) createQPEx(ops ...string) *queuePair {
	a.t.Helper()
	return a.createQPExOf("RC", ops...)
}

// inlineMax is what such a queue pair takes inline, in bytes.
const inlineMax = 64

func (a *agent) createQPExOf(typ string, ops ...string) *queuePair {
	a.t.Helper()
	q := &queuePair{a: a, scq: a.create("create_cq", args{"depth": 4 * depth}), rcq: a.create("create_cq", args{"depth": 4 * depth})}
	a.call(q, "create_qp_ex", args{"type": typ, "scq": q.scq, "rcq": q.rcq, "depth": depth, "sge": 4, "sig_all": true, "ops": ops, "inline": inlineMax})
	return q
}

func (q *queuePair) modify(state string, attrs args) {
	q.a.t.Helper()
	q.a.call(nil, "modify", args{"qp": q.ID, "state": state, "attrs": attrs})
}

func (q *queuePair) init() {
	q.a.t.Helper()
	q.modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": everyAccess})
}

// path is what connected queue pairs are told beside each other's numbers.
type path struct {
	mtu      int // bytes
	rnrRetry int
	timeout  int // 4.096 µs * 2^n; 0: 17, half a second
}

// connect takes q and far, one of them in INIT at most, to RTS.
func connect(q, far *queuePair, p path) {
	if p.timeout == 0 {
		p.timeout = 17
	}
	q.init()
	far.init()
	q.connect(far, 0xFFFFFA, 0x7FFFFE, p) // both wrap or cross the middle soon
	far.connect(q, 0x7FFFFE, 0xFFFFFA, p)
}

func (q *queuePair) connect(far *queuePair, send, receive int, p path) {
	q.a.t.Helper()
	q.modify("RTR", args{
		"ah_attr": args{"dgid": far.a.d.gid()}, "path_mtu": map[int]int{256: 1, 512: 2, 1024: 3, 2048: 4, 4096: 5}[p.mtu],
		"dest_qp_num": far.QPN, "rq_psn": receive, "max_dest_rd_atomic": 16, "min_rnr_timer": 1,
	})
	q.modify("RTS", args{"sq_psn": send, "max_rd_atomic": 16, "timeout": p.timeout, "retry_cnt": 7, "rnr_retry": p.rnrRetry})
}

// gid is the daemon's GID 1 as text.
func (d *daemon) gid() string {
	return netip.AddrFrom16(netip.MustParseAddr(d.addr).As16()).StringExpanded()
}

// datagrams takes a UD queue pair to RTS.
func (q *queuePair) datagrams(qkey uint32) {
	q.a.t.Helper()
	q.modify("INIT", args{"pkey_index": 0, "port_num": 1, "qkey": qkey})
	q.modify("RTR", args{})
	q.modify("RTS", args{"sq_psn": 0xFFFFFF})
}

// sendWR is a send request; op is the name of enum ibv_wr_opcode without IBV_WR_.
type sendWR struct {
	id         uint64
	op         string
	flags      int // enum ibv_send_flags
	imm        uint32
	sge        []sge
	remoteAddr uint64
	rkey       uint32
	ah         *int
	remoteQPN  uint32
	qkey       uint32
	invalidate uint32 // the key
	compareAdd uint64
	swap       uint64
}

// enum ibv_send_flags.
const (
	signaled   = 2
	solicited  = 4
	inlineData = 8
)

func (q *queuePair) send(w sendWR) {
	q.a.t.Helper()
	if failure := q.trySend(w); failure.Error != "" {
		q.a.t.Fatalf("post_send %+v: %s", w, failure.Error)
	}
}

func (q *queuePair) trySend(w sendWR) verbError {
	q.a.t.Helper()
	v := w.args()
	v["qp"] = q.ID
	return q.a.try(nil, "post_send", v)
}

// args is the request as the agent takes it.
func (w sendWR) args() args {
	if w.sge == nil {
		w.sge = []sge{}
	}
	return args{
		"wr_id": w.id, "opcode": w.op, "flags": w.flags, "imm": w.imm, "sge": w.sge, "remote_addr": w.remoteAddr,
		"rkey": w.rkey, "ah": w.ah, "remote_qpn": w.remoteQPN, "qkey": w.qkey,
		"invalidate": w.invalidate, "compare_add": w.compareAdd, "swap": w.swap,
	}
}

// postEx posts requests by calls, between one wr_start and one wr_complete or wr_abort. Number i has inline[i], in
// hexadecimal, if that is there.
func (q *queuePair) postEx(abort bool, inline map[int]string, l ...sendWR) verbError {
	q.a.t.Helper()
	var requests []args
	for i, w := range l {
		v := w.args()
		v["inline"] = inline[i]
		requests = append(requests, v)
	}
	return q.a.try(nil, "post_ex", args{"qp": q.ID, "requests": requests, "abort": abort})
}

// atomicWrite is on a queue pair that createQPEx made.
func (q *queuePair) atomicWrite(id, remote uint64, rkey uint32, v uint64) {
	q.a.t.Helper()
	q.a.call(nil, "atomic_write", args{"qp": q.ID, "wr_id": id, "remote_addr": remote, "rkey": rkey,
		"data": hex.EncodeToString(binary.NativeEndian.AppendUint64(nil, v))})
}

// window is a memory window.
type window struct {
	a    *agent
	ID   int
	RKey uint32
}

// window allocates one of enum ibv_mw_type.
func (a *agent) window(typ int) *window {
	a.t.Helper()
	w := &window{a: a}
	a.call(w, "alloc_mw", args{"type": typ})
	return w
}

// bind posts the request that binds a window to a part of a region, and gives the window the key that it has then.
func (q *queuePair) bind(id uint64, w *window, m *memory, offset, length, access int) {
	q.a.t.Helper()
	q.a.call(w, "bind", args{"qp": q.ID, "wr_id": id, "mw": w.ID, "mr": m.ID, "addr": m.Addr + uint64(offset), "length": length, "access": access})
}

func (w *window) dealloc() {
	w.a.t.Helper()
	w.a.call(nil, "destroy", args{"ids": []int{w.ID}})
}

func (q *queuePair) recv(id uint64, l ...sge) {
	q.a.t.Helper()
	if l == nil {
		l = []sge{}
	}
	q.a.call(nil, "post_recv", args{"qp": q.ID, "wr_id": id, "sge": l})
}

// completion is a work completion; numbers are those of the verbs enums.
type completion struct {
	WrID    uint64 `json:"wr_id"`
	Status  int
	Opcode  int
	ByteLen int `json:"byte_len"`
	Flags   int
	Imm     uint32
	Key     uint32 // that was invalidated; it is in the place of Imm
	QPN     uint32
	SrcQP   uint32 `json:"src_qp"`
}

// enum ibv_wc_status.
const (
	success         = 0
	localLength     = 1
	localProtection = 4
	flushed         = 5
	remoteInvalid   = 9
	remoteAccess    = 10
	remoteOperation = 11
	rnrExceeded     = 13
)

func (q *queuePair) sent(count int) []completion {
	q.a.t.Helper()
	return q.a.poll(q.scq, count)
}

func (q *queuePair) received(count int) []completion {
	q.a.t.Helper()
	return q.a.poll(q.rcq, count)
}

// poll waits for count completions, and fails the test when there are fewer in the end.
func (a *agent) poll(cq, count int) []completion {
	a.t.Helper()
	var answer struct{ WCs []completion }
	a.call(&answer, "poll", args{"cq": cq, "count": count, "limit": patience / time.Second})
	if len(answer.WCs) != count {
		a.t.Fatalf("%d completions, want %d: %+v", len(answer.WCs), count, answer.WCs)
	}
	return answer.WCs
}

// statuses holds that the completions have these numbers and statuses, in this order.
func statuses(t testing.TB, what string, got []completion, want ...[2]int) {
	t.Helper()
	var l [][2]int
	for _, wc := range got {
		l = append(l, [2]int{int(wc.WrID), wc.Status})
	}
	if fmt.Sprint(l) != fmt.Sprint(want) {
		t.Errorf("%s: completions (number, status) %v, want %v", what, l, want)
	}
}

func (q *queuePair) state() string {
	q.a.t.Helper()
	var answer struct{ State string }
	q.a.call(&answer, "query", args{"qp": q.ID})
	return answer.State
}

func (q *queuePair) destroy() {
	q.a.t.Helper()
	ids := []int{q.ID, q.scq, q.rcq}
	if q.scq == q.rcq {
		ids = ids[:2]
	}
	q.a.call(nil, "destroy", args{"ids": ids})
}

// seeded is a pattern that only this seed gives.
func seeded(seed uint64, size int) []byte {
	b := make([]byte, size)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16)})
	_, _ = r.Read(b)
	return b
}

// same fails the test where two patterns part.
func same(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if bytes.Equal(got, want) {
		return
	}
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			t.Fatalf("%s: byte %d of %d is %#x, want %#x", what, i, len(want), got[i], want[i])
		}
	}
	t.Fatalf("%s: %d bytes, want %d", what, len(got), len(want))
}
