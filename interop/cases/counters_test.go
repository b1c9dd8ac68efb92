package cases

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/transport"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// shown is what the tape of a port says that the counters of its device must say, while all
// connections are good.
type shown struct {
	mtu    int
	is     map[string]uint64
	next   map[uint32]bth.PSN     // requests sent to a queue pair: behind the last one
	done   map[executedPSN]uint64 // requests of reliable connections that were executed: how often
	rounds map[wire.Cause]uint64  // that begin on the tape
	early  uint64                 // answers behind a missing one
}

type executedPSN struct {
	qpn uint32
	psn bth.PSN
}

// showCounters counts on a tape.
func showCounters(l []taped, mtu int) *shown {
	s := &shown{mtu: mtu, is: map[string]uint64{}, next: map[uint32]bth.PSN{}, done: map[executedPSN]uint64{}, rounds: map[wire.Cause]uint64{}}
	for f := wire.NotRoCE + 1; f < wire.Faults; f++ {
		s.is["drop_"+f.String()] = 0
	}
	for n := range strings.FieldsSeq(`sent_pkts sent_bytes rcvd_pkts rcvd_bytes tx_impaired rx_impaired rx_icrc_encapsulated
		duplicate_request out_of_seq_request send_rnr_err out_of_buffer rcvd_seq_err packet_seq_err rcvd_rnr_err rnr_nak_retry_err
		rx_read_requests rx_write_requests rx_atomic_requests rdma_recvs
		np_ecn_marked_roce_packets np_cnp_sent rp_cnp_handled rp_cnp_ignored
		retry_exceeded_err retry_rnr_exceeded_err req_cqe_error resp_cqe_error send_err link_downed
		tx_too_long impair_lost loop_lost icrc_ignored ud_oversize mad_answered mad_dropped raw_sent raw_rcvd`) {
		s.is[n] = 0 // also of what no connection does that is good
	}
	held := map[string]int{} // packets that are on the tape once more, when they are let go
	for i := range l {
		x := &l[i]
		var v wire.View
		wire.ParseIP(x.bytes, &v)
		if x.dir == rules.Rx && x.fate == rules.Held {
			s.is["rx_impaired"]++ // it comes when it is let go
			continue
		}
		if x.dir == rules.Rx {
			s.received(x.fault, &v)
			continue
		}
		id := fmt.Sprint(x.round, x.bytes)
		switch {
		case x.fate == rules.Copied:
			continue
		case x.fate == rules.Held:
			held[id]++
		case x.fate == rules.Passed && held[id] > 0:
			held[id]--
			continue
		}
		if x.fate != rules.Passed {
			s.is["tx_impaired"]++
		}
		s.is["sent_pkts"]++
		s.is["sent_bytes"] += uint64(len(v.IB))
		s.sent(x.cause, &v)
	}
	return s
}

// sent takes a packet that the device has sent.
func (s *shown) sent(cause wire.Cause, v *wire.View) {
	switch o := v.BTH().Opcode(); {
	case o == bth.CNPNotify:
		s.is["np_cnp_sent"]++
	case v.Info.Has(bth.Response) && o.Operation() == bth.Acknowledge:
		switch syn := bth.AETH(v.Header(bth.HAETH)).Syndrome(); {
		case syn == bth.NakSequence:
			s.is["out_of_seq_request"]++
		case syn.IsRNR():
			s.is["send_rnr_err"]++
			s.is["out_of_buffer"]++
		}
	case v.Info.Has(bth.Request) && o.Service() != bth.UC:
		psn, to := v.BTH().PSN(), v.BTH().DestQP()
		if next, ok := s.next[to]; ok && psn.Before(next) {
			s.rounds[cause]++
		}
		n := 1
		if v.Info.Has(bth.Read) {
			n = transport.Packets(uint64(bth.RETH(v.Header(bth.HRETH)).Length()), s.mtu)
		}
		s.next[to] = psn.Add(n)
	}
}

