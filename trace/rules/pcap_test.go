package rules

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/wire"
)

// pcaps reads the captures that lie beside a checkout and are not part of it (kernel rxe
// between two VMs, CC BY-SA, see ../shared/pcaps/README.md). Without them the test is skipped.
func pcaps(t *testing.T, f func(t *testing.T, name string, frames [][]byte, times []int64)) {
	files, _ := filepath.Glob(filepath.Join("..", "..", "..", "shared", "pcaps", "*.pcap"))
	if len(files) == 0 {
		t.Skip("no captures in ../shared/pcaps beside the checkout")
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			le := binary.LittleEndian
			if len(b) < 24 || le.Uint32(b) != 0xA1B2C3D4 || le.Uint32(b[20:]) != 1 {
				t.Fatal("not a little-endian pcap file of Ethernet frames")
			}
			var frames [][]byte
			var times []int64
			for b = b[24:]; len(b) >= 16; {
				n := int(le.Uint32(b[8:]))
				times = append(times, int64(le.Uint32(b))*1e9+int64(le.Uint32(b[4:]))*1e3)
				frames = append(frames, b[16:16+n])
				b = b[16+n:]
			}
			f(t, filepath.Base(file), frames, times)
		})
	}
}

// No fault is claimed in real captures, also if they are said to be complete, begin in the
// middle or miss a direction.
func TestCaptures(t *testing.T) {
	pcaps(t, func(t *testing.T, name string, frames [][]byte, times []int64) {
		judge := func(o Options, dir Direction, keep func(i int, v *wire.View) bool) *Checker {
			c := New(o)
			for i, f := range frames {
				var v wire.View
				fault := wire.ParseEthernet(f, &v)
				if fault == wire.OK && !keep(i, &v) {
					continue
				}
				c.Add(&Packet{Number: uint64(i + 1), Time: times[i], Dir: dir, Fault: fault, View: &v})
			}
			return c
		}
		all := func(int, *wire.View) bool { return true }
		check := func(what string, c *Checker) {
			if c.Broken() != 0 {
				t.Errorf("%s:\n%s", what, report(c))
			}
		}
		o := Options{Capture: Complete, Default: Attr{Timeout: 14, RetryCnt: 7, Depth: 16}}
		whole := judge(o, Unknown, all)
		check("whole", whole)
		if strings.Contains(name, "rdma") || strings.HasSuffix(name, "-rc.pcap") {
			f := whole.Findings()
			for _, r := range []ID{ResponseKind, ResponseRange, MSN, PSNContiguous} {
				if f[r].Kept == 0 {
					t.Errorf("%v was never kept:\n%s", r, report(whole))
				}
			}
			if n := f[ResponseRange].Unknown; n > 1 {
				t.Errorf("%d answers are of unknown requests:\n%s", n, report(whole))
			}
		}
		check("nothing known", judge(Options{}, Unknown, all))
		for n := range frames {
			check("from the middle on", judge(o, Unknown, func(i int, _ *wire.View) bool { return i >= n }))
		}
		var src string
		for _, one := range []bool{true, false} {
			check("one direction", judge(o, Unknown, func(_ int, v *wire.View) bool {
				if src == "" {
					src = v.Src().String()
				}
				return (v.Src().String() == src) == one
			}))
		}
		// Each frame twice: at once, as of -i any, and when others were under way, as of the merged captures of two hosts.
		for _, behind := range []int{0, 1, 60} {
			c := New(o)
			give := func(i, iface int, at int64) {
				var v wire.View
				fault := wire.ParseEthernet(frames[i], &v)
				c.Add(&Packet{Number: uint64(2*i + iface), Time: at, Iface: iface, Fault: fault, View: &v})
			}
			for i := range frames {
				give(i, 0, times[i])
				if j := i - behind; j >= 0 && times[i]-times[j] < int64(50*time.Millisecond) {
					give(j, 1, times[i]+1)
				}
			}
			check(fmt.Sprintf("twice, the second time %d packets later", behind), c)
		}
	})
}
