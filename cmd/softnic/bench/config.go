package bench

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/softnic/softnic/device"
)

// Op is what is measured.
type Op string

// The operations.
const (
	Write  Op = "write"
	Read   Op = "read"
	Send   Op = "send"
	Atomic Op = "atomic" // fetch and add, 8 bytes
)

// Ops lists the operations.
func Ops() []Op { return []Op{Write, Read, Send, Atomic} }

// Wait is how a side waits for completions.
type Wait string

// The ways to wait. In all of them Poll is called first.
const (
	Poll   Wait = "poll"   // CQ.Poll again and again
	Block  Wait = "block"  // CQ.Wait
	Events Wait = "events" // CQ.Arm and CompChannel.Get, as a program with ibv_get_cq_event
)

// Limits of a Config.
const (
	maxSize    = 1 << 30 // bytes of messages on all queue pairs together, each way
	maxQPs     = 1024
	maxSamples = 1 << 22 // iterations of a latency test, each of which is kept
)

// Config says what is measured. Its zero value is not useful: Default makes one.
type Config struct {
	Latency  bool          `json:"latency"`     // else bandwidth
	Op       Op            `json:"op"`          // what
	Size     int           `json:"size"`        // bytes of a message; 8 with Atomic
	QPs      int           `json:"qps"`         // queue pairs; 1 with Latency
	Depth    int           `json:"tx_depth"`    // requests outstanding on each queue pair
	List     int           `json:"post_list"`   // requests of one doorbell; Depth is at least that
	CQMod    int           `json:"cq_mod"`      // every how many requests make a completion; 0: an eighth of Depth, in whole lists
	RXDepth  int           `json:"rx_depth"`    // receives on each queue pair, where there are any; 0: 512, or as many as the completion queue takes
	Inline   int           `json:"inline"`      // messages up to so many bytes are copied when posted
	Iters    int           `json:"iters"`       // messages, on all queue pairs together
	Duration time.Duration `json:"duration_ns"` // instead of Iters: how long; 0: Iters counts
	PathMTU  int           `json:"path_mtu"`    // bytes
	Timeout  int           `json:"qp_timeout"`  // local ACK timeout, a code: 4.096 µs times 2 to this; 0: that of perftest, 14
	Wait     Wait          `json:"wait"`        // both sides
	PeerPoll bool          `json:"peer_poll"`   // the side that has nothing to do in a test polls all the same
}

// Default returns the settings of perftest for a test, but for the depth of READ and atomics, which is what a
// device takes, and the path MTU, which is the largest.
func Default(latency bool, op Op) Config {
	c := Config{Latency: latency, Op: op, Size: 65536, QPs: 1, Depth: 128, List: 1, Iters: 5000, PathMTU: 4096, Wait: Poll}
	if latency {
		c.Size, c.Depth, c.Iters, c.Inline = 2, 1, 1000, 220
	}
	if op == Atomic {
		c.Size = 8
	}
	return c
}

// Check finds what cannot be, and fills in what depends on other values.
func (c *Config) Check() error {
	if !slices.Contains(Ops(), c.Op) {
		return fmt.Errorf("%q is no operation: want write, read, send or atomic", c.Op)
	}
	if c.Wait != Poll && c.Wait != Block && c.Wait != Events {
		return fmt.Errorf("%q is no way to wait: want poll, block or events", c.Wait)
	}
	type limit struct {
		flag           string
		value, lo, top int
	}
	for _, l := range []limit{
		{"-s", c.Size, 1, maxSize}, {"-q", c.QPs, 1, maxQPs}, {"-t", c.Depth, 1, device.MaxCQE}, {"-l", c.List, 1, device.MaxCQE},
		{"-Q", c.CQMod, 0, device.MaxCQE}, {"-r", c.RXDepth, 0, device.MaxCQE}, {"-I", c.Inline, 0, device.MaxInline}, {"-n", c.Iters, 1, 1 << 40}, {"-u", c.Timeout, 0, 31},
	} {
		if l.value < l.lo || l.value > l.top {
			return fmt.Errorf("%s %d: want %d to %d", l.flag, l.value, l.lo, l.top)
		}
	}
	switch {
	case !slices.Contains([]int{256, 512, 1024, 2048, 4096}, c.PathMTU):
		return fmt.Errorf("-m %d: want 256, 512, 1024, 2048 or 4096", c.PathMTU)
	case c.Size > maxSize/c.QPs:
		return fmt.Errorf("-s %d -q %d: want at most %d bytes on all queue pairs together", c.Size, c.QPs, maxSize)
	case c.Duration < 0:
		return fmt.Errorf("-D %v has passed", c.Duration)
	case c.Op == Atomic && c.Size != 8:
		return fmt.Errorf("-s %d: an atomic is of 8 bytes", c.Size)
	case c.Latency && (c.QPs != 1 || c.List != 1 || c.Depth != 1):
		return fmt.Errorf("-q, -t and -l go with bw: a latency test has one message under way")
	case c.Latency && c.Duration == 0 && c.Iters > maxSamples:
		return fmt.Errorf("-n %d: a latency test keeps each sample: at most %d", c.Iters, maxSamples)
	case c.Depth < c.List:
		return fmt.Errorf("-l %d: a list is not longer than the queue (-t %d)", c.List, c.Depth)
	}
	if c.Timeout == 0 {
		c.Timeout = 14 // 67 ms
	}
	if c.CQMod == 0 {
		c.CQMod = max(c.Depth/8/c.List, 1) * c.List
	}
	switch {
	case c.CQMod > c.Depth/c.List*c.List:
		return fmt.Errorf("-Q %d: with -t %d and -l %d the queue would be full before there is a completion", c.CQMod, c.Depth, c.List)
	case c.CQMod%c.List != 0 && c.List%c.CQMod != 0:
		return fmt.Errorf("-Q %d and -l %d: one is to be a multiple of the other", c.CQMod, c.List)
	}
	return c.checkQueue()
}

// checkQueue sees that the completion queue can hold all that may be outstanding.
func (c *Config) checkQueue() error {
	left := device.MaxCQE/c.QPs - c.Depth
	if left < 0 || c.receives() && left < 1 {
		return fmt.Errorf("-q %d -t %d: a completion queue has %d entries", c.QPs, c.Depth, device.MaxCQE)
	}
	if c.RXDepth > left && c.receives() {
		return fmt.Errorf("-r %d: with -q %d and -t %d the completion queue has room for %d each", c.RXDepth, c.QPs, c.Depth, left)
	}
	if c.RXDepth == 0 {
		c.RXDepth = min(512, left)
	}
	return nil
}

// receives reports whether the test takes receives.
func (c *Config) receives() bool { return c.Op == Send || c.withImm() }

// withImm reports whether a WRITE has to tell the peer that it has come: who sleeps does not see memory change.
func (c *Config) withImm() bool { return c.Latency && c.Op == Write && c.Wait != Poll }

// active reports whether the other side has a part of its own in the test.
func (c *Config) active() bool { return c.Op == Send || c.Latency && c.Op == Write }

// title says what is measured, for people.
func (c *Config) title() string {
	kind, name := "BW", strings.ToUpper(string(c.Op[:1]))+string(c.Op[1:])
	if c.Latency {
		kind = "Latency"
	}
	switch {
	case c.Op == Atomic:
		name = "Atomic FETCH_AND_ADD"
	case c.Op != Send:
		name = "RDMA " + name
	}
	return name + " " + kind + " Test"
}
