package trace

import (
	"fmt"
	"net/netip"
)

// End is one end of a conversation.
type End struct {
	Addr netip.Addr `json:"addr"`
	QPN  *uint32    `json:"qpn"` // null: cannot be told
}

// String is "10.0.0.1 QP 0x11".
func (e End) String() string {
	if e.QPN == nil {
		return e.Addr.String() + " QP ?"
	}
	return fmt.Sprintf("%v QP 0x%x", e.Addr, *e.QPN)
}
