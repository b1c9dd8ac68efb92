package main

import (
	"encoding/json"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/control"
	"github.com/softnic/softnic/device"
)

// newRoot builds the tree of commands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "softnic",
		Short: "a RoCEv2 RDMA NIC that is a program",
		Long: `softnic is a RoCEv2 RDMA NIC that is a program: queue pairs, memory keys, completion queues and the
InfiniBand transports in user space, byte for byte what hardware sends. Real peers (Linux rdma_rxe,
ConnectX) talk to it and cannot tell. It needs no kernel module, no hardware and, on a UDP socket, no root.

Begin with

  softnic demo                                 two NICs in one process, every operation, packets lost on purpose
  softnic exec -- ibv_rc_pingpong -g 1         an unmodified verbs program, with this NIC as its device
  softnic run --udp 127.0.0.1                  a NIC on UDP port 4791 of an address of this host
  softnic run --tap sn0 --host-addr 10.8.0.1/24 --addr 10.8.0.2/24 --mtu 4200
                                               a NIC on a network interface of its own; then
                                               rdma link add rxe0 type rxe netdev sn0 makes the kernel its peer
  softnic pingpong rc --udp 127.0.0.1          waits for ibv_rc_pingpong, or for softnic pingpong rc HOST
  softnic link show                            what the running NIC is
  softnic trace x.pcapng                       judges a capture of any adapters' RoCE traffic`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return cmd.Help()
		},
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if words := subcommands(cmd); len(words) > 0 && cmd != root { // the flag is of one of them
			return usageError("`%s` needs to know which of %s, before the flags: see `%s --help`", cmd.CommandPath(), strings.Join(words, ", "), cmd.CommandPath())
		}
		return usageError("%s: see `%s --help`", parsing.ReplaceAllString(err.Error(), ": "), cmd.CommandPath())
	})
	root.PersistentFlags().BoolP("json", "j", false, "print JSON")
	root.AddCommand(newDemo(), newRun(), newExec(), newPingpong(), newBench(), newDev(), newLink(), newStatistic(), newResource(), newImpair(), newCapture(), newTrace(), newReplay(), newVersion())
	return root
}

// parsing is what package strconv says before the reason.
var parsing = regexp.MustCompile(`: strconv\.\w+: parsing "[^"]*": `)

// subcommands returns the names of those of a command.
func subcommands(cmd *cobra.Command) (l []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			l = append(l, c.Name())
		}
	}
	return l
}

// usageError is a mistake in the command line.
func usageError(format string, a ...any) error { return &nic.UsageError{Err: fmt.Errorf(format, a...)} }

// noArgs refuses arguments; on a command that has subcommands these are their names.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	return unknown(cmd, args[0])
}

func unknown(cmd *cobra.Command, arg string) error {
	cmd.SuggestionsMinimumDistance = 2
	hint := fmt.Sprintf("see `%s --help`", cmd.CommandPath())
	if s := cmd.SuggestionsFor(arg); len(s) > 0 {
		hint = fmt.Sprintf("did you mean `%s %s`?", cmd.CommandPath(), s[0])
	}
	return &nic.UsageError{Err: fmt.Errorf("`%s` does not know %q: %s", cmd.CommandPath(), arg, hint)}
}

// oneOf takes one argument at most, which must be one of words.
func oneOf(words ...string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return unknown(cmd, args[1])
		}
		for _, w := range words {
			if len(args) == 0 || args[0] == w {
				return nil
			}
		}
		return unknown(cmd, args[0])
	}
}

// wantsJSON reports whether -j was given.
func wantsJSON(cmd *cobra.Command) bool {
	v, _ := cmd.Flags().GetBool("json")
	return v
}

func printJSON(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// nicFlags adds the flags that say what NIC to open.
func nicFlags(cmd *cobra.Command) *nic.Flags {
	f, fs := new(nic.Flags), cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.TAP, "tap", "", "make the network interface `NAME` and be the NIC at its other end (needs CAP_NET_ADMIN)")
	fs.StringVar(&f.UDP, "udp", "", "be a NIC on the address `ADDR[:PORT]` of this host; the port is 4791 unless given")
	fs.StringArrayVar(&f.Addrs, "addr", nil, "address `CIDR` of the NIC on the TAP (repeatable)")
	fs.StringArrayVar(&f.HostAddrs, "host-addr", nil, "address `CIDR` of the host's side of the TAP (repeatable)")
	fs.IntVar(&f.MTU, "mtu", 0, "largest IP packet of the link in `BYTES`; RDMA's 4096 needs 4200 (default 1500 on a TAP, else that of the host's interface)")
	fs.BoolVar(&f.Plain, "plain", false, "give the host each packet alone, so that it loses, reorders and captures single packets; slower")
	fs.StringVar(&f.Profile, "profile", "", "behave where adapters differ as `NAME` does: "+strings.Join(device.ProfileNames(), ", ")+" (default ibta, the specification)")
	fs.StringVar(&f.CNP, "cnp", "", "congestion notifications: `PACE` is off, or port:TIME, dest:TIME or pair:TIME, at most one in a time per port, destination or address pair (default as the profile says)")
	fs.StringArrayVar(&f.Quirks, "quirk", nil, "go along with the peer's fault `NAME` (repeatable): rxe-flush-icrc is the ICRC that kernel rxe computes wrongly for FLUSH; FLUSH then works with rxe, and not to other peers")
	fs.StringVar(&f.Capture, "capture", "", "write the RoCE packets, with the reason of each drop, to the pcapng `FILE`")
	fs.StringVar(&f.PacketLog, "packet-log", "", "write a line of JSON for each RoCE packet to `FILE`")
	fs.StringArrayVar(&f.Impair, "impair", nil, "impairment `RULE`, as 'tx qp=1 opcode=WRITE_MIDDLE psn=+5 round=1 drop' or 'rx drop=1% seed=7' (repeatable)")
	fs.StringVar(&f.LogLevel, "log-level", "warn", "least `LEVEL` of what is logged on stderr: debug, info, warn, error")
	return f
}

// socketFlag adds the flag that names a daemon's socket.
func socketFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("socket", "", "the daemon's socket is `PATH` (default $XDG_RUNTIME_DIR/softnic.sock)")
}

// socketPath returns the socket that was asked for, or the default.
func socketPath(flag string) (string, error) {
	if flag != "" {
		// softnic prints the name with the suffix; both mean the same.
		return strings.TrimSuffix(flag, control.Suffix), nil
	}
	return control.DefaultPath()
}

// client returns a client for the daemon that was asked for.
func client(flag string) (*control.Client, error) {
	path, err := socketPath(flag)
	if err != nil {
		return nil, err
	}
	return control.NewClient(path), nil
}
