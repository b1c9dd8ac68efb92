//go:build linux

package stock

import (
	"fmt"
	"os/exec"
	"regexp"
	"testing"
)

// TestUCX runs UCX, which takes the device as it finds it: its two transports on verbs, rc_v (reliable connections, with
// ud_verbs to set them up) and ud_v (datagrams and UCX's own reliability).
func TestUCX(t *testing.T) {
	needStock(t)
	for _, name := range []string{"ucx_info", "ucx_perftest"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Fatalf("%v: install ucx-utils", err)
		}
	}
	t.Run("ucx_info", func(t *testing.T) {
		d := startDaemon(t, daemonOptions{})
		r := tool(t, d.exec(), "ucx_info", "-d")
		if r.Code != 0 || complaints.MatchString(r.Stderr) {
			t.Errorf("failed: %v", r)
		}
		for _, name := range []string{"rc_verbs", "ud_verbs"} {
			if !regexp.MustCompile(`Transport: ` + name + `\n# +Device: rxe_softnic0:1\n`).MatchString(r.Stdout) {
				t.Errorf("no transport %s on rxe_softnic0:1: %v", name, r)
			}
		}
		d.free()
	})
	for _, transport := range []string{"rc_v", "ud_v"} {
		t.Run(transport, func(t *testing.T) {
			t.Setenv("UCX_TLS", transport+",self") // nothing else: no shared memory, no TCP
			modes(t, daemonOptions{}, func(t *testing.T, a, b *daemon) {
				ucx := func(test string, size, iters, each int) {
					t.Helper()
					argv := []string{"ucx_perftest", "-t", test, "-s", fmt.Sprint(size), "-n", fmt.Sprint(iters), "-w", "1"}
					pair{argv: argv, size: size, msgs: each * iters, mtu: 4096, poll: true}.run(t, a, b)
				}
				for _, size := range []int{8, 8000, 100000} { // in the request, in several packets, by rendezvous
					ucx("tag_lat", size, 100, 2)
					ucx("tag_bw", size, 100, 1)
				}
				if transport == "rc_v" {
					ucx("ucp_put_lat", 1000, 100, 2)
					ucx("ucp_get", 1000, 100, 1)
					ucx("ucp_fadd", 8, 100, 1)
				}
			})
		})
	}
}
