package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/softnic/softnic/cmd/softnic/bench"
)

// TestBench measures a little over memory, and reads what comes out.
func TestBench(t *testing.T) {
	code, out, errs := softnic("bench", "bw", "write", "--link", "pipe", "-n", "100", "-s", "4096")
	if code != 0 || errs != "" || !strings.Contains(out, "RDMA Write BW Test") || !strings.Contains(out, "\n 4096       100            ") {
		t.Errorf("exit code %d, %q\n%s", code, errs, out)
	}
	var r bench.Result
	for _, how := range []string{"--poll", "--block", "-e"} {
		code, out, errs = softnic("bench", "lat", "send", "--link", "pipe", "-n", "100", how, "-j")
		if err := json.Unmarshal([]byte(out), &r); code != 0 || errs != "" || err != nil {
			t.Fatalf("exit code %d, %q, %v\n%s", code, errs, err, out)
		}
		if r.Iterations != 100 || !r.Latency || r.Times == nil || !r.Verified || r.Processes != 1 {
			t.Errorf("%s: %+v", how, r)
		}
	}
}

// TestBenchHosts measures between two processes: one that this one starts, and a server.
func TestBenchHosts(t *testing.T) {
	server, client := nicAddr(t, 61), nicAddr(t, 62)
	port := freeTCP(t)
	s := start(t, "bench", "serve", "--udp", server, "-p", port)
	if l := s.line(); !strings.Contains(l, server) || !strings.HasSuffix(l, "serving tests on TCP port "+port) {
		t.Error(l)
	}
	for _, op := range []string{"write", "read", "send", "atomic"} { // one after another
		code, out, errs := softnic("bench", "bw", op, "--udp", client, "-p", port, "-n", "100", "--block", "127.0.0.1", "-j")
		var r bench.Result
		if err := json.Unmarshal([]byte(out), &r); code != 0 || errs != "" || err != nil {
			t.Fatalf("%s: exit code %d, %q, %v\n%s", op, code, errs, err, out)
		}
		if r.Iterations != 100 || r.Processes != 2 || !r.Verified {
			t.Errorf("%s: %+v", op, r)
		}
	}
	if err := s.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if code, _, errs := s.wait(); code != 0 || errs != "" {
		t.Errorf("the server ended with %d, %q", code, errs)
	}
	code, _, errs := softnic("bench", "bw", "write", "--udp", client, "-p", port, "127.0.0.1")
	checkError(t, code, exitFailure, errs, "start softnic bench serve there")

	t.Setenv(asProgram, "1")
	code, out, errs := softnic("bench", "lat", "write", "--two", "-n", "100", "--block", "-j")
	var r bench.Result
	if err := json.Unmarshal([]byte(out), &r); err != nil || code != 0 || errs != "" {
		t.Fatalf("exit code %d, %q, %v\n%s", code, errs, err, out)
	}
	if r.Processes != 2 || r.Times == nil || !r.Verified {
		t.Errorf("%+v", r)
	}
}
