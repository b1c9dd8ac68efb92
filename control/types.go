package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/softnic/softnic/stats"
)

// Daemon says who serves a socket.
type Daemon struct {
	PID     int    `json:"pid"`
	Version string `json:"version"`
	Device  string `json:"ifname"`
	Link    string `json:"link"`
}

// Dev describes a device; the first block as iproute2's rdma prints it.
type Dev struct {
	Index        int    `json:"ifindex"`
	Name         string `json:"ifname"`
	NodeType     string `json:"node_type"`
	Firmware     string `json:"fw"`
	NodeGUID     string `json:"node_guid"`
	SysImageGUID string `json:"sys_image_guid"`

	MaxQP     int `json:"max_qp"`
	MaxQPWR   int `json:"max_qp_wr"`
	MaxSGE    int `json:"max_sge"`
	MaxCQ     int `json:"max_cq"`
	MaxCQE    int `json:"max_cqe"`
	MaxMR     int `json:"max_mr"`
	MaxRdAtom int `json:"max_qp_rd_atom"`

	Caps            []string `json:"caps"` // as `rdma -d dev show` names them
	AtomicCap       string   `json:"atomic_cap"`
	MaskedAtomicCap string   `json:"masked_atomic_cap"`
}

// Link describes a port of a device; the first block as iproute2's rdma prints it.
type Link struct {
	Index         int    `json:"ifindex"`
	Port          int    `json:"port"`
	Name          string `json:"ifname"`
	State         string `json:"state"`
	PhysicalState string `json:"physical_state"`
	Netdev        string `json:"netdev,omitempty"`

	Link      string `json:"link"`       // what it runs on, in words
	LinkMTU   int    `json:"link_mtu"`   // largest IP packet in bytes
	ActiveMTU int    `json:"active_mtu"` // largest payload of one packet in bytes
	MaxMTU    int    `json:"max_mtu"`
	IPID      string `json:"ip_id"` // how the IP ID of sent packets is known: written, verified, unverified
	MAC       string `json:"mac"`
	GIDs      []GID  `json:"gids"`
	Drops     []Drop `json:"drops"` // reasons for which packets were dropped so far
}

// GID is an entry of a port's GID table.
type GID struct {
	Index int    `json:"index"`
	GID   string `json:"gid"`
	Type  string `json:"type"`
}

// Drop counts the packets that were dropped for one reason.
type Drop struct {
	Reason  string `json:"reason"`
	Packets uint64 `json:"packets"`
}

// Statistic holds the counters of a port, or of a queue pair. In JSON each counter is a field of
// its own, beside ifname and port (and lqpn and type of a queue pair), as iproute2 has it.
type Statistic struct {
	Name     string
	Port     int
	LQPN     uint32 // of a queue pair
	Type     string // of a queue pair; "": it is a port's
	Counters []stats.Value
}

// MarshalJSON implements json.Marshaler; it keeps the order.
func (s Statistic) MarshalJSON() ([]byte, error) {
	name, err := json.Marshal(s.Name)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"ifname":%s,"port":%d`, name, s.Port)
	if s.Type != "" {
		fmt.Fprintf(&b, `,"lqpn":%d,"type":%q`, s.LQPN, s.Type)
	}
	for _, v := range s.Counters {
		fmt.Fprintf(&b, ",%q:%d", v.Name, v.Value)
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON implements json.Unmarshaler; it keeps the order.
func (s *Statistic) UnmarshalJSON(text []byte) error {
	*s = Statistic{}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("statistic: want an object")
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return err
		}
		switch name, _ := key.(string); name {
		case "ifname":
			err = d.Decode(&s.Name)
		case "port":
			err = d.Decode(&s.Port)
		case "lqpn":
			err = d.Decode(&s.LQPN)
		case "type":
			err = d.Decode(&s.Type)
		default:
			v := stats.Value{Name: name}
			err = d.Decode(&v.Value)
			s.Counters = append(s.Counters, v)
		}
		if err != nil {
			return fmt.Errorf("statistic: %v: %w", key, err)
		}
	}
	_, err := d.Token()
	return err
}

// dropPrefix marks the counters of drops among the others.
const dropPrefix = "drop_"

// Drops returns the reasons for which packets were dropped, without those that
// did not occur.
func (s Statistic) Drops() []Drop {
	l := []Drop{}
	for _, v := range s.Counters {
		if reason, ok := strings.CutPrefix(v.Name, dropPrefix); ok && v.Value > 0 {
			l = append(l, Drop{reason, v.Value})
		}
	}
	return l
}

// QP describes a queue pair, as `rdma -j resource show qp` has it.
type QP struct {
	Index int    `json:"ifindex"`
	Name  string `json:"ifname"`
	Port  int    `json:"port"`
	LQPN  uint32 `json:"lqpn"`
	RQPN  uint32 `json:"rqpn,omitempty"`
	Type  string `json:"type"`
	State string `json:"state"`
	PID   int    `json:"pid"`
	Comm  string `json:"comm"`
}

// Error is the answer to a request that failed.
type Error struct {
	Message string `json:"error"`
}