// received takes a packet that came to the device.
func (s *shown) received(f wire.Fault, v *wire.View) {
	if f == wire.NotRoCE {
		return // another program's
	}
	s.is["rcvd_pkts"]++
	s.is["rcvd_bytes"] += uint64(len(v.IB))
	if f != wire.OK {
		s.is["drop_"+f.String()]++
	}
	switch {
	case f == wire.Impaired:
		s.is["rx_impaired"]++
		return
	case f == wire.ICRC:
		s.is["rx_icrc_encapsulated"]++
		return
	case isNoise(f):
		return
	}
	b, i := v.BTH(), v.Info
	if b.Opcode() == bth.CNPNotify {
		if f == wire.OK {
			s.is["rp_cnp_handled"]++
		} else {
			s.is["rp_cnp_ignored"]++
		}
		return
	}
	if v.TClass()&3 == 3 {
		s.is["np_ecn_marked_roce_packets"]++
	}
	if f == wire.EarlyResponse {
		s.early++
	}
	if f == wire.NoReceive {
		s.is["out_of_buffer"]++
	}
	if b.Opcode().Operation() == bth.Acknowledge && f == wire.OK {
		switch syn := bth.AETH(v.Header(bth.HAETH)).Syndrome(); {
		case syn == bth.NakSequence:
			s.is["rcvd_seq_err"]++
			s.is["packet_seq_err"]++
		case syn.IsRNR():
			s.is["rcvd_rnr_err"]++
			s.is["rnr_nak_retry_err"]++
		}
	}
	if !i.Has(bth.Request) {
		return
	}
	reliable := b.Opcode().Service() != bth.UC
	if f != wire.OK {
		// Else it was there before.
		if reliable && f != wire.OutOfSequence && f != wire.NotReady {
			s.is["duplicate_request"]++
		}
		return
	}
	if reliable {
		s.done[executedPSN{b.DestQP(), b.PSN()}]++
	}
	if i.Has(bth.Comp) {
		s.is["rdma_recvs"]++
	}
	switch {
	case i.Has(bth.Read):
		s.is["rx_read_requests"]++
	case i.Has(bth.Atomic):
		s.is["rx_atomic_requests"]++
	case i.Has(bth.Write | bth.Start):
		s.is["rx_write_requests"]++
	}
}

// ofPort are counters that a queue pair does not have.
var ofPort = []string{"tx_impaired", "rx_impaired", "rx_icrc_encapsulated", "tx_too_long", "impair_lost", "loop_lost", "icrc_ignored",
	"link_downed", "mad_answered", "mad_dropped"}

// ofQP returns what of a tape is a queue pair's, which is connected to the queue pair to. What never got to it is
// the device's alone.
func ofQP(l []taped, qpn, to uint32) (of []taped) {
	for _, x := range l {
		var v wire.View
		if f := wire.ParseIP(x.bytes, &v); f != wire.OK && f != wire.ICRC {
			continue
		}
		dest := to
		if x.dir == rules.Rx {
			if isNoise(x.fault) || x.fault == wire.NotRoCE || x.fault == wire.Impaired {
				continue
			}
			dest = qpn
		}
		if v.BTH().DestQP() == dest {
			of = append(of, x)
		}
	}
	return of
}

// compare compares with the counters of a device, or of a queue pair.
func (s *shown) compare(t *testing.T, name string, counters []stats.Value, device bool) {
	t.Helper()
	got := map[string]uint64{}
	for _, v := range counters {
		got[v.Name] = v.Value
	}
	for n, w := range s.is {
		g, ok := got[n]
		if !device && slices.Contains(ofPort, n) {
			if ok {
				t.Errorf("%s: counter %s is there", name, n)
			}
			continue
		}
		if !ok || g != w {
			t.Errorf("%s: counter %s is %d (%v), the tape shows %d", name, n, g, ok, w)
		}
	}
	for k, n := range s.done {
		if n != 1 {
			t.Errorf("%s: QP %x PSN %v was executed %d times", name, k.qpn, k.psn, n)
		}
	}
	between := func(n string, low, high uint64) {
		if g, ok := got[n]; !ok || g < low || g > high {
			t.Errorf("%s: counter %s is %d (%v), the tape shows %d to %d", name, n, g, ok, low, high)
		}
	}
	// Of a round nothing is on the tape if the next one begins before it has left.
	seq, implied, timeouts := s.rounds[wire.RetrySequence], s.rounds[wire.RetryImplied], s.rounds[wire.RetryTimeout]
	all := got["packet_seq_err"] + got["implied_nak_seq_err"] + got["local_ack_timeout_err"]
	between("completer_retry_err", all, all)
	cut := all - min(all, seq+implied+timeouts)
	between("packet_seq_err", seq, seq+cut)
	between("implied_nak_seq_err", implied, min(implied+cut, s.early))
	between("local_ack_timeout_err", timeouts, timeouts+cut)
	between("late_ack", 0, s.is["drop_"+wire.StaleResponse.String()])
}
