package picture

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"strconv"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/softnic/softnic/trace/report"
)

// The size of a picture.
const (
	width       = 28 * vg.Centimeter
	panelHeight = 15 * vg.Centimeter
	legendWidth = 5.4 * vg.Centimeter
	headHeight  = 1.3 * vg.Centimeter
)

// styles are the marks, in the order in which they are drawn: what is rare comes last, on top. The colours are those of
// Okabe and Ito, which the colour-blind can tell apart too.
var styles = []struct {
	mark   report.Mark
	name   string
	colour color.RGBA
	shape  draw.GlyphDrawer
	size   vg.Length
}{
	{report.MarkFirst, "request, first time", color.RGBA{0, 114, 178, 255}, draw.CircleGlyph{}, 2},
	{report.MarkData, "READ response, atomic ACK", color.RGBA{86, 180, 233, 255}, draw.RingGlyph{}, 3},
	{report.MarkAck, "ACK", color.RGBA{0, 158, 115, 255}, draw.PlusGlyph{}, 3},
	{report.MarkAgain, "request, sent again", color.RGBA{230, 159, 0, 255}, draw.PyramidGlyph{}, 3.5},
	{report.MarkRNR, "RNR NAK", color.RGBA{160, 60, 130, 255}, draw.BoxGlyph{}, 4},
	{report.MarkNak, "NAK", color.RGBA{213, 40, 0, 255}, draw.SquareGlyph{}, 5},
	{report.MarkLost, "lost on purpose, dropped,\nor wrong ICRC", color.RGBA{0, 0, 0, 255}, draw.CrossGlyph{}, 4.5},
}

// Write draws p as svg or png.
func Write(w io.Writer, format string, p *report.Picture) error {
	height := headHeight + vg.Length(len(p.Panels))*panelHeight
	var canvas interface {
		vg.CanvasSizer
		io.WriterTo
	}
	switch format {
	case "svg":
		canvas = vgsvg.New(width, height)
	case "png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(120))}
	default:
		return fmt.Errorf("a picture is svg or png, not %s", format)
	}
	all := draw.New(canvas)
	all.SetColor(color.White)
	all.Fill(all.Rectangle.Path())
	head(draw.Crop(all, 0, 0, height-headHeight, 0), p)
	unit, scale := timeUnit(p)
	last := 0.0
	for _, n := range p.Panels {
		for _, d := range n.Dots {
			last = max(last, float64(d.Time-p.Start.UnixNano())/scale)
		}
	}
	if last == 0 {
		last = 1
	}
	for i := range p.Panels {
		top := headHeight + vg.Length(i)*panelHeight
		area := draw.Crop(all, 0.3*vg.Centimeter, -0.3*vg.Centimeter, height-top-panelHeight+0.3*vg.Centimeter, -top)
		if err := panel(area, p, &p.Panels[i], unit, scale, last); err != nil {
			return err
		}
	}
	_, err := canvas.WriteTo(w)
	return err
}

// head writes what the picture shows.
func head(area draw.Canvas, p *report.Picture) {
	c := p.Conversation
	s := fmt.Sprintf("%s  %v <> %v", c.Service, c.A, c.B)
	if c.MTU > 0 {
		s += fmt.Sprintf(", path MTU %d", c.MTU)
	}
	style := plot.New().Title.TextStyle
	style.Font.Size = 14
	style.XAlign, style.YAlign = draw.XLeft, draw.YTop
	at := vg.Point{X: area.Min.X + 0.5*vg.Centimeter, Y: area.Max.Y - 0.25*vg.Centimeter}
	area.FillText(style, at, s)
	s = "time 0 is " + c.First.Format("2006-01-02 15:04:05.000000 MST")
	if p.Thinned {
		s += "; first transmissions and answers are thinned out"
	}
	if p.ThinnedRare {
		s += "; also retransmissions, NAKs and losses"
	}
	style.Font.Size = 10
	at.Y -= 0.62 * vg.Centimeter
	area.FillText(style, at, s)
}

// timeUnit chooses the unit of the axis.
func timeUnit(p *report.Picture) (string, float64) {
	switch d := p.Conversation.Last.Sub(p.Conversation.First).Nanoseconds(); {
	case d >= 5e9:
		return "s", 1e9
	case d >= 5e6:
		return "ms", 1e6
	}
	return "µs", 1e3
}

// panel draws the requests of one end.
func panel(area draw.Canvas, p *report.Picture, n *report.Panel, unit string, scale, last float64) error {
	g := plot.New()
	g.Title.Text = fmt.Sprintf("requests of %v, and the answers to them", n.From)
	g.Title.TextStyle.Font.Size = 12
	g.X.Label.Text = "time since the first packet (" + unit + ")"
	g.Y.Label.Text = fmt.Sprintf("PSN, relative to the first (0x%06x)", n.First)
	for _, a := range []*plot.Axis{&g.X, &g.Y} {
		a.Label.TextStyle.Font.Size = 11
		a.Tick.Label.Font.Size = 10
		a.Tick.Marker = ticks{}
	}
	grid := plotter.NewGrid()
	grid.Vertical.Color, grid.Horizontal.Color = color.Gray{230}, color.Gray{230}
	g.Add(grid)
	legend := plot.NewLegend()
	legend.Top, legend.Left = true, true
	legend.TextStyle.Font.Size = 10
	legend.Padding = 2.5 * vg.Millimeter
	legend.ThumbnailWidth = 0.6 * vg.Centimeter
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range styles {
		var xy plotter.XYs
		for _, d := range n.Dots {
			if d.Mark == s.mark {
				xy = append(xy, plotter.XY{X: float64(d.Time-p.Start.UnixNano()) / scale, Y: float64(d.PSN)})
				low, high = min(low, float64(d.PSN)), max(high, float64(d.PSN))
			}
		}
		if len(xy) == 0 {
			continue
		}
		dots, err := plotter.NewScatter(xy)
		if err != nil {
			return err
		}
		dots.GlyphStyle = draw.GlyphStyle{Color: s.colour, Radius: s.size, Shape: s.shape}
		g.Add(dots)
		legend.Add(s.name, dots)
	}
	margin := max((high-low)*0.03, 0.5)
	g.Y.Min, g.Y.Max = low-margin, high+margin
	g.X.Min, g.X.Max = -last*0.01, last*1.01
	wide := area.Max.X - area.Min.X
	g.Draw(draw.Crop(area, 0, -legendWidth, 0, 0))
	legend.Draw(draw.Crop(area, wide-legendWidth+0.4*vg.Centimeter, 0, 0, -1*vg.Centimeter))
	return nil
}

// ticks are those of plot.DefaultTicks at whole numbers where the axis is long, with digits in groups.
type ticks struct{}

// Ticks returns the ticks of an axis.
func (ticks) Ticks(low, high float64) []plot.Tick {
	var out []plot.Tick
	for _, t := range (plot.DefaultTicks{}).Ticks(low, high) {
		if high-low >= 4 && t.Value != math.Trunc(t.Value) {
			continue
		}
		if t.Label != "" {
			t.Label = strconv.FormatFloat(t.Value, 'f', -1, 64)
		}
		out = append(out, t)
	}
	return out
}
