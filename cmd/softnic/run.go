package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/signal"
	"os/user"
	"strconv"
	"time"

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

Programs that softnic exec starts use it over the socket PATH, and find in the folder PATH.d what they need. The show commands
ask it over PATH.ctl. Without --socket PATH is softnic.sock in $XDG_RUNTIME_DIR or, without that variable, in a folder of
the user's own under the temporary directory.`,
		Example: `  softnic run --udp 127.0.0.1
  softnic run --udp 127.0.0.2 --socket /tmp/b.sock
  softnic run --tap sn0 --host-addr 10.8.0.1/24 --addr 10.8.0.2/24 --mtu 4200
  softnic run --udp 127.0.0.1 --capture a.pcapng --impair 'rx drop=1% seed=7'
  softnic run --udp 127.0.0.1 --socket /run/rdma.sock --socket-group rdma`,
		Args: noArgs,
	}
	o := runOptions{nic: nicFlags(cmd)}
	fs := cmd.Flags()
	fs.StringArrayVar(&o.nic.PKeys, "pkey", nil, "entry `P_KEY` of the partition table, as 0x8001, in place of the one entry 0xffff (repeatable); 0x8000 is full membership")
	fs.IntVar(&o.nic.CaptureSize, "capture-size", 0, "begin another file, FILE_00002 and so on, after so many million `BYTES`")
	fs.IntVar(&o.nic.CaptureFiles, "capture-files", 0, "with --capture-size: keep the last `N` files")
	config := fs.String("config", "", "take flags that are not given here from the TOML `FILE`, by their names, as impair = [\"rx drop=1%\"]")
	socket := socketFlag(cmd)
	fs.StringVar(&o.mode, "socket-mode", "", "permissions of PATH are the octal `MODE` (default 0600, with --socket-group 0660)")
	fs.StringVar(&o.group, "socket-group", "", "PATH belongs to `GROUP`, a name or a number, whose users may run programs")
	// What softnic exec starts a daemon with.
	fs.DurationVar(&o.untilIdle, "until-idle", 0, "end when no program has been connected for `TIME`")
	fs.BoolVar(&o.detach, "detach", false, "run in the background")
	var profile string
	profileFlag(fs, &profile)
	for _, name := range []string{"until-idle", "detach"} {
		fs.Lookup(name).Hidden = true
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) (err error) {
		if err := readConfig(cmd, *config); err != nil {
			return err
		}
		if o.detach {
			return detach()
		}
		if o.path, err = socketPath(*socket); err != nil {
			return err
		}
		return profiled(profile, func() error { return o.daemon(cmd) })
	}
	return cmd
}

// runOptions are the flags of run.
type runOptions struct {
	nic         *nic.Flags
	path        string // of the socket for programs
	mode, group string // of it, as text
	untilIdle   time.Duration
	detach      bool
}

// programs are those that use the NIC.
type programs struct {
	failed <-chan error    // serving them has ended by itself
	idle   <-chan struct{} // closed when it is time to end; nil for never
	close  func() error
}

func (o *runOptions) daemon(cmd *cobra.Command) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	if err := o.nic.Check(); err != nil {
		return err
	}
	if _, _, err := o.permissions(); err != nil {
		return err
	}
	if o.untilIdle > 0 {
		background()
	}
	l, err := control.Listen(o.path)
	if err != nil {
		return err
	}
	defer l.Close()
	n, err := o.nic.Open(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	p, err := o.servePrograms(n, cmd.ErrOrStderr())
	if err != nil {
		_, cerr := n.Close()
		return errors.Join(err, cerr)
	}
	server := control.NewServer(n.Device, control.Options{Version: version(), Taps: n.Taps})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	fmt.Fprintf(cmd.OutOrStdout(), "%s; control %s\n", n.Ready(), o.path+control.Suffix)

	select {
	case <-ctx.Done():
	case <-p.idle:
	case err = <-p.failed:
	case err = <-n.Failed:
	case err = <-served:
		served <- nil
	}
	stop() // a second signal ends the program at once
	// Programs first: softnic exec takes an answer of the control socket to mean that the daemon stays.
	perr := p.close()
	cerr := server.Close()
	<-served
	warning, nerr := n.Close()
	if warning != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "softnic: "+warning)
	}
	err = errors.Join(err, perr, cerr, nerr)
	if err == nil && o.untilIdle > 0 {
		removeLog(o.path)
	}
	return err
}

// permissions reads those of the socket for programs: a mode, 0 for the default, and a group, -1 for none.
func (o *runOptions) permissions() (mode fs.FileMode, group int, err error) {
	group = -1
	if o.mode != "" {
		m, err := strconv.ParseUint(o.mode, 8, 32)
		if err != nil || m > 0o777 || m&0o600 != 0o600 {
			return 0, 0, &nic.UsageError{Err: fmt.Errorf("--socket-mode %s: want an octal number that lets the owner read and write, as 0660", o.mode)}
		}
		mode = fs.FileMode(m)
	}
	if o.group == "" {
		return mode, group, nil
	}
	if mode == 0 {
		mode = 0o660
	}
	name := o.group
	if g, err := user.LookupGroup(name); err == nil {
		name = g.Gid
	}
	id, err := strconv.ParseUint(name, 10, 31)
	if err != nil {
		return 0, 0, fmt.Errorf("--socket-group %s: there is no such group here: `getent group` lists them", o.group)
	}
	return mode, int(id), nil
}
