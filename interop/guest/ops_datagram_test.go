//go:build linux

package guest

import (
	"fmt"
	"testing"
	"time"

	"github.com/softnic/softnic/device"
)

// TestOpsUC is every operation of an unreliable connection, both ways, and messages that lose a packet.
func TestOpsUC(t *testing.T) {
	needGuest(t)
	l := newOps(t, "uc.pcap")
	// WRITEs have no completion at the other end: it is there when a SEND behind it is.
	behind := func(t *testing.T, from, to opsEnd) {
		t.Helper()
		to.recv(99, span{opsTarget + 70000, 8})
		from.post(opsWR{Op: device.OpSend, SGE: []span{{opsSource, 1}}})
		sent(t, from, "SEND", device.StatusSuccess)
		if wc := received(t, to, "SEND", device.StatusSuccess); wc.ID != 99 {
			t.Fatalf("%s's receive: %+v", to.who(), wc)
		}
	}
	t.Run("sizes", func(t *testing.T) {
		p := l.connect(opsConn{typ: device.UC})
		defer p.close()
		p.each(t, func(t *testing.T, from, to opsEnd) {
			for i, size := range []int{0, 1, opsMTU - 1, opsMTU, opsMTU + 1, 16384} {
				for k, op := range []device.WROp{device.OpSend, device.OpSendImm, device.OpWrite, device.OpWriteImm} {
					data := seeded(uint64(100*i+k), make([]byte, size))
					to.put(opsTarget, filled(0x77, size+8))
					from.put(opsSource, data)
					if op != device.OpWrite {
						to.recv(3, span{opsTarget, size + 8})
					}
					from.post(opsWR{Op: op, SGE: []span{{opsSource, size}}, Imm: 0xA1B2C3D4, Addr: to.addr(opsTarget), Key: to.key()})
					sent(t, from, op.String(), device.StatusSuccess)
					if op == device.OpWrite {
						behind(t, from, to)
					} else {
						opsReceived(t, to, op, size, 3, 0xA1B2C3D4)
					}
					what := fmt.Sprintf("%v of %d bytes", op, size)
					same(t, what, to.get(opsTarget, size), data)
					same(t, "what is behind "+what, to.get(opsTarget+size, 8), filled(0x77, 8))
				}
			}
		})
	})
	l.n.noDrops(t)
	// A message without its LAST is lost, and no other: the next one arrives.
	cut := func(t *testing.T, from opsEnd, dir string, op device.WROp) {
		t.Helper()
		name := map[device.WROp]string{device.OpSend: "SEND_LAST", device.OpWrite: "WRITE_LAST"}[op]
		id, err := l.n.dev.Port().Impair().Add(dir + " opcode=" + name + " count=1 drop")
		if err != nil {
			t.Fatal(err)
		}
		defer l.n.dev.Port().Impair().Remove(id)
		w := opsWR{Op: op, SGE: []span{{opsSource, 2500}}, Addr: 0, Key: 0}
		if op == device.OpWrite {
			if from.who() == "softnic" {
				w.Addr, w.Key = l.vmem.Addr, l.vmem.RKey
			} else {
				w.Addr, w.Key = l.mem.Addr(), l.mem.RKey()
			}
		}
		from.post(w)
		sent(t, from, "message that is cut", device.StatusSuccess)
	}
	t.Run("cut", func(t *testing.T) {
		for _, op := range []device.WROp{device.OpWrite, device.OpSend} {
			p := l.connect(opsConn{typ: device.UC})
			to := opsEnd(p.soft)
			to.recv(1, span{opsTarget, 4096})
			cut(t, p.kern, "rx", op)
			waitFor(t, patience, "the packet to be lost", func() bool {
				return l.n.counter("drop_impaired") > 0
			})
			for i := range 3 {
				data := seeded(uint64(i), make([]byte, 3000))
				p.kern.put(opsSource, data)
				p.kern.post(opsWR{Op: device.OpSend, SGE: []span{{opsSource, 3000}}})
				sent(t, p.kern, "SEND", device.StatusSuccess)
				if wc := received(t, to, "SEND behind a message that was cut", device.StatusSuccess); wc.Len != 3000 || wc.ID != uint64(i+1) {
					t.Errorf("softnic's receive behind a %v that was cut: %+v", op, wc)
				}
				same(t, "SEND behind a message that was cut", to.get(opsTarget, 3000), data)
				to.recv(uint64(i+2), span{opsTarget, 4096})
			}
			if state := to.state(); state != "RTS" {
				t.Errorf("softnic's queue pair is in %s", state)
			}
			p.close()
		}
	})
	// Where the kernel's device is wrong (roce.md B.10, rxe-lab.md 3).
	arrives := func(t *testing.T, p *opsPair, send func()) bool {
		t.Helper()
		before := l.dev.Counters(t)["rcvd_pkts"]
		send()
		waitFor(t, patience, "the packets to arrive", func() bool { return l.dev.Counters(t)["rcvd_pkts"] > before })
		return len(p.kern.polled(false, 1, 200*time.Millisecond)) > 0
	}
	send := func(t *testing.T, p *opsPair) {
		t.Helper()
		p.soft.post(opsWR{Op: device.OpSend, SGE: []span{{opsSource, 10}}})
		sent(t, p.soft, "SEND", device.StatusSuccess)
	}
	t.Run("rxe-deaf", func(t *testing.T) {
		p := l.connect(opsConn{typ: device.UC})
		defer p.close()
		for i := range 5 {
			p.kern.recv(uint64(i), span{opsTarget, 4096})
		}
		send(t, p)
		received(t, p.kern, "SEND", device.StatusSuccess)
		cut(t, p.soft, "tx", device.OpWrite)
		for i := range 3 {
			heard := arrives(t, p, func() { send(t, p) })
			deviation(t, "uc-deaf", !heard, "SEND %d after a WRITE without its LAST arrives", i)
		}
	})
	t.Run("rxe-loses", func(t *testing.T) {
		p := l.connect(opsConn{typ: device.UC})
		defer p.close()
		for i := range 5 {
			p.kern.recv(uint64(i), span{opsTarget, 4096})
		}
		cut(t, p.soft, "tx", device.OpSend)
		heard := arrives(t, p, func() { send(t, p) })
		deviation(t, "uc-send-cut", !heard, "the SEND after one without its LAST arrives")
		if !heard {
			send(t, p)
			received(t, p.kern, "the second SEND after one without its LAST", device.StatusSuccess)
		}
	})
	l.end([]string{"drop_impaired"})
}

