//go:build linux

package guest

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/rules"
	"github.com/softnic/softnic/wire/bth"
)

// TestOpsPathMTU has the kernel's device take a path MTU that its network device cannot carry (rxe-lab.md 3). It finds
// out when it sends.
func TestOpsPathMTU(t *testing.T) {
	needGuest(t)
	l := newOps(t, "pathmtu.pcap")
	if mtu := sysfs("/sys/class/net/sn0/mtu"); mtu != "1500" {
		t.Fatalf("sn0 has MTU %s", mtu)
	}
	connect := func() (*verbsQP, verbError) {
		q := l.v.CreateQP("RC")
		q.Modify("INIT", args{"pkey_index": 0, "port_num": 1, "qp_access_flags": accessAll})
		failure := l.v.try(nil, "modify", args{"qp": q.ID, "state": "RTR", "attrs": args{"ah_attr": ahAttr(l.vgid, l.near, 0), "path_mtu": 5, "dest_qp_num": 0x777,
			"rq_psn": 1, "max_dest_rd_atomic": 1, "min_rnr_timer": 12}})
		return q, failure
	}
	q, failure := connect()
	deviation(t, "mtu-unchecked", failure.Error == "", "path_mtu 4096 on a network device of 1500: %v", failure)
	if failure.Error == "" {
		q.Modify("RTS", args{"sq_psn": 1, "max_rd_atomic": 1, "timeout": 0, "retry_cnt": 7, "rnr_retry": 7})
		mark := l.tape.mark()
		q.PostSend(sendWR{Opcode: "SEND", MR: l.vmem, Length: 8192})
		wc := q.SendCompletions(1)[0]
		deviation(t, "mtu-unchecked", wc.Status == wcFlushErr && q.State() == "ERR", "SEND of 8192 bytes: %+v, %s", wc, q.State())
		if n := len(l.tape.seen(mark, rules.Rx)); n != 0 {
			t.Errorf("%d packets have come", n)
		}
	}
	q.Destroy()
	l.conns = nil
	p := l.connect(opsConn{}) // so that rules are judged
	opsMessage(t, p.soft, p.kern, device.OpWrite, 3000, 1, 0)
	p.close()
	l.end(nil)
}

// TestOpsMulticastJoin has the kernel's device hear nothing of a group to which its queue pair is attached, until the
// host's IP stack has joined the group (rxe-lab.md C13).
func TestOpsMulticastJoin(t *testing.T) {
	needGuest(t)
	const grh = 40
	l := newOps(t, "join.pcap")
	for _, c := range []struct{ near, group string }{{"10.8.0.2", "239.129.7.7"}, {"fd00:8::2", "ff0e::ffff:ef01:707"}} {
		p := l.connect(opsConn{typ: device.UD})
		group := mustAddr(c.group)
		ah, err := l.n.pd.CreateAH(device.AHAttr{DGID: device.GIDOf(group), SGIDIndex: gidIndex(t, l.n.dev, mustAddr(c.near))})
		if err != nil {
			t.Fatal(err)
		}
		p.soft.ah, p.soft.peer = ah, device.MulticastQPN
		p.kern.q.MCast(group, true)
		p.kern.recv(1, span{opsTarget, grh + 100})
		data := seeded(3, make([]byte, 100))
		p.soft.put(opsSource, data)
		send := func() {
			t.Helper()
			p.soft.post(opsWR{Op: device.OpSend, SGE: []span{{opsSource, 100}}, QKey: opsQKey})
			sent(t, p.soft, "datagram to a group", device.StatusSuccess)
		}
		send()
		wc := p.kern.polled(false, 1, 500*time.Millisecond)
		deviation(t, "multicast-join", len(wc) == 0, "a queue pair that is attached to %v hears the group: %+v", group, wc)
		l.v.call(nil, "join", args{"group": groupText(group), "netdev": "sn0"})
		if len(wc) == 0 {
			send()
			received(t, p.kern, "datagram to a group that the host has joined", device.StatusSuccess)
			same(t, "datagram to a group", p.kern.get(opsTarget+grh, 100), data)
		}
		p.kern.q.MCast(group, false)
		p.close()
	}
	p := l.connect(opsConn{})
	opsMessage(t, p.soft, p.kern, device.OpWrite, 3000, 1, 0)
	p.close()
	l.end(nil)
}

