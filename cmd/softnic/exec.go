package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/nic"
)

func newExec() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec [flags] [--] CMD [ARGS...]",
		Short: "run an unmodified verbs program with the NIC as its device",
		Long: `exec runs CMD so that libibverbs, as the distribution has it, finds the device rxe_softnic0. It needs no root,
no kernel module and no hardware. CMD is the same process: signals, terminal and exit code are its own; and 127 if it cannot be
found, 126 if it cannot be run. Programs that CMD starts see the device too.

Without --socket it uses the user's own daemon (softnic run), and starts one on UDP port 4791 of 127.0.0.1 if there is none; that one
ends two seconds after its last program. So programs in two terminals meet. The device needs a GID index: 1 is the
IPv4 address, -g 1 with the ibv_* tools and -x 1 with perftest.

A program is reached through LD_PRELOAD. One that is linked statically, or that changes its user (set-uid), is not.`,
		Example: `  softnic exec -- ibv_rc_pingpong -g 1                 # and in another terminal
  softnic exec -- ibv_rc_pingpong -g 1 127.0.0.1

  softnic exec -- ib_write_bw -x 1                     # and in another terminal
  softnic exec -- ib_write_bw -x 1 127.0.0.1

  softnic exec -- python3 -c 'import pyverbs.device as d; print(d.get_device_list())'

  softnic run --udp 127.0.0.2 --socket /tmp/b.sock     # a second NIC
  softnic exec --socket /tmp/b.sock -- ibv_devinfo`,
		DisableFlagsInUseLine: true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) == 0 {
				return &nic.UsageError{Err: errors.New("exec which program? as `softnic exec -- ibv_devinfo`: see `softnic exec --help`")}
			}
			return nil
		},
	}
	fs := cmd.Flags()
	fs.SetInterspersed(false) // flags after CMD are its own
	socket := socketFlag(cmd)
	verbose := fs.BoolP("verbose", "v", false, "say on stderr which daemon and library are used, and why the device cannot be opened")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if outer := os.Getenv("SOFTNIC_SOCKET"); *socket == "" && outer != "" {
			*socket = outer // of the `softnic exec` that this one runs in
		}
		path, err := socketPath(*socket)
		if err != nil && os.Getenv("XDG_RUNTIME_DIR") == "" {
			err = fmt.Errorf("%w, or set XDG_RUNTIME_DIR to a folder of your own", err)
		}
		if err != nil {
			return err
		}
		return become(args, path, *socket == "", *verbose, cmd.ErrOrStderr())
	}
	return cmd
}
