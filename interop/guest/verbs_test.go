//go:build linux

package guest

import (
	"embed"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"
)

//go:embed testdata/*.py
var scripts embed.FS

// startPython starts a script of testdata in the background. Talk to it with WriteJSON and ReadJSON.
func startPython(t testing.TB, o options, script string, args ...string) *proc {
	t.Helper()
	source, err := scripts.ReadFile("testdata/" + script)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), script)
	if err := os.WriteFile(path, source, 0o644); err != nil {
		t.Fatal(err)
	}
	return start(t, o, append([]string{"python3", "-B", path}, args...)...)
}

// verbs is a user of an RDMA device in a process of its own (testdata/verbs.py): real libibverbs, driven from Go. Verbs
// that fail fail the test; try is for those that have to fail.
type verbs struct{ p *proc }

// startVerbs opens the device. With options{Prefix: {"softnic", "exec", "--"}} it is softnic's.
func startVerbs(t testing.TB, o options, device string) *verbs {
	t.Helper()
	v := &verbs{startPython(t, o, "verbs.py", device)}
	var ready struct{ Ready bool }
	v.p.ReadJSON(&ready, patience)
	return v
}

type args = map[string]any

// verbError is what a verb that failed left.
type verbError struct {
	Error string
	Errno int
}

// try calls a verb and decodes its answer into out (nil: none). The error is empty on success.
func (v *verbs) try(out any, verb string, a args) verbError {
	v.p.t.Helper()
	request := args{"verb": verb}
	for k, x := range a {
		request[k] = x
	}
	v.p.WriteJSON(request)
	var answer json.RawMessage
	v.p.ReadJSON(&answer, 2*patience)
	var failure verbError
	err := json.Unmarshal(answer, &failure)
	if err == nil && failure.Error == "" && out != nil {
		err = json.Unmarshal(answer, out)
	}
	if err != nil {
		v.p.t.Fatalf("%s: answer %s: %v", verb, answer, err)
	}
	return failure
}

func (v *verbs) call(out any, verb string, a args) {
	v.p.t.Helper()
	if failure := v.try(out, verb, a); failure.Error != "" {
		v.p.t.Fatalf("%s %v: %s", verb, a, failure.Error)
	}
}

// Access flags of memory regions and queue pairs (enum ibv_access_flags).
const (
	accessLocalWrite   = 1
	accessRemoteWrite  = 2
	accessRemoteRead   = 4
	accessRemoteAtomic = 8
	accessAll          = accessLocalWrite | accessRemoteWrite | accessRemoteRead | accessRemoteAtomic
)

// verbsMR is a registered buffer, zero at first.
type verbsMR struct {
	v          *verbs
	ID         int
	Addr       uint64
	LKey, RKey uint32
}

func (v *verbs) RegMR(length, access int) *verbsMR {
	v.p.t.Helper()
	mr := &verbsMR{v: v}
	v.call(mr, "reg_mr", args{"length": length, "access": access})
	return mr
}

func (m *verbsMR) Write(offset int, data []byte) {
	m.v.p.t.Helper()
	m.v.call(nil, "mr_write", args{"mr": m.ID, "offset": offset, "data": hex.EncodeToString(data)})
}

func (m *verbsMR) Read(offset, length int) []byte {
	m.v.p.t.Helper()
	var answer struct{ Data string }
	m.v.call(&answer, "mr_read", args{"mr": m.ID, "offset": offset, "length": length})
	data, err := hex.DecodeString(answer.Data)
	if err != nil {
		m.v.p.t.Fatal(err)
	}
	return data
}

// verbsQP is a queue pair with completion queues of its own.
type verbsQP struct {
	v   *verbs
	ID  int
	QPN uint32
}

// CreateQP makes an "RC", "UC" or "UD" queue pair in RESET; every send request completes visibly.
func (v *verbs) CreateQP(typ string) *verbsQP {
	v.p.t.Helper()
	qp := &verbsQP{v: v}
	v.call(qp, "create_qp", args{"type": typ, "depth": 64, "sig_all": true})
	return qp
}

// CreateEventQP is CreateQP with a completion channel for each completion queue: see Arm and Event.
func (v *verbs) CreateEventQP(typ string) *verbsQP {
	v.p.t.Helper()
	qp := &verbsQP{v: v}
	v.call(qp, "create_qp", args{"type": typ, "depth": 64, "sig_all": true, "events": true})
	return qp
}

