//go:build linux

package guest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// execLab is a daemon whose programs (softnic exec) meet those on the kernel's device.
type execLab struct {
	daemon    *proc
	dev       rxe
	socket    string
	near, far map[bool]netip.Addr // of softnic and of the kernel's device; true: IPv6
	ours      options             // of programs on softnic
	tcp       map[bool]string     // where the client finds the server; true: the server is on softnic
	dump      *capture
}

// execTap has the daemon on a TAP and the kernel's device on the host's side of it. With a name, what passes is
// captured for the judges.
func execTap(t testing.TB, mtu int, name string, flags ...string) *execLab {
	t.Helper()
	l := &execLab{
		near: map[bool]netip.Addr{false: mustAddr(v4[1]), true: mustAddr(v6[1])},
		far:  map[bool]netip.Addr{false: mustAddr(v4[0]), true: mustAddr(v6[0])},
		tcp:  map[bool]string{true: "127.0.0.1", false: "127.0.0.1"},
	}
	if name != "" {
		flags = append(flags, "--plain") // tcpdump has to see packets
	}
	l.run(t, options{}, name, append([]string{"--tap", "sn0", "--mtu", strconv.Itoa(mtu), "--addr", v4[1] + "/24", "--addr", v6[1] + "/64",
		"--host-addr", v4[0] + "/24", "--host-addr", v6[0] + "/64"}, flags...)...)
	l.dev = addRxe(t, "rxe0", "sn0")
	if name != "" {
		l.dump = startCapture(t, options{}, "sn0", name+".pcap", "udp", "port", "4791")
	}
	return l
}

// execUDP has the daemon in UDP mode in a network namespace of its own, across a veth pair.
func execUDP(t testing.TB, name string, as []string, flags ...string) *execLab {
	t.Helper()
	newNetns(t, "far")
	newVeth(t, 1500, vethEnd{Name: "v0", Addrs: []string{"10.9.0.1/24", "fd00:9::1/64"}},
		vethEnd{Name: "v1", Netns: "far", Addrs: []string{"10.9.0.2/24", "fd00:9::2/64"}})
	l := &execLab{
		dev:  addRxe(t, "rxe0", "v0"),
		near: map[bool]netip.Addr{false: mustAddr("10.9.0.2")},
		far:  map[bool]netip.Addr{false: mustAddr("10.9.0.1")},
		ours: options{Netns: "far"},
		tcp:  map[bool]string{true: "10.9.0.2", false: "10.9.0.1"},
	}
	l.run(t, options{Netns: "far", Prefix: as}, name, append([]string{"--udp", "10.9.0.2"}, flags...)...)
	if name != "" {
		l.dump = startCapture(t, options{Netns: "far"}, "v1", name+".pcap", "udp", "port", "4791")
	}
	return l
}

// run starts the daemon. Its socket is where every user may look for it, and its owner may make it.
func (l *execLab) run(t testing.TB, o options, name string, flags ...string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "exec")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o1777); err != nil {
		t.Fatal(err)
	}
	l.socket = filepath.Join(dir, "s")
	l.ours.Prefix = []string{"softnic", "exec", "--socket", l.socket, "--"}
	flags = append([]string{"run", "--socket", l.socket}, flags...)
	if name != "" {
		flags = append(flags, "--packet-log", jobFile(t, name+".log.jsonl"))
	}
	if o.Prefix == nil {
		l.daemon = startSoftnic(t, o, flags...)
	} else {
		l.daemon = start(t, o, append([]string{"softnic"}, flags...)...)
	}
	l.daemon.await(patience, "the line that says it is ready", func() bool { return l.daemon.stdout.String() != "" })
}

