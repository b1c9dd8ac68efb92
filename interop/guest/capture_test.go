//go:build linux

package guest

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"syscall"
	"testing"
)

// capture is a running tcpdump.
type capture struct {
	p     *proc
	Path  string // in the job directory, once the capture has ended
	live  string // where tcpdump writes: in memory, the job directory is too slow for it
	early int    // packets that the kernel counted before the filter was set; tcpdump never has them
}

// startCapture captures what passes dev into a file of the job directory (jobFile), and returns when it really does.
// filter is in tcpdump's language, as in "udp", "port", "4791".
func startCapture(t testing.TB, o options, dev, name string, filter ...string) *capture {
	t.Helper()
	c := &capture{Path: jobFile(t, name), live: filepath.Join(t.TempDir(), name)}
	// Without immediate mode the kernel holds packets back, and with it each slot of the buffer is as long as -s says;
	// without -Z tcpdump becomes a user who may not write here.
	argv := []string{"tcpdump", "-i", dev, "-n", "-s", "4400", "-B", "131072", "--immediate-mode", "-U", "-Z", "root", "-w", c.live}
	c.p = start(t, o, append(argv, filter...)...)
	c.p.WaitOutput("listening on") // printed once the socket is bound
	captured, received, _ := c.counts()
	c.early = received - captured
	return c
}

// counts asks tcpdump how many packets it has written, and the kernel had and lost for it. A reading older than the
// question is no answer.
func (c *capture) counts() (captured, received, lost int) {
	c.p.t.Helper()
	seen := len(tcpdumpStats.FindAllString(c.p.stderr.String(), -1))
	syscall.Kill(c.p.cmd.Process.Pid, syscall.SIGUSR1)
	c.p.await(patience, "tcpdump's counts", func() bool { return len(tcpdumpStats.FindAllString(c.p.stderr.String(), -1)) > seen })
	all := tcpdumpStats.FindAllStringSubmatch(c.p.stderr.String(), -1)
	last := all[len(all)-1]
	n := func(i int) int { v, _ := strconv.Atoi(last[i]); return v }
	return n(1), n(2), n(3)
}

var tcpdumpStats = regexp.MustCompile(`(\d+) packets? captured[,\n]\s*(\d+) packets? received by filter[,\n]\s*(\d+) packets? dropped by kernel`)

// Stop ends the capture when everything that the kernel had for it is in the file, and returns the frames.
func (c *capture) Stop() [][]byte {
	t := c.p.t
	t.Helper()
	c.p.await(patience, "tcpdump to write everything", func() bool {
		captured, received, _ := c.counts()
		return captured == received-c.early
	})
	r := c.p.Stop(syscall.SIGINT, patience)
	all := tcpdumpStats.FindAllStringSubmatch(r.Stderr, -1)
	if r.Code != 0 || len(all) == 0 || all[len(all)-1][3] != "0" {
		t.Fatalf("the capture is not complete: %v", r)
	}
	return c.keep()
}

// keep moves the file to the job directory and reads it.
func (c *capture) keep() [][]byte {
	b, err := os.ReadFile(c.live)
	if err == nil {
		err = os.WriteFile(c.Path, b, 0o644)
	}
	if err != nil {
		c.p.t.Fatal(err)
	}
	return readPcap(c.p.t, c.Path)
}

// Gone ends a capture whose device has been removed: tcpdump has written what there was and ended by itself.
func (c *capture) Gone() [][]byte {
	c.p.t.Helper()
	c.p.Wait(patience)
	return c.keep()
}

// readPcap returns the frames of a file that tcpdump wrote.
func readPcap(t testing.TB, path string) [][]byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const fileHeader, recordHeader = 24, 16
	if len(b) < fileHeader || binary.LittleEndian.Uint32(b) != 0xa1b2c3d4 {
		t.Fatalf("%s is not a capture", path)
	}
	var frames [][]byte
	for b = b[fileHeader:]; len(b) >= recordHeader; {
		n := int(binary.LittleEndian.Uint32(b[8:]))
		if n > len(b)-recordHeader {
			break
		}
		frames = append(frames, b[recordHeader:recordHeader+n])
		b = b[recordHeader+n:]
	}
	if len(b) != 0 {
		t.Fatalf("%s is cut off", path)
	}
	return frames
}
