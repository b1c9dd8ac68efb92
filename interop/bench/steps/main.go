// Command steps says where the time of a packet goes: it reads CPU profiles that `softnic bench --cpu-profile` and `softnic run
// --cpu-profile` have written, and adds the samples up by the steps of a packet's way.
//
//	softnic bench bw write --two --block -D 5s -j --cpu-profile p
//	go run ./interop/bench/steps -packets N [-svg FILE] NAME=PROFILE ...
//
// NAME says whose profile it is ("sender"), and N is how many data packets were moved while it was taken. It prints a table of
// nanoseconds per packet, in Markdown, and draws it. `go tool pprof` reads the profiles.
package main

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"time"
)

// step is a part of a packet's way.
type step struct {
	name  string
	marks []string // a sample belongs to the first step of which a function is found, going up from where it was taken
}

// steps are in the order of the table. What stands first is found first where one function has the marks of two.
var steps = []step{
	{"ICRC, and the copy that is sent", []string{"hash/crc32.", "wire/icrc.", "wire.CheckICRC"}},
	{"system call: send", []string{"link/udp.(*Endpoint).trySend", "tap.(*"}},
	{"system call: receive", []string{"link/udp.(*Endpoint).tryRecv"}},
	{"wait for the link", []string{"link/udp.(*Endpoint).Await", "link/udp.(*lookout)", "(*receiver).await", "runtime.findRunnable", "runtime.mcall", "runtime.park_m", "runtime.schedule"}},
	{"bursts and datagrams", []string{"link/udp."}},
	{"headers, framing, parsing", []string{"wire.", "link.(*Frame)", "link.(*Port)", "link."}},
	{"another process's memory", []string{"uverbs.(*process)", "uverbs.region"}},
	{"copy to memory", []string{"transport.CopyIn", "runtime.memmove"}},
	{"keys and memory regions", []string{"device.(*host).Local", "device.(*host).Remote", "device.(*keys)", "device.(*region)", "device.(*lastKey)", "transport.(*TxList)", "transport.(*Tx)", "transport.Gather"}},
	{"engine", []string{"transport/", "transport."}},
	{"queue pairs, completions, who receives", []string{"device."}},
	{"the program", []string{"cmd/softnic/bench.", "uverbs."}},
}

// rest is where samples go that no step has.
const rest = "Go runtime, other"

func main() {
	packets := flag.Float64("packets", 0, "data packets that were moved while the profiles were taken")
	svg := flag.String("svg", "", "draw the chart into `FILE`")
	title := flag.String("title", "CPU time of a packet", "of the chart")
	flag.Parse()
	if *packets <= 0 || flag.NArg() == 0 {
		fmt.Fprintln(os.Stderr, "steps: -packets N and NAME=PROFILE ... are needed")
		os.Exit(2)
	}
	if err := run(*packets, *svg, *title, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "steps:", err)
		os.Exit(1)
	}
}

func run(packets float64, svg, title string, args []string) error {
	var sides []side
	for _, a := range args {
		name, file, ok := strings.Cut(a, "=")
		if !ok {
			return fmt.Errorf("%q: want NAME=PROFILE", a)
		}
		out, err := exec.Command("go", "tool", "pprof", "-traces", file).Output()
		if err != nil {
			return fmt.Errorf("go tool pprof %s: %w", file, err)
		}
		by, err := sum(strings.NewReader(string(out)))
		if err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		sides = append(sides, side{name, perPacket(by, packets)})
	}
	table(os.Stdout, sides)
	if svg == "" {
		return nil
	}
	return chart(svg, title, sides)
}

// side is one profile: ns per packet, by steps.
type side struct {
	name string
	ns   map[string]float64
}

func perPacket(by map[string]time.Duration, packets float64) map[string]float64 {
	ns := map[string]float64{}
	for k, d := range by {
		ns[k] = float64(d.Nanoseconds()) / packets
	}
	return ns
}

// sum reads what `go tool pprof -traces` prints: stacks, each behind a line of dashes, the time of the sample in front of its
// first function.
func sum(r io.Reader) (map[string]time.Duration, error) {
	by := map[string]time.Duration{}
	var stack []string
	var took time.Duration
	begun := false
	end := func() {
		if len(stack) > 0 {
			by[of(stack)] += took
		}
		stack, took = stack[:0], 0
	}
	s := bufio.NewScanner(r)
	for s.Scan() {
		line := strings.TrimSpace(s.Text())
		if strings.HasPrefix(line, "-----------+") {
			end()
			begun = true
			continue
		}
		if !begun || line == "" {
			continue
		}
		if len(stack) == 0 {
			value, function, ok := strings.Cut(line, " ")
			d, err := time.ParseDuration(value)
			if !ok || err != nil {
				return nil, fmt.Errorf("%q is no sample of CPU time", line)
			}
			took, line = d, strings.TrimSpace(function)
		}
		stack = append(stack, strings.TrimPrefix(line, "github.com/softnic/softnic/"))
	}
	end()
	if err := s.Err(); err != nil {
		return nil, err
	}
	if len(by) == 0 {
		return nil, fmt.Errorf("no samples")
	}
	return by, nil
}

// of returns the step of a stack, whose first function is the innermost.
func of(stack []string) string {
	for _, f := range stack {
		for _, s := range steps {
			for _, m := range s.marks {
				if strings.HasPrefix(f, m) || strings.HasPrefix(m, "/") && strings.Contains(f, m) || strings.HasPrefix(m, "(") && strings.Contains(f, m) {
					return s.name
				}
			}
		}
	}
	return rest
}

// names returns the steps of which some side has more than nothing, in order.
func names(sides []side) (l []string) {
	for _, s := range append(steps[:len(steps):len(steps)], step{name: rest}) {
		for _, side := range sides {
			if side.ns[s.name] >= 0.5 {
				l = append(l, s.name)
				break
			}
		}
	}
	return l
}

func table(w io.Writer, sides []side) {
	fmt.Fprint(w, "| ns per packet |")
	for _, s := range sides {
		fmt.Fprintf(w, " %s |", s.name)
	}
	fmt.Fprint(w, "\n|---|")
	for range sides {
		fmt.Fprint(w, "---:|")
	}
	fmt.Fprintln(w)
	total := make([]float64, len(sides))
	for _, n := range names(sides) {
		fmt.Fprintf(w, "| %s |", n)
		for i, s := range sides {
			fmt.Fprintf(w, " %.0f |", s.ns[n])
			total[i] += s.ns[n]
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "| **all** |")
	for _, t := range total {
		fmt.Fprintf(w, " **%.0f** |", t)
	}
	fmt.Fprintln(w)
}
