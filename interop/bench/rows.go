//go:build linux

package main

import (
	"fmt"
	"slices"
	"strings"
)

// metric is one number of a probe's run.
type metric string

const (
	bytesPerSec metric = "bytes/s"
	msgsPerSec  metric = "messages/s"
	usec        metric = "us" // median, one way; the whole operation for atomics
	cpuPerGB    metric = "CPU s/GB"
	allocs      metric = "allocations/packet"
	leastShare  metric = "of the mean" // what the queue pair moved that moved the least
)

// value is a number of a probe, times a factor; of an empty probe it is 1.
type value struct {
	probe  string
	metric metric
	times  float64 // 0: 1
}

func (v value) factor() float64 {
	if v.times == 0 {
		return 1
	}
	return v.times
}

// row is a number with a goal.
type row struct {
	id, what      string
	value, anchor value
	atMost        bool // less is better
	goal, stretch float64
	slack         float64 // a value above the goal by no more counts as the goal: what start and end of a run cost
	noGoal        bool    // told and not judged
	estimate      float64 // with noGoal: what was expected before there was an engine; 0: nothing
	lab           bool    // its probes run in the lab's virtual machine
}

// without is what stands in place of the goals where there are none.
func (r *row) without() string {
	if r.estimate == 0 {
		return "no goal"
	}
	return "no goal, estimate " + ratio(r.estimate)
}

