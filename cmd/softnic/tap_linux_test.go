package main

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// inNamespace gives p a user namespace of its own, and with net a network namespace in which it is root.
func inNamespace(p *program, net bool) {
	flags := uintptr(unix.CLONE_NEWUSER)
	if net {
		flags |= unix.CLONE_NEWNET
	}
	p.cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  flags,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}},
	}
}

// needTUN skips where there can be no TAP in a namespace of ours.
func needTUN(t *testing.T) {
	t.Helper()
	f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no TAP here: %v", err)
	}
	f.Close()
	p := command(t, "version")
	inNamespace(p, true)
	if err := p.cmd.Run(); err != nil {
		t.Skipf("no namespaces here: %v", err)
	}
}

func TestRunTAP(t *testing.T) {
	needTUN(t)
	path := socket(t)
	p := command(t, "run", "--tap", "sn0", "--host-addr", "10.8.0.1/24", "--addr", "10.8.0.2/24", "--addr", "fd08::2/64", "--mtu", "4200", "--socket", path)
	inNamespace(p, true)
	p.start()
	l := p.line()
	if !strings.HasPrefix(l, "rxe_softnic0 on tap sn0: 10.8.0.2, fd08::2, fe80::") || !strings.HasSuffix(l, ", active MTU 4096; control "+path+".ctl") {
		t.Errorf("%q", l)
	}
	code, out, errs := softnic("link", "--socket", path)
	if code != 0 || !strings.HasPrefix(out, "link rxe_softnic0/1 state ACTIVE physical_state LINK_UP netdev sn0\n    on tap sn0 mtu 4200 active_mtu 4096 ") {
		t.Error(out, errs)
	}
	stop(t, p, syscall.SIGTERM)
}

// TestNoCapability has the program be root in a user namespace that does not own the network.
func TestNoCapability(t *testing.T) {
	needTUN(t)
	p := command(t, "run", "--tap", "sn0", "--socket", socket(t))
	inNamespace(p, false)
	code, out, errs := p.start().wait()
	checkError(t, code, exitFailure, errs, "tap sn0: needs CAP_NET_ADMIN")
	if out != "" {
		t.Error(out)
	}
}

// TestInterfaceRemoved takes the interface away from a daemon, which must not go on deaf.
func TestInterfaceRemoved(t *testing.T) {
	needTUN(t)
	nsenter, err := exec.LookPath("nsenter")
	if err != nil {
		t.Skip(err)
	}
	path := socket(t)
	p := command(t, "run", "--tap", "sn0", "--addr", "10.8.0.2/24", "--socket", path)
	inNamespace(p, true)
	p.start()
	p.line()
	pid := strconv.Itoa(p.cmd.Process.Pid)
	if out, err := exec.Command(nsenter, "-t", pid, "-U", "-n", "--preserve-credentials", "ip", "link", "delete", "sn0").CombinedOutput(); err != nil {
		t.Skipf("cannot remove the interface: %v %s", err, out)
	}
	code, _, errs := p.wait()
	checkError(t, code, exitFailure, errs, "tap sn0: somebody removed the interface: start again")
}

// TestBenchTAP measures over two TAPs on a bridge, in one process and in two.
func TestBenchTAP(t *testing.T) {
	needTUN(t)
	for want, more := range map[string][]string{", 1 process,": nil, ", 2 processes,": {"--two"}} {
		p := command(t, append([]string{"bench", "bw", "write", "--link", "tap", "--block", "-n", "100"}, more...)...)
		inNamespace(p, true)
		p.start()
		code, out, errs := p.wait()
		if code != 0 || errs != "" || !strings.Contains(out, want) || !strings.Contains(out, "tap snbench0") || !strings.Contains(out, "data verified") {
			t.Errorf("exit code %d, %q\n%s", code, errs, out)
		}
	}
}
