package scenario

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
)

// Error is a mistake in a scenario, or a failure of one, with its place.
type Error struct {
	File string
	Line int // from 1
	Text string
}

// Error returns file, line and reason.
func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Text) }

// words splits a line at blanks; blanks within double quotes do not split, and # outside of quotes ends the line.
func words(line string) ([]string, error) {
	var out []string
	var w strings.Builder
	quoted, any := false, false
	for _, r := range line {
		switch {
		case r == '"':
			quoted, any = !quoted, true
			w.WriteRune(r)
		case !quoted && r == '#':
			if any {
				out = append(out, w.String())
			}
			return out, nil
		case !quoted && (r == ' ' || r == '\t' || r == '\r'):
			if any {
				out = append(out, w.String())
			}
			w.Reset()
			any = false
		default:
			any = true
			w.WriteRune(r)
		}
	}
	if quoted {
		return nil, fmt.Errorf("a quote is not closed")
	}
	if any {
		out = append(out, w.String())
	}
	return out, nil
}

// arg is NAME=VALUE, or NAME alone.
type arg struct {
	name, value string
	alone       bool
}

func splitArgs(l []string) ([]arg, error) {
	var out []arg
	for _, w := range l {
		n, v, ok := strings.Cut(w, "=")
		if n == "" || ok && v == "" {
			return nil, fmt.Errorf("%q is neither NAME nor NAME=VALUE", w)
		}
		if n != "sge" {
			for _, o := range out {
				if o.name == n {
					return nil, fmt.Errorf("%s is there twice", n)
				}
			}
		}
		out = append(out, arg{n, v, !ok})
	}
	return out, nil
}

// number reads a decimal number, or a hexadecimal one with 0x in front, of so many bits.
func number(s string, bits int) (uint64, error) {
	v, err := strconv.ParseUint(s, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%q is not a number", s)
	}
	if bits < 64 && v>>bits != 0 {
		return 0, fmt.Errorf("%s has more than %d bits", s, bits)
	}
	return v, nil
}

// moment says when a line is.
type moment struct {
	given    bool
	absolute bool
	lo, hi   time.Duration // since the start, or since the line before
}

func (m moment) ranged() bool { return m.lo != m.hi }

// isTime reports whether a line begins with a time.
func isTime(w string) bool { return w[0] == '+' || w[0] >= '0' && w[0] <= '9' }

// longest is the longest time that a scenario may name.
const longest = 1000 * time.Hour

// parseMoment reads a time; unit is how long T is, 0 where there is none.
func parseMoment(w string, unit time.Duration) (m moment, err error) {
	m.given = true
	rest, relative := strings.CutPrefix(w, "+")
	m.absolute = !relative
	if in, ok := strings.CutPrefix(rest, "["); ok {
		in, ok = strings.CutSuffix(in, "]")
		a, b, two := strings.Cut(in, "..")
		if !ok || !two || !relative {
			return m, fmt.Errorf("%q is not a range of time, as +[10ms..40ms] is", w)
		}
		if m.lo, err = parseTime(a, unit); err == nil {
			m.hi, err = parseTime(b, unit)
		}
		if err == nil && m.hi < m.lo {
			err = fmt.Errorf("%q ends before it begins", w)
		}
		return m, err
	}
	m.lo, err = parseTime(rest, unit)
	m.hi = m.lo
	return m, err
}

func parseTime(s string, unit time.Duration) (time.Duration, error) {
	if s == "0" {
		return 0, nil
	}
	if k, ok := strings.CutSuffix(s, "T"); ok {
		f := 1.0
		if k != "" {
			var err error
			if f, err = strconv.ParseFloat(k, 64); err != nil || math.IsNaN(f) || f < 0 || f > 1e6 {
				return 0, fmt.Errorf("%q is no time, as 2T is", s)
			}
		}
		if unit == 0 {
			return 0, fmt.Errorf("%q: T is the ACK timeout of the first queue pair, and there is none", s)
		}
		if d := f * float64(unit); d <= float64(longest) {
			return time.Duration(d), nil
		}
		return 0, fmt.Errorf("%s is longer than %v", s, longest)
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is no time, as 10ms is", s)
	}
	if d > longest {
		return 0, fmt.Errorf("%s is longer than %v", s, longest)
	}
	return d, nil
}
