//go:build linux

package stock

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// TestPollLayout: struct ibv_context is as the preload library has it (uverbs/preload/src/poll.c), by the header that programs are compiled with.
func TestPollLayout(t *testing.T) {
	needStock(t)
	if out, err := exec.Command("gcc", "-fsyntax-only", "testdata/layout.c").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v (is libibverbs-dev installed?)\n%s", err, out)
	}
}

// TestCase47_TwoThreads has two threads of a C program poll one extended completion queue: its lock is held from a start_poll that
// succeeds to end_poll, and every completion is seen once, in order. The rest of case 47 is TestExtendedCQ.
func TestCase47_TwoThreads(t *testing.T) {
	needStock(t)
	if _, err := os.Stat("/usr/include/infiniband/verbs.h"); err != nil {
		t.Fatalf("%v: install libibverbs-dev", err)
	}
	program := filepath.Join(openDir(t), "threads")
	if out, err := exec.Command("gcc", "-O2", "-Wall", "-Werror", "-o", program, "testdata/threads.c", "-libverbs", "-lpthread").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	messages, next := "2000", "1"
	if long() {
		messages = "100000"
	}
	if rdmaCore(t) < 56 { // see threads.c
		next = "0"
	}
	d := startDaemon(t, daemonOptions{})
	r := start(t, d.exec(), program, messages, next).wait(2 * patience)
	if r.Code != 0 {
		t.Errorf("%v", r)
	}
	d.free()
}
