package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/softnic/softnic/cmd/softnic/demo"
)

// TestDemo runs the demo as a newcomer does, in a folder of its own.
func TestDemo(t *testing.T) {
	dir := t.TempDir()
	p := command(t, "demo")
	p.cmd.Dir = dir
	begin := time.Now()
	code, out, errs := p.start().wait()
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d, %s\n%s", code, errs, out)
	}
	if d := time.Since(begin); d > 30*time.Second && !raceEnabled {
		t.Errorf("it took %v", d)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	last := regexp.MustCompile(`^all data verified, \d{4,} frames, every ICRC right but the one that was spoiled: softnic-demo\.pcapng \(open it with wireshark\)$`)
	if !last.MatchString(lines[len(lines)-1]) {
		t.Errorf("last line %q", lines[len(lines)-1])
	}
	for _, want := range []string{
		`(?m)^  operation +sizes +messages +bytes +retransmitted +verified$`,
		`(?m)^  RC SEND +0, 1, 1023, 1024, 1025, 64 KiB, 1 MiB +7 +1117185 +\d+  yes$`,
		`(?m)^ +\d+\.\d{3} ms  a +0x[0-9a-f]{6}  RC_SEND_MIDDLE \.\.\. RC_SEND_LAST +0x[0-9a-f]{6} \.\.\. 0x[0-9a-f]{6} \(5 packets\) +retry-nak +1$`,
		`(?m)^ +\d+\.\d{3} ms  a +0x[0-9a-f]{6}  RC_READ_REQUEST +0x[0-9a-f]{6} +retry-implied-nak +1$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	files, err := os.ReadDir(dir)
	if err != nil || len(files) != 1 || files[0].Name() != "softnic-demo.pcapng" {
		t.Errorf("it left %v, %v", files, err)
	}
}

func TestDemoJSON(t *testing.T) {
	file := filepath.Join(t.TempDir(), "x.pcapng")
	code, out, errs := softnic("demo", "-j", "-o", file, "--seed", "5")
	var r demo.Report
	if code != 0 || errs != "" || json.Unmarshal([]byte(out), &r) != nil || !r.Verified || r.Capture != file || len(r.Retransmissions) == 0 {
		t.Errorf("exit code %d, %s, %.300s", code, errs, out)
	}
	// What was captured, losses and all, is what this NIC does. The kernel's buffers may lose packets, too.
	if code, out, errs := softnic("replay", "--unruly", file); code != 0 || !strings.Contains(out, " 0 different") {
		t.Errorf("replay: exit code %d, %s%s", code, out, errs)
	}
	code, out, errs = softnic("demo", "-o", filepath.Join(file, "y"))
	checkError(t, code, exitFailure, errs, "choose another with -o")
	if out != "" {
		t.Error(out)
	}
}
