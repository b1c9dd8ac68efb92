package impair

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/softnic/softnic/wire/bth"
)

// matchers are the words of a rule beside direction and action.
var matchers = map[string]func(r *rule, v string) error{
	"qp":     (*rule).parseQP,
	"peer":   (*rule).parsePeer,
	"at":     (*rule).parseAt,
	"xor":    (*rule).parseXor,
	"icrc":   (*rule).parseICRC,
	"opcode": (*rule).parseOpcodes,
	"psn":    (*rule).parsePSN,
	"round":  func(r *rule, v string) (err error) { r.round, err = number[int](v, 1<<30); return },
	"nth":    func(r *rule, v string) (err error) { r.nth, err = number[uint64](v, 1<<62); return },
	"count":  func(r *rule, v string) (err error) { r.count, err = number[uint64](v, 1<<62); return },
	"p":      func(r *rule, v string) (err error) { r.p, err = percent(v); return },
	"seed": func(r *rule, v string) (err error) {
		if r.seed, err = strconv.ParseUint(v, 0, 64); err != nil {
			err = fmt.Errorf("want a number")
		}
		return
	},
}

// ownWords are words that mean something for some actions alone.
var ownWords = map[string][]string{"at": {"corrupt"}, "xor": {"corrupt"}, "icrc": {"corrupt", "set"}}

// usage lists what a word may be.
func usage() string {
	var a, m []string
	for _, x := range actions {
		if x.value != "" {
			a = append(a, x.name+"="+x.value)
		} else {
			a = append(a, x.name)
		}
	}
	for w := range matchers {
		m = append(m, w+"=")
	}
	slices.Sort(m)
	return "want an action (" + strings.Join(a, ", ") + ") or " + strings.Join(m, ", ")
}

// parse reads a rule.
func parse(text string) (*rule, error) {
	words := strings.Fields(text)
	r := &rule{p: 1, seed: 1, text: strings.Join(words, " ")}
	bad := func(word, format string, a ...any) error {
		return fmt.Errorf("impair: rule %q: %q: %s", r.text, word, fmt.Sprintf(format, a...))
	}
	if len(words) == 0 {
		return nil, bad("", "want tx or rx first")
	}
	switch words[0] {
	case "tx":
	case "rx":
		r.dir = Rx
	default:
		return nil, bad(words[0], "want tx or rx first")
	}
	seen := make(map[string]bool)
	for _, f := range words[1:] {
		name, value, has := strings.Cut(f, "=")
		i := slices.IndexFunc(actions, func(a action) bool { return a.name == name })
		switch parser := matchers[name]; {
		case i >= 0 && r.act != nil:
			return nil, bad(f, "a rule has one action, and this one has %s", r.act.name)
		case i >= 0:
			r.act = &actions[i]
			if err := r.parseAction(value, has, seen); err != nil {
				return nil, bad(f, "%v", err)
			}
		case parser == nil:
			return nil, bad(f, "%s", usage())
		case seen[name]:
			return nil, bad(f, "%s is there twice", name)
		case !has:
			return nil, bad(f, "want a value: %s=...", name)
		default:
			seen[name] = true
			if err := parser(r, value); err != nil {
				return nil, bad(f, "%v", err)
			}
		}
	}
	if r.act == nil {
		return nil, bad(words[len(words)-1], "no action: %s", usage())
	}
	for word, only := range ownWords {
		if seen[word] && !slices.Contains(only, r.act.name) {
			return nil, bad(word, "it goes with %s", strings.Join(only, " and "))
		}
	}
	r.rng = rand.New(rand.NewPCG(r.seed, 0))
	return r, nil
}

func (r *rule) parseAction(value string, has bool, seen map[string]bool) (err error) {
	switch {
	case r.act.parse != nil:
		return r.act.parse(r, value)
	case has && seen["p"]:
		return fmt.Errorf("p is there twice")
	case has:
		seen["p"] = true
		r.p, err = percent(value)
	}
	return err
}

func (r *rule) parseDelay(v string) (err error) {
	if r.delay, err = time.ParseDuration(v); err != nil || r.delay <= 0 {
		return fmt.Errorf("want a time, as in delay=5ms")
	}
	return nil
}

func (r *rule) parseECN(v string) error {
	n, ok := ecns[v]
	if !ok {
		return fmt.Errorf("want ecn=ce to mark congestion, or ecn=not-ect, ect0, ect1 to clear the mark")
	}
	r.ecn = n
	return nil
}

func (r *rule) parsePeer(v string) (err error) {
	if r.peer, err = netip.ParsePrefix(v); err == nil {
		return nil
	}
	a, err := netip.ParseAddr(v)
	if err != nil || a.Zone() != "" {
		return fmt.Errorf("want an address, as 10.0.0.2 or fe80::1, or all of a network, as 10.0.0.0/24")
	}
	r.peer = netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen())
	return nil
}

