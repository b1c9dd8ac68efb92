//go:build linux

package guest

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/interop/peer"
)

// scripted is a queue pair of the kernel's device whose other end is a script.
type scripted struct {
	t   *testing.T
	lab *wireLab
	p   *peer.Peer
	mr  *verbsMR
	q   *verbsQP
}

// First PSNs of the two.
const (
	rxePSN    = 0x100
	scriptPSN = 0x200
	scriptQPN = 0x777
)

// rc connects a queue pair of the kernel's device to the script. It has no ACK timer unless the change gives it one.
func (s *scripted) rc(change func(c *connection)) {
	s.t.Helper()
	c := connection{SGIDIndex: s.lab.ips[0].gidIndex, DGID: s.lab.ips[0].remote, QPN: scriptQPN, SendPSN: rxePSN, RecvPSN: scriptPSN,
		MaxRdAtomic: 4, RetryCnt: 7, RNRRetry: 7, MinRNRTimer: 12}
	if change != nil {
		change(&c)
	}
	s.q = s.lab.nic.CreateQP("RC")
	s.q.Connect(c)
}

func (s *scripted) post(w sendWR) {
	s.t.Helper()
	w.MR = s.mr
	s.q.PostSend(w)
}

// read posts a READ of n bytes.
func (s *scripted) read(n int) {
	s.t.Helper()
	s.post(sendWR{Opcode: "RDMA_READ", Length: n, RemoteAddr: 0x10000, RKey: 5})
}

func (s *scripted) send(n int) {
	s.t.Helper()
	s.post(sendWR{Opcode: "SEND", Length: n})
}

// silent reports whether the device sends nothing for a while.
func (s *scripted) silent() bool { return len(s.frames(150*time.Millisecond)) == 0 }

// frames are those that the device sends within a time.
func (s *scripted) frames(d time.Duration) []*peer.Frame {
	s.t.Helper()
	var l []*peer.Frame
	for end := time.Now().Add(d); ; {
		packet, err := s.p.Conn.Read(end)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return l
		}
		if err != nil {
			s.t.Fatal(err)
		}
		if f, err := peer.Parse(packet); err == nil {
			l = append(l, f)
		}
	}
}

// completion is the next one of a send, or status -1.
func (s *scripted) completion() int {
	s.t.Helper()
	for _, wc := range s.q.PollFor(sendCQ, 1, time.Second) {
		return wc.Status
	}
	return -1
}

