package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/control"
	"github.com/softnic/softnic/link/capture"
)

// captureOptions are the flags of capture.
type captureOptions struct {
	socket, file     string
	qp, peer, opcode string
	count            uint64
	duration         time.Duration
	megabytes, files int
}

func newCapture() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "capture -w FILE|- [flags]",
		Short: "capture what passes the running NIC, with the reason of each drop",
		Long: `capture writes the packets of the running NIC as a pcapng file: those sent, received, dropped and impaired each on an interface
of its own, with the reason as a comment. It goes on until SIGINT, -c packets or --duration. It never holds the NIC up: what cannot
be written in time is missing, and the end says how much.

With -C a new file is begun whenever one has grown to that size, FILE_00001, FILE_00002, ..., and with -W only the last ones are kept.`,
		Example: `  softnic capture -w - | wireshark -k -i -
  softnic capture -w nic.pcapng --qp 0x11 --opcode 'READ*,ACKNOWLEDGE'
  softnic capture -w nic.pcapng -C 100 -W 10
  softnic capture -w - -c 1000 | softnic trace -`,
		Args: noArgs,
	}
	o := captureOptions{}
	fs := cmd.Flags()
	fs.SortFlags = false
	socket := socketFlag(cmd)
	fs.StringVarP(&o.file, "write", "w", "", "write to `FILE`; - is stdout")
	fs.StringVar(&o.qp, "qp", "", "of queue pair `NUMBER` of the NIC alone, both directions")
	fs.StringVar(&o.peer, "peer", "", "to and from the address or network `ADDR` alone")
	fs.StringVar(&o.opcode, "opcode", "", "`OPCODES` alone, as SEND* or READ_REQUEST,ACKNOWLEDGE")
	fs.Uint64VarP(&o.count, "count", "c", 0, "end after `N` packets")
	fs.DurationVar(&o.duration, "duration", 0, "end after `TIME`, as 10s")
	fs.IntVarP(&o.megabytes, "file-size", "C", 0, "begin another file after so many million `BYTES`")
	fs.IntVarP(&o.files, "file-count", "W", 0, "with -C: keep the last `N` files")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		o.socket = *socket
		return o.run(cmd)
	}
	return cmd
}

func (o *captureOptions) check(cmd *cobra.Command) (url.Values, error) {
	switch {
	case o.file == "":
		return nil, usageError("where to? -w FILE, or -w - for stdout, as in `softnic capture -w - | wireshark -k -i -`")
	case o.megabytes < 0 || o.files < 0 || cmd.Flags().Changed("file-size") && o.megabytes == 0 || cmd.Flags().Changed("file-count") && o.files == 0 || o.megabytes > 1e6:
		return nil, usageError("-C is 1 ... 1000000 million bytes, and -W is counted from 1 on")
	case o.files > 0 && o.megabytes == 0:
		return nil, usageError("-W %d goes with -C: how large is a file to become?", o.files)
	case o.megabytes > 0 && o.file == "-":
		return nil, usageError("-C makes files: name one with -w FILE")
	case o.duration < 0:
		return nil, usageError("--duration %v has passed", o.duration)
	}
	q := control.FilterQuery(o.qp, o.peer, o.opcode)
	if _, err := control.ParseFilter(q); err != nil {
		return nil, usageError("--%w", err)
	}
	return q, nil
}

// counted lets so many packets pass, and then asks for the end. It gets whole blocks, one at a time.
type counted struct {
	io.Writer
	packets, limit uint64 // limit 0: all
	enough         func()
	tally          capture.Tally
}

// Write implements io.Writer.
func (c *counted) Write(b []byte) (int, error) {
	c.tally.Correct(b)
	if capture.IsPacket(b) {
		if c.limit > 0 && c.packets == c.limit {
			return len(b), nil
		}
		if c.packets++; c.packets == c.limit {
			c.enough()
		}
		c.tally.Count(b)
	}
	return c.Writer.Write(b)
}

func (o *captureOptions) run(cmd *cobra.Command) error {
	filter, err := o.check(cmd)
	if err != nil {
		return err
	}
	c, err := client(o.socket)
	if err != nil {
		return err
	}
	if _, err := c.Daemon(cmd.Context()); err != nil {
		return err // before a file is emptied
	}
	out, closeOut, err := o.open(cmd.OutOrStdout())
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(cmd.Context(), signals...)
	defer stop()
	ignoreBrokenPipe()
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	w := &counted{Writer: out, limit: o.count, enough: stop}
	blocks := capture.NewBlocks(w)
	err = c.Capture(ctx, filter, blocks, func() {
		if !wantsJSON(cmd) {
			fmt.Fprintf(cmd.ErrOrStderr(), "softnic: capturing to %s; SIGINT ends it\n", o.name())
		}
	})
	stop()
	if errors.Is(err, syscall.EPIPE) {
		err = nil // a reader that has left has seen enough
	}
	err = errors.Join(err, closeOut())
	o.summary(cmd, w.packets, blocks.Lost)
	return err
}

func (o *captureOptions) name() string {
	if o.file == "-" {
		return "stdout"
	}
	return o.file
}

// open opens what is written to.
func (o *captureOptions) open(stdout io.Writer) (io.Writer, func() error, error) {
	if o.file == "-" {
		if f, ok := stdout.(*os.File); ok && isTerminal(f) {
			return nil, nil, usageError("stdout is a terminal: `softnic capture -w - | wireshark -k -i -`, or -w FILE")
		}
		return stdout, func() error { return nil }, nil
	}
	if o.megabytes > 0 {
		r := capture.NewRing(o.file, int64(o.megabytes)*1e6, o.files)
		return r, r.Close, nil
	}
	f, err := os.Create(o.file)
	if err != nil {
		return nil, nil, fmt.Errorf("-w: %w: name a file that can be written", err)
	}
	return f, f.Close, nil
}

func isTerminal(f *os.File) bool {
	st, err := f.Stat()
	return err == nil && st.Mode()&os.ModeCharDevice != 0 && st.Mode()&os.ModeDevice != 0 && f.Name() != os.DevNull
}

func (o *captureOptions) summary(cmd *cobra.Command, packets, lost uint64) {
	if wantsJSON(cmd) {
		_ = json.NewEncoder(cmd.ErrOrStderr()).Encode(struct {
			File    string `json:"file"`
			Packets uint64 `json:"packets"`
			Lost    uint64 `json:"lost"`
		}{o.file, packets, lost})
		return
	}
	text := fmt.Sprintf("softnic: %d packets", packets)
	if lost > 0 {
		text += fmt.Sprintf(", and %d are missing: they could not be written in time", lost)
	}
	fmt.Fprintln(cmd.ErrOrStderr(), text)
}
