package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/show"
	"github.com/softnic/softnic/control"
	"github.com/softnic/softnic/link/impair"
)

func newImpair() *cobra.Command {
	cmd := newObject("impair", "show and change what the network of the running NIC does to packets", noArgs, (*control.Client).Rules, show.Rules)
	cmd.Long = `impair has the running NIC lose, double, delay, reorder, spoil and rewrite packets on purpose, or answer them with NAKs of
its own: all of a kind, some by chance, or exactly one. Rules are those of --impair; they work in the order in which they were
added. Without a verb it shows them.

  drop  duplicate  delay=TIME  reorder  corrupt [at=BYTE xor=BITS icrc=good]  ecn=ce  set=FIELD:VALUE,...  answer=nak-access|rnr:CODE

  peer=ADDR  qp=0x11  qp=#1  opcode=SEND*,ACKNOWLEDGE  psn=0x12  psn=+5  round=2  nth=10  p=1%  seed=7  count=3

docs/impair.md has all of the words.`
	cmd.Example = `  softnic impair add tx opcode=WRITE_MIDDLE psn=+5 round=1 drop
  softnic impair add 'rx drop=1% seed=7'
  softnic impair add tx opcode=READ_RESPONSE* count=1 corrupt
  softnic impair show
  softnic impair del 2
  softnic impair del all`
	add := &cobra.Command{Use: "add RULE", Short: "add a rule", Args: func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usageError("which rule? as `softnic impair add tx drop=1%%`: see `softnic impair --help`")
		}
		return nil
	}}
	socket := socketFlag(add)
	add.RunE = func(cmd *cobra.Command, args []string) error {
		rule := strings.Join(args, " ")
		if _, err := impair.New(rule); err != nil {
			return usageError("%w", err)
		}
		c, err := client(*socket)
		if err != nil {
			return err
		}
		s, err := c.AddRule(cmd.Context(), rule)
		if err != nil {
			return err
		}
		if wantsJSON(cmd) {
			return printJSON(cmd.OutOrStdout(), s)
		}
		fmt.Fprintf(cmd.OutOrStdout(), "%d: %s\n", s.ID, s.Rule)
		return nil
	}
	del := &cobra.Command{Use: "del ID|all", Short: "remove a rule, or all", Args: func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 || args[0] == "" {
			return usageError("which rule? its ID, as `softnic impair show` has it, or all")
		}
		return nil
	}}
	delSocket := socketFlag(del)
	del.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := client(*delSocket)
		if err != nil {
			return err
		}
		if args[0] == "all" {
			return c.ClearRules(cmd.Context())
		}
		return c.RemoveRule(cmd.Context(), args[0])
	}
	cmd.AddCommand(add, del)
	return cmd
}