// TestOpsDeviations shows what the kernel's device does differently from the specification and softnic, where it takes a
// script at the other end to see it. Each subtest is a row of interop/deviations.md, and fails when the device has been
// mended. What softnic does is tested in interop/cases.
func TestOpsDeviations(t *testing.T) {
	needGuest(t)
	lab := newWireLab(t)
	mr := lab.nic.RegMR(65536, accessAll)
	for _, c := range []struct {
		row string
		f   func(s *scripted) (still bool, saw any)
	}{
		{"ack-for-read", func(s *scripted) (bool, any) { // rxe-lab.md C1
			s.rc(nil)
			s.mr.Write(0, bytes.Repeat([]byte{0x5A}, 16))
			s.read(16)
			s.p.Expect(s.t, peer.WantOp(peer.OpReadRequest))
			s.p.Send(s.t, peer.Ack(s.q.QPN, rxePSN, 1))
			status := s.completion()
			return status == wcSuccess && bytes.Equal(s.mr.Read(0, 16), bytes.Repeat([]byte{0x5A}, 16)), status
		}},
		{"ack-for-atomic", func(s *scripted) (bool, any) {
			s.rc(nil)
			s.post(sendWR{Opcode: "ATOMIC_FETCH_AND_ADD", Length: 8, RemoteAddr: 0x1000, RKey: 2, CompareAdd: 3})
			s.p.Expect(s.t, peer.WantOp(peer.OpFetchAdd))
			s.p.Send(s.t, peer.Ack(s.q.QPN, rxePSN, 1))
			status := s.completion()
			return status == wcSuccess, status
		}},
		{"bad-response-success", func(s *scripted) (bool, any) { // C2
			s.rc(nil)
			s.send(10)
			s.p.Expect(s.t, peer.WantOp(peer.OpSendOnly))
			s.p.Send(s.t, peer.AtomicAck(s.q.QPN, rxePSN, 1, 9))
			status := s.completion()
			return status == wcSuccess && s.q.State() == "ERR", status
		}},
		{"ghost-ack", func(s *scripted) (bool, any) { // S5
			s.rc(nil)
			s.send(10)
			s.p.Expect(s.t, peer.WantOp(peer.OpSendOnly))
			s.p.Send(s.t, peer.Ack(s.q.QPN, rxePSN+50, 1))
			status := s.completion()
			return status == wcSuccess, status
		}},
		{"depth-rounded", func(s *scripted) (bool, any) { // S6
			s.rc(func(c *connection) { c.MaxRdAtomic = 3 })
			for range 6 {
				s.read(16)
			}
			n := len(s.frames(200 * time.Millisecond))
			return n == 4, n
		}},
		{"depth-zero", func(s *scripted) (bool, any) { // S7
			s.rc(func(c *connection) { c.MaxRdAtomic = 0 })
			s.read(16)
			quiet := s.silent()
			status := s.completion()
			return quiet && status == -1, status
		}},
		{"sqd-resume", func(s *scripted) (bool, any) { // S8
			s.rc(nil)
			s.q.Modify("SQD", nil)
			s.send(10)
			early := !s.silent()
			s.q.Modify("RTS", nil)
			return !early && s.silent(), "sent"
		}},
		{"post-in-rtr", func(s *scripted) (bool, any) { // S9
			s.q = s.lab.nic.CreateQP("RC")
			s.q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": accessAll})
			s.q.Modify("RTR", args{"ah_attr": ahAttr(s.lab.ips[0].gidIndex, s.lab.ips[0].remote, 0), "path_mtu": enumMTU1024, "dest_qp_num": scriptQPN,
				"rq_psn": scriptPSN, "max_dest_rd_atomic": 4, "min_rnr_timer": 12})
			failure := s.q.TrySend(sendWR{Opcode: "SEND", MR: s.mr, Length: 11})
			s.q.Modify("RTS", args{"sq_psn": rxePSN, "max_rd_atomic": 4, "timeout": 0, "retry_cnt": 7, "rnr_retry": 7})
			s.send(12)
			l := s.frames(200 * time.Millisecond)
			return failure.Errno == 22 && len(l) == 2 && len(l[0].Payload) == 11, l
		}},
		{"local-error-order", func(s *scripted) (bool, any) { // S11
			s.rc(nil)
			s.send(10)
			s.post(sendWR{Opcode: "SEND", Length: 10, LKey: s.mr.LKey ^ 0x100})
			s.p.Expect(s.t, peer.WantOp(peer.OpSendOnly))
			s.p.Send(s.t, peer.Ack(s.q.QPN, rxePSN, 1))
			status := s.completion()
			return status == wcFlushErr, status
		}},
		{"stale-ack-timer", func(s *scripted) (bool, any) { // S4
			s.rc(func(c *connection) { c.Timeout = 16 }) // 268 ms
			s.send(10)
			s.p.Expect(s.t, peer.WantOp(peer.OpSendOnly))
			n := 0
			for range 48 {
				s.p.Send(s.t, peer.Ack(s.q.QPN, rxePSN-1, 0))
				n += len(s.frames(25 * time.Millisecond))
			}
			return n == 0, n
		}},
		{"retry-forever", func(s *scripted) (bool, any) {
			s.rc(func(c *connection) { c.Timeout = 8 }) // 1 ms
			s.send(10)
			n := 0
			for range 20 {
				if n += len(s.frames(50 * time.Millisecond)); n > 12 {
					break
				}
			}
			return n > 12, n
		}},
		{"short-read", func(s *scripted) (bool, any) { // S15
			s.rc(nil)
			s.read(16)
			s.p.Expect(s.t, peer.WantOp(peer.OpReadRequest))
			s.p.Send(s.t, peer.ReadRespOnly(s.q.QPN, rxePSN, 1, make([]byte, 8)))
			quiet := s.silent()
			status := s.completion()
			return quiet && status == -1, status
		}},
		{"read-gap", func(s *scripted) (bool, any) { // B.7
			s.rc(nil)
			s.read(3000)
			s.p.Expect(s.t, peer.WantOp(peer.OpReadRequest))
			s.p.Send(s.t, peer.ReadRespFirst(s.q.QPN, rxePSN, 1, make([]byte, 1024)), peer.ReadRespLast(s.q.QPN, rxePSN+2, 1, make([]byte, 952)))
			return s.silent(), "asked again"
		}},
		{"read-after-empty", func(s *scripted) (bool, any) { // C5
			s.rc(nil)
			read := peer.ReadRequest(s.q.QPN, scriptPSN, s.mr.Addr, s.mr.RKey, 16)
			s.p.Send(s.t, read)
			s.p.Expect(s.t, peer.WantOp(peer.OpReadRespOnly))
			s.p.Send(s.t, peer.WriteOnly(s.q.QPN, scriptPSN+1, 0, 0, nil))
			s.p.Expect(s.t, peer.WantAck(scriptPSN+1))
			s.p.Send(s.t, read)
			f := s.p.Next(s.t)
			return f.Op == peer.OpAck && f.AETH.Syndrome == peer.SynNakAccess, f
		}},
		{"read-replay-whole", func(s *scripted) (bool, any) { // C4
			s.rc(nil)
			read := peer.ReadRequest(s.q.QPN, scriptPSN, s.mr.Addr, s.mr.RKey, 3000)
			s.p.Send(s.t, read)
			first := s.frames(150 * time.Millisecond)
			s.p.Send(s.t, peer.ReadRequest(s.q.QPN, scriptPSN+1, s.mr.Addr+1024, s.mr.RKey, 3000-1024))
			part := s.frames(150 * time.Millisecond)
			s.p.Send(s.t, read)
			return len(first) == 3 && len(part) == 2 && s.silent(), part
		}},
		{"write-first-whole", func(s *scripted) (bool, any) { // C6
			s.rc(nil)
			f := peer.WriteFirst(s.q.QPN, scriptPSN, s.mr.Addr, s.mr.RKey, 1024, make([]byte, 1024))
			f.AckReq = true
			s.p.Send(s.t, f)
			f = s.p.Next(s.t)
			return f.Op == peer.OpAck && f.AETH.Syndrome.IsAck(), f
		}},
		{"write-length-zero", func(s *scripted) (bool, any) { // C6
			s.rc(nil)
			f := peer.WriteOnly(s.q.QPN, scriptPSN, s.mr.Addr, s.mr.RKey, make([]byte, 4))
			f.RETH.Len = 0
			s.p.Send(s.t, f)
			f = s.p.Next(s.t)
			return f.Op == peer.OpAck && f.AETH.Syndrome == peer.SynNakAccess, f
		}},
		{"reserved-opcode", func(s *scripted) (bool, any) {
			s.rc(nil)
			s.p.Send(s.t, peer.NewFrame(0x15, s.q.QPN, scriptPSN))
			return s.silent(), "answered"
		}},
		{"flush-duplicate", func(s *scripted) (bool, any) { // with the ICRC that the device wants (S1)
			s.q = s.lab.nic.CreateQP("RC")
			const flushGlobal = 1 << 8
			s.q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": accessAll | flushGlobal})
			s.q.Modify("RTR", args{"ah_attr": ahAttr(s.lab.ips[0].gidIndex, s.lab.ips[0].remote, 0), "path_mtu": enumMTU1024, "dest_qp_num": scriptQPN,
				"rq_psn": scriptPSN, "max_dest_rd_atomic": 4, "min_rnr_timer": 12}) // 0 would kill the kernel (S2)
			open := s.lab.nic.RegMR(4096, accessAll|flushGlobal)
			raw := s.p.Address(peer.Flush(s.q.QPN, scriptPSN, open.Addr, open.RKey, 64, 1)).Marshal()
			covered := raw[:len(raw)-4]
			icrc := peer.RxeFlushICRC(covered)
			raw = append(covered, icrc[:]...)
			s.p.SendRaw(s.t, raw)
			s.p.Expect(s.t, peer.WantOp(peer.OpReadRespOnly), peer.WantPSN(scriptPSN))
			s.p.SendRaw(s.t, raw)
			return s.silent(), "answered"
		}},
		{"dest-depth-unchecked", func(s *scripted) (bool, any) { // C11
			s.q = s.lab.nic.CreateQP("RC")
			s.q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": accessAll})
			s.q.Modify("RTR", args{"ah_attr": ahAttr(s.lab.ips[0].gidIndex, s.lab.ips[0].remote, 0), "path_mtu": enumMTU1024, "dest_qp_num": scriptQPN,
				"rq_psn": scriptPSN, "max_dest_rd_atomic": 200, "min_rnr_timer": 12})
			s.p.Send(s.t, peer.ReadRequest(s.q.QPN, scriptPSN, s.mr.Addr, s.mr.RKey, 16))
			f := s.p.Next(s.t)
			return f.Op == peer.OpAck && f.AETH.Syndrome == peer.SynNakInvalid, f
		}},
		{"modify-any-state", func(s *scripted) (bool, any) { // roce.md D (1)
			s.rc(nil)
			failure := s.lab.nic.try(nil, "modify", args{"qp": s.q.ID, "state": "", "attrs": args{"path_mtu": 1}})
			return failure.Error == "", failure
		}},
		{"cur-state", func(s *scripted) (bool, any) { // S13
			s.q = s.lab.nic.CreateQP("RC")
			s.q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": accessAll})
			failure := s.lab.nic.try(nil, "modify", args{"qp": s.q.ID, "state": "RTS", "attrs": args{"cur_qp_state": "RTR",
				"sq_psn": rxePSN, "max_rd_atomic": 4, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7}})
			state := s.q.State()
			return failure.Error == "" && state == "RTS", fmt.Sprint(failure, state)
		}},
		{"last-wqe-repeated", func(s *scripted) (bool, any) { // S12
			var srq struct{ ID int }
			s.lab.nic.call(&srq, "create_srq", args{"depth": 8})
			s.q = &verbsQP{v: s.lab.nic}
			s.lab.nic.call(s.q, "create_qp", args{"type": "RC", "depth": 64, "sig_all": true, "srq": srq.ID})
			s.q.Connect(connection{SGIDIndex: s.lab.ips[0].gidIndex, DGID: s.lab.ips[0].remote, QPN: scriptQPN, RecvPSN: scriptPSN, MaxRdAtomic: 4, MinRNRTimer: 12})
			s.events() // nobody's
			s.q.Modify("ERR", nil)
			said := [][]int{s.events()}
			for i := range 3 {
				s.p.Send(s.t, peer.SendOnly(s.q.QPN, scriptPSN+uint32(i), []byte("nobody takes it")))
				said = append(said, s.events())
			}
			s.q.Modify("ERR", nil)
			said = append(said, s.events())
			s.q.Destroy()
			s.q = nil
			s.lab.nic.call(nil, "destroy", args{"id": srq.ID})
			return !slices.ContainsFunc(said, func(l []int) bool { return !slices.Equal(l, []int{eventLastWQE}) }), said
		}},
		{"events-missing", func(s *scripted) (bool, any) { // B.12
			s.events()
			var said [][]int
			// COMM_EST: a packet comes while the queue pair is in RTR.
			s.q = s.lab.nic.CreateQP("RC")
			s.q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": accessAll})
			s.q.Modify("RTR", args{"ah_attr": ahAttr(s.lab.ips[0].gidIndex, s.lab.ips[0].remote, 0), "path_mtu": enumMTU1024, "dest_qp_num": scriptQPN,
				"rq_psn": scriptPSN, "max_dest_rd_atomic": 4, "min_rnr_timer": 12})
			s.q.PostRecv(1, s.mr, 0, 100)
			s.p.Send(s.t, peer.SendOnly(s.q.QPN, scriptPSN, []byte("established")))
			s.p.Expect(s.t, peer.WantAck(scriptPSN))
			said = append(said, s.events())
			s.q.Destroy()
			// QP_ACCESS_ERR, QP_REQ_ERR, QP_FATAL.
			for _, c := range []struct {
				frame *peer.Frame
				lkey  uint32 // of the receive
				nak   peer.Syndrome
			}{
				{peer.WriteOnly(0, scriptPSN, s.mr.Addr, s.mr.RKey^0x100, []byte("x")), s.mr.LKey, peer.SynNakAccess},
				{peer.NewFrame(peer.OpSendLast, 0, scriptPSN), s.mr.LKey, peer.SynNakInvalid},
				{peer.SendOnly(0, scriptPSN, []byte("x")), s.mr.LKey ^ 0x100, peer.SynNakOperation},
			} {
				s.rc(nil)
				s.lab.nic.call(nil, "post_recv", args{"qp": s.q.ID, "wr_id": 1, "mr": s.mr.ID, "offset": 0, "length": 100, "lkey": c.lkey})
				c.frame.DestQP, c.frame.AckReq = s.q.QPN, true
				s.p.Send(s.t, c.frame)
				s.p.Expect(s.t, peer.WantNak(scriptPSN, c.nak))
				said = append(said, s.events())
				if state := s.q.State(); state != "ERR" {
					s.t.Errorf("after %v the queue pair is in %s", c.frame, state)
				}
				s.q.Destroy()
			}
			s.q = nil
			return !slices.ContainsFunc(said, func(l []int) bool { return len(l) > 0 }), said
		}},
		{"solicited-error", func(s *scripted) (bool, any) { // C15
			s.q = s.lab.nic.CreateEventQP("RC")
			s.q.Connect(connection{SGIDIndex: s.lab.ips[0].gidIndex, DGID: s.lab.ips[0].remote, QPN: scriptQPN, RecvPSN: scriptPSN, MaxRdAtomic: 4, MinRNRTimer: 12})
			s.q.PostRecv(1, s.mr, 0, 10)
			s.q.Arm(recvCQ, true)
			s.p.Send(s.t, peer.SendOnly(s.q.QPN, scriptPSN, make([]byte, 11)))
			woken := s.q.Event(recvCQ, 200*time.Millisecond)
			wc := s.q.RecvCompletions(1)[0]
			return !woken && wc.Status != wcSuccess, wc
		}},
		{"wc-grh", func(s *scripted) (bool, any) {
			s.rc(nil)
			s.q.PostRecv(1, s.mr, 0, 10)
			s.p.Send(s.t, peer.SendOnly(s.q.QPN, scriptPSN, make([]byte, 10)))
			wc := s.q.RecvCompletions(1)[0]
			return wc.Status == wcSuccess && wc.Flags&1 != 0, wc
		}},
		{"ud-oversize-psn", func(s *scripted) (bool, any) { // S17
			l := s.datagrams(sendWR{Length: 10}, sendWR{Length: 4097}, sendWR{Length: 10})
			return len(l) == 2 && l[1].PSN == l[0].PSN+2, l
		}},
		{"privileged-qkey", func(s *scripted) (bool, any) { // B.2
			l := s.datagrams(sendWR{Length: 10, QKey: 0x80000005})
			return len(l) == 1 && l[0].DETH.QKey == 0x80000005, l
		}},
		{"hop-limit", func(s *scripted) (bool, any) { // C9
			l := s.datagrams(sendWR{Length: 10})
			return len(l) == 1 && l[0].TTL == 64, l
		}},
	} {
		t.Run(c.row, func(t *testing.T) {
			s := &scripted{t: t, lab: lab, p: lab.ips[0].peer, mr: mr}
			s.frames(time.Millisecond) // what was left of the last one
			still, saw := c.f(s)
			deviation(t, c.row, still, "%v", saw)
			if s.q != nil {
				s.q.Destroy()
			}
		})
	}
}

