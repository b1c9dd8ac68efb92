package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/judge"
	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/replay"
	"github.com/softnic/softnic/trace/scenario"
)

func newReplay() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay FILE...",
		Short: "play a recorded peer, or a scenario, against this NIC and compare what it answers",
		Long: `replay plays files (- is stdin) on softnic's own NIC, under virtual time, and compares what the NIC does with what is in them.

A capture (pcap or pcapng, also gzip): the requesters in it are played, packet for packet, and every answer is compared with the recorded
one. What cannot be told from the capture is unknown, never different. docs/replay.md is its manual.
A scenario: a text of calls, packets of the peer and packets that the NIC must send. docs/scenario.md is its manual.

What a file begins with decides which it is: text is a scenario.

  softnic replay x.pcapng
  softnic replay --profile rxe --mr 0x1234:0x10000:4096 x.pcap
  softnic replay -v case.roce

The exit code is 0 if all is as it should be, 1 if not, 2 if a file cannot be read or has no RoCE packets, or for a mistake in the command line.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.json, f.out, f.in = wantsJSON(cmd), cmd.OutOrStdout(), cmd.InOrStdin()
			return f.run(args)
		},
	}
	o, fs := &f.o, cmd.Flags()
	fs.SortFlags = false
	fs.BoolVarP(&f.verbose, "verbose", "v", false, "print everything that happens in a scenario, and of a capture also what differs as declared")
	fs.StringVar(&o.Profile, "profile", "", "the recorded NIC is a `NAME`: "+strings.Join(device.ProfileNames(), ", ")+" (default: what its answers look like)")
	fs.IntVar(&o.MTU, "path-mtu", 0, "path MTU of the recorded connections in `BYTES` (default: as the packets show)")
	fs.StringArrayVar(&f.regions, "mr", nil, "the recorded NIC had the region `RKEY:VA:LENGTH` (repeatable; default: as the requests show)")
	fs.IntVar(&o.Recvs, "recv", 0, "each recorded queue pair had `N` receives and no more (default: one for each message that took one)")
	fs.BoolVar(&o.Still, "still", false, "only the recorded requesters wrote into the memory: bytes that change otherwise are different, not unknown")
	fs.IntSliceVar(&f.ports, "port", nil, "UDP port `N` carries RoCE, beside 4791 (repeatable)")
	fs.StringVar(&f.capture, "capture", "", "whether the capture has all packets: `WHICH` is complete or incomplete (default: complete, unless it says that it lost some)")
	fs.BoolVar(&o.Unruly, "unruly", false, "the network between the place of the capture and the recorded NIC may reorder or double packets")
	return cmd
}

// replayFlags are those of the command, as they were given.
type replayFlags struct {
	o       replay.Options
	regions []string
	ports   []int
	capture string
	verbose bool

	json bool
	out  io.Writer
	in   io.Reader
}

// run plays the files. The error is a *nic.UsageError, a *trace.FileError, a *scenario.Error, that of a file which is not as it says, or
// several of them.
func (f *replayFlags) run(files []string) error {
	if len(files) == 0 {
		return &nic.UsageError{Err: fmt.Errorf("replay needs a capture or scenario: `softnic replay FILE`, or - for stdin")}
	}
	if err := f.options(); err != nil {
		return &nic.UsageError{Err: err}
	}
	var all []error
	for i, name := range files {
		all = append(all, f.one(name, i == 0))
	}
	return errors.Join(all...)
}

// options reads the flags.
func (f *replayFlags) options() (err error) {
	for _, r := range f.regions {
		m, err := parseRegion(r)
		if err != nil {
			return err
		}
		f.o.Regions = append(f.o.Regions, m)
	}
	if f.o.Recvs < 0 || f.o.Recvs > device.MaxQPWR {
		return fmt.Errorf("--recv %d: 0 ... %d are possible", f.o.Recvs, device.MaxQPWR)
	}
	if f.o.Ports, err = judge.Ports(f.ports); err != nil {
		return err
	}
	if f.o.Capture, err = judge.Completeness(f.capture); err != nil {
		return err
	}
	return f.o.Check()
}

// parseRegion reads RKEY:VA:LENGTH.
func parseRegion(s string) (m replay.Region, err error) {
	var v [3]uint64
	w := strings.Split(s, ":")
	for i := range v {
		if len(w) == len(v) && err == nil {
			v[i], err = strconv.ParseUint(w[i], 0, []int{32, 64, 64}[i])
		}
	}
	if len(w) != len(v) || err != nil || v[2] == 0 || v[1]+v[2] < v[1] {
		return m, fmt.Errorf("--mr %s: RKEY:VA:LENGTH, as 0x1234:0x10000:4096", s)
	}
	return replay.Region{RKey: uint32(v[0]), VA: v[1], Size: v[2]}, nil
}

// one plays a file.
func (f *replayFlags) one(name string, first bool) error {
	in, done, err := trace.Open(name, f.in)
	if err != nil {
		return err
	}
	defer done()
	b := bufio.NewReader(in.R)
	in.R = b
	if head, _ := b.Peek(64); trace.IsText(head) {
		return f.scenario(in)
	}
	if !first && !f.json {
		fmt.Fprintln(f.out)
	}
	r, failed := replay.Run(in, f.o)
	if r == nil {
		return failed
	}
	if f.json {
		err = printJSON(f.out, r)
	} else {
		err = r.Text(f.out, f.verbose)
	}
	if r.Different > 0 {
		failed = errors.Join(failed, fmt.Errorf("%s: %d answers are different", in.Name, r.Different))
	}
	return errors.Join(failed, err)
}

// scenario plays a scenario.
func (f *replayFlags) scenario(in trace.Input) error {
	text, err := io.ReadAll(in.R)
	if err != nil {
		return &trace.FileError{Name: in.Name, Err: err}
	}
	s, err := scenario.Parse(in.Name, string(text))
	if err != nil {
		return err
	}
	var show func(time.Duration, string)
	if f.verbose && !f.json {
		show = func(at time.Duration, l string) { fmt.Fprintf(f.out, "%12.6f  %s\n", at.Seconds(), l) }
	}
	r, err := s.Play(show)
	if err != nil {
		return err
	}
	if f.json {
		err = printJSON(f.out, r)
	} else {
		_, err = fmt.Fprintln(f.out, r)
	}
	if !r.Passed {
		return errors.Join(fmt.Errorf("%s: the scenario fails in line %d", in.Name, r.Failure.Line), err)
	}
	return err
}
