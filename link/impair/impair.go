package impair

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softnic/softnic/wire/bth"
)

// Direction tells which packets a rule looks at.
type Direction uint8

// The directions, as seen from the NIC.
const (
	Tx Direction = iota // sent by the NIC
	Rx                  // received by it
)

// String returns "tx" or "rx".
func (d Direction) String() string {
	if d == Rx {
		return "rx"
	}
	return "tx"
}

// Effect is what the rules want done with a packet. The zero value lets it pass.
type Effect struct {
	Drop      bool          // lose it; the rest does not matter then
	Duplicate int           // further copies; 0: none
	Delay     time.Duration // hold it and its copies back for so long
	Reorder   bool          // hold it back until the next packet has passed
	Mark      bool          // make its ECN bits ECN
	ECN       uint8         // the two bits
	Change    *Change       // what to do to its bytes, that of the first rule first; nil: nothing
	Answered  bool          // with Drop: whoever sent it gets a forged answer, an AETH with Answer, as if from where it was going
	Answer    bth.Syndrome  // NAK or RNR NAK
	ChangedBy string        // text of the last rule that asked for Mark or Change
	Rule      string        // text of the last rule that hit, empty if none did
}

// Rules is a list of rules. The zero value is empty. All methods may be called
// from any goroutine and while a port goes by the rules.
type Rules struct {
	mu    sync.Mutex
	rules []*rule
	last  int // last ID given
	asked [2]asked
	n     [2]atomic.Int32
}

// Status is a rule with its counters.
type Status struct {
	ID      int    `json:"id"`      // for Remove; never used again
	Rule    string `json:"rule"`    // the text
	Matched uint64 `json:"matched"` // packets that its words describe
	Hits    uint64 `json:"hits"`    // of these, those left after nth, p and count: the impaired ones
}

// New returns a list of the rules given as text. The error is that of Add.
func New(rules ...string) (*Rules, error) {
	r := new(Rules)
	for _, t := range rules {
		if _, err := r.Add(t); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// Add adds a rule at the end of the list and returns its ID. The error names the word at fault and
// lists what is allowed in its place.
func (r *Rules) Add(text string) (id int, err error) {
	u, err := parse(text)
	if err != nil {
		return 0, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last++
	u.id = r.last
	r.rules = append(r.rules, u)
	r.n[u.dir].Add(1)
	return u.id, nil
}

// Remove removes a rule. An ID that none has is an error.
func (r *Rules) Remove(id int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := slices.IndexFunc(r.rules, func(u *rule) bool { return u.id == id })
	if i < 0 {
		return fmt.Errorf("impair: no rule has the ID %d", id)
	}
	r.n[r.rules[i].dir].Add(-1)
	r.rules = slices.Delete(r.rules, i, i+1)
	return nil
}

// Clear removes all rules.
func (r *Rules) Clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.rules = nil
	r.n[Tx].Store(0)
	r.n[Rx].Store(0)
}

// List returns the rules in order, with what they have counted until now.
func (r *Rules) List() []Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	l := make([]Status, len(r.rules))
	for i, u := range r.rules {
		l[i] = Status{u.id, u.text, u.matched, u.hits}
	}
	return l
}

// Active reports whether there is any rule for a direction. It costs nothing.
func (r *Rules) Active(d Direction) bool { return r.n[d].Load() != 0 }

// Apply says what is to be done with a packet with BTH h; peer is the address at the other
// end. It counts the packet: call it once for each.
func (r *Rules) Apply(d Direction, peer netip.Addr, h bth.BTH) (e Effect) {
	r.mu.Lock()
	defer r.mu.Unlock()
	behind := r.asked[d].behind(peer, h)
	for _, u := range r.rules {
		if u.dir != d {
			continue
		}
		f, round := u.observe(peer, h)
		if !e.Drop && !(behind && u.act.answers) && u.hit(peer, h, f, round) {
			e = u.act.do(u, e)
			if u.act.changes {
				e.ChangedBy = u.text
			}
			e.Rule = u.text
		}
	}
	if answerable(h) {
		r.asked[d].seen(peer, h, &e)
	}
	return e
}
