package main

import (
	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/show"
	"github.com/softnic/softnic/control"
)

func newStatistic() *cobra.Command {
	cmd := newObject("statistic", "show the counters of the running NIC", oneOf("link"), (*control.Client).Statistics, show.Statistics)
	cmd.AddCommand(newObject("qp", "show the counters of each queue pair", noArgs, (*control.Client).QPStatistics, show.QPStatistics))
	return cmd
}
