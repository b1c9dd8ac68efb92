package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/trace/replay"
	"github.com/softnic/softnic/trace/scenario"
)

func newReplay() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay FILE...",
		Short: "play a recorded peer, or a scenario, against this NIC and compare what it answers",
		Long: `replay plays files on softnic's own NIC, under virtual time, and compares what the NIC does with what is in them.

A capture (pcap, pcapng): the requesters in it are played, packet for packet, and every answer is compared with the recorded one. What
cannot be told from the capture is unknown, never different.
A scenario: a text of calls, packets of the peer and packets that the NIC must send; docs/scenario.md is its manual.

What a file begins with decides which it is. The exit code is 0 if all is as it should be, 1 if not, 2 if a file cannot be read.`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &nic.UsageError{Err: fmt.Errorf("`softnic replay` needs a FILE: see `softnic replay --help`")}
			}
			return nil
		},
	}
	var o replay.Options
	var regions []string
	fs := cmd.Flags()
	fs.SortFlags = false
	verbose := fs.BoolP("verbose", "v", false, "print everything that happens in a scenario, and of a capture also what differs as declared")
	fs.StringVar(&o.Profile, "profile", "", "the recorded NIC is a `NAME`: "+strings.Join(device.ProfileNames(), ", ")+" (default: what its answers look like)")
	fs.IntVar(&o.MTU, "path-mtu", 0, "path MTU of the recorded connections in `BYTES` (default: as the packets show)")
	fs.StringArrayVar(&regions, "mr", nil, "the recorded NIC had the region `RKEY:VA:LENGTH` (repeatable; default: as the requests show)")
	fs.IntVar(&o.Recvs, "recv", 0, "each recorded queue pair had `N` receives and no more (default: one for each message that took one)")
	fs.BoolVar(&o.Still, "still", false, "only the recorded requesters wrote into the memory: bytes that change otherwise are different, not unknown")
	fs.BoolVar(&o.Unruly, "unruly", false, "packets may have been doubled or moved between the capture and the recorded NIC")
	fs.BoolVar(&o.Lossy, "lossy", false, "the capture may have lost packets: answers that are missing from it are unknown, not different")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, r := range regions {
			m, err := parseRegion(r)
			if err != nil {
				return &nic.UsageError{Err: err}
			}
			o.Regions = append(o.Regions, m)
		}
		if o.Recvs < 0 || o.Recvs > device.MaxQPWR {
			return &nic.UsageError{Err: fmt.Errorf("--recv %d: 0 ... %d are possible", o.Recvs, device.MaxQPWR)}
		}
		bad := 0
		for _, file := range args {
			ok, err := replayFile(cmd, file, o, *verbose)
			if err != nil {
				return &nic.UsageError{Err: err}
			}
			if !ok {
				bad++
			}
		}
		if bad > 0 {
			return fmt.Errorf("%d of %d files: this NIC does something else than they say", bad, len(args))
		}
		return nil
	}
	return cmd
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

// replayFile plays a file; ok is false where the NIC does something else.
func replayFile(cmd *cobra.Command, file string, o replay.Options, verbose bool) (ok bool, err error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	head := make([]byte, 4)
	n, err := io.ReadFull(f, head)
	if err != nil && n == 0 && err != io.EOF {
		return false, err
	}
	out := cmd.OutOrStdout()
	if replay.IsCapture(head[:n]) {
		r, err := replay.File(file, o)
		if err != nil {
			return false, err
		}
		if wantsJSON(cmd) {
			return r.Different() == 0, printJSON(out, r)
		}
		r.Print(out, verbose)
		fmt.Fprintf(out, "%s: %v\n", file, r)
		return r.Different() == 0, nil
	}
	text, err := io.ReadAll(io.MultiReader(bytes.NewReader(head[:n]), f))
	if err != nil {
		return false, err
	}
	s, err := scenario.Parse(file, string(text))
	if err != nil {
		return false, err
	}
	var show func(time.Duration, string)
	if verbose && !wantsJSON(cmd) {
		show = func(at time.Duration, l string) { fmt.Fprintf(out, "%12.6f  %s\n", at.Seconds(), l) }
	}
	r, err := s.Play(show)
	if err != nil {
		return false, err
	}
	if wantsJSON(cmd) {
		return r.Passed, printJSON(out, r)
	}
	fmt.Fprintln(out, r)
	return r.Passed, nil
}
