package device

import (
	"slices"
	"strings"
	"time"

	"github.com/softnic/softnic/transport"
)

// Profile says how an adapter behaves where adapters differ: data, on which no path of the
// code depends but through these fields.
type Profile struct {
	Name       string
	MigReq     bool // value of BTH.MigReq in what is sent
	SameKeys   bool // L_Key and R_Key of a region are equal
	RandomPort bool // UDP source ports are drawn, not computed from queue pair numbers (roce.md A.7)
	Rules      transport.Rules
	CNP        CNPMode
	CNPGap     time.Duration // least time between two congestion notifications
}

// CNPMode is which congestion notifications count against Profile.CNPGap.
type CNPMode uint8

// The modes.
const (
	CNPOff     CNPMode = iota // none is sent
	CNPPerPort                // one gap for all
	CNPPerDest                // one for each address that they go to
	CNPPerPair                // one for each pair of addresses
)

// The profiles.
var profiles = []Profile{
	{Name: "ibta", MigReq: true, CNP: CNPPerPair, CNPGap: 50 * time.Microsecond},
	// As rdma_rxe of Linux 6.12 does (rxe-lab.md).
	{Name: "rxe", SameKeys: true, Rules: transport.Rules{RetryForever: true, AckEach: true, DropReserved: true}},
	// As adapters of that family were seen to (roce.md A.5, A.8; trace-rules.md).
	{Name: "connectx", MigReq: true, RandomPort: true, Rules: transport.Rules{Credits: true}, CNP: CNPPerDest, CNPGap: 4 * time.Microsecond},
}

// ProfileByName returns a profile: "ibta" (also for ""), "rxe", "connectx".
func ProfileByName(name string) (Profile, error) {
	if name == "" {
		name = "ibta"
	}
	i := slices.IndexFunc(profiles, func(p Profile) bool { return p.Name == name })
	if i < 0 {
		return Profile{}, because(EINVAL, "profile %q: one of %s", name, strings.Join(ProfileNames(), ", "))
	}
	return profiles[i], nil
}

// ProfileNames lists the profiles.
func ProfileNames() []string {
	var l []string
	for _, p := range profiles {
		l = append(l, p.Name)
	}
	return l
}
