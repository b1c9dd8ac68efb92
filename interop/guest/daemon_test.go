//go:build linux

package guest

import (
	"os"
	"strings"
	"syscall"
	"testing"
)

// TestDaemonStop ends a daemon on a TAP while the kernel's RDMA device sits on that TAP. If the TAP went away under it,
// or under a program that has it open, the kernel would never power off again.
func TestDaemonStop(t *testing.T) {
	needGuest(t)
	daemon := func() (*proc, rxe) {
		t.Helper()
		nic := startSoftnic(t, options{}, "run", "--tap", "sn0", "--host-addr", "10.8.0.1/24", "--addr", "10.8.0.2/24", "--mtu", "4200")
		nic.await(patience, "the line that says it is ready", func() bool { return nic.stdout.String() != "" })
		dev := addRxe(t, "rxe0", "sn0")
		run(t, "ping", "-c", "1", "-W", "10", "10.8.0.2")
		return nic, dev
	}
	exists := func(dev rxe) bool {
		_, err := os.Stat("/sys/class/infiniband/" + dev.Name)
		return err == nil
	}

	// Nobody uses it: the daemon takes the RDMA link with it.
	nic, dev := daemon()
	stopSoftnic(t, nic)
	if exists(dev) {
		t.Errorf("%s is still there", dev.Name)
	}

	// A program has a queue pair on it: the daemon leaves both, says so, and the next one takes the TAP over.
	nic, dev = daemon()
	v := startVerbs(t, options{}, dev.Name)
	v.CreateQP("RC").Connect(connection{SGIDIndex: 1, DGID: mustAddr("10.8.0.2"), QPN: 17, RetryCnt: 7})
	if r := nic.Stop(syscall.SIGTERM, patience); r.Code != 0 || !strings.Contains(r.Stderr, "the interface stays, because python3") {
		t.Errorf("does not say who keeps its TAP: %v", r)
	}
	if !exists(dev) || !linkExists("sn0") {
		t.Error("the RDMA link or the TAP went away under a program that uses it")
	}
	v.p.Stop(syscall.SIGTERM, patience)
	dev.del(t)
	nic, dev = daemon()
	stopSoftnic(t, nic)
	if exists(dev) {
		t.Errorf("%s is still there", dev.Name)
	}
}
