package replay

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/wire/bth"
)

// Region is a memory region that the recorded NIC had.
type Region struct {
	RKey     uint32
	VA, Size uint64
}

// Options say what is known of the recorded NIC and the capture beside what is in it. The zero value is fine.
type Options struct {
	Profile string             // what the recorded NIC is, see device.ProfileByName; "": rxe if it sends MigReq 0, else ibta
	MTU     int                // path MTU; 0: as the packets show, 4096 where none does
	Regions []Region           // regions; those of other keys are taken from the requests
	Recvs   int                // receives that are posted at the start, and no others; 0: each message that took one has one
	Still   bool               // nobody but the recorded requesters writes into the memory, so that what changes otherwise is different
	Unruly  bool               // the network between the capture and the recorded NIC may have doubled or moved packets
	Capture trace.Completeness // Incomplete: what is missing from it is unknown; Auto: that if the file says that packets were lost
	Ports   []uint16           // UDP ports that carry RoCE beside 4791

	lossy bool // Capture, with what the file says
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
	Service   string    `json:"service"`
	Requester trace.End `json:"requester"`
	Responder trace.End `json:"responder"`
	MTU       int       `json:"path_mtu"`  // bytes
	Profile   string    `json:"profile"`   // of softnic's NIC; "": it was not replayed
	Requests  int       `json:"requests"`  // in the capture
	Fed       int       `json:"fed"`       // that softnic's NIC was given
	Taken     int       `json:"taken"`     // and took
	Answers   int       `json:"answers"`   // recorded
	Same      int       `json:"same"`      // answers of either side, by verdict
	Declared  int       `json:"declared"`  //
	Different int       `json:"different"` //
	Unknown   int       `json:"unknown"`   //
	Notes     []string  `json:"notes"`     // what was assumed, and what may differ
	Findings  []Finding `json:"findings"`  // the first maxFindings
}

// maxFindings is how many findings of a conversation are told; all are counted.
const maxFindings = 100

// Result is what came of a capture. The JSON names are those of softnic trace where they are of the same; docs/replay.md explains the others.
type Result struct {
	Files         []FileInfo      `json:"files"` // one
	Packets       Packets         `json:"packets"`
	Declared      []string        `json:"not_compared"`
	Conversations []*Conversation `json:"conversations"`
	Different     int             `json:"different"` // sum over the conversations
}

// FileInfo is a file that was read.
type FileInfo struct {
	Name   string `json:"name"`
	Format string `json:"format"`
}

// Packets counts the packets of the capture.
type Packets struct {
	Total uint64 `json:"total"`
	RoCE  uint64 `json:"roce"`
	Bad   uint64 `json:"left_out"` // that no NIC would take: malformed, truncated, with a wrong ICRC
}

// notCompared may differ between any two NICs, or follows from what may.
var notCompared = []string{"IP ID and checksum, TTL, traffic class", "UDP source port and checksum", "ICRC", "when an answer comes"}

// Run replays a capture. The error is a *trace.FileError over what cannot be read to its end, and then there is a result of what was read
// before, or has no RoCE packet; or one over the options, or over a NIC that cannot be made.
func Run(in trace.Input, o Options) (*Result, error) {
	src, err := trace.NewStream([]trace.Input{in}, trace.StreamOptions{Ports: o.Ports})
	if err != nil {
		return nil, err
	}
	r, err := run(src, o, src.Lost)
	switch {
	case errors.Is(err, errNothing):
		return nil, src.Nothing()
	case errors.Is(err, errTooLong):
		err = &trace.FileError{Name: in.Name, Err: err}
	}
	if r == nil {
		return nil, err
	}
	r.Files = []FileInfo{{in.Name, src.Files()[0].Format()}}
	r.Packets.Total = src.Counts.Total
	return r, err
}

// errNothing is over a source without RoCE packets.
var errNothing = errors.New("no RoCE packets")

// run replays what comes from a source. lost is called behind the last, and is how many packets the
// capture says were lost.
func run(src source, o Options, lost func() uint64) (*Result, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	rec, failed := listen(src)
	if rec.frames == 0 {
		return nil, cmp.Or(failed, errNothing)
	}
	r := &Result{Packets: Packets{RoCE: uint64(rec.frames), Bad: uint64(rec.bad)}, Declared: notCompared, Conversations: []*Conversation{}}
	o.lossy = o.Capture == trace.Incomplete || o.Capture == trace.Auto && lost() > 0
	var order []netip.Addr
	by := map[netip.Addr][]*talk{}
	for _, f := range rec.flows {
		if len(f.requests) == 0 {
			continue
		}
		t := newTalk(rec, f, o)
		r.Conversations = append(r.Conversations, t.c)
		if o.lossy && o.Capture == trace.Auto {
			t.note("the file says that packets are missing from it: what is missing is unknown (--capture complete)")
		}
		if t.skip() {
			continue
		}
		if by[f.key.dst] == nil {
			order = append(order, f.key.dst)
		}
		by[f.key.dst] = append(by[f.key.dst], t)
	}
	for _, addr := range order {
		if err := act(addr, by[addr], o); err != nil {
			return nil, err
		}
	}
	for _, c := range r.Conversations {
		r.Different += c.Different
	}
	return r, failed
}

// Check looks at the values: the error says which is none.
func (o *Options) Check() error {
	if _, err := device.ProfileByName(o.Profile); err != nil {
		return err
	}
	if o.MTU != 0 && !slices.Contains([]int{256, 512, 1024, 2048, 4096}, o.MTU) {
		return fmt.Errorf("path MTU %d: 256, 512, 1024, 2048 or 4096", o.MTU)
	}
	return nil
}

// File replays a capture file; "-" is stdin. The error is that of trace.Open, or of Run.
func File(path string, o Options) (*Result, error) {
	in, done, err := trace.Open(path, os.Stdin)
	if err != nil {
		return nil, err
	}
	defer done()
	return Run(in, o)
}

// skip says why a conversation cannot be replayed, in its notes.
func (t *talk) skip() bool {
	why := ""
	switch k := t.f.key; {
	case !k.reliable() && k.service != bth.UC && k.service != bth.UD:
		why = fmt.Sprintf("%v is not replayed", k.service)
	case k.qpn < 0x10 || k.qpn >= 0xFFFFFF:
		why = fmt.Sprintf("queue pair 0x%x is not replayed: 0x10 ... 0xfffffe can be", k.qpn)
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