func (r *rule) parseAt(v string) error {
	n, err := strconv.ParseInt(v, 0, 16)
	if err != nil {
		return fmt.Errorf("want a byte, counted from the BTH on, as at=12, or back from the end of the payload, as at=-1")
	}
	r.at, r.hasAt = int(n), true
	return nil
}

func (r *rule) parseXor(v string) error {
	n, err := strconv.ParseUint(v, 0, 8)
	if err != nil || n == 0 {
		return fmt.Errorf("want the bits to turn over, 0x01 ... 0xff")
	}
	r.xor = byte(n)
	return nil
}

func (r *rule) parseICRC(v string) error {
	switch v {
	case "good":
		r.icrc = icrcGood
	case "bad":
		r.icrc = icrcBad
	default:
		return fmt.Errorf("want icrc=good, made right again, or icrc=bad, left as it was")
	}
	return nil
}

func (r *rule) parseQP(v string) error {
	base := 10
	digits, relative := strings.CutPrefix(v, "#")
	digits, hex := strings.CutPrefix(digits, "0x")
	if hex {
		base = 16
	}
	n, err := strconv.ParseUint(digits, base, 32)
	switch {
	case err != nil, n > bth.PSNMask, n == 0 && !hex, relative && hex:
		return fmt.Errorf("want a QP number (0x11, 17) or the place of a connection in the order of first sight (#1, 1)")
	case relative, n < 16 && !hex:
		r.qpNth = uint32(n)
	default:
		r.qp, r.hasQP = uint32(n), true
	}
	return nil
}

func (r *rule) parsePSN(v string) error {
	if d, ok := strings.CutPrefix(v, "+"); ok {
		n, err := strconv.ParseUint(d, 10, 32)
		if err != nil || n > bth.PSNMask {
			return fmt.Errorf("want a distance from the first PSN, as in psn=+5")
		}
		r.psn, r.psnKind = uint32(n), psnRelative
		return nil
	}
	h, ok := strings.CutPrefix(v, "0x")
	n, err := strconv.ParseUint(h, 16, 32)
	if !ok || err != nil || n > bth.PSNMask {
		return fmt.Errorf("want a PSN in hexadecimal, psn=0x12ab, or a distance from the first, psn=+5")
	}
	r.psn, r.psnKind = uint32(n), psnAbsolute
	return nil
}

// services are the prefixes of opcode names.
var services = []string{"RC_", "UC_", "RD_", "UD_", "XRC_"}

func (r *rule) parseOpcodes(v string) (err error) {
	r.ops, err = Opcodes(v)
	return err
}

// Opcodes returns which opcodes are meant by names with commas between them, as they stand behind opcode= in a rule. The error
// lists the names.
func Opcodes(v string) (*[256]bool, error) {
	ops := new([256]bool)
	for _, pattern := range strings.Split(v, ",") {
		stem, glob := strings.CutSuffix(strings.ToUpper(pattern), "*")
		found := false
		for o := range ops {
			name := bth.Opcode(o).Info().Name
			if name == "" {
				continue
			}
			if matches(name, stem, glob) || matches(bare(name), stem, glob) {
				ops[o], found = true, true
			}
		}
		if !found {
			return nil, fmt.Errorf("no opcode is called %q; want %s; with or without %s; a * at the end stands for any ending",
				pattern, strings.Join(opcodeNames(), ", "), strings.Join(services, ", "))
		}
	}
	return ops, nil
}

func matches(name, stem string, glob bool) bool {
	return name == stem || glob && strings.HasPrefix(name, stem)
}

// bare cuts the service off an opcode name.
func bare(name string) string {
	for _, s := range services {
		if n, ok := strings.CutPrefix(name, s); ok {
			return n
		}
	}
	return name
}

func opcodeNames() (l []string) {
	for o := range 256 {
		if n := bth.Opcode(o).Info().Name; n != "" && !slices.Contains(l, bare(n)) {
			l = append(l, bare(n))
		}
	}
	return l
}

func number[T int | uint64](v string, most uint64) (T, error) {
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil || n == 0 || n > most {
		return 0, fmt.Errorf("want a number from 1 on")
	}
	return T(n), nil
}

func percent(v string) (float64, error) {
	s, ok := strings.CutSuffix(v, "%")
	f, err := strconv.ParseFloat(s, 64)
	if !ok || err != nil || !(f > 0 && f <= 100) {
		return 0, fmt.Errorf("want a percentage above 0%% and up to 100%%")
	}
	return f / 100, nil
}
