package main

import (
	"context"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/demo"
)

func newDemo() *cobra.Command {
	var o demo.Options
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "two NICs in one process: every operation, packets lost on purpose, everything verified",
		Long: `demo runs two NICs in this process over loopback UDP: every operation that is there, at sizes from nothing to 1 MiB; then packets
are lost on purpose, and it lists what is sent again because of that. Every byte is compared with its pattern. It leaves a
capture for wireshark and computes the ICRC of every frame in it once more. It takes a few seconds, no root and no set-up.`,
		Args: noArgs,
	}
	cmd.Flags().StringVarP(&o.File, "output", "o", "softnic-demo.pcapng", "write the capture to `FILE`")
	cmd.Flags().Uint64Var(&o.Seed, "seed", 1, "`N` makes the patterns, and chooses what is lost by chance")
	cmd.Flags().BoolVarP(&o.Verbose, "verbose", "v", false, "a line for each packet that is sent again")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		ctx, stop := signal.NotifyContext(context.Background(), signals...)
		defer stop()
		if !wantsJSON(cmd) {
			o.Out = cmd.OutOrStdout()
		}
		r, err := demo.Run(ctx, o)
		if wantsJSON(cmd) && err == nil {
			return printJSON(cmd.OutOrStdout(), r)
		}
		return err
	}
	return cmd
}
