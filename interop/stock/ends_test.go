//go:build linux

package stock

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// busy waits until a daemon moves packets.
func (d *daemon) busy() {
	d.t.Helper()
	before := d.counters()["sent_pkts"]
	eventually(d.t, "packets to move", func() bool { return d.counters()["sent_pkts"] > before+1000 })
}

// TestProgramKilled kills a program in the middle of a transfer: nothing of it is left on its daemon, and the peer hears
// of it.
func TestProgramKilled(t *testing.T) {
	needStock(t)
	modes(t, daemonOptions{}, func(t *testing.T, a, b *daemon) {
		for _, victim := range []string{"server", "client"} {
			t.Run(victim, func(t *testing.T) {
				port := freePort(t)
				argv := []string{"ib_write_bw", "-x", "1", "-F", "-D", "60", "-p", port}
				s := start(t, a.exec(), argv...)
				s.listens(port)
				c := start(t, b.exec(), append(argv, "127.0.0.1")...)
				b.busy()
				// The server answers nothing but on the wire, and hears from its client over TCP that it is gone.
				dead, peer := s, c
				if victim == "client" {
					dead, peer = c, s
				}
				if r := dead.signal(syscall.SIGKILL); r.Code != -1 {
					t.Errorf("the victim ended by itself: %v", r)
				}
				r := peer.wait(patience)
				if r.Code == 0 {
					t.Errorf("the peer has not noticed: %v", r)
				}
				// Retries exceeded; or a remote access error where the memory went before the queue pair.
				if victim == "server" && !strings.Contains(r.Stdout+r.Stderr, "Failed status 12") && !strings.Contains(r.Stdout+r.Stderr, "Failed status 10") {
					t.Errorf("the peer has no error of its queue pair: %v", r)
				}
				a.free()
				b.free()
			})
		}
		pingpong("rc", 4096, 20).run(t, a, b) // all is well
	})
}

// TestDaemonKilled kills the daemon: a program that sleeps for an event wakes up, and the next command is EIO.
func TestDaemonKilled(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	for _, event := range []string{"completion", "asynchronous"} {
		if !d.running() {
			d = startDaemon(t, daemonOptions{})
		}
		t.Run(event, func(t *testing.T) {
			a := startAgent(t, d, d.exec())
			m := a.regMR(64, everyAccess)
			channel := a.create("create_channel", nil)
			cq := a.create("create_cq", args{"depth": 16, "channel": channel})
			q, p := a.createQPOn("RC", cq, cq), a.createQPOn("RC", cq, cq)
			connect(q, p, path{mtu: 1024})
			a.call(nil, "arm", args{"cq": cq, "solicited": false})
			if event == "completion" {
				a.ask("get_event", args{"channel": channel, "cq": cq})
			} else {
				a.ask("get_async_event", nil)
			}
			asleep(t, a.proc)
			if r := d.signal(syscall.SIGKILL); r.Code != -1 {
				t.Errorf("%v", r)
			}
			if f := a.answer(nil); f.Error == "" {
				t.Error("there was an event")
			}
			for verb, v := range map[string]args{
				"alloc_pd": nil, "reg_mr": {"length": 64, "access": 1}, "create_cq": {"depth": 16},
				"modify": {"qp": q.ID, "state": "ERR", "attrs": args{}},
			} {
				if f := a.try(nil, verb, v); f.Errno != int(syscall.EIO) {
					t.Errorf("%s: %+v, want errno %d (EIO)", verb, f, syscall.EIO)
				}
			}
			if f := q.trySend(sendWR{op: "SEND", sge: []sge{m.sge(0, 8)}}); f.Errno != int(syscall.EIO) {
				t.Errorf("post_send: %+v, want errno %d (EIO)", f, syscall.EIO)
			}
			_ = a.signal(syscall.SIGKILL)
		})
		// What it left is no hindrance to the next one on the same path.
		next := start(t, options{}, softnic, "run", "--udp", d.addr, "--socket", d.socket)
		next.await(patience, "the next daemon", func() bool { return strings.Contains(next.stdout.String(), "\n") })
		if r := next.signal(syscall.SIGTERM); r.Code != 0 || r.Stderr != "" {
			t.Errorf("the next daemon: %v", r)
		}
		d.leftNothing()
	}
}

