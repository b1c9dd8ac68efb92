// Command softnic is a RoCEv2 RDMA NIC that is a program.
//
//	softnic demo       two NICs in one process: what it is, in a few seconds
//	softnic run        a NIC on a TAP interface or on a UDP socket, as a daemon
//	softnic exec       an unmodified verbs program that sees this NIC
//	softnic pingpong   the peer of the stock ibv_rc_pingpong and ibv_ud_pingpong
//	softnic bench      bandwidth and latency between two NICs, as perftest measures them
//	softnic capture    what passes a daemon, live
//	softnic impair     what its network does to packets on purpose
//	softnic replay     a recorded peer, or a scenario, against this NIC: compares what it answers
//	softnic dev|link|statistic|resource show
//	                   what a daemon is and has done, as iproute2's rdma shows it
//	softnic trace      a capture of RoCE traffic judged by the rules of the transports
//
// Each subcommand is one file here, which wires flags to packages and has no
// logic of its own: package nic opens a NIC from flags, pingpong, bench, demo and exec are those
// commands, judge is trace, show prints; control (below the module's root) is how a daemon is asked.
//
// Errors are one line on stderr that says what to do. The exit code is 1, or 2 for a
// mistake in the command line and where the output cannot be written; with trace 1 is a broken rule, and 2 also a file that cannot be
// read or written, as with replay; with exec it is
// that of the program, and 126 or 127 where that cannot be run or found.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/softnic/softnic/cmd/softnic/exec"
	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/trace"
	"github.com/softnic/softnic/trace/scenario"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// The exit codes.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

// run runs a command line and returns the exit code.
func run(args []string, stdout, stderr io.Writer) int {
	return runRoot(newRoot(), args, stdout, stderr)
}

func runRoot(root *cobra.Command, args []string, stdout, stderr io.Writer) int {
	root.SetArgs(append([]string{}, args...)) // nil would be those of the process
	out := &output{w: stdout}
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.Execute()
	if out.err != nil { // whatever else: nobody has read it
		err = &trace.FileError{Name: "standard output", Err: out.err}
	}
	if err == nil {
		return exitOK
	}
	line := strings.ReplaceAll(strings.TrimSpace(err.Error()), "\n", "; ")
	fmt.Fprintf(stderr, "softnic: %s\n", line)
	var usage *nic.UsageError
	if errors.As(err, &usage) {
		return exitUsage
	}
	var file *trace.FileError
	var text *scenario.Error
	if errors.As(err, &file) || errors.As(err, &text) {
		return exitUsage
	}
	var program *exec.Error
	if errors.As(err, &program) {
		return program.Code
	}
	return exitFailure
}

// output is standard output. It remembers that it could not be written: most of what prints does not look.
type output struct {
	w   io.Writer
	err error
}

func (o *output) Write(b []byte) (int, error) {
	n, err := o.w.Write(b)
	if err != nil && o.err == nil {
		o.err = err
		var path *fs.PathError // "write /dev/stdout: "
		if errors.As(err, &path) {
			o.err = path.Err
		}
	}
	return n, err
}
