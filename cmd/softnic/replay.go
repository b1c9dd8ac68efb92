package main

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/trace/scenario"
)

func newReplay() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "replay FILE...",
		Short: "play scenarios on softnic's NIC, under virtual time",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &nic.UsageError{Err: fmt.Errorf("`softnic replay` needs a FILE: see `softnic replay --help`")}
			}
			return nil
		},
	}
	verbose := cmd.Flags().BoolP("verbose", "v", false, "print everything that happens, with its time")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		out := cmd.OutOrStdout()
		bad := 0
		for _, file := range args {
			text, err := os.ReadFile(file)
			if err != nil {
				return &nic.UsageError{Err: err}
			}
			s, err := scenario.Parse(file, string(text))
			if err != nil {
				return &nic.UsageError{Err: err}
			}
			var show func(time.Duration, string)
			if *verbose && !wantsJSON(cmd) {
				show = func(at time.Duration, l string) { fmt.Fprintf(out, "%12.6f  %s\n", at.Seconds(), l) }
			}
			r, err := s.Play(show)
			if err != nil {
				return &nic.UsageError{Err: err}
			}
			if !r.Passed {
				bad++
			}
			if wantsJSON(cmd) {
				if err := printJSON(out, r); err != nil {
					return err
				}
				continue
			}
			fmt.Fprintln(out, r)
		}
		if bad > 0 {
			return fmt.Errorf("%d of %d files: softnic does something else than they say", bad, len(args))
		}
		return nil
	}
	return cmd
}
