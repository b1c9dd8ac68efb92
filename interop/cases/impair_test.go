package cases

import (
	"testing"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
)

// impair adds a rule to the device's port.
func (l *lab) impair(rule string) {
	l.t.Helper()
	must(l.dev.Port().Impair().Add(rule))
}

// What impairment rules forge and change, as the other party sees it, and what the engine makes of it.
func TestImpairmentRules(t *testing.T) {
	bubble(t, "RNR instead of the peer", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		l.impair("tx round=1 answer=rnr:20") // 10.24 ms
		mr := l.mr(64, all)
		c.write(mr, 64)
		l.emits()
		time.Sleep(10 * time.Millisecond)
		l.emits()
		time.Sleep(time.Millisecond)
		l.emits("WRITE_ONLY 000100 ar va=10000+64 [64]")
		c.gets(peer.Ack(nicQP, 0x100, 1))
		c.sent("1 SUCCESS RDMA_WRITE 64")
		l.counts("rcvd_rnr_err=1", "forged=1", "tx_impaired=1")
	})
	bubble(t, "a NAK instead of the peer", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		l.impair("tx opcode=WRITE* answer=nak-access")
		mr := l.mr(64, all)
		c.write(mr, 64)
		c.read(mr, 8)
		l.emits("READ_REQUEST 000101 ar va=10000+8")
		c.sent("1 REM_ACCESS_ERR", "2 WR_FLUSH_ERR")
		c.state(device.StateErr)
	})
	bubble(t, "a NAK instead of the responder", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		l.impair("rx count=1 answer=nak-sequence")
		l.impair("rx count=1 answer=rnr:7")
		mr := l.mr(64, all)
		c.recv(9, mr, 64)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits("ACKNOWLEDGE 000200 60 m0")
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits("ACKNOWLEDGE 000200 27 m0")
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.received("9 SUCCESS RECV 3")
		l.counts("forged=2", "rx_impaired=2", "send_rnr_err=0", "out_of_seq_request=0")
		l.impair("rx count=1 answer=nak-op")
		c.gets(peer.SendOnly(nicQP, 0x201, []byte("abc")))
		l.emits("ACKNOWLEDGE 000201 63 m1") // it counts what was executed
	})
	bubble(t, "fields of what is sent", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		l.impair("tx opcode=ACKNOWLEDGE set=msn:+5,syndrome:0x63")
		l.impair("tx opcode=WRITE* set=va:0x20000,length:+1")
		c.recv(9, l.mr(64, all), 64)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits("ACKNOWLEDGE 000200 63 m6") // its ICRC is right: l.check looks
		c.write(l.mr(64, all), 64)
		l.emits("WRITE_ONLY 000100 ar va=20000+65 [64]")
	})
	bubble(t, "what is held back is received once", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		l.impair("rx psn=0x200 round=1 delay=1ms")
		l.impair("rx psn=0x201 round=1 duplicate")
		mr := l.mr(64, all)
		c.recv(9, mr, 64)
		c.recv(10, mr, 64)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits()
		l.counts("rcvd_pkts=0", "rcvd_bytes=0", "rx_impaired=1", "drop_impaired=0")
		time.Sleep(time.Millisecond)
		l.emits("ACKNOWLEDGE 000200 1f m1")
		l.counts("rcvd_pkts=1", "rcvd_bytes=20", "rx_impaired=1", "drop_impaired=0")
		c.gets(peer.SendOnly(nicQP, 0x201, []byte("abc")))
		l.emits("ACKNOWLEDGE 000201 1f m2", "ACKNOWLEDGE 000201 1f m2")
		l.counts("rcvd_pkts=3")
		l.impair("rx psn=0x202 drop")
		c.gets(peer.SendOnly(nicQP, 0x202, []byte("abc")))
		l.emits()
		l.counts("rcvd_pkts=4", "rx_impaired=2", "drop_impaired=1")
	})
	bubble(t, "a mark on the way here", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		l.impair("rx count=1 ecn=ce")
		c.recv(9, l.mr(64, all), 64)
		c.recv(10, l.mr(64, all), 64)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits("CNP 000000", "ACKNOWLEDGE 000200 1f m1")
		c.gets(peer.SendOnly(nicQP, 0x201, []byte("abc")))
		l.emits("ACKNOWLEDGE 000201 1f m2")
	})
	bubble(t, "a byte of what comes", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		l.impair("rx psn=0x200 count=1 corrupt")
		l.impair("rx psn=0x201 count=1 corrupt at=12 xor=0x20 icrc=good")
		mr := l.mr(64, all)
		c.recv(9, mr, 64)
		c.recv(10, mr, 64)
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits()
		l.counts("rx_icrc_encapsulated=1")
		c.gets(peer.SendOnly(nicQP, 0x200, []byte("abc")))
		l.emits("ACKNOWLEDGE 000200 1f m1")
		c.gets(peer.SendOnly(nicQP, 0x201, []byte("abc")))
		l.emits("ACKNOWLEDGE 000201 1f m2")
		wantBytes(t, "what no ICRC has saved", mr.Bytes()[:3], []byte("Abc"))
	})
}
