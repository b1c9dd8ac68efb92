//go:build linux

// Command bench measures softnic against what a user would take instead, in one interleaved run, and judges the ratios:
// `make bench` runs it. docs/performance.md says what each row means.
//
// A row is a value over an anchor. Both come from probes, programs that are run as often as asked for, in turn, so that a
// machine that becomes slower does so for all of them: `softnic bench`, stock programs (iperf3, ucx_perftest, perftest) and
// bare UDP sockets (this program again, as `bench anchor NAME`). While a probe runs, /proc/stat is read: what
// other processes used of the CPU says whether the run is to be believed.
//
// The rows of the kernel's driver are measured in the lab's virtual machine (interop/run.sh): this program boots it, runs there again (bench -guest),
// and judges what it is told. There it makes a veth pair, and puts at each end the NIC of the kernel or one of softnic.
//
// It changes nothing on the machine but for what the probes are: sockets on the loopback network, and, in a network namespace of
// their own, two TAPs and a bridge. run.sh installs packages.
package main
