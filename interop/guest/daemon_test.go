//go:build linux

package guest

import (
	"os"
	"testing"
)

// TestDaemonStop ends a daemon on a TAP while the kernel's RDMA device sits on that TAP, without and with a program that
// has a queue pair on it. A TAP that goes away under either would keep the kernel from ever powering off.
func TestDaemonStop(t *testing.T) {
	needGuest(t)
	for _, busy := range []bool{false, true} {
		nic := startSoftnic(t, options{}, "run", "--tap", "sn0", "--host-addr", "10.8.0.1/24", "--addr", "10.8.0.2/24", "--mtu", "4200")
		nic.await(patience, "sn0", func() bool { return linkExists("sn0") })
		nic.await(patience, "the line that says it is ready", func() bool { return nic.stdout.String() != "" })
		dev := addRxe(t, "rxe0", "sn0")
		run(t, "ping", "-c", "1", "-W", "10", "10.8.0.2")
		if busy {
			v := startVerbs(t, options{}, dev.Name)
			v.CreateQP("RC").Connect(connection{SGIDIndex: 1, DGID: mustAddr("10.8.0.2"), QPN: 17, RetryCnt: 7})
		}
		stopSoftnic(t, nic)
		if _, err := os.Stat("/sys/class/infiniband/" + dev.Name); err == nil {
			t.Errorf("%s is still there (with a queue pair: %v)", dev.Name, busy)
		}
	}
}
