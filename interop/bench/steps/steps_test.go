package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const traces = `File: softnic
Type: cpu
Duration: 1s, Total samples = 70ms (7%)
-----------+-------------------------------------------------------
      20ms   internal/runtime/syscall/linux.Syscall6
             syscall.RawSyscall6
             github.com/softnic/softnic/link/udp.(*Endpoint).trySend
             github.com/softnic/softnic/link/udp.(*Endpoint).Send
             github.com/softnic/softnic/device.(*QP).transmit
-----------+-------------------------------------------------------
      10ms   hash/crc32.ieeeCLMUL
             github.com/softnic/softnic/wire/icrc.(*State).Update
             github.com/softnic/softnic/wire.(*Packet).Seal
             github.com/softnic/softnic/link.(*Frame).frame
-----------+-------------------------------------------------------
      30ms   github.com/softnic/softnic/transport/rc.(*requester).send
             github.com/softnic/softnic/device.(*QP).ring
-----------+-------------------------------------------------------
      10ms   runtime.nanotime
             runtime.main
-----------+-------------------------------------------------------
`

func TestSum(t *testing.T) {
	got, err := sum(strings.NewReader(traces))
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]time.Duration{"system call: send": 20e6, "ICRC, and the copy that is sent": 10e6, "engine": 30e6, rest: 10e6}
	for k, d := range want {
		if got[k] != d {
			t.Errorf("%s: %v, want %v", k, got[k], d)
		}
	}
	if len(got) != len(want) {
		t.Errorf("%v", got)
	}
	for _, bad := range []string{"", "File: x\n", "-----------+----\n 3 apples\n-----------+----\n"} {
		if _, err := sum(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestTableAndChart(t *testing.T) {
	by, _ := sum(strings.NewReader(traces))
	sides := []side{{"sender", perPacket(by, 1e6)}, {"receiver", map[string]float64{"copy to memory": 5}}}
	var b strings.Builder
	table(&b, sides)
	const want = `| ns per packet | sender | receiver |
|---|---:|---:|
| ICRC, and the copy that is sent | 10 | 0 |
| system call: send | 20 | 0 |
| copy to memory | 0 | 5 |
| engine | 30 | 0 |
| Go runtime, other | 10 | 0 |
| **all** | **70** | **5** |
`
	if b.String() != want {
		t.Errorf("%s", b.String())
	}
	file := filepath.Join(t.TempDir(), "chart.svg")
	if err := chart(file, "title", sides); err != nil {
		t.Fatal(err)
	}
	if s, err := os.ReadFile(file); err != nil || !strings.Contains(string(s), "<svg") || !strings.Contains(string(s), "copy to memory") {
		t.Errorf("%v: %.200s", err, s)
	}
}
