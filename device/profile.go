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
	Name       string          // of ProfileByName
	MigReq     bool            // value of BTH.MigReq in what is sent
	SameKeys   bool            // L_Key and R_Key of a region are equal
	RandomPort bool            // UDP source ports are drawn, not computed from queue pair numbers (kernel, rxe_qp.c:rxe_qp_init_req)
	Rules      transport.Rules // of reliable connections
	CNP        CNPPacing       // unless Options.CNP says otherwise
}

// Bits of a header that are reserved are sent as zero and ignored by all adapters that are known (roce.md A.11,
// B.2): no field is for them.

// CNPPacing says how often congestion notifications are sent. The zero value leaves it to the profile.
type CNPPacing struct {
	Mode CNPMode       // what Gap is between
	Gap  time.Duration // least time between two, in ns; 0: one for every packet that was marked, as far as none waits to be sent
}

// CNPMode is which congestion notifications count against CNPPacing.Gap.
type CNPMode uint8

// The modes.
const (
	CNPDefault CNPMode = iota // what the profile says
	CNPOff                    // none is sent
	CNPPerPort                // one gap for all
	CNPPerDest                // one for each address that they go to
	CNPPerPair                // one for each pair of addresses
)

// The profiles.
var profiles = []Profile{
	{Name: "ibta", MigReq: true, CNP: CNPPacing{CNPPerPair, 50 * time.Microsecond}},
	// As rdma_rxe of Linux 6.12 does (rxe-lab.md).
	{Name: "rxe", SameKeys: true, Rules: transport.Rules{RetryForever: true, AckEach: true, DropReserved: true, GoesOn: true, BadInvMSN: true}, CNP: CNPPacing{Mode: CNPOff}},
	// As adapters of that family were seen to (roce.md A.5, A.8; trace-rules.md).
	{Name: "connectx", MigReq: true, RandomPort: true, Rules: transport.Rules{Credits: true}, CNP: CNPPacing{CNPPerDest, 4 * time.Microsecond}},
}

// ProfileByName returns a profile: "ibta" (also for "") does what the specification says, "rxe" what rdma_rxe of Linux 6.12 was seen
// to do, "connectx" what is known of that family. EINVAL: another name.
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

// ProfileNames lists the names that ProfileByName takes, "" aside.
func ProfileNames() []string {
	var l []string
	for _, p := range profiles {
		l = append(l, p.Name)
	}
	return l
}

var cnpModes = []string{CNPOff: "off", CNPPerPort: "port", CNPPerDest: "dest", CNPPerPair: "pair"}

// String returns what ParseCNP takes; "" for CNPDefault.
func (p CNPPacing) String() string {
	if p.Mode == CNPDefault || int(p.Mode) >= len(cnpModes) {
		return ""
	}
	if p.Mode == CNPOff {
		return cnpModes[p.Mode]
	}
	return cnpModes[p.Mode] + ":" + p.Gap.String()
}

// ParseCNP reads "off", or "port", "dest" or "pair" with a gap as time.ParseDuration takes it:
// "pair:50us". EINVAL: anything else, or a gap below 0.
func ParseCNP(s string) (CNPPacing, error) {
	mode, gap, timed := strings.Cut(s, ":")
	p := CNPPacing{Mode: CNPMode(max(0, slices.Index(cnpModes, mode)))}
	if mode == "" || p.Mode == CNPDefault {
		return CNPPacing{}, because(EINVAL, "congestion notifications %q: off, port:GAP, dest:GAP or pair:GAP", s)
	}
	if timed == (p.Mode == CNPOff) {
		return CNPPacing{}, because(EINVAL, "congestion notifications %q: off has no gap, the others have one, as in pair:50us", s)
	}
	if timed {
		var err error
		if p.Gap, err = time.ParseDuration(gap); err != nil || p.Gap < 0 {
			return CNPPacing{}, because(EINVAL, "congestion notifications %q: %q is no time, as 50us is", s, gap)
		}
	}
	return p, nil
}
