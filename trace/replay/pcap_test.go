package replay

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// pcaps finds the captures that lie beside a checkout and are not part of it (kernel rxe between two
// VMs, CC BY-SA, see ../shared/pcaps/README.md). Without them the test is skipped.
func pcaps(t *testing.T, f func(t *testing.T, path string)) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "..", "shared", "pcaps", "*.pcap"))
	if len(files) == 0 {
		t.Skip("no captures in ../shared/pcaps beside the checkout")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) { f(t, file) })
	}
}

// packets reads a capture.
func packets(t *testing.T, path string) (l list) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	src, err := trace.NewStream([]trace.Input{{Name: path, R: f}}, trace.StreamOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for {
		p, err := src.Next()
		if err != nil {
			return l
		}
		q := *p
		q.IP = bytes.Clone(p.IP)
		l = append(l, &q)
	}
}

// wants is what each capture has: conversations, requests and answers in all, by its README.
var wants = map[string][3]int{
	"rxe-pingpong-rc.pcap": {2, 10, 10}, "rxe-pingpong-uc.pcap": {2, 10, 0}, "rxe-pingpong-ud.pcap": {2, 10, 0},
	"rxe-rdma-atomic-bw.pcap": {1, 5, 5}, "rxe-rdma-read-bw.pcap": {1, 5, 15}, "rxe-rdma-send-bw.pcap": {1, 15, 5}, "rxe-rdma-write-bw.pcap": {1, 15, 5},
}

// Everything that kernel rxe has answered softnic answers, in the same words.
func TestKernelCaptures(t *testing.T) {
	pcaps(t, func(t *testing.T, path string) {
		for _, o := range []Options{{}, {Still: true}, {Still: true, Capture: trace.Incomplete}, {Recvs: 100}, {Profile: "rxe"}} {
			r, err := File(path, o)
			if err != nil {
				t.Fatal(err)
			}
			var got [3]int
			for _, c := range r.Conversations {
				got[0]++
				got[1] += c.Requests
				got[2] += c.Answers
				if c.Taken != c.Requests || c.Fed != c.Requests || c.Same != c.Answers || c.Declared+c.Different+c.Unknown > 0 {
					t.Errorf("%+v: %+v", o, c)
				}
			}
			if want := wants[filepath.Base(path)]; got != want {
				t.Errorf("conversations, requests, answers: %v, want %v", got, want)
			}
		}
	})
}

// mutation is a change to one recorded answer.
type mutation struct {
	name string
	edit func(s *wire.Spec) bool // false: not of such an answer
}

var mutations = []mutation{
	{"syndrome RNR", syndrome(bth.RNR(3))},
	{"syndrome NAK_SEQUENCE", syndrome(bth.NakSequence)},
	{"syndrome NAK_INVALID_REQUEST", syndrome(bth.NakInvalidRequest)},
	{"syndrome NAK_REMOTE_OPERATIONAL", syndrome(bth.NakRemoteOp)},
	{"syndrome NAK_REMOTE_ACCESS", syndrome(bth.NakRemoteAccess)},
	{"MSN + 1", func(s *wire.Spec) bool { s.Ext.MSN = (s.Ext.MSN + 1) & 0xFFFFFF; return hasAETH(s) }},
	{"MSN - 1", func(s *wire.Spec) bool { s.Ext.MSN = (s.Ext.MSN - 1) & 0xFFFFFF; return hasAETH(s) }},
	{"PSN + 1", func(s *wire.Spec) bool { s.BTH.PSN = s.BTH.PSN.Add(1); return true }},
	{"PSN - 1", func(s *wire.Spec) bool { s.BTH.PSN = s.BTH.PSN.Add(-1); return true }},
	{"PSN + 1000", func(s *wire.Spec) bool { s.BTH.PSN = s.BTH.PSN.Add(1000); return true }},
	{"MigReq", func(s *wire.Spec) bool { s.BTH.MigReq = !s.BTH.MigReq; return true }},
	{"solicited", func(s *wire.Spec) bool { s.BTH.Solicited = true; return true }},
	{"P_Key", func(s *wire.Spec) bool { s.BTH.PKey = 0x8001; return true }},
	{"first byte", func(s *wire.Spec) bool { return flip(s, 0) }},
	{"last byte", func(s *wire.Spec) bool { return flip(s, len(s.Payload)-1) }},
	// The original value of an atomic is not among them: each of the five has a word of its own, whose content nothing
	// else tells. TestMemory has it.
	{"opcode", func(s *wire.Spec) bool {
		if s.BTH.Opcode.Operation() != bth.ReadResponseMiddle {
			return false
		}
		s.BTH.Opcode = bth.Make(bth.RC, bth.ReadResponseOnly)
		return true
	}},
}

