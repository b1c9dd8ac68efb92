package replaytest_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softnic/softnic/trace/replay"
	"github.com/softnic/softnic/trace/replay/replaytest"
	"github.com/softnic/softnic/wire"
	"github.com/softnic/softnic/wire/bth"
)

// recorder stands in for a test: it remembers what it was told.
type recorder struct {
	testing.TB
	told []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Errorf(f string, a ...any) { r.told = append(r.told, fmt.Sprintf(f, a...)) }
func (r *recorder) Fatal(a ...any)            { r.told = append(r.told, "fatal: "+fmt.Sprint(a...)) }

// capture writes a capture of a SEND and of its answer, if there is one.
func capture(t *testing.T, ack bool, msn uint32) string {
	t.Helper()
	le := binary.LittleEndian
	file := le.AppendUint32(le.AppendUint32(nil, 0xA1B2C3D4), 2|4<<16) // pcap 2.4, µs
	file = le.AppendUint32(le.AppendUint32(append(file, make([]byte, 8)...), 65535), 101)
	a, b := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
	n := 0
	put := func(s wire.Spec) {
		n++
		p := wire.Build(&s)
		file = le.AppendUint32(le.AppendUint32(file, 100), uint32(n)*1e3)
		file = append(le.AppendUint32(le.AppendUint32(file, uint32(len(p))), uint32(len(p))), p...)
	}
	for i := range uint32(3) {
		s := wire.NewSpec(wire.Path{Src: a, Dst: b, SrcPort: 0xC000}, bth.Make(bth.RC, bth.SendOnly), 0x11, bth.PSN(i))
		s.BTH.AckReq, s.Payload = true, []byte("hello")
		put(s)
		if !ack {
			continue
		}
		s = wire.NewSpec(wire.Path{Src: b, Dst: a, SrcPort: 0xC000}, bth.Make(bth.RC, bth.Acknowledge), 0x22, bth.PSN(i))
		s.Ext.Syndrome, s.Ext.MSN = bth.AckUnlimited, i+1
		if i == 1 {
			s.Ext.MSN = msn
		}
		put(s)
	}
	path := filepath.Join(t.TempDir(), "x.pcap")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestCapture(t *testing.T) {
	if r := replaytest.Capture(t, capture(t, true, 2), replay.Options{}); r.Conversations[0].Same != 3 {
		t.Errorf("%+v", r.Conversations[0])
	}
	for _, c := range []struct {
		file, want string
	}{
		{capture(t, true, 7), "packet 4: different: PSN 000001, MSN: recorded 7, now 2"},
		{capture(t, false, 0), "no answer could be compared"},
		{filepath.Join(t.TempDir(), "none.pcap"), "none.pcap: no such file"},
	} {
		rec := &recorder{TB: t}
		replaytest.Capture(rec, c.file, replay.Options{})
		if len(rec.told) != 1 || !strings.Contains(rec.told[0], c.want) {
			t.Errorf("%q, want %q", rec.told, c.want)
		}
	}
}
