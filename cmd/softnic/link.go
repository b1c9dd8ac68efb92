package main

import (
	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/show"
	"github.com/softnic/softnic/control"
)

func newLink() *cobra.Command {
	return newObject("link", "show state, addresses and MTU of the running NIC", noArgs, (*control.Client).Links, show.Links)
}
