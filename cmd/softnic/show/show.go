// Package show prints what a daemon answers, in the form of iproute2's rdma
// command. The commands dev, link, statistic and resource call it.
//
// It formats and knows nothing else: package control asks the daemon.
package show

import (
	"fmt"
	"io"
	"strings"

	"github.com/softnic/softnic/control"
	"github.com/softnic/softnic/link/impair"
)

// Devs prints what `rdma dev show` prints.
func Devs(w io.Writer, l []control.Dev) {
	for _, d := range l {
		fw := ""
		if d.Firmware != "" {
			fw = "fw " + d.Firmware + " "
		}
		fmt.Fprintf(w, "%d: %s: node_type %s %snode_guid %s sys_image_guid %s\n", d.Index, d.Name, d.NodeType, fw, d.NodeGUID, d.SysImageGUID)
	}
}

// Links prints what `rdma link show` prints, and below each line what softnic
// knows besides.
func Links(w io.Writer, l []control.Link) {
	for _, p := range l {
		fmt.Fprintf(w, "link %s/%d state %s physical_state %s", p.Name, p.Port, p.State, p.PhysicalState)
		if p.Netdev != "" {
			fmt.Fprintf(w, " netdev %s", p.Netdev)
		}
		fmt.Fprintf(w, "\n    on %s mtu %d active_mtu %d mac %s ip_id %s\n", p.Link, p.LinkMTU, p.ActiveMTU, p.MAC, p.IPID)
		for _, g := range p.GIDs {
			fmt.Fprintf(w, "    gid %d %s %s\n", g.Index, g.GID, g.Type)
		}
		fmt.Fprintf(w, "    dropped %s\n", drops(p.Drops))
	}
}

func drops(l []control.Drop) string {
	if len(l) == 0 {
		return "none"
	}
	var s []string
	for _, d := range l {
		s = append(s, fmt.Sprintf("%s %d", d.Reason, d.Packets))
	}
	return strings.Join(s, " ")
}

// Statistics prints what `rdma statistic show link` prints: one line for each
// port. Drops that did not occur are left out.
func Statistics(w io.Writer, l []control.Statistic) {
	for _, s := range l {
		fmt.Fprintf(w, "link %s/%d", s.Name, s.Port)
		for _, v := range s.Counters {
			if v.Value > 0 || !strings.HasPrefix(v.Name, "drop_") {
				fmt.Fprintf(w, " %s %d", v.Name, v.Value)
			}
		}
		fmt.Fprintln(w)
	}
}

// QPStatistics prints what `rdma statistic qp show` prints: one line for each queue pair. What was not counted is
// left out, for a line is long enough.
func QPStatistics(w io.Writer, l []control.Statistic) {
	for _, s := range l {
		fmt.Fprintf(w, "link %s/%d lqpn %d type %s", s.Name, s.Port, s.LQPN, s.Type)
		for _, v := range s.Counters {
			if v.Value > 0 {
				fmt.Fprintf(w, " %s %d", v.Name, v.Value)
			}
		}
		fmt.Fprintln(w)
	}
}

// Rules prints impairment rules: ID, the rule, and how many packets it has hit of those that its words describe.
func Rules(w io.Writer, l []impair.Status) {
	for _, r := range l {
		fmt.Fprintf(w, "%d: %s (hit %d of %d)\n", r.ID, r.Rule, r.Hits, r.Matched)
	}
}

// QPs prints what `rdma resource show qp` prints.
func QPs(w io.Writer, l []control.QP) {
	for _, q := range l {
		fmt.Fprintf(w, "link %s/%d lqpn %d", q.Name, q.Port, q.LQPN)
		if q.RQPN != 0 {
			fmt.Fprintf(w, " rqpn %d", q.RQPN)
		}
		fmt.Fprintf(w, " type %s state %s pid %d comm %s\n", q.Type, q.State, q.PID, q.Comm)
	}
}
