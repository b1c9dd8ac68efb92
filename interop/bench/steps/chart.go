package main

import (
	"image/color"
	"os"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// palette has a color for each step.
var palette = []color.RGBA{
	{0x1F, 0x77, 0xB4, 0xFF}, {0xFF, 0x7F, 0x0E, 0xFF}, {0xFF, 0xBB, 0x78, 0xFF}, {0xC7, 0xC7, 0xC7, 0xFF}, {0x2C, 0xA0, 0x2C, 0xFF},
	{0x98, 0xDF, 0x8A, 0xFF}, {0x8C, 0x56, 0x4B, 0xFF}, {0xD6, 0x27, 0x28, 0xFF}, {0x94, 0x67, 0xBD, 0xFF}, {0xE3, 0x77, 0xC2, 0xFF},
	{0x17, 0xBE, 0xCF, 0xFF}, {0xBC, 0xBD, 0x22, 0xFF}, {0x7F, 0x7F, 0x7F, 0xFF},
}

// chart draws a bar for each side, of its steps one upon the other.
func chart(file, title string, sides []side) error {
	p := plot.New()
	p.Title.Text = title
	p.Y.Label.Text = "ns per packet"
	p.Y.Min = 0
	var below *plotter.BarChart
	var labels []string
	for _, s := range sides {
		labels = append(labels, s.name)
	}
	for _, n := range names(sides) {
		v := make(plotter.Values, len(sides))
		for i, s := range sides {
			v[i] = s.ns[n]
		}
		bars, err := plotter.NewBarChart(v, vg.Points(60))
		if err != nil {
			return err
		}
		bars.Color = colorOf(n)
		bars.LineStyle.Width = 0
		if below != nil {
			bars.StackOn(below)
		}
		below = bars
		p.Add(bars)
		p.Legend.Add(n, bars)
	}
	p.NominalX(labels...)
	p.Legend.Top = true
	p.X.Max = float64(len(sides)) + 1.6 // room for the legend
	c := vgsvg.New(18*vg.Centimeter, 11*vg.Centimeter)
	p.Draw(draw.New(c))
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := c.WriteTo(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}

// colorOf is the color of a step in every chart.
func colorOf(name string) color.Color {
	for i, s := range steps {
		if s.name == name {
			return palette[i]
		}
	}
	return palette[len(palette)-1]
}