func hasAETH(s *wire.Spec) bool { _, ok := s.BTH.Opcode.Info().Offset(bth.HAETH); return ok }

func syndrome(v bth.Syndrome) func(s *wire.Spec) bool {
	return func(s *wire.Spec) bool {
		s.Ext.Syndrome = v
		return s.BTH.Opcode.Operation() == bth.Acknowledge
	}
}

func flip(s *wire.Spec, i int) bool {
	if len(s.Payload) == 0 {
		return false
	}
	s.Payload = append([]byte{}, s.Payload...)
	s.Payload[i] ^= 0x10
	return true
}

// Each recorded answer is changed, alone, its ICRC made right again: it is told, at that packet. Nothing before it is.
func TestEveryMutationIsTold(t *testing.T) {
	told, unknown, legal := 0, 0, 0
	pcaps(t, func(t *testing.T, path string) {
		all := packets(t, path)
		run := func(l list, o Options) *Result {
			r, err := run(&l, o, none)
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		// What is told of a packet; before it nothing may be.
		tells := func(what string, r *Result, number int) {
			t.Helper()
			var its []Finding
			l := findings(r, Different, Unknown, Declared)
			for _, f := range l {
				// What is missing is told at the request.
				if f.Packet < number && f.Verdict == Different && f.Recorded != "nothing" {
					t.Errorf("%s: told before it: %v", what, f)
				}
				if f.Packet == number {
					its = append(its, f)
				}
			}
			if len(its) != 1 {
				t.Errorf("%s: told: %v", what, l)
				return
			}
			told++
			switch f := its[0]; {
			case f.Verdict == Different:
			case f.Verdict == Unknown && (f.Why == "the capture begins in the middle" || f.Why == "it answers what was sent before the capture"):
				unknown++ // the first answer of all
			case f.Verdict == Declared && strings.HasSuffix(what, "PSN + 1") && r.Conversations[0].Different+r.Conversations[0].Unknown == 0:
				legal++ // inside of the next message, which had come already: nobody is forbidden to acknowledge it
			default:
				t.Errorf("%s: %v", what, f)
			}
		}
		for i, p := range all {
			number := int(p.Number)
			var v wire.View
			if wire.ParseIP(p.IP, &v) != wire.OK || !v.Info.Has(bth.Response) {
				continue
			}
			o := Options{Profile: "rxe", Still: true}
			for _, r := range all { // the regions are known
				var q wire.View
				if wire.ParseIP(r.IP, &q) == wire.OK {
					if k, va, n, ok := names(&seen{v: q, op: q.BTH().Opcode()}); ok {
						if len(o.Regions) == 0 {
							o.Regions = []Region{{k, va, n}}
						}
						m := &o.Regions[0]
						end := max(m.VA+m.Size, va+n)
						m.VA = min(m.VA, va)
						m.Size = end - m.VA
					}
				}
			}
			change := func(b []byte) list {
				l := append(list{}, all...)
				c := *p
				c.IP = b
				l[i] = &c
				return l
			}
			for _, m := range mutations {
				s := wire.SpecOf(&v)
				if !m.edit(&s) {
					continue
				}
				what := fmt.Sprintf("packet %d, %s", number, m.name)
				tells(what, run(change(wire.Build(&s)), o), number)
				// With nothing known beside the capture it may be unknown, at the same packet.
				r := run(change(wire.Build(&s)), Options{})
				at := false
				for _, f := range findings(r, Different, Unknown, Declared) {
					at = at || f.Packet == number
					if f.Verdict == Different && f.Packet < number && f.Recorded != "nothing" {
						t.Errorf("%s, nothing known: told before it: %v", what, f)
					}
				}
				if !at {
					t.Errorf("%s, nothing known: not told: %v", what, findings(r, Different, Unknown))
				}
			}
			// Another answer, the same once more.
			l := append(append(append(list{}, all[:i+1]...), p), all[i+1:]...)
			tells(fmt.Sprintf("packet %d twice", number), run(l, o), number)
			// No answer: told at the request, or, where an ACK stands for it, declared.
			r := run(append(append(list{}, all[:i]...), all[i+1:]...), o)
			if l := findings(r, Different, Unknown, Declared); len(l) != 1 || l[0].Packet >= number {
				t.Errorf("packet %d is missing: %v", number, l)
			} else if later := r.Conversations[0].Declared + r.Conversations[len(r.Conversations)-1].Declared; v.BTH().Opcode().Operation() != bth.Acknowledge && later > 0 {
				t.Errorf("packet %d is missing, and another stands for it: %v", number, l)
			}
		}
	})
	if t.Failed() || told == 0 {
		return
	}
	t.Logf("%d mutations told, %d of them as unknown, %d as declared", told, unknown, legal)
	if unknown > 30 || legal > 10 {
		t.Error("too many of them are not told as different")
	}
}
