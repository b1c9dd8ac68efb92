package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/control"
)

// newObject builds the command of an object, as `rdma link`, whose verb show is also what it does
// without a verb.
func newObject[T any](name, short string, args cobra.PositionalArgs, ask func(*control.Client, context.Context) (T, error), print func(io.Writer, T)) *cobra.Command {
	object := &cobra.Command{Use: name, Short: short}
	show := &cobra.Command{Use: "show", Aliases: []string{"list"}, Short: short}
	for _, cmd := range []*cobra.Command{object, show} {
		socket := socketFlag(cmd)
		cmd.Args = args
		cmd.RunE = func(cmd *cobra.Command, _ []string) error {
			c, err := client(*socket)
			if err != nil {
				return err
			}
			answer, err := ask(c, cmd.Context())
			if err != nil {
				return err
			}
			if wantsJSON(cmd) {
				return printJSON(cmd.OutOrStdout(), answer)
			}
			print(cmd.OutOrStdout(), answer)
			return nil
		}
	}
	object.AddCommand(show)
	return object
}