// eventLastWQE is IBV_EVENT_QP_LAST_WQE_REACHED.
const eventLastWQE = 16

// events are the asynchronous events of a while.
func (s *scripted) events() []int {
	s.t.Helper()
	return s.lab.nic.AsyncEvents(10, 100*time.Millisecond)
}

// datagrams sends datagrams with hop limit 5 from a queue pair whose Q_Key is 0x1111, and returns what leaves.
func (s *scripted) datagrams(wrs ...sendWR) []*peer.Frame {
	s.t.Helper()
	s.q = s.lab.nic.CreateQP("UD")
	s.q.Datagrams(0x1111, 5)
	attr := ahAttr(s.lab.ips[0].gidIndex, s.lab.ips[0].remote, 0)
	attr["hop_limit"] = 5
	var ah struct{ ID int }
	s.lab.nic.call(&ah, "create_ah", attr)
	for _, w := range wrs {
		w.Opcode, w.AH, w.RemoteQPN = "SEND", &ah.ID, scriptQPN
		s.post(w)
	}
	for _, wc := range s.q.SendCompletions(len(wrs)) {
		if wc.Status != wcSuccess {
			s.t.Errorf("completion %+v", wc)
		}
	}
	l := s.frames(150 * time.Millisecond)
	s.lab.nic.call(nil, "destroy", args{"id": ah.ID})
	return l
}