// asleep waits until a program sleeps and stays so: in the verb that it was told to call, which it has read by then.
func asleep(t *testing.T, p *proc) {
	t.Helper()
	sleeps, last := 0, ""
	p.await(patience, "the program to sleep", func() bool {
		// Switches of context stand still in one that sleeps.
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
		_, now, _ := strings.Cut(string(b), "voluntary_ctxt_switches:")
		if sleeps++; now != last || !strings.Contains(string(b), "State:\tS") {
			sleeps, last = 0, now
		}
		return sleeps > 100
	})
}

// usage is what a process has of the system.
type usage struct{ fds, threads, rss int }

func (d *daemon) usage() usage {
	d.t.Helper()
	var u usage
	pid := d.cmd.Process.Pid
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		d.t.Fatal(err)
	}
	u.fds = len(entries)
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		d.t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		_, _ = fmt.Sscanf(line, "Threads: %d", &u.threads)
		_, _ = fmt.Sscanf(line, "VmRSS: %d", &u.rss)
	}
	return u
}

// TestChurn starts and ends, also by force, many programs: the daemon is afterwards where it was.
func TestChurn(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	round := func(infos, games int) {
		t.Helper()
		// One shell, so that what is measured is the programs.
		loop := fmt.Sprintf("i=0; while [ $i -lt %d ]; do ibv_devinfo >/dev/null || exit 1; i=$((i+1)); done", infos)
		if r := tool(t, d.exec(), "sh", "-c", loop); r.Code != 0 {
			t.Fatal(r)
		}
		for i := range games {
			p := pingpong("rc", 4096, 5)
			if i%2 == 1 {
				p = pingpong("rc", 1, 5, "-e")
			}
			if i%5 != 0 {
				s, c := p.play(t, d.exec(), d.exec())
				good(t, s, c)
				continue
			}
			s := start(t, d.exec(), p.argv[0], "-g", "1", "-p", freePort(t))
			s.listens(s.argv[len(s.argv)-1])
			_ = s.signal(syscall.SIGKILL)
		}
		d.free()
	}
	infos, games := 200, 50 // 100 starts
	if long() {
		infos, games = 1000, 100
	}
	round(30, 10) // what is made once
	before := d.usage()
	round(infos, games)
	var after usage
	for end := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		if after = d.usage(); after.fds == before.fds || time.Now().After(end) {
			break
		}
	}
	t.Logf("before %+v, after %d starts %+v", before, infos+2*games, after)
	// Threads and memory are Go's to keep for a while: what a leak of a program each would be is far more.
	if after.fds != before.fds || after.threads > before.threads+10 || after.rss > before.rss*3/2+(16<<10) {
		t.Errorf("the daemon had %+v before, and has %+v after %d starts of programs", before, after, infos+2*games)
	}
}

// TestOwnDaemonEnds has the daemon that exec starts: it serves while a program runs, outlives the first of two, and goes
// after the last, also when that is killed.
func TestOwnDaemonEnds(t *testing.T) {
	needStock(t)
	dir := openDir(t)
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	o := options{Prefix: []string{softnic, "exec", "--"}, Env: []string{"XDG_RUNTIME_DIR=" + dir}}
	first := start(t, o, "cat")
	second := start(t, o, "cat")
	socket := filepath.Join(dir, "softnic.sock")
	for _, p := range []*proc{first, second} {
		p.await(patience, "the program itself", func() bool {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.cmd.Process.Pid))
			return string(b) == "cat\n"
		})
	}
	first.stdin.Close()
	if r := first.wait(patience); r.Code != 0 {
		t.Error(r)
	}
	// Longer than it would stay without a program.
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if _, err := os.Stat(socket); err != nil {
			t.Fatalf("the daemon ended while a program runs: %v", err)
		}
	}
	_ = second.signal(syscall.SIGKILL)
	eventually(t, "the daemon to end, and leave nothing", func() bool {
		left, err := os.ReadDir(dir)
		return err == nil && len(left) == 0
	})
}