// stop ends the lab: the capture is complete, the daemon dropped no packet, except for these reasons, and said nothing,
// and its socket went with it.
func (l *execLab) stop(t testing.TB, drops ...string) {
	t.Helper()
	// After a retransmission: see quietTools. The last one of all may come when the program has ended.
	drops = append(drops, "drop_duplicate", "drop_stale-response", "drop_no-qp", "drop_out-of-sequence")
	if l.dump != nil {
		l.dump.Stop()
	}
	var counted []string
	for name, n := range l.counters(t) {
		if n == 0 {
			continue
		}
		counted = append(counted, fmt.Sprintf("%s=%d", name, n))
		bad := strings.HasPrefix(name, "drop_") || strings.HasPrefix(name, "link_") || strings.HasSuffix(name, "_lost")
		if bad && !slices.Contains(drops, name) {
			t.Errorf("softnic counted %s %d", name, n)
		}
	}
	slices.Sort(counted)
	t.Logf("softnic counted %s", strings.Join(counted, " "))
	if r := stopSoftnic(t, l.daemon); r.Stderr != "" {
		t.Errorf("the daemon complains: %v", r)
	}
	if left, _ := filepath.Glob(filepath.Dir(l.socket) + "/*"); len(left) > 0 {
		t.Errorf("the daemon left %v", left)
	}
}

// counters are those of softnic.
func (l *execLab) counters(t testing.TB) counters {
	t.Helper()
	var answer []map[string]any
	out := run(t, "softnic", "statistic", "show", "link", "--json", "--socket", l.socket)
	if err := json.Unmarshal([]byte(out), &answer); err != nil || len(answer) != 1 {
		t.Fatalf("counters: %v: %s", err, out)
	}
	c := counters{}
	for name, v := range answer[0] {
		if n, ok := v.(float64); ok && name != "port" {
			c[name] = int64(n)
		}
	}
	return c
}

// gidIndex returns where softnic's address is in the GID table that programs see.
func (l *execLab) gidIndex(t testing.TB, addr netip.Addr) int {
	t.Helper()
	for i := range 16 {
		file := fmt.Sprintf("%s.d/sys/class/infiniband/rxe_softnic0/ports/1/gids/%d", l.socket, i)
		if gid, err := netip.ParseAddr(sysfs(file)); err == nil && gid.Unmap() == addr {
			return i
		}
	}
	t.Fatalf("%v is no GID in %s.d", addr, l.socket)
	return 0
}

// match is one run of a stock program against itself: one on softnic, one on the kernel's device.
type match struct {
	argv   []string // but for device, GID and host
	server bool     // softnic's is the server
	ipv6   bool
}

func (m match) String() string {
	s := "client"
	if m.server {
		s = "server"
	}
	if m.ipv6 {
		s += "-ipv6"
	}
	return s + "-" + strings.Join(m.argv, "")
}

// bothRoles is every command twice: softnic's the server, and softnic's the client.
func bothRoles(commands ...string) []match {
	var all []match
	for _, c := range commands {
		all = append(all, match{argv: strings.Fields(c), server: true}, match{argv: strings.Fields(c)})
	}
	return all
}

// playAll plays every match in a subtest of its own.
func (l *execLab) playAll(t *testing.T, matches []match) {
	t.Helper()
	for _, m := range matches {
		t.Run(m.String(), func(t *testing.T) { l.play(t, m) })
	}
}

// play plays a match. When the tool itself was at fault it does so again.
func (l *execLab) play(t testing.TB, m match) {
	t.Helper()
	const attempts = 4
	for range attempts {
		fault := l.attempt(t, m)
		if fault == "" {
			return
		}
		t.Logf("again, because %s", fault)
	}
	t.Errorf("%d attempts", attempts)
}