// rows are those of the project's performance goals.
var rows = []row{
	{id: "P1", what: "write 64 KiB / iperf3", value: value{probe: "write-64k", metric: bytesPerSec}, anchor: value{probe: "iperf3", metric: bytesPerSec}, goal: 0.80, stretch: 1.0},
	{id: "P2", what: "write 64 KiB, MTU 1024 / iperf3", value: value{probe: "write-64k-1024", metric: bytesPerSec}, anchor: value{probe: "iperf3", metric: bytesPerSec}, goal: 0.65, stretch: 0.85},
	{id: "P3", what: "write 1 MiB / iperf3", value: value{probe: "write-1m", metric: bytesPerSec}, anchor: value{probe: "iperf3", metric: bytesPerSec}, goal: 1.0, stretch: 1.2},
	{id: "P4", what: "write 64 KiB / UCX tag_bw", value: value{probe: "write-64k", metric: bytesPerSec}, anchor: value{probe: "ucx-tag-64k", metric: bytesPerSec}, goal: 1.1, stretch: 1.3},
	{id: "P4", what: "write 64 KiB / UCX put_bw", value: value{probe: "write-64k", metric: bytesPerSec}, anchor: value{probe: "ucx-put-64k", metric: bytesPerSec}, goal: 2.0, stretch: 2.5},
	{id: "P5", what: "read 64 KiB / P1", value: value{probe: "read-64k", metric: bytesPerSec}, anchor: value{probe: "write-64k", metric: bytesPerSec}, goal: 0.85, stretch: 0.95},
	{id: "P5", what: "send 64 KiB / P1", value: value{probe: "send-64k", metric: bytesPerSec}, anchor: value{probe: "write-64k", metric: bytesPerSec}, goal: 0.85, stretch: 0.95},
	{id: "P6", what: "write 64 KiB / UDP, GSO and GRO", value: value{probe: "write-64k", metric: bytesPerSec}, anchor: value{probe: "udp-gso", metric: bytesPerSec}, goal: 0.55, stretch: 0.7},
	{id: "P7", what: "write 64 KiB / UDP, plain", value: value{probe: "write-64k", metric: bytesPerSec}, anchor: value{probe: "udp-plain", metric: bytesPerSec}, goal: 2.5, stretch: 3.2},
	{id: "P8", what: "write 64 B, lists of 64 / UCX put_bw", value: value{probe: "write-64-list", metric: msgsPerSec}, anchor: value{probe: "ucx-put-64", metric: msgsPerSec}, goal: 12, stretch: 25},
	{id: "P9", what: "write 64 B, one by one / UCX put_bw", value: value{probe: "write-64", metric: msgsPerSec}, anchor: value{probe: "ucx-put-64", metric: msgsPerSec}, goal: 1.0, stretch: 5},
	{id: "P10", what: "write latency, polling / UDP, spinning", value: value{probe: "lat-poll", metric: usec}, anchor: value{probe: "ping-spin", metric: usec}, atMost: true, goal: 2.2, stretch: 1.5},
	{id: "P10", what: "write latency, polling / UCX tag_lat", value: value{probe: "lat-poll", metric: usec}, anchor: value{probe: "ucx-tag-lat", metric: usec}, atMost: true, goal: 1.4, stretch: 1.0},
	{id: "P10", what: "write latency, polling / UCX put_lat", value: value{probe: "lat-poll", metric: usec}, anchor: value{probe: "ucx-put-lat", metric: usec}, atMost: true, goal: 0.7, stretch: 0.45},
	{id: "P11", what: "write latency, CQ.Wait / UDP, blocking", value: value{probe: "lat-block", metric: usec}, anchor: value{probe: "ping-block", metric: usec}, atMost: true, goal: 2.5, stretch: 1.8},
	{id: "P12", what: "write latency, events / UDP, netpoller", value: value{probe: "lat-events", metric: usec}, anchor: value{probe: "ping-netpoll", metric: usec}, atMost: true, goal: 4, stretch: 2.5},
	{id: "P13", what: "fetch-add latency / write round trip", value: value{probe: "lat-fadd", metric: usec}, anchor: value{probe: "lat-poll", metric: usec, times: 2}, atMost: true, goal: 1.3, stretch: 1.1},
	{id: "P14", what: "write 64 KiB, 64 queue pairs / P1", value: value{probe: "write-64qp", metric: bytesPerSec}, anchor: value{probe: "write-64k", metric: bytesPerSec}, goal: 0.85, stretch: 1.0},
	{id: "P15", what: "write 64 KiB, TAPs on a bridge / P1", value: value{probe: "write-tap", metric: bytesPerSec}, anchor: value{probe: "write-64k", metric: bytesPerSec}, goal: 0.7, stretch: 0.9},
	{id: "P16", what: "allocations per packet, P1", value: value{probe: "write-64k", metric: allocs}, atMost: true, slack: 0.005},
	{id: "P17", what: "CPU s per GB, both sides, P1", value: value{probe: "write-64k", metric: cpuPerGB}, atMost: true, goal: 0.9, stretch: 0.65},
	{id: "S1", what: "ib_write_bw 64 KiB, two daemons / iperf3", value: value{probe: "ib_write_bw", metric: bytesPerSec}, anchor: value{probe: "iperf3", metric: bytesPerSec}, noGoal: true},
	{id: "S2", what: "ib_send_lat -e, two daemons / UDP, blocking", value: value{probe: "ib_send_lat", metric: usec}, anchor: value{probe: "ping-block", metric: usec}, atMost: true, noGoal: true},
	{id: "S3", what: "least served of 64 busy queue pairs / mean", value: value{probe: "write-64qp", metric: leastShare}, goal: 0.9, stretch: 0.95},
	{id: "S4", what: "CPU per packet, 32 queue pairs / 1", value: value{probe: "write-4k-32", metric: cpuPerGB}, anchor: value{probe: "write-4k-1", metric: cpuPerGB}, atMost: true, noGoal: true, estimate: 1.2},
	{id: "S4", what: "CPU per packet, 1,000 queue pairs / 1", value: value{probe: "write-4k-1000", metric: cpuPerGB}, anchor: value{probe: "write-4k-1", metric: cpuPerGB}, atMost: true, noGoal: true, estimate: 1.2},
	{id: "S5", what: "ib_send_lat, polling, two daemons / UDP, spinning", value: value{probe: "ib_send_lat_poll", metric: usec}, anchor: value{probe: "ping-spin", metric: usec}, atMost: true, noGoal: true},
	{id: "S5", what: "ib_write_bw 64 B, two daemons / UCX put_bw", value: value{probe: "ib_write_bw_64", metric: msgsPerSec}, anchor: value{probe: "ucx-put-64", metric: msgsPerSec}, noGoal: true},
	// Against the kernel's driver.
	{lab: true, id: "R1", what: "write 64 KiB / rxe", value: value{probe: "softnic", metric: bytesPerSec}, anchor: value{probe: "rxe", metric: bytesPerSec}, goal: 0.8, stretch: 1.2},
	{lab: true, id: "R2", what: "write 64 KiB, MTU 1024 / rxe", value: value{probe: "softnic-1024", metric: bytesPerSec}, anchor: value{probe: "rxe-1024", metric: bytesPerSec}, goal: 1.7, stretch: 2.5},
	{lab: true, id: "R3", what: "write 64 B, lists of 64 / rxe", value: value{probe: "softnic-64-list", metric: msgsPerSec}, anchor: value{probe: "rxe-64", metric: msgsPerSec}, goal: 3, stretch: 5},
	{lab: true, id: "R4", what: "write latency, polling / rxe", value: value{probe: "softnic-lat", metric: usec}, anchor: value{probe: "rxe-lat", metric: usec}, atMost: true, goal: 0.7, stretch: 0.4},
	{lab: true, id: "R5", what: "write 64 KiB, softnic exec to rxe / rxe", value: value{probe: "softnic-to-rxe", metric: bytesPerSec}, anchor: value{probe: "rxe", metric: bytesPerSec}, noGoal: true, estimate: 0.8},
	{lab: true, id: "R5", what: "write 64 KiB, rxe to softnic exec / rxe", value: value{probe: "rxe-to-softnic", metric: bytesPerSec}, anchor: value{probe: "rxe", metric: bytesPerSec}, noGoal: true, estimate: 0.6},
	{lab: true, id: "R6", what: "write 64 KiB, 1 % lost / rxe, 1 % lost", value: value{probe: "softnic-lossy", metric: bytesPerSec}, anchor: value{probe: "rxe-lossy", metric: bytesPerSec}, noGoal: true},
}

