// Package guest is the tests that run inside the lab's virtual machine, as root, beside the kernel's RDMA driver
// (rdma_rxe) and the stock RDMA tools. It has no code outside of its tests.
//
// interop/run.sh compiles the package into one static test binary, boots the VM (interop/vm) and runs it there. Only
// the binary and cmd/softnic travel: what a test needs besides is embedded from testdata, and what it wants to hand to
// interop/judge on the host (captures, logs) it writes below $SOFTNIC_JOB, each test into the folder of its own name
// (jobFile). The judges take every capture for one of good frames, unless its name says "injected". Everywhere else every test skips, so that go test ./... needs no lab; in the lab a skipped test is a
// failure.
//
// A test begins with needGuest, builds its network with newVeth and addRxe (or startSoftnic with a TAP), and uses
//
//	run, tool, start       commands: must succeed; stock tools with a time limit; in the background
//	startVerbs             the kernel's (or, through softnic exec, softnic's) verbs, driven from Go
//	execTap, execUDP       a daemon for stock programs (softnic exec), whose peers are on the kernel's device
//	newPeer                interop/peer's scripted peer on a network device
//	newOps                 softnic and the kernel's device with the same queue pairs, windows and memory: opsEnd
//	deviation              where the kernel's device is wrong, each a row of interop/deviations.md
//	startCapture           tcpdump into the job directory, nothing lost at either end
//	opsLab.golden          a file of the golden captures (package corpus), which TestCorpus makes
//	waitFor                polling for a condition, instead of sleeping
//
// Every helper cleans up after itself, the RDMA link always before its network device: a device that goes away while
// an RDMA link or a program with a queue pair holds it keeps the kernel from ever powering off, which run.sh reports.
//
// The emulated machine is 10 to 20 times slower than a real one, varies by half between boots, and may have a single
// processor (run.sh says why): time limits are generous, durations are compared only within one boot, and nothing may
// depend on two programs running at the same time.
package guest