func (l *execLab) attempt(t testing.TB, m match) (fault string) {
	t.Helper()
	gid := "-g"
	if strings.HasPrefix(m.argv[0], "ib_") {
		gid = "-x"
	}
	command := func(device string, index int) []string {
		return append(slices.Clone(m.argv), "-d", device, gid, strconv.Itoa(index))
	}
	ours := command("rxe_softnic0", l.gidIndex(t, l.near[m.ipv6]))
	theirs := command(l.dev.Name, l.dev.GIDIndex(t, l.far[m.ipv6]))
	serverOptions, server, clientOptions, client := l.ours, ours, options{}, theirs
	if !m.server {
		serverOptions, server, clientOptions, client = clientOptions, client, serverOptions, server
	}
	if gid == "-x" && !slices.Contains(m.argv, "-e") {
		// They poll for as long as they run, on the single processor of daemon and kernel: these first.
		idle := []string{"chrt", "--idle", "0"}
		serverOptions.Prefix = slices.Concat(idle, serverOptions.Prefix)
		clientOptions.Prefix = slices.Concat(idle, clientOptions.Prefix)
	}
	kernel, before := complaints(t), l.dev.Counters(t)
	s := start(t, serverOptions, server...)
	s.WaitListen(18515)
	c := start(t, clientOptions, append(client, l.tcp[m.server])...)
	if m.argv[0] == "ib_send_lat" && slices.Contains(m.argv, "-e") {
		select {
		case <-c.done:
		case <-time.After(patience):
			// It has one completion channel for two completion queues, takes the event of one for that of the other, and
			// sooner or later waits for one that it has had: within some hundred messages also between two programs on the
			// kernel's device.
			c.Stop(syscall.SIGKILL, patience)
			if s.running() {
				s.Stop(syscall.SIGKILL, patience)
			}
			return "ib_send_lat -e waits for an event that it has had"
		}
	}
	cr := c.Wait(2 * time.Minute)
	if cr.Code != 0 {
		time.Sleep(time.Second) // what the server says of it
	} else {
		s.Wait(patience)
	}
	sr := s.result()
	if miscalibrated(sr) || miscalibrated(cr) { // then it fails, or measures nonsense
		if s.running() {
			s.Stop(syscall.SIGKILL, patience)
		}
		return "perftest could not tell how fast the processor's clock is"
	}
	if cr.Code != 0 || sr.Code != 0 {
		t.Fatalf("%v\n%v\nsoftnic: %v", cr, sr, l.counters(t))
	}
	m.judge(t, sr, cr)
	quietTools(t, l.dev.Counters(t).Since(before))
	if after := complaints(t); len(after) > len(kernel) {
		t.Errorf("the kernel complains: %s", strings.Join(after[len(kernel):], "\n"))
	}
	return ""
}

// miscalibrated reports whether perftest gave up since its clock did not run evenly, as happens in an emulator that is
// not given its time.
func miscalibrated(r result) bool {
	return strings.Contains(r.Stdout+r.Stderr, "Correlation coefficient r^2")
}

// judge holds what the programs of a match printed against what they were to do.
func (m match) judge(t testing.TB, server, client result) {
	t.Helper()
	option := func(name, otherwise string) string {
		if i := slices.Index(m.argv, name); i >= 0 {
			return m.argv[i+1]
		}
		return otherwise
	}
	iters := option("-n", "1000")
	if strings.HasPrefix(m.argv[0], "ibv_") {
		for _, r := range []result{server, client} {
			if !strings.Contains(r.Stdout, iters+" iters") {
				t.Errorf("it does not say that it made %s exchanges: %v", iters, r)
			}
		}
		return
	}
	if slices.Contains(m.argv, "-q") {
		iters = strconv.Itoa(atoi(t, iters) * atoi(t, option("-q", "1")))
	}
	size := map[bool]string{true: "2", false: "65536"}[strings.HasSuffix(m.argv[0], "_lat")]
	if strings.HasPrefix(m.argv[0], "ib_atomic_") {
		size = "8"
	}
	sizes := []string{option("-s", size)}
	if slices.Contains(m.argv, "-a") {
		sizes = nil
		for i := 1; i <= 23; i++ {
			sizes = append(sizes, strconv.Itoa(1<<i))
		}
	}
	for _, size := range sizes {
		if !regexp.MustCompile(`(?m)^ *` + size + ` +` + iters + ` +[0-9.]+`).MatchString(client.Stdout) {
			t.Errorf("no measurement of %s times %s bytes: %v", iters, size, client)
		}
	}
}

