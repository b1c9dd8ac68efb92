package main

import (
	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/show"
	"github.com/softnic/softnic/control"
)

func newResource() *cobra.Command {
	return newObject("resource", "show the queue pairs of the running NIC", oneOf("qp"), (*control.Client).QPs, show.QPs)
}
