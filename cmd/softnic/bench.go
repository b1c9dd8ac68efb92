package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"runtime/pprof"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/softnic/softnic/cmd/softnic/bench"
	"github.com/softnic/softnic/cmd/softnic/nic"
)

// benchPort is where `bench serve` listens unless told otherwise: that of perftest.
const benchPort = 18515

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "measure bandwidth and latency between two NICs of softnic",
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError("bench of what? `softnic bench bw write`, `softnic bench lat send`, ...; see `softnic bench --help`")
		},
	}
	cmd.AddCommand(newBenchKind(false), newBenchKind(true), newBenchServe())
	return cmd
}

func newBenchKind(latency bool) *cobra.Command {
	name, short := "bw", "bandwidth: messages one way, many outstanding"
	if latency {
		name, short = "lat", "latency: one message at a time"
	}
	cmd := &cobra.Command{
		Use:   name,
		Short: short,
		Args:  noArgs,
		RunE: func(*cobra.Command, []string) error {
			return usageError("bench %s of which operation? write, read, send or atomic", name)
		},
	}
	for _, op := range bench.Ops() {
		cmd.AddCommand(newBenchOp(name, latency, op))
	}
	return cmd
}

// benchFlags are the flags of a test that are not in its Config.
type benchFlags struct {
	link, host   string
	two          bool
	port         int
	block, sleep bool
	profile      string
}

func newBenchOp(kind string, latency bool, op bench.Op) *cobra.Command {
	what := map[bench.Op]string{bench.Write: "RDMA WRITE", bench.Read: "RDMA READ", bench.Send: "SEND", bench.Atomic: "FETCH_AND_ADD"}[op]
	verb := "how many bytes of " + what + " pass"
	if latency {
		verb = "how long " + what + " takes"
	}
	cmd := &cobra.Command{
		Use:   string(op) + " [flags] [HOST]",
		Short: verb,
		Long: `Measures ` + verb + `, over RC, and prints it as perftest prints it. Without HOST both NICs are here: in this process,
or with --two each in a process of its own. With HOST the other one is that of a softnic bench serve there, and
--udp or --tap say what NIC this side opens.

A warm-up of a tenth is not timed. Data is compared, outside the timed part. The ICRC is computed and checked. Ctrl-C ends it with what was
measured until then. Bandwidth is of payload in 2^20 bytes a second, as perftest has it; latency is one way for write and send, and of the whole
operation for read and atomic. A write that does not poll carries immediate data, because who sleeps does not see memory change.`,
		Example: `  softnic bench ` + kind + ` ` + string(op) + `                        # two NICs in this process, UDP
  softnic bench ` + kind + ` ` + string(op) + ` --two -D 2s            # in two processes
  softnic bench serve --udp 10.0.0.1              # on another machine; then
  softnic bench ` + kind + ` ` + string(op) + ` --udp 10.0.0.2 10.0.0.1`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return unknown(cmd, args[1])
			}
			return nil
		},
	}
	c, o := bench.Default(latency, op), &benchFlags{}
	fs := cmd.Flags()
	fs.SortFlags = false
	if op != bench.Atomic {
		fs.IntVarP(&c.Size, "size", "s", c.Size, "size of a message in `BYTES`")
	}
	fs.IntVarP(&c.Iters, "iters", "n", c.Iters, "`N` messages")
	fs.DurationVarP(&c.Duration, "duration", "D", 0, "for `TIME`, as 2s, instead of -n")
	fs.IntVarP(&c.PathMTU, "path-mtu", "m", c.PathMTU, "path MTU in `BYTES` (perftest calls it --mtu)")
	fs.IntVarP(&c.Timeout, "qp-timeout", "u", 0, "local ACK timeout `CODE`, 4.096 µs × 2^CODE; seven of them without an answer end the test (default 14, 67 ms)")
	if !latency {
		fs.IntVarP(&c.QPs, "qp", "q", c.QPs, "`N` queue pairs, which one goroutine serves")
		fs.IntVarP(&c.Depth, "tx-depth", "t", c.Depth, "`N` requests outstanding on a queue pair")
		fs.IntVarP(&c.List, "post-list", "l", c.List, "`N` requests with one doorbell")
		fs.IntVarP(&c.CQMod, "cq-mod", "Q", 0, "every `N`-th request makes a completion (default an eighth of -t, in whole lists)")
	}
	if op == bench.Send || latency && op == bench.Write {
		fs.IntVarP(&c.RXDepth, "rx-depth", "r", 0, "`N` receives posted at the other side (default 512)")
	}
	if op == bench.Send || op == bench.Write {
		fs.IntVarP(&c.Inline, "inline", "I", c.Inline, "messages of up to `BYTES` are copied when posted")
	}
	fs.Bool("poll", true, "poll for completions (this is the default)")
	fs.BoolVar(&o.block, "block", false, "wait for completions with CQ.Wait")
	fs.BoolVarP(&o.sleep, "events", "e", false, "sleep on completion events")
	fs.BoolVar(&c.PeerPoll, "peer-poll", latency, "with --poll the other side polls too where it has nothing to do, so that its NIC is served")
	fs.StringVar(&o.link, "link", bench.LinkUDP, "without HOST: what is between the NICs: udp, pipe (memory) or tap (two on a bridge, needs CAP_NET_ADMIN)")
	fs.BoolVar(&o.two, "two", false, "without HOST: the other NIC is in a process of its own")
	fs.IntVarP(&o.port, "port", "p", benchPort, "with HOST: its TCP `PORT`")
	profileFlag(fs, &o.profile)
	flags := nicFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c := c
		for f, w := range map[*bool]bench.Wait{&o.block: bench.Block, &o.sleep: bench.Events} {
			if *f {
				c.Wait, c.PeerPoll = w, false
			}
		}
		poll, _ := fs.GetBool("poll")
		switch {
		case !poll:
			return usageError("--poll=false: say how to wait instead: --block or --events")
		case o.block && o.sleep || fs.Changed("poll") && (o.block || o.sleep):
			return usageError("--poll, --block and --events: one of them is the way to wait")
		}
		if fs.Changed("duration") && fs.Changed("iters") {
			return usageError("-D and -n: the one or the other ends the test")
		}
		if err := c.Check(); err != nil {
			return &nic.UsageError{Err: err}
		}
		if len(args) == 1 {
			o.host = args[0]
		}
		if err := o.check(cmd, flags); err != nil {
			return err
		}
		return profiled(o.profile, func() error { return o.measure(cmd, flags, c) })
	}
	return cmd
}

