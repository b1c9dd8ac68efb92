package capture

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/wire/bth"
)

// written returns a file with n packets.
func written(tb testing.TB, n int) []byte {
	tb.Helper()
	var buf bytes.Buffer
	c := create(tb, &buf, infoA, Options{})
	at := time.Unix(1000, 0)
	for i := range n {
		c.Capture(sent(i, at.Add(time.Duration(i))))
	}
	if err := c.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// pieces writes b in pieces of any length.
func pieces(tb testing.TB, w interface{ Write([]byte) (int, error) }, b []byte) {
	tb.Helper()
	for len(b) > 0 {
		n := min(len(b), 1+rand.IntN(100))
		if m, err := w.Write(b[:n]); err != nil || m != n {
			tb.Fatal(m, err)
		}
		b = b[n:]
	}
}

func TestBlocks(t *testing.T) {
	all := written(t, 50)
	var out bytes.Buffer
	c := NewBlocks(&out)
	pieces(t, c, all[:len(all)-4]) // cut off
	if c.Packets != 50 || c.Lost != 0 {
		t.Errorf("%d packets, %d lost", c.Packets, c.Lost)
	}
	if f := parse(t, out.Bytes()); len(f.packets) != 50 || len(out.Bytes()) >= len(all)-4 {
		t.Errorf("%d packets in %d bytes of %d", len(f.packets), out.Len(), len(all))
	}
	if _, err := c.Write(all[len(all)-4:]); err != nil || !bytes.Equal(out.Bytes(), all) {
		t.Errorf("what comes out differs, %v", err)
	}
	for _, bad := range []string{"this is a text and no capture", "\x00\x00\x00\x00\x05\x00\x00\x00", "\x00\x00\x00\x00\xff\xff\xff\x7f"} {
		if _, err := NewBlocks(&out).Write([]byte(bad)); err == nil || !strings.Contains(err.Error(), "not the pcapng file") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	c = NewBlocks(&out)
	if _, err := c.Write(statistic(nil, 0, 0, 10, 3, "three")); err != nil || c.Lost != 3 {
		t.Errorf("%d lost, %v", c.Lost, err)
	}
}

func FuzzBlocks(f *testing.F) {
	f.Add(written(f, 2))
	f.Add(statistic(nil, 0, 0, 10, 3, "three"))
	f.Add([]byte{5, 0, 0, 0, 12, 0, 0, 0, 12, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		c := NewBlocks(&out)
		if _, err := c.Write(b); err == nil && !bytes.HasPrefix(b, out.Bytes()) {
			t.Error("what comes out differs")
		}
	})
}

func TestRing(t *testing.T) {
	all := written(t, 200)
	for _, c := range []struct{ size, files, want, first int }{
		{4000, 0, 0, 0}, {4000, 3, 3, -1}, {1 << 20, 2, 1, 0}, {1, 5, 5, -1},
	} {
		dir := t.TempDir()
		r := NewRing(filepath.Join(dir, "nic.pcapng"), int64(c.size), c.files)
		pieces(t, r, all)
		for range 2 {
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
		l, err := filepath.Glob(filepath.Join(dir, "nic_0*.pcapng"))
		if err != nil || c.want > 0 && len(l) != c.want || r.n < len(l) {
			t.Fatalf("%+v: %v, %d begun", c, l, r.n)
		}
		next, total := -1, 0
		for i, name := range l {
			if want := fmt.Sprintf("nic_%05d.pcapng", r.n-len(l)+1+i); filepath.Base(name) != want {
				t.Errorf("%s, want %s", name, want)
			}
			b, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			f := parse(t, b)
			if len(f.names) != 4 || len(f.packets) == 0 || len(b) > c.size+1500 {
				t.Errorf("%s: interfaces %v, %d packets, %d bytes", name, f.names, len(f.packets), len(b))
			}
			for _, p := range f.packets {
				psn := int(bth.BTH(p.data[28:]).PSN())
				if next >= 0 && psn != next {
					t.Errorf("%s: PSN %d, want %d", name, psn, next)
				}
				next = psn + 1
				total++
			}
		}
		if next != 200 || c.first == 0 && total != 200 {
			t.Errorf("%+v: %d packets up to %d", c, total, next)
		}
	}
	r := NewRing(filepath.Join(t.TempDir(), "none", "x"), 1, 1)
	if _, err := r.Write(all); err == nil || r.Name(1) == "" {
		t.Error("a folder that is not there")
	}
}