// Verdicts.
const (
	stretched = "STRETCH" // the stretch goal is reached
	met       = "MET"
	missed    = "MISSED"
	unjudged  = "-"       // there is no goal
	unknown   = "UNKNOWN" // something could not be measured
)

// verdict judges a ratio.
func (r *row) verdict(ratio float64) string {
	reached := func(goal float64) bool {
		if r.atMost {
			return ratio <= goal+r.slack
		}
		return ratio >= goal-r.slack
	}
	switch {
	case r.noGoal:
		return unjudged
	case reached(r.stretch):
		return stretched
	case reached(r.goal):
		return met
	}
	return missed
}

// selectRows returns the rows whose names are listed, as "P1,P6"; for "" all, or all but those of the lab.
func selectRows(list string, lab bool) ([]row, error) {
	if list == "" {
		return slices.DeleteFunc(slices.Clone(rows), func(r row) bool { return r.lab && !lab }), nil
	}
	var out []row
	for id := range strings.SplitSeq(list, ",") {
		n := len(out)
		for _, r := range rows {
			if r.id == strings.ToUpper(strings.TrimSpace(id)) {
				out = append(out, r)
			}
		}
		if len(out) == n {
			return nil, fmt.Errorf("there is no row %q: want some of %s", id, strings.Join(idsOf(rows), ","))
		}
	}
	return out, nil
}

// idsOf lists the names of rows, each once.
func idsOf(rs []row) (ids []string) {
	for _, r := range rs {
		if !slices.Contains(ids, r.id) {
			ids = append(ids, r.id)
		}
	}
	return ids
}

// labRows returns those of the lab.
func labRows(rs []row) []row {
	return slices.DeleteFunc(slices.Clone(rs), func(r row) bool { return !r.lab })
}

// needed returns those of the probes that rows need, in their order.
func needed(probes []probe, rs []row) []probe {
	return slices.DeleteFunc(slices.Clone(probes), func(p probe) bool {
		return !slices.ContainsFunc(rs, func(r row) bool { return r.value.probe == p.name || r.anchor.probe == p.name })
	})
}
