// Package judge is the command trace: it opens the captures that were named, has package trace/report
// tell what they show, and prints that. It has no logic of its own about packets.
package judge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/picture"
	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
)

// Flags are those of the command, as they were given.
type Flags struct {
	Rules, Merge             bool
	Unruly, TrustCut         bool
	QP, Peer                 string
	Picture, PictureTime     string
	Ports                    []int
	Hosts, Connect           []string
	Capture, CNP             string
	Depth, Timeout, RetryCnt int
	Slack                    time.Duration
	Examples                 int

	JSON bool
	Out  io.Writer
	In   io.Reader
}

// Broken is the error of a capture in which rules are broken.
type Broken struct {
	File  string
	Rules []string
	Times uint64
}

// Error is one line.
func (b *Broken) Error() string {
	return fmt.Sprintf("%s: rules are broken %d times: %s", b.File, b.Times, strings.Join(b.Rules, ", "))
}

func usage(format string, a ...any) error { return &nic.UsageError{Err: fmt.Errorf(format, a...)} }

// Run judges the files. The error is a *nic.UsageError, a *trace.FileError, a *Broken, or several of them.
func (f *Flags) Run(files []string) error {
	if f.Rules {
		return f.list()
	}
	if len(files) == 0 {
		return usage("trace needs a capture: `softnic trace FILE`, or - for stdin")
	}
	o, err := f.options()
	if err != nil {
		return err
	}
	groups := [][]string{files}
	if !f.Merge {
		groups = nil
		for _, name := range files {
			groups = append(groups, []string{name})
		}
	}
	if f.Picture != "" {
		if len(groups) > 1 {
			return usage("--picture is of one capture: give one file, or --merge")
		}
		if e := filepath.Ext(f.Picture); e != ".svg" && e != ".png" {
			return usage("--picture %s: the name must end in .svg or .png", f.Picture)
		}
	}
	var all []error
	for i, g := range groups {
		if i > 0 && !f.JSON {
			fmt.Fprintln(f.Out)
		}
		all = append(all, f.one(g, o))
	}
	return errors.Join(all...)
}

// one judges the files of a group.
func (f *Flags) one(names []string, o report.Options) error {
	var in []trace.Input
	for _, name := range names {
		file, done, err := trace.Open(name, f.In)
		if err != nil {
			return err
		}
		defer done()
		in = append(in, file)
	}
	r, failed := report.Analyze(in, o)
	if r == nil {
		return failed
	}
	if err := f.print(r); err != nil {
		return err
	}
	if failed == nil && f.Picture != "" {
		failed = draw(f.Picture, r)
	}
	if r.Broken == 0 {
		return failed
	}
	b := &Broken{File: strings.Join(names, " "), Times: r.Broken}
	for _, v := range r.Rules {
		if v.Broken > 0 {
			b.Rules = append(b.Rules, v.Rule)
		}
	}
	return errors.Join(failed, b)
}

func (f *Flags) print(r *report.Report) error {
	if f.JSON {
		return json.NewEncoder(f.Out).Encode(r)
	}
	return r.Text(f.Out)
}

// draw makes the picture.
func draw(path string, r *report.Report) error {
	p := r.Picture()
	if p == nil {
		return &trace.FileError{Name: path, Err: errors.New("no picture: no conversation with PSNs in order (RC, UC, XRC) is in the tables; see --qp, --peer and --picture-time")}
	}
	file, err := os.Create(path)
	if err == nil {
		err = errors.Join(picture.Write(file, strings.TrimPrefix(filepath.Ext(path), "."), p), file.Close())
	}
	if err == nil {
		return nil
	}
	if where := (*fs.PathError)(nil); errors.As(err, &where) {
		err = where.Err
	}
	return &trace.FileError{Name: path, Err: fmt.Errorf("the picture cannot be written: %w: give --picture another place", err)}
}

// list prints the rules.
func (f *Flags) list() error {
	type rule struct {
		Rule   string `json:"rule"`
		Text   string `json:"text"`
		Source string `json:"source"`
	}
	var l []rule
	for _, r := range rules.Table {
		l = append(l, rule{r.Name, r.Text, r.Source})
	}
	if f.JSON {
		return json.NewEncoder(f.Out).Encode(l)
	}
	for _, r := range l {
		if _, err := fmt.Fprintf(f.Out, "%s\n    %s\n    from %s\n", r.Rule, r.Text, r.Source); err != nil {
			return err
		}
	}
	return nil
}

