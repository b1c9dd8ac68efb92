package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/cmd/softnic/pingpong"
	"github.com/softnic/softnic/device"
)

func newPingpong() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pingpong",
		Short: "exchange messages with ibv_rc_pingpong, ibv_ud_pingpong or itself",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return &nic.UsageError{Err: errors.New("pingpong over which service? `softnic pingpong rc` or `softnic pingpong ud`")}
		},
	}
	cmd.AddCommand(newGame("rc", device.RC, 4096), newGame("ud", device.UD, 1024))
	return cmd
}

func newGame(name string, service device.QPType, size int) *cobra.Command {
	stock := "ibv_" + name + "_pingpong"
	cmd := &cobra.Command{
		Use:   name + " {--tap NAME | --udp ADDR[:PORT]} [flags] [HOST]",
		Short: "ping-pong over " + service.String() + ", as " + stock,
		Long: `Sends a message to and fro, with ` + stock + ` or another softnic as the peer, and compares every byte. Without HOST it is the server and waits. HOST
is where the server listens on TCP, on the host's own network; RDMA goes through a NIC that this command opens, with the flags of softnic run.

What is sent (--pattern), and expected:
  constant   0x7b in every byte, as ` + stock + ` sends it and returns it
  echo       for a stock peer, which returns what it got: a new pattern each time, of another length each time
  seeded     for another softnic with the same --seed: both send patterns of their own (--seed N alone means this)`,
		Example: `  softnic pingpong ` + name + ` --udp 127.0.0.1                     # server; then, in another terminal,
  softnic pingpong ` + name + ` --udp 127.0.0.2 127.0.0.1           # client
  softnic pingpong ` + name + ` --tap sn0 --host-addr 10.8.0.1/24 --addr 10.8.0.2/24 --mtu 4200
                                                    # server for ` + stock + ` -d rxe0 -g 1 HOST`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return unknown(cmd, args[1])
			}
			return nil
		},
	}
	flags := nicFlags(cmd)
	c := &pingpong.Config{Service: service}
	fs := cmd.Flags()
	fs.IntVarP(&c.Port, "port", "p", 18515, "listen on or connect to TCP `PORT`")
	fs.IntVarP(&c.Size, "size", "s", size, "size of a message in `BYTES`")
	if service == device.RC {
		fs.IntVarP(&c.MTU, "path-mtu", "m", 1024, "path MTU in `BYTES`, the same on both sides (the stock tool calls it --mtu)")
	}
	fs.IntVarP(&c.RXDepth, "rx-depth", "r", 500, "`N` receives are posted at a time")
	fs.IntVarP(&c.Iters, "iters", "n", 1000, "`N` exchanges")
	fs.IntP("sl", "l", 0, "service level `N`, for the sake of the stock tools' flag: RoCE has none")
	fs.IntVarP(&c.GIDIndex, "gid-idx", "g", -1, "`INDEX` of the local GID (default: 1, the first IPv4 address, or else the first that is not link-local)")
	fs.BoolVarP(&c.Events, "events", "e", false, "sleep on completion events")
	fs.BoolVarP(&c.Check, "chk", "c", false, "with the constant pattern, mark and check pages as the stock tool's -c does; data is verified with or without")
	pattern := fs.String("pattern", "", "`KIND` of data: "+pingpong.Patterns()+" (default constant, with --seed seeded)")
	fs.Uint64Var(&c.Seed, "seed", 1, "`N` makes the patterns")
	fs.DurationVar(&c.Wait, "wait", 0, "as client, try for `TIME` while no server listens: time to put rxe on the TAP")
	fs.DurationVar(&c.ExchangeTimeout, "exchange-timeout", 10*time.Second, "`TIME` for each step of the peer on TCP")
	fs.DurationVar(&c.Stall, "stall-timeout", 30*time.Second, "give up after `TIME` without a message")
	linger := 300 * time.Millisecond
	if service == device.UD {
		linger = 0
	}
	fs.DurationVar(&c.Linger, "linger", linger, "at the end stay until the peer was silent for `TIME`, to acknowledge again what it may repeat")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		// Zero means the default to a Go caller; who types it means zero.
		for _, name := range []string{"port", "path-mtu", "rx-depth", "iters", "exchange-timeout", "stall-timeout", "wait", "linger"} {
			if f := fs.Lookup(name); f != nil && f.Changed && (f.Value.String() == "0" || f.Value.String() == "0s" && !mayBeZero[name] || strings.HasPrefix(f.Value.String(), "-")) {
				return &nic.UsageError{Err: fmt.Errorf("--%s %s: want more than nothing", name, f.Value)}
			}
		}
		if fs.Changed("gid-idx") && c.GIDIndex < 0 {
			return &nic.UsageError{Err: fmt.Errorf("--gid-idx %d: the table begins with 0", c.GIDIndex)}
		}
		if c.Pattern = pingpong.Pattern(*pattern); *pattern == "" && fs.Changed("seed") {
			c.Pattern = pingpong.Seeded
		}
		if len(args) == 1 {
			c.Host = args[0]
		}
		return play(cmd, flags, *c)
	}
	return cmd
}

// mayBeZero are the times that may be nothing.
var mayBeZero = map[string]bool{"wait": true, "linger": true}

func play(cmd *cobra.Command, flags *nic.Flags, c pingpong.Config) error {
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	n, err := flags.Open(cmd.ErrOrStderr())
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if !wantsJSON(cmd) {
		c.Out = out
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case err := <-n.Failed:
			cancel(err)
		case <-ctx.Done():
		}
	}()
	r, err := pingpong.Run(ctx, n.Device, c)
	warning, cerr := n.Close()
	if warning != "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "softnic: "+warning)
	}
	if err := errors.Join(err, cerr); err != nil {
		return err
	}
	if wantsJSON(cmd) {
		return printJSON(out, r)
	}
	r.Print(out)
	return nil
}