// Modify sets attributes by the names of struct ibv_qp_attr, and the state unless that is "".
func (q *verbsQP) Modify(state string, attrs args) {
	q.v.p.t.Helper()
	q.v.call(nil, "modify", args{"qp": q.ID, "state": state, "attrs": attrs})
}

// connection is what a connected queue pair is told; zero values are sent as they are, so that a test says what
// matters to it, except PathMTU.
type connection struct {
	SGIDIndex      int        // 1 is the first IPv4 address
	DGID           netip.Addr // IPv4 as it is
	QPN            uint32
	SendPSN        uint32
	RecvPSN        uint32
	PathMTU        int // enum ibv_mtu; 0: 3, which is 1024 bytes
	Timeout        int // 4.096 µs * 2^n; 0: never
	RetryCnt       int
	RNRRetry       int
	MaxRdAtomic    int
	MinRNRTimer    int
	TrafficClass   int
	ServiceIsUC    bool
	NoRemoteAccess bool
}

// Connect takes an RC or UC queue pair from RESET to RTS.
func (q *verbsQP) Connect(c connection) {
	q.v.p.t.Helper()
	access := accessAll
	if c.NoRemoteAccess {
		access = 0
	} else if c.ServiceIsUC {
		access = accessLocalWrite | accessRemoteWrite
	}
	mtu := c.PathMTU
	if mtu == 0 {
		mtu = 3
	}
	q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": access})
	rtr := args{
		"ah_attr":  ahAttr(c.SGIDIndex, c.DGID, c.TrafficClass),
		"path_mtu": mtu, "dest_qp_num": c.QPN, "rq_psn": c.RecvPSN,
	}
	rts := args{"sq_psn": c.SendPSN}
	if !c.ServiceIsUC {
		rtr["max_dest_rd_atomic"], rtr["min_rnr_timer"] = c.MaxRdAtomic, c.MinRNRTimer
		rts["max_rd_atomic"], rts["timeout"] = c.MaxRdAtomic, c.Timeout
		rts["retry_cnt"], rts["rnr_retry"] = c.RetryCnt, c.RNRRetry
	}
	q.Modify("RTR", rtr)
	q.Modify("RTS", rts)
}

// Datagrams takes a UD queue pair from RESET to RTS.
func (q *verbsQP) Datagrams(qkey, sendPSN uint32) {
	q.v.p.t.Helper()
	q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qkey": qkey})
	q.Modify("RTR", nil)
	q.Modify("RTS", args{"sq_psn": sendPSN})
}

// ahAttr is an address as the script takes it.
func ahAttr(sgidIndex int, dgid netip.Addr, trafficClass int) args {
	return args{"sgid_index": sgidIndex, "dgid": netip.AddrFrom16(dgid.As16()).StringExpanded(), "traffic_class": trafficClass}
}

// CreateAH makes an address handle and returns its number.
func (v *verbs) CreateAH(sgidIndex int, dgid netip.Addr) *int {
	v.p.t.Helper()
	var ah struct{ ID int }
	v.call(&ah, "create_ah", ahAttr(sgidIndex, dgid, 0))
	return &ah.ID
}

// sendSolicited is IBV_SEND_SOLICITED.
const sendSolicited = 1 << 2

// sendWR is a send request. Opcode is the name of enum ibv_wr_opcode without IBV_WR_.
type sendWR struct {
	ID         uint64
	Opcode     string
	Flags      int // enum ibv_send_flags
	Imm        uint32
	MR         *verbsMR
	Offset     int
	Length     int
	RemoteAddr uint64
	RKey       uint32
	CompareAdd uint64
	Swap       uint64
	LKey       uint32 // 0: that of MR
	AH         *int   // datagrams, with the two below; nil: none
	RemoteQPN  uint32
	QKey       uint32
	SGEs       []span // in MR, instead of Offset and Length
}

// span is a piece of a memory region; to the script it is a list of two.
type span struct{ off, n int }

func (s span) MarshalJSON() ([]byte, error) { return json.Marshal([]int{s.off, s.n}) }

