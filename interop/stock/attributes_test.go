//go:build linux

package stock

import (
	"encoding/json"
	"fmt"
	"maps"
	"syscall"
	"testing"
)

// TestAttributes sets what a queue pair has, and reads it back; and what it refuses changes nothing.
func TestAttributes(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	a := startAgent(t, d, d.exec())
	cq := a.create("create_cq", args{"depth": 16})
	read := func(q *queuePair) (v args) {
		t.Helper()
		a.call(&v, "query_attrs", args{"qp": q.ID})
		return v
	}
	// has holds that a queue pair has these, and that everything else is as it was.
	has := func(what string, q *queuePair, was, set args) args {
		t.Helper()
		want := maps.Clone(was)
		maps.Copy(want, set)
		now := read(q)
		text := func(v args) string { b, _ := json.Marshal(v); return string(b) } // numbers that were read are float64
		if text(now) != text(want) {
			t.Errorf("%s:\n%s, want\n%s", what, text(now), text(want))
		}
		return now
	}
	there := args{"dgid": d.gid(), "sgid_index": 1, "hop_limit": 7, "traffic_class": 0x20}
	address := args{"flow_label": 0, "is_global": 1, "port_num": 1}
	maps.Copy(address, there)

	q := a.createQPOn("RC", cq, cq)
	blank := read(q)
	for i, step := range []struct {
		state string
		set   args
	}{
		{"INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": remoteRead}},
		{"INIT", args{"qp_access_flags": remoteWrite | remoteRead | remoteAtomic}},
		{"RTR", args{"ah_attr": there, "path_mtu": 3, "dest_qp_num": 77, "rq_psn": 0xFFFFFF, "max_dest_rd_atomic": 16, "min_rnr_timer": 12}},
		{"RTS", args{"sq_psn": 0x123456, "max_rd_atomic": 3, "timeout": 14, "retry_cnt": 5, "rnr_retry": 6}},
		{"RTS", args{"min_rnr_timer": 31, "qp_access_flags": remoteRead}},
		{"SQD", args{}},
		{"", args{"retry_cnt": 7, "rnr_retry": 7, "timeout": 31, "max_rd_atomic": 9, "max_dest_rd_atomic": 8}},
		{"RTS", args{}},
		{"ERR", args{}},
	} {
		was := read(q)
		q.modify(step.state, step.set)
		set := maps.Clone(step.set)
		if set["ah_attr"] != nil {
			set["ah_attr"] = address
		}
		has(fmt.Sprint("step ", i, " to ", step.state), q, was, set)
		if step.state != "" && q.state() != step.state {
			t.Errorf("step %d: the state is %s, want %s", i, q.state(), step.state)
		}
	}
	q.modify("RESET", args{})
	has("RESET", q, blank, nil)

	ud := a.createQPOn("UD", cq, cq)
	was := read(ud)
	ud.datagrams(0x80010000)
	was = has("UD", ud, was, args{"pkey_index": 0, "port_num": 1, "qkey": 0x80010000, "sq_psn": 0xFFFFFF})
	ud.modify("RTS", args{"qkey": 5})
	has("UD, another Q_Key", ud, was, args{"qkey": 5})

	// What is refused. A row begins in the state of the queue pair that it names.
	inited, running := a.createQPOn("RC", cq, cq), a.createQPOn("RC", cq, cq)
	inited.init()
	running.init()
	running.connect(running, 5, 5, path{mtu: 1024})
	rtr := func(change args) args {
		v := args{"ah_attr": there, "path_mtu": 3, "dest_qp_num": 77, "rq_psn": 1, "max_dest_rd_atomic": 16, "min_rnr_timer": 12}
		maps.Copy(v, change)
		return v
	}
	for _, c := range []struct {
		name  string
		q     *queuePair
		state string
		set   args
	}{
		{"P_Key index", q, "INIT", args{"pkey_index": 1, "port_num": 1, "qp_access_flags": 0}},
		{"port 0", q, "INIT", args{"pkey_index": 0, "port_num": 0, "qp_access_flags": 0}},
		{"Q_Key of RC", q, "INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": 0, "qkey": 1}},
		{"RESET with more", inited, "RESET", args{"qkey": 1}},
		{"MTU 0", inited, "RTR", rtr(args{"path_mtu": 0})},
		{"MTU beyond 4096", inited, "RTR", rtr(args{"path_mtu": 6})},
		{"24 bits of QPN", inited, "RTR", rtr(args{"dest_qp_num": 1 << 24})},
		{"too many READs", inited, "RTR", rtr(args{"max_dest_rd_atomic": 129})},
		{"5 bits of RNR timer", inited, "RTR", rtr(args{"min_rnr_timer": 32})},
		{"no such GID", inited, "RTR", rtr(args{"ah_attr": args{"dgid": d.gid(), "sgid_index": 9}})},
		{"GIDs of two kinds", inited, "RTR", rtr(args{"ah_attr": args{"dgid": d.gid(), "sgid_index": 0}})},
		{"INIT to RTS", inited, "RTS", args{"sq_psn": 1, "max_rd_atomic": 1, "timeout": 14, "retry_cnt": 7, "rnr_retry": 7}},
		{"INIT to SQD", inited, "SQD", args{}},
		{"back to RTR", running, "RTR", rtr(nil)},
		{"back to INIT", running, "INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": 0}},
		{"SQE by hand", running, "SQE", args{}},
		{"PSN while it runs", running, "", args{"sq_psn": 3}},
		{"timeout", running, "RTS", args{"timeout": 32}},
		{"retries", running, "RTS", args{"retry_cnt": 8}},
		{"the state that it is not in", running, "RTS", args{"cur_qp_state": 2, "min_rnr_timer": 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			was, state := read(c.q), c.q.state()
			if f := a.try(nil, "modify", args{"qp": c.q.ID, "state": c.state, "attrs": c.set}); f.Errno != int(syscall.EINVAL) {
				t.Errorf("%+v, want errno %d (EINVAL)", f, syscall.EINVAL)
			}
			has("after a refusal", c.q, was, nil)
			if now := c.q.state(); now != state {
				t.Errorf("after a refusal the state is %s, was %s", now, state)
			}
		})
	}

	for _, c := range []struct {
		name string
		verb string
		args args
		want syscall.Errno
	}{
		{"memory on demand", "reg_mr", args{"length": 64, "access": localWrite | 1<<6}, syscall.EOPNOTSUPP},
		{"zero-based memory", "reg_mr", args{"length": 64, "access": localWrite | 1<<5}, syscall.EOPNOTSUPP},
		{"persistent flush of memory that is not", "reg_mr", args{"length": 64, "access": localWrite | 1<<9}, syscall.EINVAL},
		{"access that nobody knows", "reg_mr", args{"length": 64, "access": localWrite | 1<<10}, syscall.EINVAL},
		{"window type 0", "alloc_mw", args{"type": 0}, syscall.EINVAL},
		{"window type 3", "alloc_mw", args{"type": 3}, syscall.EINVAL},
		{"inline above the limit", "create_qp", args{"type": "RC", "scq": cq, "rcq": cq, "depth": 4, "sge": 1, "sig_all": true, "inline": 513}, syscall.EINVAL},
		{"address handle to nobody", "create_ah", args{"dgid": "0000:0000:0000:0000:0000:0000:0000:0000"}, syscall.EINVAL},
		{"address handle of two kinds", "create_ah", args{"dgid": d.gid(), "sgid_index": 0}, syscall.EINVAL},
		{"address handle beyond the table", "create_ah", args{"dgid": d.gid(), "sgid_index": 16}, syscall.EINVAL},
	} {
		if f := a.try(nil, c.verb, c.args); f.Errno != int(c.want) {
			t.Errorf("%s: %+v, want errno %d (%v)", c.name, f, c.want, c.want)
		}
	}
	a.call(nil, "destroy", args{"ids": []int{q.ID, ud.ID, inited.ID, running.ID, cq}})
	a.stdin.Close() // what is said to the user is not the subject
	if r := a.wait(patience); r.Code != 0 {
		t.Errorf("ended badly: %v", r)
	}
	d.free()
}
