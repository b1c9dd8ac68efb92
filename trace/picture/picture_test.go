package picture

import (
	"bytes"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/report"
)

// one is a picture of a conversation with every mark, a packet each step, in both directions.
func one(step time.Duration) *report.Picture {
	start := time.Unix(1700000000, 0).UTC()
	q := uint32(7)
	c := &report.Conversation{A: trace.End{Addr: netip.MustParseAddr("10.0.0.1")}, B: trace.End{Addr: netip.MustParseAddr("10.0.0.2"), QPN: &q}, Service: "RC", MTU: 1024}
	p := &report.Picture{Conversation: c, Start: start}
	for _, from := range []trace.End{c.A, c.B} {
		n := report.Panel{From: from, First: 0xABCDEF}
		for m := range report.Marks {
			n.Dots = append(n.Dots, report.Dot{Time: start.UnixNano() + int64(m)*int64(step), PSN: int64(m), Mark: m})
		}
		p.Panels = append(p.Panels, n)
	}
	return p
}

// Every mark is in the legend of each panel, the axes have units, and the file is of its kind.
func TestWrite(t *testing.T) {
	for step, unit := range map[time.Duration]string{0: "µs", time.Microsecond: "µs", time.Millisecond: "ms", time.Second: "s"} {
		p := one(step)
		var svg, png bytes.Buffer
		if err := Write(&svg, "svg", p); err != nil {
			t.Fatal(err)
		}
		if err := Write(&png, "png", p); err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(png.Bytes(), []byte("\x89PNG")) {
			t.Error("no PNG")
		}
		s := svg.String()
		for _, x := range styles {
			if n := strings.Count(s, ">"+x.name+"<"); n != 2 {
				t.Errorf("%q is %d times in the legends", x.name, n)
			}
		}
		for _, x := range []string{fmt.Sprintf("(%s)", unit), "0xabcdef", "10.0.0.1 QP ?", "10.0.0.2 QP 0x7", "path MTU 1024"} {
			if !strings.Contains(s, x) {
				t.Errorf("%v: no %q", step, x)
			}
		}
		if len(styles) != int(report.Marks) {
			t.Errorf("%d styles for %d marks", len(styles), report.Marks)
		}
	}
	if err := Write(io.Discard, "gif", one(1)); err == nil {
		t.Error("a gif")
	}
}

// About eight ticks, at numbers that people like.
func TestTicks(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      string
	}{
		{0, 100, "0 20 40 60 80 100"},
		{-0.5, 6.5, "0 1 2 3 4 5 6"},
		{0.89, 1.26, "0.90 0.95 1.00 1.05 1.10 1.15 1.20 1.25"},
		{-120, 6100, "0 1000 2000 3000 4000 5000 6000"},
		{5270, 6990, "5500 6000 6500"},
	} {
		var got []string
		for _, x := range (ticks{}).Ticks(c.low, c.high) {
			got = append(got, x.Label)
		}
		if s := strings.Join(got, " "); s != c.want {
			t.Errorf("%v to %v: %s, want %s", c.low, c.high, s, c.want)
		}
	}
}