func profileFlag(fs *pflag.FlagSet, file *string) {
	what := "write this process's CPU profile to `FILE`, for go tool pprof"
	if fs.Lookup("two") != nil {
		what += "; with --two the other's to FILE.other"
	}
	fs.StringVar(file, "cpu-profile", "", what)
}

// profiled calls f, and writes the CPU profile of that time to a file if one is named.
func profiled(file string, f func() error) error {
	if file == "" {
		return f()
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	if err := pprof.StartCPUProfile(out); err != nil {
		return errors.Join(err, out.Close())
	}
	err = f()
	pprof.StopCPUProfile()
	return errors.Join(err, out.Close())
}

// check finds the flags that do not go together.
func (o *benchFlags) check(cmd *cobra.Command, flags *nic.Flags) error {
	fs := cmd.Flags()
	if o.host == "" {
		for _, name := range []string{"tap", "udp", "addr", "host-addr", "mtu", "plain", "port", "capture", "packet-log", "impair"} {
			if fs.Changed(name) {
				return usageError("--%s goes with HOST: without it both NICs are here, on what --link says", name)
			}
		}
		switch {
		case o.link != bench.LinkUDP && o.link != bench.LinkPipe && o.link != bench.LinkTAP:
			return usageError("--link %s: want udp, pipe or tap", o.link)
		case o.link == bench.LinkPipe && o.two:
			return usageError("--two --link pipe: memory is within one process")
		}
		return nil
	}
	if fs.Changed("link") || o.two {
		return usageError("--link and --two go without HOST: with it the other NIC is that of softnic bench serve")
	}
	if o.port < 1 || o.port > 65535 {
		return usageError("-p %d: want 1 to 65535", o.port)
	}
	return flags.Check()
}

func (o *benchFlags) measure(cmd *cobra.Command, flags *nic.Flags, c bench.Config) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	defer stop()
	var r *bench.Result
	if o.host == "" {
		r, err = o.here(ctx, cmd.ErrOrStderr(), c)
	} else {
		r, err = o.there(ctx, cmd.ErrOrStderr(), flags, c)
	}
	if err != nil {
		return err
	}
	if wantsJSON(cmd) {
		return printJSON(cmd.OutOrStdout(), r)
	}
	r.Print(cmd.OutOrStdout())
	return nil
}

