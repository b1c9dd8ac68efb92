package main

import (
	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/show"
	"github.com/softnic/softnic/control"
)

func newDev() *cobra.Command {
	return newObject("dev", "show the device of the running NIC", noArgs, (*control.Client).Devs, show.Devs)
}
