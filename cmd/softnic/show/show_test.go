package show

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/softnic/softnic/control"
	"github.com/softnic/softnic/stats"
)

func TestShow(t *testing.T) {
	var b strings.Builder
	Devs(&b, []control.Dev{
		{Name: "rxe_softnic0", NodeType: "ca", Firmware: "v1.2.3", NodeGUID: "0200:7fff:fe00:0001", SysImageGUID: "0200:7fff:fe00:0001"},
		{Index: 1, Name: "rxe_softnic1", NodeType: "ca", NodeGUID: "1:2:3:4", SysImageGUID: "5:6:7:8"},
	})
	Links(&b, []control.Link{
		{
			Port: 1, Name: "rxe_softnic0", State: "ACTIVE", PhysicalState: "LINK_UP", Netdev: "sn0", Link: "tap sn0", LinkMTU: 4200, ActiveMTU: 4096,
			IPID: "written", MAC: "02:00:00:00:00:01", GIDs: []control.GID{{Index: 0, GID: "fe80::1", Type: "RoCE v2"}, {Index: 1, GID: "::ffff:10.8.0.2", Type: "RoCE v2"}},
			Drops: []control.Drop{{Reason: "no-qp", Packets: 3}, {Reason: "icrc", Packets: 1}},
		},
		{Port: 1, Name: "rxe_softnic1", State: "DOWN", PhysicalState: "DISABLED", Link: "memory"},
	})
	Statistics(&b, []control.Statistic{{Name: "rxe_softnic0", Port: 1, Counters: []stats.Value{
		{Name: "sent_pkts", Value: 5}, {Name: "rcvd_pkts"}, {Name: "drop_no-qp", Value: 3}, {Name: "drop_icrc"},
	}}})
	QPStatistics(&b, []control.Statistic{{Name: "rxe_softnic0", Port: 1, LQPN: 17, Type: "RC", Counters: []stats.Value{
		{Name: "sent_pkts", Value: 5}, {Name: "rcvd_pkts"}, {Name: "drop_pkey", Value: 3}, {Name: "drop_qkey"},
	}}})
	QPs(&b, []control.QP{
		{Name: "rxe_softnic0", Port: 1, LQPN: 17, RQPN: 18, Type: "RC", State: "RTS", PID: 42, Comm: "softnic"},
		{Name: "rxe_softnic0", Port: 1, LQPN: 19, Type: "UD", State: "RESET", PID: 42, Comm: "softnic"},
	})
	// The first lines of each as iproute2 prints them.
	want := `0: rxe_softnic0: node_type ca fw v1.2.3 node_guid 0200:7fff:fe00:0001 sys_image_guid 0200:7fff:fe00:0001
1: rxe_softnic1: node_type ca node_guid 1:2:3:4 sys_image_guid 5:6:7:8
link rxe_softnic0/1 state ACTIVE physical_state LINK_UP netdev sn0
    on tap sn0 mtu 4200 active_mtu 4096 mac 02:00:00:00:00:01 ip_id written
    gid 0 fe80::1 RoCE v2
    gid 1 ::ffff:10.8.0.2 RoCE v2
    dropped no-qp 3 icrc 1
link rxe_softnic1/1 state DOWN physical_state DISABLED
    on memory mtu 0 active_mtu 0 mac  ip_id 
    dropped none
link rxe_softnic0/1 sent_pkts 5 rcvd_pkts 0 drop_no-qp 3
link rxe_softnic0/1 lqpn 17 type RC sent_pkts 5 drop_pkey 3
link rxe_softnic0/1 lqpn 17 rqpn 18 type RC state RTS pid 42 comm softnic
link rxe_softnic0/1 lqpn 19 type UD state RESET pid 42 comm softnic
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}
