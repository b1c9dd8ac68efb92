package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/judge"
)

func newTrace() *cobra.Command {
	var f judge.Flags
	cmd := &cobra.Command{
		Use:   "trace FILE...",
		Short: "judge a capture of RoCE traffic: tables of conversations, and a verdict on every rule",
		Long: `trace reads captures of RoCEv2 traffic (pcap or pcapng, also gzip; - is stdin) of any adapters, wherever they were made. It
prints what each pair of queue pairs said to each other, and for every rule of the transports how often it was kept, broken,
or could not be judged, with the reason; broken ones with the packets. What a capture cannot show is "unknown", never
"broken". Every ICRC is checked. Each file is judged on its own; --merge makes one capture of several.

  softnic trace x.pcapng
  tcpdump -i mlx5_0 -w - udp port 4791 | softnic trace -
  softnic trace --depth 16 --timeout 14 --retry-cnt 7 --host 10.0.0.1 x.pcap
  softnic trace --picture x.svg x.pcap

The exit code is 0 if no rule is broken, 1 if one is, 2 if a file cannot be read or has no RoCE packets, or for a mistake in the command line.`,
		RunE: func(cmd *cobra.Command, args []string) error {
			f.JSON, f.Out, f.In = wantsJSON(cmd), cmd.OutOrStdout(), cmd.InOrStdin()
			return f.Run(args)
		},
	}
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.BoolVar(&f.Rules, "rules", false, "list the rules and where each comes from, and read nothing")
	fs.BoolVar(&f.Merge, "merge", false, "judge the files as one capture, merged by time; packets are numbered as mergecap orders them")
	fs.StringVar(&f.QP, "qp", "", "only conversations of queue pair `QPN` in tables and picture; the verdicts are on all")
	fs.StringVar(&f.Peer, "peer", "", "only conversations with address `ADDR` in tables and picture; the verdicts are on all")
	fs.StringVar(&f.Picture, "picture", "", "draw the busiest conversation, PSN over time, to `FILE`.svg or .png")
	fs.StringVar(&f.PictureTime, "picture-time", "", "draw only the time `FROM-TO` since the first packet, as 980ms-1.2s or 5s-")
	fs.IntSliceVar(&f.Ports, "port", nil, "UDP port `N` carries RoCE, beside 4791 (repeatable)")
	fs.StringArrayVar(&f.Hosts, "host", nil, "the capture was made at the host with address `ADDR` (repeatable)")
	fs.StringVar(&f.Capture, "capture", "", "whether the capture has all packets: `WHICH` is complete or incomplete (default as it tells itself)")
	fs.BoolVar(&f.Unruly, "unruly", false, "the network before the place of the capture may reorder or double packets")
	fs.BoolVar(&f.TrustCut, "trust-truncated", false, "judge packets that the capture has only the headers of, as if their ICRC were right")
	fs.StringArrayVar(&f.Connect, "connect", nil, "the queue pairs `ADDR/QPN=ADDR/QPN` are connected (repeatable)")
	fs.IntVar(&f.Depth, "depth", 0, "at most `N` READs and atomics unanswered were agreed; -1: none")
	fs.IntVar(&f.Timeout, "timeout", 0, "local ACK timeout `CODE`, 4.096 µs × 2^CODE; -1: no timer")
	fs.IntVar(&f.RetryCnt, "retry-cnt", 0, "`N` retries were agreed; -1: none")
	fs.StringVar(&f.CNP, "cnp", "", "the adapters' CNP pacing `PACE`: port:TIME, dest:TIME, pair:TIME or qp:TIME")
	fs.DurationVar(&f.Slack, "slack", time.Millisecond, "how exact hosts keep their timers, and captures their times: by `TIME`")
	fs.IntVar(&f.Examples, "examples", 20, "print the first `N` violations of a rule")
	return cmd
}
