//go:build linux

package main

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// labRun is the script that boots the lab's virtual machine.
const labRun = "interop/run.sh"

// report is what a run prints with -j, and what the lab's guest tells its host.
type report struct {
	Machine machine            `json:"machine"`
	Lab     *machine           `json:"lab,omitempty"`
	Wait    string             `json:"wait"`
	Rows    []judged           `json:"rows"`
	Probes  map[string]*series `json:"probes"`
}

// inLab boots the lab's virtual machine and has this program measure there. What it says meanwhile is passed on; when the lab cannot be had, its
// last words are the error.
func inLab(ctx context.Context, o options, rs []row, tell func(string)) (*report, error) {
	line := fmt.Sprintf("exec softnic-bench -guest -softnic softnic -j -rows %s -repeat %d -wait %s -patience %v", strings.Join(idsOf(rs), ","), o.repeat, o.wait, o.patience)
	cmd := exec.CommandContext(ctx, "bash", labRun, "-shell", line)
	// Two processors, because two programs poll. The lab's tests get one where the emulator may crash a kernel that changes its code
	// under a second one, as it does when a capture starts: here is none.
	cmd.Env = append(os.Environ(), "SOFTNIC_CPUS="+cmp.Or(os.Getenv("SOFTNIC_CPUS"), "2"),
		"SOFTNIC_TIMEOUT="+cmp.Or(os.Getenv("SOFTNIC_TIMEOUT"), strconv.Itoa(labSeconds(o, rs))))
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer r.Close()
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, err
	}
	got, last, err := readLab(r, tell)
	end := cmd.Wait() // not nil also where a probe failed, which the report says
	switch {
	case got != nil || err != nil:
		return got, err
	case ctx.Err() != nil:
		return nil, errors.New("it was ended before the lab's virtual machine was done")
	}
	return nil, errors.New(cmp.Or(last, fmt.Sprintf("%s: %v", labRun, end)))
}

// labSeconds is how long the virtual machine may live.
func labSeconds(o options, rs []row) int {
	return 600 + int(o.patience.Seconds()) + 2*o.repeat*len(needed(labProbes, rs))*20
}

// readLab reads reports, each a line, among what the script and the guest say. The last one counts: there is one after each round. It also returns
// the last line that says something.
func readLab(r io.Reader, tell func(string)) (got *report, last string, err error) {
	lines := bufio.NewReader(r)
	for {
		l, end := lines.ReadString('\n')
		l = strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(l, `{"machine"`):
			got = &report{}
			if err := json.Unmarshal([]byte(l), got); err != nil {
				return nil, last, fmt.Errorf("the report of the lab's guest: %w", err)
			}
		case l != "":
			tell(l)
			if !strings.Contains(l, "job directory kept") {
				last = strings.TrimPrefix(l, "interop: ")
			}
		}
		if end != nil {
			return got, last, nil
		}
	}
}

// merge adds what the lab gave, or why it gave nothing, to what the probes gave.
func merge(got map[string]*series, lab *report, err error, rs []row) {
	for _, p := range needed(labProbes, rs) {
		s := &series{Err: "the lab's virtual machine did not measure it"}
		if err != nil {
			s.Err = "left out: " + strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
		} else if lab.Probes[p.name] != nil {
			s = lab.Probes[p.name]
		}
		got[p.name] = s
	}
}