// PostSend posts a request. For SEND_WITH_INV and LOCAL_INV, Imm is the key.
func (q *verbsQP) PostSend(w sendWR) {
	q.v.p.t.Helper()
	if failure := q.TrySend(w); failure.Error != "" {
		q.v.p.t.Fatalf("post_send %+v: %s", w, failure.Error)
	}
}

// TrySend is PostSend that may fail.
func (q *verbsQP) TrySend(w sendWR) verbError {
	q.v.p.t.Helper()
	return q.v.try(nil, "post_send", args{
		"qp": q.ID, "wr_id": w.ID, "opcode": w.Opcode, "flags": w.Flags, "imm": w.Imm,
		"mr": w.MR.ID, "offset": w.Offset, "length": w.Length, "remote_addr": w.RemoteAddr, "rkey": w.RKey,
		"compare_add": w.CompareAdd, "swap": w.Swap, "lkey": w.LKey, "ah": w.AH, "remote_qpn": w.RemoteQPN, "qkey": w.QKey,
		"sges": w.SGEs,
	})
}

func (q *verbsQP) PostRecv(id uint64, mr *verbsMR, offset, length int) {
	q.v.p.t.Helper()
	q.v.call(nil, "post_recv", args{"qp": q.ID, "wr_id": id, "mr": mr.ID, "offset": offset, "length": length})
}

// completion is a work completion; numbers are those of the verbs enums.
type completion struct {
	WrID    uint64 `json:"wr_id"`
	Status  int
	Opcode  int
	ByteLen int `json:"byte_len"`
	Flags   int
	Imm     uint32
	Inv     uint32 // with wcFlagInv: the key that was invalidated
	QPN     uint32
	SrcQP   uint32 `json:"src_qp"`
}

// SendCompletions and RecvCompletions wait for count completions and fail the test when there are fewer in the end.
func (q *verbsQP) SendCompletions(count int) []completion {
	q.v.p.t.Helper()
	return q.poll(sendCQ, count)
}

func (q *verbsQP) RecvCompletions(count int) []completion {
	q.v.p.t.Helper()
	return q.poll(recvCQ, count)
}

// The completion queues of a queue pair, as Arm and Event name them.
const (
	sendCQ = 1
	recvCQ = 2
)

// AsyncEvents waits for count asynchronous events of the device, at most for so long, and returns the numbers (enum
// ibv_event_type) of what there is.
func (v *verbs) AsyncEvents(count int, limit time.Duration) []int {
	v.p.t.Helper()
	var answer struct{ Events []int }
	v.call(&answer, "async_events", args{"count": count, "limit": limit.Seconds()})
	return answer.Events
}

// Arm asks for one event at the next completion, or the next solicited one.
func (q *verbsQP) Arm(cq int, solicited bool) {
	q.v.p.t.Helper()
	q.v.call(nil, "arm", args{"qp": q.ID, "which": cq, "solicited": solicited})
}

// Event waits for a completion event and reports whether there was one.
func (q *verbsQP) Event(cq int, limit time.Duration) bool {
	q.v.p.t.Helper()
	var answer struct{ Event bool }
	q.v.call(&answer, "event", args{"qp": q.ID, "which": cq, "limit": limit.Seconds()})
	return answer.Event
}

func (q *verbsQP) poll(which, count int) []completion {
	q.v.p.t.Helper()
	wcs := q.PollFor(which, count, patience)
	if len(wcs) != count {
		q.v.p.t.Fatalf("QP %#x: %d completions, want %d: %+v", q.QPN, len(wcs), count, wcs)
	}
	return wcs
}

// PollFor waits for count completions, at most for so long, and returns what there is.
func (q *verbsQP) PollFor(which, count int, limit time.Duration) []completion {
	q.v.p.t.Helper()
	var answer struct{ WCs []completion }
	q.v.call(&answer, "poll", args{"qp": q.ID, "which": which, "count": count, "limit": limit.Seconds()})
	return answer.WCs
}

// State returns the state that the device reports, such as "RTS".
func (q *verbsQP) State() string {
	q.v.p.t.Helper()
	var answer struct{ State string }
	q.v.call(&answer, "query", args{"qp": q.ID})
	return answer.State
}

// Destroy destroys the queue pair and its completion queues.
func (q *verbsQP) Destroy() {
	q.v.p.t.Helper()
	q.v.call(nil, "destroy", args{"id": q.ID})
}