// noDrops holds that softnic has dropped nothing until now.
func (n *nic) noDrops(t testing.TB) {
	t.Helper()
	quiet(t, n, nil)
}

// TestOpsUD is datagrams that TestTapDatagrams has not: with immediate data from the kernel's device, out of lists, with
// a wrong Q_Key, and too long for the receive.
func TestOpsUD(t *testing.T) {
	needGuest(t)
	const qkey, grh = opsQKey, 40
	l := newOps(t, "ud.pcap")
	p := l.connect(opsConn{typ: device.UD})
	p.each(t, func(t *testing.T, from, to opsEnd) {
		for i, size := range []int{0, 1, opsMTU - 1, opsMTU} {
			for k, op := range []device.WROp{device.OpSend, device.OpSendImm} {
				data := seeded(uint64(10*i+k), make([]byte, size))
				from.put(opsSource, data)
				to.put(opsTarget, filled(0x77, grh+size+8))
				to.recv(7, span{opsTarget, grh + size})
				from.post(opsWR{Op: op, SGE: []span{{opsSource, size / 3}, {opsSource, 0}, {opsSource + size/3, size - size/3}}, Imm: 0x01020304, QKey: qkey})
				sent(t, from, op.String(), device.StatusSuccess)
				opsReceived(t, to, op, grh+size, 7, 0x01020304)
				what := fmt.Sprintf("datagram of %d bytes", size)
				same(t, what, to.get(opsTarget+grh, size), data)
				same(t, "what is behind a "+what, to.get(opsTarget+grh+size, 8), filled(0x77, 8))
				src, dst := l.near, l.far
				if from == opsEnd(p.kern) {
					src, dst = dst, src
				}
				checkGRH(t, to.get(opsTarget, grh), src, dst)
			}
		}
		// Not taken, without a sign at either end: the next good one gets the receive.
		l.n.noDrops(t)
		to.recv(8, span{opsTarget, grh + 100})
		for _, w := range []opsWR{
			{Op: device.OpSend, SGE: []span{{opsSource, 10}}, QKey: qkey + 1},
			{Op: device.OpSend, SGE: []span{{opsSource, 101}}, QKey: qkey},
			{Op: device.OpSend, SGE: []span{{opsSource, 100}}, QKey: qkey},
		} {
			from.post(w)
			sent(t, from, "datagram", device.StatusSuccess)
		}
		if wc := received(t, to, "datagram", device.StatusSuccess); wc.Len != grh+100 || wc.ID != 8 || wc.Src != from.num() {
			t.Errorf("%s's receive: %+v", to.who(), wc)
		}
	})
	p.close()
	if k, long := l.n.counter("drop_qkey"), l.n.counter("drop_too-long"); k != 1 || long != 1 {
		t.Errorf("softnic counted %d wrong Q_Keys and %d datagrams that are too long: %s", k, long, l.n.drops())
	}
	l.end([]string{"drop_qkey", "drop_too-long"})
}