// here measures with both NICs on this machine.
func (o *benchFlags) here(ctx context.Context, stderr io.Writer, c bench.Config) (r *bench.Result, err error) {
	po := bench.PairOptions{Link: o.link, Stderr: stderr}
	if o.two {
		if po.Program, err = os.Executable(); err != nil {
			return nil, err
		}
		if o.profile != "" {
			po.Profile = o.profile + ".other"
		}
	}
	p, err := bench.OpenPair(po)
	if err != nil {
		return nil, err
	}
	r, err = bench.Run(ctx, p.Device, p.Other, c)
	return r, errors.Join(err, p.Close())
}

// there measures against another host.
func (o *benchFlags) there(ctx context.Context, stderr io.Writer, flags *nic.Flags, c bench.Config) (*bench.Result, error) {
	addr := net.JoinHostPort(o.host, strconv.Itoa(o.port))
	d := net.Dialer{Timeout: 10 * time.Second}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be reached: %w: start softnic bench serve there, with the same -p", addr, err)
	}
	defer conn.Close()
	n, err := flags.Open(stderr)
	if err != nil {
		return nil, err
	}
	r, err := bench.Run(ctx, n.Device, conn, c)
	return r, errors.Join(err, closeBenchNIC(n, stderr))
}

func closeBenchNIC(n *nic.NIC, stderr io.Writer) error {
	warning, err := n.Close()
	if warning != "" {
		fmt.Fprintln(stderr, "softnic: "+warning)
	}
	return err
}

func newBenchServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve {--tap NAME | --udp ADDR[:PORT]} [flags]",
		Short: "the other side of a test, for one test after another",
		Long: `Opens a NIC and does the other side's part of what softnic bench measures from another terminal or machine, with this host as
HOST. It learns from there what is to be done, and goes on until SIGINT. Who can reach its TCP port can have it do that: it
is for a network of your own.`,
		Example: `  softnic bench serve --udp 127.0.0.1
  softnic bench bw write --udp 127.0.0.2 127.0.0.1       # second terminal`,
		Args: noArgs,
	}
	flags := nicFlags(cmd)
	fs := cmd.Flags()
	port := fs.IntP("port", "p", benchPort, "listen on TCP `PORT`")
	stdio := fs.Bool("stdio", false, "serve one test on standard input and output")
	_ = fs.MarkHidden("stdio")
	var profile string
	profileFlag(fs, &profile)
	_ = fs.MarkHidden("cpu-profile") // for the second process of --two
	serve := func(cmd *cobra.Command, _ []string) error {
		if *port < 0 || *port > 65535 {
			return usageError("-p %d: want 0 to 65535", *port)
		}
		ctx, stop := signal.NotifyContext(context.Background(), signals...)
		defer stop()
		if *stdio {
			// The terminal's Ctrl-C is for the measuring side, which closes the input when it has got what it needs.
			ctx = context.WithoutCancel(ctx)
		}
		n, err := flags.Open(cmd.ErrOrStderr())
		if err != nil {
			return err
		}
		if *stdio {
			err = bench.Serve(ctx, n.Device, struct {
				io.Reader
				io.Writer
			}{os.Stdin, os.Stdout})
		} else {
			err = serveBench(ctx, cmd, n, *port)
		}
		return errors.Join(err, closeBenchNIC(n, cmd.ErrOrStderr()))
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return profiled(profile, func() error { return serve(cmd, args) })
	}
	return cmd
}

// serveBench serves one test after another until ctx ends.
func serveBench(ctx context.Context, cmd *cobra.Command, n *nic.NIC, port int) error {
	l, err := net.Listen("tcp", net.JoinHostPort("", strconv.Itoa(port)))
	if err != nil {
		return fmt.Errorf("TCP port %d: %w: use another on both sides (-p)", port, err)
	}
	defer context.AfterFunc(ctx, func() { l.Close() })()
	defer l.Close()
	fmt.Fprintf(cmd.OutOrStdout(), "%s; serving tests on TCP port %d\n", n.Ready(), l.Addr().(*net.TCPAddr).Port)
	for {
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		end := context.AfterFunc(ctx, func() { conn.Close() })
		if err := bench.Serve(ctx, n.Device, conn); err != nil {
			fmt.Fprintf(cmd.ErrOrStderr(), "softnic: test of %s: %s\n", conn.RemoteAddr(), strings.ReplaceAll(err.Error(), "\n", "; "))
		}
		end()
		conn.Close()
	}
}