// options reads the flags.
func (f *Flags) options() (o report.Options, err error) {
	o.Rules = rules.Options{
		Default:  rules.Attr{Depth: f.Depth, Timeout: f.Timeout, RetryCnt: f.RetryCnt},
		Unruly:   f.Unruly,
		TrustCut: f.TrustCut,
		Slack:    f.Slack,
		Examples: f.Examples,
	}
	o.Picture = f.Picture != ""
	if f.PictureTime != "" {
		if !o.Picture {
			return o, usage("--picture-time %s goes with --picture FILE", f.PictureTime)
		}
		if o.PictureFrom, o.PictureTo, err = span(f.PictureTime); err != nil {
			return o, usage("--picture-time %s: %w", f.PictureTime, err)
		}
	}
	if o.Rules.Capture, err = Completeness(f.Capture); err != nil {
		return o, usage("%w", err)
	}
	switch {
	case f.Depth < -1 || f.Depth > 255:
		return o, usage("--depth %d: 1 to 255, or -1 for none", f.Depth)
	case f.Timeout < -1 || f.Timeout > 31:
		return o, usage("--timeout %d: a code of 1 to 31, or -1 for no timer", f.Timeout)
	case f.RetryCnt < -1 || f.RetryCnt > 7:
		return o, usage("--retry-cnt %d: 1 to 7, or -1 for none", f.RetryCnt)
	case f.Slack < 0:
		return o, usage("--slack %v: not below 0", f.Slack)
	case f.Examples < 1 || f.Examples > 1e6:
		return o, usage("--examples %d: 1 to 1000000", f.Examples)
	}
	if o.Ports, err = Ports(f.Ports); err != nil {
		return o, usage("%w", err)
	}
	if f.QP != "" {
		n, err := qpn(f.QP)
		if err != nil {
			return o, usage("--qp %s: %w", f.QP, err)
		}
		o.QPN = &n
	}
	if f.Peer != "" {
		if o.Peer, err = address(f.Peer); err != nil {
			return o, usage("--peer %s: %w", f.Peer, err)
		}
	}
	for _, h := range f.Hosts {
		a, err := address(h)
		if err != nil {
			return o, usage("--host %s: %w", h, err)
		}
		o.Hosts = append(o.Hosts, a)
	}
	for _, c := range f.Connect {
		n, err := connection(c)
		if err != nil {
			return o, usage("--connect %s: %w", c, err)
		}
		o.Rules.Connections = append(o.Rules.Connections, n)
	}
	if f.CNP != "" {
		if o.Rules.CNPMode, o.Rules.CNPInterval, err = pace(f.CNP); err != nil {
			return o, usage("--cnp %s: %w", f.CNP, err)
		}
	}
	return o, nil
}

// Ports reads the values of --port.
func Ports(l []int) (ports []uint16, err error) {
	for _, p := range l {
		if p < 1 || p > 65535 {
			return nil, fmt.Errorf("--port %d: 1 to 65535", p)
		}
		ports = append(ports, uint16(p))
	}
	return ports, nil
}

// Completeness reads the value of --capture.
func Completeness(s string) (trace.Completeness, error) {
	switch s {
	case "":
		return trace.Auto, nil
	case "complete":
		return trace.Complete, nil
	case "incomplete":
		return trace.Incomplete, nil
	}
	return trace.Auto, fmt.Errorf("--capture %s: complete or incomplete", s)
}

func address(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, errors.New("not an IP address")
	}
	return a.Unmap().WithZone(""), nil
}

func qpn(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 0, 24)
	if err != nil {
		return 0, errors.New("not a queue pair number, as 17 or 0x11, of 24 bits")
	}
	return uint32(n), nil
}

// connection reads ADDR/QPN=ADDR/QPN.
func connection(s string) (n rules.Connection, err error) {
	a, b, ok := strings.Cut(s, "=")
	if !ok {
		return n, errors.New("not ADDR/QPN=ADDR/QPN")
	}
	for _, x := range []struct {
		text string
		end  *rules.End
	}{{a, &n.A}, {b, &n.B}} {
		addr, num, ok := strings.Cut(x.text, "/")
		if !ok {
			return n, errors.New("not ADDR/QPN=ADDR/QPN")
		}
		if x.end.Addr, err = address(addr); err != nil {
			return n, fmt.Errorf("%s: %w", addr, err)
		}
		if x.end.QPN, err = qpn(num); err != nil {
			return n, fmt.Errorf("%s: %w", num, err)
		}
	}
	return n, nil
}

// span reads FROM-TO, of which either may be left out.
func span(s string) (from, to time.Duration, err error) {
	a, b, ok := strings.Cut(s, "-")
	for _, x := range []struct {
		text string
		d    *time.Duration
	}{{a, &from}, {b, &to}} {
		if x.text == "" {
			continue
		}
		if *x.d, err = time.ParseDuration(x.text); err != nil {
			ok = false
		}
	}
	if !ok || to != 0 && to <= from {
		return 0, 0, errors.New("not FROM-TO, as 980ms-1.2s or 5s-")
	}
	return from, to, nil
}

// pace reads MODE:TIME.
func pace(s string) (m rules.CNPMode, d time.Duration, err error) {
	name, text, ok := strings.Cut(s, ":")
	m, known := map[string]rules.CNPMode{"port": rules.CNPPerPort, "dest": rules.CNPPerDest, "pair": rules.CNPPerPair, "qp": rules.CNPPerQP}[name]
	if d, err = time.ParseDuration(text); !ok || !known || err != nil || d <= 0 {
		return m, d, errors.New("not port:TIME, dest:TIME, pair:TIME or qp:TIME, as pair:50us")
	}
	return m, d, nil
}
