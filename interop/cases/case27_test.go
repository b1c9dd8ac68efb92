package cases

import (
	"testing"

	"github.com/softnic/softnic/device"
)

// Case 27, the sending side: a SEND whose L_Key is wrong is one LOC_PROT_ERR, nothing of it is on the wire, and no remote error is
// told. RC goes to ERR; on UC and UD it is the send queue that stops (IBTA: SQE; rxe: ERR).
func TestCase27_Sends(t *testing.T) {
	for _, v := range []struct {
		name string
		sge  func(l *lab) []device.SGE
	}{
		{"key that does not exist", func(l *lab) []device.SGE {
			return []device.SGE{{Addr: l.mr(64, all).Addr(), Length: 8, LKey: 1}}
		}},
		{"key of a region that is gone", func(l *lab) []device.SGE {
			m := l.mr(64, all)
			s := sge(m, 8)
			want(l.t, "dereg_mr", m.Dereg(), nil)
			return s
		}},
		{"R_Key", func(l *lab) []device.SGE {
			m := l.mr(64, all)
			return []device.SGE{{Addr: m.Addr(), Length: 8, LKey: m.RKey()}}
		}},
		{"another protection domain", func(l *lab) []device.SGE {
			return sge(must(must(l.ctx.AllocPD()).RegMR(make([]byte, 64), all)), 8)
		}},
		{"second entry out of range", func(l *lab) []device.SGE {
			m := l.mr(64, all)
			return []device.SGE{m.SGE(0, 8), m.SGE(60, 8)}
		}},
		{"before the region", func(l *lab) []device.SGE { return []device.SGE{l.mr(64, all).SGE(-1, 8)} }},
		{"wraps", func(l *lab) []device.SGE {
			return []device.SGE{{Addr: ^uint64(0) - 3, Length: 8, LKey: l.mr(64, all).LKey()}}
		}},
	} {
		bubble(t, "RC/"+v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.rc(nil)
			c.post(device.SendWR{Op: device.OpSend, SGE: v.sge(l)})
			c.send(l.mr(8, 0), 1)
			l.emits()
			c.sent("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
			c.state(device.StateErr)
			l.events()
		})
		bubble(t, "UC/"+v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			c := l.uc(nil)
			c.post(device.SendWR{Op: device.OpSend, SGE: v.sge(l)})
			c.send(l.mr(8, 0), 1)
			l.emits()
			c.sent("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
			c.state(device.StateSQE)
			l.events()
		})
		bubble(t, "UD/"+v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			u := l.ud(device.StateRTS)
			for range 2 {
				u.post(device.SendWR{Op: device.OpSend, SGE: v.sge(l), AH: u.ah(false), RemoteQPN: peerUD})
			}
			l.emits()
			u.sent("1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
			want(t, "state", u.qp.State(), device.StateSQE)
			l.events()
		})
	}
}
