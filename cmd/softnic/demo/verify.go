package demo

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/report"
	"github.com/softnic/softnic/trace/rules"
)

// checkFile computes the ICRC of every frame of a capture anew and returns how
// many frames there are, and how many of them were spoiled on purpose.
func checkFile(path string) (frames, spoiled int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return 0, 0, err
	}
	defer file.Close()
	return checkFrames(file)
}

func checkFrames(file io.Reader) (frames, spoiled int, err error) {
	r, err := trace.NewReader(file)
	if err != nil {
		return 0, 0, err
	}
	for {
		p, err := r.Next()
		if errors.Is(err, io.EOF) {
			return frames, spoiled, nil
		}
		if err != nil {
			return frames, spoiled, fmt.Errorf("frame %d cannot be read: %w", frames+1, err)
		}
		frames++
		if p.Link != trace.LinkRaw {
			return frames, spoiled, fmt.Errorf("frame %d: link type %v, expected raw IP", frames, p.Link)
		}
		// On the interface impaired it is as it was before.
		onPurpose := bytes.Contains(p.Comment, []byte(" corrupt")) && r.Interfaces()[p.Iface].Name == "tx"
		switch err := checkICRC(p.Data); {
		case onPurpose && err == nil:
			return frames, spoiled, fmt.Errorf("frame %d: the ICRC is right, and a byte was changed", frames)
		case onPurpose:
			spoiled++
		case err != nil:
			return frames, spoiled, fmt.Errorf("frame %d: %w", frames, err)
		}
	}
}

// Trace is what softnic trace says of the capture.
type Trace struct {
	Packets uint64           `json:"packets"`
	Kept    int              `json:"rules_kept"`    // rules that were kept wherever they could be judged
	Unknown int              `json:"rules_unknown"` // rules of which nothing could be judged
	Broken  []report.Verdict `json:"broken"`
}

// judge has the rules of the transports look over the capture. It is told what the two NICs have agreed.
func (d *demo) judge() error {
	file, err := os.Open(d.opts.File)
	if err != nil {
		return err
	}
	defer file.Close()
	end := func(n *nic) rules.End {
		return rules.End{Addr: n.gid.Addr(), QPN: n.rc.Num(), Attr: rules.Attr{Depth: readDepth, Timeout: ackTimeout, RetryCnt: retryCnt}}
	}
	r, err := report.Analyze([]trace.Input{{Name: d.opts.File, R: file}}, report.Options{
		Rules: rules.Options{Connections: []rules.Connection{{A: end(d.a), B: end(d.b), MTU: pathMTU}}, Slack: time.Millisecond},
	})
	if err != nil {
		return err
	}
	t := &Trace{Packets: r.Packets.Total, Broken: []report.Verdict{}}
	for _, v := range r.Rules {
		switch v.Verdict {
		case "broken":
			t.Broken = append(t.Broken, v)
		case "kept":
			t.Kept++
		case "unknown":
			t.Unknown++
		}
	}
	d.report.Trace = t
	return d.verdict(t)
}

// verdict prints what the trace shows: no rule is broken.
func (d *demo) verdict(t *Trace) error {
	d.printf("\nAnd what `softnic trace %s` makes of the capture: %d rules of the transports kept", d.opts.File, t.Kept)
	if t.Unknown > 0 {
		d.printf(", %d that it cannot judge", t.Unknown)
	}
	d.printf(", %d broken.\nFor what was lost, changed or made on purpose nobody is blamed: the comments of the capture tell of it. The same as a picture:\n"+
		"softnic trace --picture demo.svg %s\n", len(t.Broken), d.opts.File)
	if len(t.Broken) > 0 {
		return d.broken(t.Broken)
	}
	return nil
}

// broken names the first violation, and the command that shows all: the capture alone does not tell what was agreed.
func (d *demo) broken(l []report.Verdict) error {
	what := l[0].Rule
	if v := l[0].Violations; len(v) > 0 {
		what = fmt.Sprintf("%s by packet %d, %s", what, v[0].Packet, v[0].Text)
	}
	return fmt.Errorf("rules of the transports are broken (%d): %s; all: softnic trace --connect %v/%#x=%v/%#x --depth %d --timeout %d --retry-cnt %d %s", len(l), what,
		d.a.gid.Addr(), d.a.rc.Num(), d.b.gid.Addr(), d.b.rc.Num(), readDepth, ackTimeout, retryCnt, d.opts.File)
}
