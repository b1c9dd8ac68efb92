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
	headHeight  = 1.6 * vg.Centimeter
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
	{report.MarkDropped, "not taken by its receiver", color.RGBA{130, 130, 130, 255}, draw.CrossGlyph{}, 2.5},
	{report.MarkAgain, "request, sent again", color.RGBA{230, 159, 0, 255}, draw.PyramidGlyph{}, 3.5},
	{report.MarkRNR, "RNR NAK", color.RGBA{160, 60, 130, 255}, draw.BoxGlyph{}, 4},
	{report.MarkNak, "NAK", color.RGBA{213, 40, 0, 255}, draw.SquareGlyph{}, 5},
	{report.MarkLost, "lost on purpose, or wrong ICRC", color.RGBA{0, 0, 0, 255}, draw.CrossGlyph{}, 5},
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
	x := axis(p)
	for i := range p.Panels {
		top := headHeight + vg.Length(i)*panelHeight
		area := draw.Crop(all, 0.3*vg.Centimeter, -0.3*vg.Centimeter, height-top-panelHeight+0.3*vg.Centimeter, -top)
		if err := panel(area, &p.Panels[i], x); err != nil {
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
	s = "time 0, the first packet, is " + p.Start.Format("2006-01-02 15:04:05.000000 MST")
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

// timeAxis is the axis that all panels have.
type timeAxis struct {
	start     int64 // ns since 1970
	unit      string
	scale     float64 // ns
	low, high float64
}

func (x timeAxis) at(d report.Dot) float64 { return float64(d.Time-x.start) / x.scale }

func axis(p *report.Picture) timeAxis {
	x := timeAxis{start: p.Start.UnixNano(), unit: "µs", scale: 1e3}
	first, last := int64(math.MaxInt64), int64(math.MinInt64)
	for _, n := range p.Panels {
		for _, d := range n.Dots {
			first, last = min(first, d.Time), max(last, d.Time)
		}
	}
	switch d := last - first; {
	case d >= 5e9:
		x.unit, x.scale = "s", 1e9
	case d >= 5e6:
		x.unit, x.scale = "ms", 1e6
	}
	x.low, x.high = float64(first-x.start)/x.scale, float64(last-x.start)/x.scale
	margin := max((x.high-x.low)*0.01, 1e-3)
	x.low, x.high = x.low-margin, x.high+margin
	return x
}

// panel draws the requests of one end.
func panel(area draw.Canvas, n *report.Panel, x timeAxis) error {
	g := plot.New()
	g.Title.Text = fmt.Sprintf("requests of %v, and the answers to them", n.From)
	g.Title.TextStyle.Font.Size = 12
	g.Title.Padding = 2 * vg.Millimeter
	g.X.Label.Text = "time since the first packet of the capture (" + x.unit + ")"
	g.Y.Label.Text = fmt.Sprintf("PSN, relative to the first shown (0x%06x)", n.First)
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
	shrink := vg.Length(1)
	if len(n.Dots) > 3000 {
		shrink = 0.7
	}
	for _, s := range styles {
		var xy plotter.XYs
		for _, d := range n.Dots {
			if d.Mark == s.mark {
				xy = append(xy, plotter.XY{X: x.at(d), Y: float64(d.PSN)})
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
		dots.GlyphStyle = draw.GlyphStyle{Color: s.colour, Radius: s.size * shrink, Shape: s.shape}
		g.Add(dots)
		legend.Add(s.name, dots)
	}
	margin := max((high-low)*0.03, 0.5)
	g.Y.Min, g.Y.Max = low-margin, high+margin
	g.X.Min, g.X.Max = x.low, x.high
	wide := area.Max.X - area.Min.X
	g.Draw(draw.Crop(area, 0, -legendWidth, 0, 0))
	legend.Draw(draw.Crop(area, wide-legendWidth+0.4*vg.Centimeter, 0, 0, -1*vg.Centimeter))
	return nil
}

// ticks are about eight, at round numbers, and whole ones where the axis is long.
type ticks struct{}

// Ticks returns the ticks of an axis.
func (ticks) Ticks(low, high float64) (out []plot.Tick) {
	const most = 8
	step := math.Pow(10, math.Floor(math.Log10((high-low)/most)))
	for _, m := range []float64{1, 2, 5, 10} {
		if (high-low)/(step*m) <= most {
			step *= m
			break
		}
	}
	if high-low >= 4 {
		step = max(step, 1)
	}
	digits := max(0, -int(math.Floor(math.Log10(step)+1e-9)))
	for i := math.Ceil(low / step); i*step <= high; i++ {
		out = append(out, plot.Tick{Value: i * step, Label: strconv.FormatFloat(i*step+0, 'f', digits, 64)})
	}
	return out
}
