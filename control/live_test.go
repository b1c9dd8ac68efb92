package control

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/gopacket/pcapgo"

	"github.com/softnic/softnic/link/capture"
	"github.com/softnic/softnic/link/impair"
)

func TestImpairResource(t *testing.T) {
	dev, _ := newDevice(t)
	_, c := serve(t, dev)
	ctx := context.Background()
	s, err := c.AddRule(ctx, "  tx   drop=1%")
	if want := (impair.Status{ID: 1, Rule: "tx drop=1%"}); err != nil || s != want {
		t.Errorf("%+v, %v, want %+v", s, err, want)
	}
	if _, err := c.AddRule(ctx, "tx dorp"); err == nil || !strings.Contains(err.Error(), `"dorp": want an action`) {
		t.Error(err)
	}
	if _, err := c.AddRule(ctx, "rx ecn=ce"); err != nil {
		t.Error(err)
	}
	if l, err := c.Rules(ctx); err != nil || len(l) != 2 || l[1].ID != 2 || l[1].Rule != "rx ecn=ce" {
		t.Errorf("%+v, %v", l, err)
	}
	if err := c.RemoveRule(ctx, "1"); err != nil {
		t.Error(err)
	}
	for _, id := range []string{"1", "x", "../dev", "-1"} {
		if err := c.RemoveRule(ctx, id); err == nil || !strings.Contains(err.Error(), "no rule has the ID") && !strings.Contains(err.Error(), "only GET is possible") {
			t.Errorf("%s: %v", id, err)
		}
	}
	if err := c.RemoveRule(ctx, ""); err == nil {
		t.Error("a rule without an ID")
	}
	if err := c.ClearRules(ctx); err != nil {
		t.Error(err)
	}
	if l := dev.Port().Impair().List(); len(l) != 0 {
		t.Error(l)
	}
	for _, body := range []string{"", "drop", `{"rule":1}`, `{"rule":"tx drop","more":1}`, `{"rule":"` + strings.Repeat("x", maxRule) + `"}`} {
		if err := c.do(ctx, http.MethodPost, "impair", strings.NewReader(body), nil); err == nil || strings.Contains(err.Error(), "\n") {
			t.Errorf("%.30q: %v", body, err)
		}
	}
}

func TestCaptureResource(t *testing.T) {
	dev, raw := newDevice(t)
	path := filepath.Join(t.TempDir(), "a.sock")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	taps := new(capture.Tee)
	taps.Drive(dev.Port())
	s := NewServer(dev, Options{Taps: taps})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	c := NewClient(path)
	packets := func(b []byte) (n int) {
		r, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.DefaultNgReaderOptions)
		if err != nil {
			t.Fatal(err)
		}
		for {
			switch _, _, err := r.ReadPacketData(); err {
			case nil:
				n++
			case io.EOF:
				return n
			default:
				t.Fatal(err)
			}
		}
	}
	run := func(ctx context.Context, qp string, w io.Writer, started func()) chan error {
		done, on := make(chan error, 1), make(chan bool)
		go func() {
			done <- c.Capture(ctx, FilterQuery(qp, "", ""), w, func() { close(on) })
		}()
		select {
		case <-on:
		case err := <-done:
			t.Fatal(err)
		}
		if started != nil {
			started()
		}
		return done
	}
	write := func() {
		t.Helper()
		before := dev.Counters().Drops(2)
		if err := raw.Write([]byte{0x45, 0, 0}); err != nil {
			t.Fatal(err)
		}
		await(t, func() bool { return dev.Counters().Drops(2) > before })
	}
	// One that its client ends, one with a filter, and one that goes on until the server ends.
	ctx, cancel := context.WithCancel(context.Background())
	var one, two, three bytes.Buffer
	a, b := run(ctx, "", &one, nil), run(ctx, "17", &two, nil)
	d := run(context.Background(), "", &three, nil)
	write()
	write()
	cancel()
	if err := errors.Join(<-a, <-b); err != nil {
		t.Error(err)
	}
	write()
	// One whose writer fails.
	full := run(context.Background(), "", failing{}, nil)
	if err := <-full; !errors.Is(err, io.ErrShortBuffer) {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := <-d; err != nil {
		t.Error(err)
	}
	<-served
	if x, y, z := packets(one.Bytes()), packets(two.Bytes()), packets(three.Bytes()); x != 2 || y != 0 || z != 3 {
		t.Errorf("%d, %d, %d packets, want 2, 0, 3", x, y, z)
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrShortBuffer }

func TestCaptureRefused(t *testing.T) {
	dev, _ := newDevice(t)
	_, c := serve(t, dev) // without taps
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := c.Capture(ctx, nil, io.Discard, nil); err == nil || !strings.Contains(err.Error(), "cannot be captured while it runs") {
		t.Error(err)
	}
	for query, want := range map[string]string{"qp=x": "qp x: want the number", "peer=1": "peer 1: want an address", "opcode=,": "no opcode is called", "color=red": "not chosen by \"color\""} {
		name, v, _ := strings.Cut(query, "=")
		if err := c.Capture(ctx, map[string][]string{name: {v}}, io.Discard, nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", query, err)
		}
	}
	if err := c.do(ctx, http.MethodDelete, "capture/7", nil, nil); err == nil || !strings.Contains(err.Error(), "no capture has the number 7") {
		t.Error(err)
	}
}
