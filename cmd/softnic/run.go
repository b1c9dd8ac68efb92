package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/control"
)

func newRun() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "run {--tap NAME | --udp ADDR[:PORT]} [flags]",
		Short: "be a NIC, as a daemon",
		Long: `run is a NIC on a network interface that it makes (--tap), or on a UDP socket of this host (--udp). It prints
one line when peers can talk to it, and runs until SIGTERM or SIGINT. Then it removes what it made.

The show commands ask it over the socket PATH.ctl (PATH itself is kept for programs). Without --socket PATH is softnic.sock in
$XDG_RUNTIME_DIR or, without that variable, in a folder of the user's own under the temporary directory.`,
		Example: `  softnic run --udp 127.0.0.1
  softnic run --udp 127.0.0.2 --socket /tmp/b.sock
  softnic run --tap sn0 --host-addr 10.8.0.1/24 --addr 10.8.0.2/24 --mtu 4200
  softnic run --udp 127.0.0.1 --capture a.pcapng --impair 'rx drop=1% seed=7'`,
		Args: noArgs,
	}
	flags := nicFlags(cmd)
	socket := socketFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return daemon(cmd, flags, *socket) }
	return cmd
}

func daemon(cmd *cobra.Command, flags *nic.Flags, socket string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	path, err := socketPath(socket)
	if err != nil {
		return err
	}
	if err := flags.Check(); err != nil {
		return err
	}
	l, err := control.Listen(path)
	if err != nil {
		return err
	}
	defer l.Close()
	n, err := flags.Open(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	server := control.NewServer(n.Device, control.Options{Version: version()})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	fmt.Fprintf(cmd.OutOrStdout(), "%s; control %s\n", n.Ready(), path+control.Suffix)

	select {
	case <-ctx.Done():
	case err = <-n.Failed:
	case err = <-served:
		served <- nil
	}
	stop() // a second signal ends the program at once
	cerr := server.Close()
	<-served
	warning, nerr := n.Close()
	if warning != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "softnic: "+warning)
	}
	return errors.Join(err, cerr, nerr)
}