// TestOpsCongestion has both ends send packets with a congestion mark. softnic answers with notifications, which do not
// disturb the kernel's device: it takes no notice, and answers marks with nothing.
func TestOpsCongestion(t *testing.T) {
	needGuest(t)
	l := newOps(t, "congestion.pcap")
	const marked = 3 // ECN: congestion experienced
	before := l.dev.Counters(t)
	for _, typ := range []device.QPType{device.RC, device.UC} {
		p := l.connect(opsConn{typ: typ, tclass: marked})
		mark := l.tape.mark()
		ops := []device.WROp{device.OpSend, device.OpWriteImm}
		if typ == device.RC {
			ops = append(ops, device.OpWrite, device.OpRead)
		}
		p.each(t, func(t *testing.T, from, to opsEnd) {
			for i := range 10 {
				for k, op := range ops {
					opsMessage(t, from, to, op, []int{1, 5000, 20000}[i%3], uint64(100*i+10*k), 0)
				}
			}
			if typ == device.RC {
				opsAtomics(t, from, to)
			}
			inState(t, from, "RTS")
			inState(t, to, "RTS")
		})
		count := func(dir rules.Direction) (cnp, ce int) {
			for _, v := range l.tape.seen(mark, dir) {
				switch {
				case v.BTH().Opcode() == bth.CNPNotify:
					cnp++
				case v.TClass()&marked == marked:
					ce++
				}
			}
			return cnp, ce
		}
		ours, marks := count(rules.Tx)
		theirs, theirMarks := count(rules.Rx)
		t.Logf("%v: softnic marks %d packets and sends %d CNPs; rxe marks %d and sends %d", typ, marks, ours, theirMarks, theirs)
		if marks == 0 || theirMarks == 0 || ours == 0 {
			t.Error("nothing was marked, or no mark was answered")
		}
		deviation(t, "congestion", theirs == 0, "%d CNPs", theirs)
		p.close()
	}
	for name, n := range l.dev.Counters(t).Since(before) {
		switch name {
		case "sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs", "ack_deferred":
		default:
			t.Errorf("rxe counted %s %d", name, n)
		}
	}
	if sent := l.n.counter("np_cnp_sent"); sent == 0 {
		t.Errorf("softnic has counted %d CNPs", sent)
	}
	l.end(nil)
}

// TestOpsSmallMTU is every operation of a reliable connection with a path MTU of 256 and 512, with either as the one that
// requests.
func TestOpsSmallMTU(t *testing.T) {
	needGuest(t)
	l := newOps(t, "smallmtu.pcap")
	for _, mtu := range []int{256, 512} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			p := l.connect(opsConn{mtu: mtu})
			defer p.close()
			p.each(t, func(t *testing.T, from, to opsEnd) {
				for i, size := range []int{1, mtu - 1, mtu, mtu + 1, 3*mtu + 1, 16384} {
					for k, op := range []device.WROp{device.OpRead, device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm} {
						mark := l.tape.mark()
						opsMessage(t, from, to, op, size, uint64(1000*i+10*k), 0)
						for _, dir := range []rules.Direction{rules.Tx, rules.Rx} {
							for _, v := range l.tape.seen(mark, dir) {
								if len(v.Payload) > mtu {
									t.Fatalf("%v has %d bytes", v.BTH().Opcode(), len(v.Payload))
								}
							}
						}
					}
				}
				opsAtomics(t, from, to)
			})
		})
	}
	l.end(nil)
}
