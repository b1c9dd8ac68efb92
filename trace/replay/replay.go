package replay

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/wire/bth"
)

// Region is a memory region that the recorded NIC had.
type Region struct {
	RKey     uint32
	VA, Size uint64
}

// Options say what is known of the recorded NIC beside the capture. The zero value is fine.
type Options struct {
	Profile string   // what the recorded NIC is, see device.ProfileByName; "": rxe if it sends MigReq 0, else ibta
	MTU     int      // path MTU; 0: as the packets show, 4096 where none does
	Regions []Region // regions; those of other keys are taken from the requests
	Recvs   int      // receives that are posted at the start, and no others; 0: each message that took one has one
	Still   bool     // nobody but the recorded requesters writes into the memory, so that what changes otherwise is different
	Unruly  bool     // the network between the capture and the recorded NIC may have doubled or moved packets
	Lossy   bool     // the capture may have lost packets: what is missing from it is unknown
}

// Verdict is what there is to say of an answer.
type Verdict string

// The verdicts.
const (
	Same      Verdict = "same"
	Declared  Verdict = "declared"  // other than recorded, as NICs may be; Finding.Why says how
	Different Verdict = "different" // softnic answers something else
	Unknown   Verdict = "unknown"   // the capture does not tell
)

// Finding is an answer that is not the same.
type Finding struct {
	Verdict  Verdict `json:"verdict"`
	Packet   int     `json:"packet"` // number in the capture: of the recorded answer, or, where there is none, of the request
	PSN      uint32  `json:"psn"`
	Field    string  `json:"field,omitempty"`
	Recorded string  `json:"recorded"`
	Now      string  `json:"now"`
	Why      string  `json:"why,omitempty"`
}

// Conversation is what came of one: the requests of one end, and the answers of the other.
type Conversation struct {
	Service   string     `json:"service"`
	Requester netip.Addr `json:"requester"`
	Responder netip.Addr `json:"responder"`
	QPN       uint32     `json:"qpn"`                // the responder's
	Peer      uint32     `json:"peer,omitempty"`     // the requester's; 0: unknown
	MTU       int        `json:"path_mtu"`           // bytes
	Profile   string     `json:"profile"`            // of softnic's NIC
	Requests  int        `json:"requests"`           // in the capture
	Fed       int        `json:"fed"`                // that softnic's NIC was given
	Taken     int        `json:"taken"`              // and took
	Answers   int        `json:"answers"`            // recorded
	Same      int        `json:"same"`               // answers of either side, by verdict
	Declared  int        `json:"declared"`           //
	Different int        `json:"different"`          //
	Unknown   int        `json:"unknown"`            //
	Notes     []string   `json:"notes,omitempty"`    // what was assumed, and what may differ
	Findings  []Finding  `json:"findings,omitempty"` // the first maxFindings
}

// maxFindings is how many findings of a conversation are told; all are counted.
const maxFindings = 100

// Result is what came of a capture.
type Result struct {
	File          string          `json:"file,omitempty"`
	Frames        int             `json:"roce_packets"`
	Bad           int             `json:"bad_packets"` // that no NIC would take, and this one was not given
	Declared      []string        `json:"not_compared"`
	Conversations []*Conversation `json:"conversations"`
}

// notCompared may differ between any two NICs, or follows from what may.
var notCompared = []string{"IP ID and checksum, TTL, traffic class", "UDP source port and checksum", "ICRC", "when an answer comes"}

// Different returns how many answers are different.
func (r *Result) Different() (n int) {
	for _, c := range r.Conversations {
		n += c.Different
	}
	return n
}

// Run replays a capture. The error is that of the source, of the options, or over a NIC that cannot be made; a capture without RoCE
// packets is one too.
func Run(src Source, o Options) (*Result, error) {
	if _, err := device.ProfileByName(o.Profile); err != nil {
		return nil, err
	}
	if o.MTU != 0 && !slices.Contains([]int{256, 512, 1024, 2048, 4096}, o.MTU) {
		return nil, fmt.Errorf("path MTU %d: 256, 512, 1024, 2048 or 4096", o.MTU)
	}
	rec, err := listen(src)
	if err != nil {
		return nil, err
	}
	if rec.frames == 0 {
		return nil, fmt.Errorf("there is no RoCE packet in it")
	}
	r := &Result{Frames: rec.frames, Bad: rec.bad, Declared: notCompared}
	var order []netip.Addr
	by := map[netip.Addr][]*talk{}
	for _, f := range rec.flows {
		if len(f.requests) == 0 {
			continue
		}
		t := newTalk(rec, f, o)
		r.Conversations = append(r.Conversations, t.c)
		if t.skip() {
			continue
		}
		if by[f.key.dst] == nil {
			order = append(order, f.key.dst)
		}
		by[f.key.dst] = append(by[f.key.dst], t)
	}
	for _, addr := range order {
		if err := act(rec, addr, by[addr], o); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// skip says why a conversation cannot be replayed, in its notes.
func (t *talk) skip() bool {
	why := ""
	switch k := t.f.key; {
	case k.service != bth.RC && k.service != bth.UC && k.service != bth.UD:
		why = fmt.Sprintf("%v is not replayed", k.service)
	case k.qpn < 0x10 || k.qpn >= 0xFFFFFF:
		why = fmt.Sprintf("queue pair %d is not replayed", k.qpn)
	case k.dst.IsMulticast():
		why = "what goes to a group is not replayed"
	case t.start == len(t.f.requests):
		why = "no message begins in the capture"
	default:
		return false
	}
	t.note("%s", why)
	t.c.Unknown += len(t.answers)
	return true
}