func atoi(t testing.TB, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// quietTools holds that the kernel's device moved packets and counted no error. The tools' ACK timer is 67 ms, which an
// emulated machine under load may take to answer: what that leads to is only logged.
func quietTools(t testing.TB, moved counters) {
	t.Helper()
	if moved["sent_pkts"] == 0 || moved["rcvd_pkts"] == 0 {
		t.Errorf("nothing went over the wire: %v", moved)
	}
	for name, v := range moved {
		switch name {
		case "sent_pkts", "rcvd_pkts", "rdma_sends", "rdma_recvs", "ack_deferred":
		case "completer_retry_err", "duplicate_request":
			t.Logf("rxe counted %s %d", name, v)
		default:
			t.Errorf("rxe counted %s %d", name, v)
		}
	}
}

// complaints are the lines of the kernel's log that say something went wrong in it.
func complaints(t testing.TB) []string {
	t.Helper()
	var l []string
	for line := range strings.Lines(run(t, "dmesg")) {
		if badKernel.MatchString(line) && !strings.Contains(line, ": non-flush error status = ") { // a completion has one
			l = append(l, strings.TrimSpace(line))
		}
	}
	return l
}

var badKernel = regexp.MustCompile(`WARNING: CPU|BUG:|Oops|blocked for more than|general protection|segfault|rdma_rxe: .*(fail|err)|rxe0: .*(fail|err)`)

// TestExecPingpong plays the stock ibv_rc_pingpong, ibv_ud_pingpong, ibv_uc_pingpong and ibv_srq_pingpong, unmodified at
// both ends: on softnic through softnic exec, and on the kernel's device. Tools prove nothing about data: TestExecData
// does.
func TestExecPingpong(t *testing.T) {
	needGuest(t)
	t.Run("mtu1500", func(t *testing.T) {
		l := execTap(t, 1500, "pingpong")
		l.playAll(t, bothRoles(
			"ibv_rc_pingpong -n 30 -s 1 -c",
			"ibv_rc_pingpong -n 30 -s 1024 -e",
			"ibv_rc_pingpong -n 30 -s 4096 -c",
			"ibv_rc_pingpong -n 30 -s 4096 -e -c",
			"ibv_rc_pingpong -n 10 -s 65536",
			"ibv_ud_pingpong -n 30 -s 1",
			"ibv_ud_pingpong -n 30 -s 1 -e -c",
			"ibv_ud_pingpong -n 30 -s 1024 -c",
			"ibv_ud_pingpong -n 30 -s 1024 -e",
			"ibv_uc_pingpong -n 30 -s 4096 -c",
			"ibv_uc_pingpong -n 30 -s 1 -e",
			"ibv_srq_pingpong -n 64 -s 4096 -c -q 4",
			"ibv_srq_pingpong -n 64 -s 1024 -e -q 4",
		))
		l.playAll(t, []match{
			{argv: strings.Fields("ibv_rc_pingpong -n 30 -s 4096 -c -e"), server: true, ipv6: true},
			{argv: strings.Fields("ibv_ud_pingpong -n 30 -s 1024 -c"), ipv6: true},
		})
		l.stop(t)
	})
	t.Run("mtu4200", func(t *testing.T) {
		l := execTap(t, 4200, "pingpong")
		l.playAll(t, bothRoles(
			"ibv_rc_pingpong -n 30 -m 4096 -s 1 -e -c",
			"ibv_rc_pingpong -n 30 -m 4096 -s 1024",
			"ibv_rc_pingpong -n 30 -m 2048 -s 4096 -e",
			"ibv_rc_pingpong -n 10 -m 4096 -s 65536 -e -c",
			"ibv_ud_pingpong -n 30 -s 4096 -c",
			"ibv_ud_pingpong -n 30 -s 4096 -e -c",
		))
		l.stop(t)
	})
	t.Run("large", func(t *testing.T) { // not captured
		l := execTap(t, 4200, "")
		l.playAll(t, bothRoles(
			"ibv_rc_pingpong -n 5 -m 1024 -s 1048576 -e -c",
			"ibv_rc_pingpong -n 5 -m 4096 -s 1048576 -c",
		))
		l.stop(t)
	})
}

// TestExecPerftest runs the stock perftest, with softnic as the server and as the client.
func TestExecPerftest(t *testing.T) {
	needGuest(t)
	t.Run("small", func(t *testing.T) {
		l := execTap(t, 1500, "perftest")
		l.playAll(t, bothRoles(
			"ib_send_bw -n 20",
			"ib_write_bw -n 20",
			"ib_read_bw -n 20",
			"ib_send_lat -n 50",
			"ib_write_lat -n 50",
			"ib_read_lat -n 50",
			"ib_atomic_bw -n 20 -A FETCH_AND_ADD",
			"ib_atomic_bw -n 20 -A CMP_AND_SWAP",
			"ib_atomic_lat -n 50 -A FETCH_AND_ADD",
			"ib_atomic_lat -n 50 -A CMP_AND_SWAP",
		))
		l.stop(t)
	})
	t.Run("events", func(t *testing.T) {
		l := execTap(t, 4200, "perftest")
		l.playAll(t, bothRoles(
			"ib_send_bw -n 100 -e -s 4096",
			"ib_read_bw -n 20 -e",
			"ib_send_lat -n 20 -e",
			"ib_read_lat -n 50 -e",
		))
		l.stop(t)
	})
	// From here on there is so much in flight that the ACK timer is a second: -u 18.
	t.Run("queues", func(t *testing.T) {
		l := execTap(t, 4200, "perftest")
		l.playAll(t, bothRoles(
			"ib_send_bw -n 5 -q 8 -u 18 -m 1024",
			"ib_write_bw -n 5 -q 8 -u 18",
			"ib_read_bw -n 5 -q 8 -u 18",
		))
		l.stop(t)
	})
	t.Run("all", func(t *testing.T) { // not captured
		l := execTap(t, 4200, "")
		// Each tool in one role and each role with three, which saves two minutes.
		for i, tool := range []string{"ib_send_bw", "ib_write_bw", "ib_read_bw", "ib_write_lat", "ib_read_lat", "ib_send_lat"} {
			l.playAll(t, []match{{argv: []string{tool, "-n", "5", "-u", "18", "-a"}, server: i%2 == 0}})
		}
		l.stop(t)
	})
}

// TestExecUDP is some of both with softnic in UDP mode, in a network namespace across a veth pair.
func TestExecUDP(t *testing.T) {
	needGuest(t)
	l := execUDP(t, "udp", nil)
	l.playAll(t, bothRoles(
		"ibv_rc_pingpong -n 30 -s 4096 -c",
		"ibv_ud_pingpong -n 30 -s 1024 -e",
		"ib_write_bw -n 20",
	))
	l.stop(t)
}

// as runs a command as a user and group that own nothing.
func as(uid, gid int) []string {
	return []string{"setpriv", fmt.Sprintf("--reuid=%d", uid), fmt.Sprintf("--regid=%d", gid), "--clear-groups"}
}

// TestExecUser has programs that are not root's: on a daemon of root, of their own user and of another, and in a user
// and pid namespace of their own.
func TestExecUser(t *testing.T) {
	needGuest(t)
	unshare := []string{"unshare", "--user", "--map-current-user", "--pid", "--fork"}
	commands := []string{"ibv_rc_pingpong -n 30 -s 4096 -c -e", "ib_read_bw -n 20"}
	t.Run("root", func(t *testing.T) {
		l := execTap(t, 1500, "user", "--socket-group", "1000")
		exec := l.ours.Prefix
		l.ours.Prefix = slices.Concat(as(1000, 1000), exec)
		l.playAll(t, bothRoles(commands...))
		t.Run("unshare", func(t *testing.T) {
			l.ours.Prefix = slices.Concat(as(1000, 1000), unshare, exec)
			l.playAll(t, append(bothRoles(commands[0]), match{argv: strings.Fields(commands[1])}))
		})
		t.Run("group", func(t *testing.T) { // a user whom the daemon does not serve
			o := options{Prefix: slices.Concat(as(1001, 1001), exec)}
			if r := tool(t, o, "ibv_devinfo"); r.Code == 0 || !strings.Contains(r.Stderr, "softnic:") {
				t.Errorf("want a refusal that says why: %v", r)
			}
		})
		l.stop(t)
	})
	for _, daemon := range []struct {
		name string
		uid  int
	}{{"own", 1000}, {"other", 1001}} {
		t.Run(daemon.name, func(t *testing.T) {
			l := execUDP(t, "", as(daemon.uid, 1000), "--socket-mode", "0660")
			exec := l.ours.Prefix
			l.ours.Prefix = slices.Concat(as(1000, 1000), exec)
			l.playAll(t, bothRoles(commands[0]))
			t.Run("unshare", func(t *testing.T) {
				l.ours.Prefix = slices.Concat(as(1000, 1000), unshare, exec)
				l.playAll(t, bothRoles(commands[0]))
			})
			l.stop(t)
		})
	}
}
