package tap

import "github.com/softnic/softnic/stats"

// counters counts what the endpoint does with frames, besides node.count.
type counters struct {
	refused   stats.Counter // frames that the kernel did not take, or that had no destination
	ignored   stats.Counter // received frames that are nothing for a RoCE NIC
	foreign   stats.Counter // to another station, or our own come back
	malformed stats.Counter
	oversize  stats.Counter // longer than MaxMTU
}

// values lists the counters in a fixed order.
func (c *counters) values(n *nodeCounters) []stats.Value {
	return []stats.Value{
		{Name: "tap_tx_no_neighbour", Value: n.noNeighbour.Load()},
		{Name: "tap_tx_refused", Value: c.refused.Load()},
		{Name: "tap_rx_ignored", Value: c.ignored.Load()},
		{Name: "tap_rx_foreign", Value: c.foreign.Load()},
		{Name: "tap_rx_malformed", Value: c.malformed.Load()},
		{Name: "tap_rx_oversize", Value: c.oversize.Load()},
		{Name: "tap_arp_replies", Value: n.arpReplies.Load()},
		{Name: "tap_nd_replies", Value: n.ndReplies.Load()},
		{Name: "tap_echo_replies", Value: n.echoReplies.Load()},
		{Name: "tap_group_reports", Value: n.groupReports.Load()},
		{Name: "tap_neighbours_unanswered", Value: n.unanswered.Load()},
		{Name: "tap_address_conflicts", Value: n.conflicts.Load()},
	}
}
