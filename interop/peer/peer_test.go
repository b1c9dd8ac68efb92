package peer

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// recorder is a testing.TB that keeps the message of Fatalf.
type recorder struct {
	testing.TB
	message string
}

func (r *recorder) Helper() {}
func (r *recorder) Fatalf(format string, args ...any) {
	r.message = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// failure is the message with which f fails its test, empty if it does not.
func failure(f func(t testing.TB)) string {
	r := &recorder{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	<-done
	return r.message
}

// pair is two peers on a pipe.
func pair() (a, b *Peer) {
	ca, cb := NewPipe()
	return New(ca, v4a, v4b), New(cb, v4b, v4a)
}

func TestExpect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		a.Send(t, Ack(0x12, 0x1234, 7), WriteFirst(0x11, 5, 0x1000, 9, 4096, []byte("abc")).AsXRC(3))
		b.Expect(t, WantAck(0x1001234), WantMSN(7), WantDestQP(0x12), WantAckReq(false), WantSolicited(false),
			WantPKey(0xFFFF), WantMigrated(true), WantBECN(false), WantTOS(0), WantTTL(64), WantSrcPort(0xC000),
			WantSrc(v4a), WantDst(v4b), WantLen(0))
		f := b.Expect(t, WantOp(XRC|OpWriteFirst), WantPSN(5), WantVA(0x1000), WantRKey(9), WantDMALen(4096),
			WantSRQN(3), WantPayload([]byte("abc")), WantThat("three", func(f *Frame) error { return nil }))
		if f.ID != 0 || !f.DF {
			t.Errorf("%+v", f)
		}
		b.ExpectSilence(t, time.Hour)

		// SrcPort goes into the frames of the constructors.
		a.SrcPort = 0xC123
		a.Send(t, CmpSwap(1, 2, 3, 4, 5, 6), FetchAdd(1, 2, 3, 4, 5), AtomicAck(1, 2, 3, 4),
			UDSendImm(1, 2, 3, 4, 5, nil), SendOnlyInv(1, 2, 3, nil), MaskedCmpSwap(1, 2, MaskedETH{VA: 3, RKey: 4}),
			Ack(1, 2, 3).With(func(f *Frame) { f.SrcPort = 0xC999 }))
		b.Expect(t, WantSrcPort(0xC123), WantVA(3), WantRKey(4), WantCompare(5), WantSwapAdd(6))
		b.Expect(t, WantOp(OpFetchAdd), WantSwapAdd(5))
		b.Expect(t, WantOrig(4), WantSyndrome(SynAck), WantMSN(3))
		b.Expect(t, WantQKey(3), WantSrcQP(4), WantImm(5))
		b.Expect(t, WantInvKey(3))
		b.Expect(t, WantVA(3), WantRKey(4))
		b.Expect(t, WantSrcPort(0xC999))
	})
}

func TestExpectFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		for _, c := range []struct {
			name string
			send *Frame
			want []Want
			says []string
		}{
			{"fields", Nak(0x12, 6, SynNakAccess, 3), []Want{WantAck(5), WantMSN(4), WantDestQP(0x12)},
				[]string{"psn 0x000006", "psn 0x000005", "0x62 (NAK, remote access)", "0x1f (ACK)", "msn        got 3", "want 4",
					"frame: RC_ACKNOWLEDGE qp=0x000012", "frames so far", "got  RC_ACK"}},
			{"no such header", SendOnly(1, 2, nil), []Want{WantSyndrome(SynAck), WantVA(4)},
				[]string{"syndrome   got no AETH", "va         got no MaskedETH"}},
			{"payload", SendOnly(1, 2, []byte("abcdefgh")), []Want{WantPayload([]byte("abcdefgi!"))},
				[]string{"8 bytes, differing at 7, there from 3: 64 65 66 67 68", "9 bytes, differing at 7, there from 3: 64 65 66 67 69 21"}},
			{"shorter payload", SendOnly(1, 2, nil), []Want{WantPayload([]byte("a"))}, []string{"0 bytes, differing at 0"}},
			{"own question", SendOnly(1, 2, nil), []Want{WantThat("a better frame", func(*Frame) error { return errors.New("too bad") })},
				[]string{"too bad", "a better frame"}},
			{"ICRC", SendOnly(1, 2, []byte("abc")).With(func(f *Frame) { f.ICRC = new([4]byte) }), nil,
				[]string{"wrong ICRC 00 00 00 00, should be", "RC_SEND_ONLY"}},
			{"IP checksum", SendOnly(1, 2, nil).With(func(f *Frame) { f.IPChecksum = new(uint16(1)) }), nil,
				[]string{"irregular frame (IP header checksum)"}},
			{"malformed", WriteOnly(1, 2, 3, 4, nil).With(func(f *Frame) { f.BodyLimit = new(20) }), nil,
				[]string{"malformed RoCEv2 packet: RC_WRITE_ONLY: 8 bytes behind the BTH, headers and pad need 16"}},
		} {
			a.Send(t, c.send)
			message := failure(func(t testing.TB) { b.Expect(t, c.want...) })
			for _, want := range c.says {
				if !strings.Contains(message, want) {
					t.Errorf("%s: the message does not say %q:\n%s", c.name, want, message)
				}
			}
		}
	})
}

func TestWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		start := time.Now()
		if m := failure(func(t testing.TB) { b.Next(t) }); !strings.Contains(m, "no frame within 5s\nno frames so far") {
			t.Error(m)
		}
		b.Timeout = time.Minute
		if m := failure(func(t testing.TB) { b.Expect(t) }); !strings.Contains(m, "no frame within 1m0s") {
			t.Error(m)
		}
		if d := time.Since(start); d != time.Minute+5*time.Second {
			t.Errorf("waited %v", d)
		}
		// Other traffic is passed over, and is silence.
		other := a.Address(Ack(1, 2, 3)).With(func(f *Frame) { f.DstPort = 53 }).Marshal()
		a.SendRaw(t, other)
		b.ExpectSilence(t, time.Second)
		a.SendRaw(t, other)
		a.Send(t, Ack(1, 2, 3))
		b.Expect(t, WantAck(2))
		// A frame, good or bad, is not silence.
		a.Send(t, Ack(1, 2, 3))
		if m := failure(func(t testing.TB) { b.ExpectSilence(t, time.Second) }); !strings.Contains(m, "got RC_ACKNOWLEDGE") {
			t.Error(m)
		}
		a.Send(t, a.Address(Ack(1, 2, 3)).SpoilICRC())
		if m := failure(func(t testing.TB) { b.ExpectSilence(t, time.Second) }); !strings.Contains(m, "wrong ICRC") {
			t.Error(m)
		}
		b.Conn.(*Queue).Close()
		if m := failure(func(t testing.TB) { b.ExpectSilence(t, time.Second) }); !strings.Contains(m, "use of closed") {
			t.Error(m)
		}
		if m := failure(func(t testing.TB) { b.Next(t) }); !strings.Contains(m, "use of closed") {
			t.Error(m)
		}
	})
}

func TestSendFails(t *testing.T) {
	p := New(Funcs{WriteFunc: func([]byte) error { return errors.New("link is down") }}, v4a, v4b)
	for _, m := range []string{
		failure(func(t testing.TB) { p.Send(t, Ack(1, 2, 3)) }),
		failure(func(t testing.TB) { p.SendRaw(t, nil) }),
	} {
		if !strings.Contains(m, "link is down") {
			t.Error(m)
		}
	}
}

func TestOtherICRCRule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := pair()
		flush := a.Address(Flush(1, 2, 3, 4, 5, 1))
		packet := flush.Marshal()
		quirk := RxeFlushICRC(packet[:len(packet)-4])
		flush.ICRC = &quirk
		b.CheckICRC = CheckRxeFlushICRC
		a.Send(t, flush, Ack(1, 2, 3), Flush(1, 2, 3, 4, 5, 1))
		b.Expect(t, WantOp(OpFlush))
		b.Expect(t, WantOp(OpAck))
		if m := failure(func(t testing.TB) { b.Next(t) }); !strings.Contains(m, "wrong ICRC") {
			t.Error(m)
		}
	})
}

func TestHistoryIsBounded(t *testing.T) {
	p := New(Funcs{WriteFunc: func([]byte) error { return nil }}, v4a, v4b)
	for psn := range uint32(3 * historyLen) {
		p.Send(t, Ack(1, psn, 3))
	}
	if len(p.history) != historyLen || !strings.Contains(p.recent(), "psn=0x000047") {
		t.Error(p.recent())
	}
}

// What Send is given is not changed.
func TestSendLeavesTheFrame(t *testing.T) {
	a, _ := pair()
	f := SendOnly(1, 2, []byte("abc"))
	a.Send(t, f)
	if f.Src.IsValid() || !bytes.Equal(f.Payload, []byte("abc")) {
		t.Errorf("%+v", f)
	}
}
