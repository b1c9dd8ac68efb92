package udp

import (
	"bufio"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// portHolder says who has a port, and what to do about it.
func portHolder(addr netip.AddrPort) string {
	inode := portInode(addr)
	if inode != "" {
		if pid, name, hidden := socketOwner(inode); pid != "" {
			return fmt.Sprintf("%s (pid %s): stop it or use another address", name, pid)
		} else if hidden {
			return "a program of another user or by the kernel (rdma_rxe holds it for the whole host when loaded): " +
				"stop it, or run in another network namespace, or use --tap"
		}
	}
	return "the kernel (rdma_rxe holds it for the whole host when loaded): run in another network namespace or use --tap"
}

// portInode returns the inode of the socket that occupies a port, from the kernel's tables.
func portInode(addr netip.AddrPort) string {
	for _, table := range []string{"/proc/net/udp", "/proc/net/udp6"} {
		f, err := os.Open(table)
		if err != nil {
			continue
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			c := strings.Fields(s.Text())
			if len(c) < 10 {
				continue
			}
			a, ok := tableAddr(c[1])
			if !ok || a.Port() != addr.Port() {
				continue
			}
			// [::] takes the port from IPv4 too, 0.0.0.0 does not from IPv6
			if a.Addr() == addr.Addr().WithZone("") || a.Addr() == netip.IPv6Unspecified() ||
				a.Addr() == netip.IPv4Unspecified() && addr.Addr().Is4() {
				return c[9]
			}
		}
	}
	return ""
}

// tableAddr reads an address of /proc/net/udp and udp6: words in the host's byte order, hexadecimal.
func tableAddr(s string) (netip.AddrPort, bool) {
	host, port, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(host)
	n, err2 := strconv.ParseUint(port, 16, 16)
	if err != nil || err2 != nil || len(b)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for w := b; len(w) > 0; w = w[4:] {
		binary.NativeEndian.PutUint32(w, binary.BigEndian.Uint32(w))
	}
	a, ok := netip.AddrFromSlice(b)
	return netip.AddrPortFrom(a, uint16(n)), ok
}

// socketOwner finds a process that has the socket open. hidden tells that there were
// processes which this user may not look into.
func socketOwner(inode string) (pid, name string, hidden bool) {
	link := "socket:[" + inode + "]"
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, p := range procs {
		fds, err := os.ReadDir(p + "/fd")
		if errors.Is(err, fs.ErrPermission) {
			hidden = true
		}
		for _, fd := range fds {
			if l, _ := os.Readlink(p + "/fd/" + fd.Name()); l == link {
				comm, _ := os.ReadFile(p + "/comm")
				return filepath.Base(p), strings.TrimSpace(string(comm)), false
			}
		}
	}
	return "", "", hidden
}