// TestOpsDeviationsListed holds interop/deviations.md and the tests together: each row that is expected has a line, each
// line that names a test of this package is expected there, and each rule that the kernel's device may break is listed.
func TestOpsDeviationsListed(t *testing.T) {
	if os.Getenv("SOFTNIC_GUEST") == "1" {
		return // the sources are not there
	}
	md, err := os.ReadFile("../deviations.md")
	if err != nil {
		t.Fatal(err)
	}
	sources, err := filepath.Glob("ops_*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	expected := map[string][]string{} // by row: the tests
	row := regexp.MustCompile(`deviation\(t, "([a-z-]+)"|^\t\t\{"([a-z-]+)", func\(s \*scripted\)|row: "([a-z-]+)"`)
	function := regexp.MustCompile(`^func (Test\w+)`)
	for _, file := range sources {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		test := ""
		for line := range strings.Lines(string(b)) {
			if m := function.FindStringSubmatch(line); m != nil {
				test = m[1]
			} else if m := row.FindStringSubmatch(line); m != nil {
				name := m[1] + m[2] + m[3]
				expected[name] = append(expected[name], test)
			}
		}
	}
	listed := map[string]string{} // by row: the last cell
	rows := map[string]string{}   // by rule
	for line := range strings.Lines(string(md)) {
		cells := strings.Split(strings.Trim(line, "|\n "), "|")
		switch name := strings.TrimSpace(cells[0]); {
		case len(cells) == 5 && regexp.MustCompile(`^[a-z-]*[a-z][a-z-]*$`).MatchString(name):
			listed[name] = cells[4]
		case len(cells) == 2:
			rows[name] = strings.TrimSpace(cells[1])
		}
	}
	for name, in := range expected {
		cell, ok := listed[name]
		if !ok {
			t.Errorf("%v expect the deviation %s, which deviations.md has not", in, name)
		}
		for _, test := range in {
			if !strings.Contains(cell, "`"+test+"`") {
				t.Errorf("%s expects the deviation %s; deviations.md names %s", test, name, cell)
			}
		}
	}
	for name, cell := range listed {
		for _, m := range regexp.MustCompile("`(\\w+)`").FindAllStringSubmatch(cell, -1) {
			if !slices.Contains(expected[name], m[1]) {
				t.Errorf("deviations.md has %s in %s, which does not expect it", name, m[1])
			}
		}
		if expected[name] == nil && !strings.Contains(cell, "–") && name != "row" {
			t.Errorf("deviations.md has no test for %s, and does not say why", name)
		}
	}
	for id, name := range rxeBreaks {
		if rows[id.String()] != name {
			t.Errorf("rule %v is broken by %s; deviations.md has %q", id, name, rows[id.String()])
		}
	}
	for rule, name := range rows {
		if !slices.Contains(slices.Collect(maps.Values(rxeBreaks)), name) && rule != "rule" && !strings.HasPrefix(rule, "-") {
			t.Errorf("deviations.md has rule %s for %s, which no test expects", rule, name)
		}
	}
}
