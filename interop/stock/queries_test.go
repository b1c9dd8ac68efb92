//go:build linux

package stock

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
)

type gidEntry struct {
	GID           string
	Index, Port   int
	Type, IfIndex int
}

// TestQueries asks what a program may ask about the device, in the extended form too.
func TestQueries(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	a := startAgent(t, d, d.exec())

	t.Run("device", func(t *testing.T) {
		var dev struct {
			Same               []bool
			Names              []string
			Flags              uint64
			PlainFlags         uint32 `json:"plain_flags"`
			Ports              int
			TSO, Tags, DM, ODP int
		}
		a.call(&dev, "query_device_ex", nil)
		for i, same := range dev.Same {
			if !same {
				t.Errorf("%s is another one in the extended form", dev.Names[i])
			}
		}
		if len(dev.Same) < 30 || dev.Ports != 1 || uint32(dev.Flags) != dev.PlainFlags || dev.TSO|dev.Tags|dev.DM|dev.ODP != 0 {
			t.Errorf("%+v", dev)
		}
	})

	t.Run("port", func(t *testing.T) {
		var port struct {
			State, MTU int
			MaxMTU     int `json:"max_mtu"`
			GIDs       int
			PKeys      int
			MaxMsg     uint32 `json:"max_msg"`
			Layer, LID int
		}
		a.call(&port, "query_port", args{"port": 1})
		if port.State != 4 || port.MTU != 5 || port.MaxMTU != 5 || port.MaxMsg != 1<<31 || port.Layer != 2 || port.LID != 0 || port.PKeys != 1 {
			t.Errorf("%+v: want it active, MTU 4096, Ethernet, messages of 2 GiB", port)
		}

		// The table, by the ways that there are.
		var table, single struct{ GIDs []gidEntry }
		a.call(&table, "query_gids", args{"most": port.GIDs})
		lo, err := net.InterfaceByName("lo")
		if err != nil {
			t.Fatal(err)
		}
		if len(table.GIDs) != 2 || table.GIDs[1].GID != d.gid() || !strings.HasPrefix(table.GIDs[0].GID, "fe80:") {
			t.Fatalf("GIDs %+v, want a link-local one and %s", table.GIDs, d.gid())
		}
		const roceV2 = 2
		for i, g := range table.GIDs {
			if g.Index != i || g.Port != 1 || g.Type != roceV2 || g.IfIndex != lo.Index {
				t.Errorf("GID %d: %+v", i, g)
			}
			a.call(&single, "query_gid_ex", args{"port": 1, "index": i})
			if fmt.Sprint(single.GIDs) != fmt.Sprint([]gidEntry{g}) {
				t.Errorf("GID %d alone is %+v, in the table %+v", i, single.GIDs, g)
			}
		}
		for i := range port.GIDs {
			var plain struct{ GID string }
			a.call(&plain, "query_gid", args{"port": 1, "index": i})
			want := netip.IPv6Unspecified().StringExpanded()
			if i < len(table.GIDs) {
				want = table.GIDs[i].GID
			}
			if plain.GID != want {
				t.Errorf("GID %d is %s, want %s", i, plain.GID, want)
			}
		}
		var pkey struct{ PKey int }
		a.call(&pkey, "query_pkey", args{"port": 1, "index": 0})
		if pkey.PKey != 0xFFFF {
			t.Errorf("P_Key %#x", pkey.PKey)
		}

		for _, c := range []struct {
			verb string
			args args
			want syscall.Errno // 0: a library that says no more than that it failed
		}{
			{"query_gid_ex", args{"port": 1, "index": 2}, syscall.ENODATA},
			{"query_gid_ex", args{"port": 1, "index": port.GIDs}, syscall.EINVAL},
			{"query_gid_ex", args{"port": 2, "index": 0}, syscall.EINVAL},
			{"query_gid", args{"port": 1, "index": port.GIDs}, 0},
			{"query_gid", args{"port": 2, "index": 0}, 0},
			{"query_gids", args{"most": 1}, syscall.EINVAL},
			{"query_gids", args{"most": 0}, syscall.EINVAL},
			{"query_pkey", args{"port": 1, "index": port.PKeys}, 0},
			{"query_pkey", args{"port": 2, "index": 0}, 0},
			{"query_port", args{"port": 0}, syscall.EINVAL},
			{"query_port", args{"port": 255}, syscall.EINVAL},
		} {
			f := a.try(nil, c.verb, c.args)
			if f.Error == "" || c.want != 0 && max(f.Errno, -f.Errno) != int(c.want) {
				t.Errorf("%s %v: %+v, want errno %d (%v)", c.verb, c.args, f, c.want, c.want)
			}
		}
	})
	a.quit()
	d.free()
}

// Commands of the write interface (enum ib_uverbs_write_cmds), for what libraries never ask.
const (
	cmdDeallocPD = 4
	cmdDestroyAH = 8
	cmdDeregMR   = 13
	cmdDeallocMW = 16
	cmdDestroyCQ = 20
	cmdDestroyQP = 27
)

// TestDestruction has what is destroyed twice, what is not there, and what is in use.
func TestDestruction(t *testing.T) {
	needStock(t)
	d := startDaemon(t, daemonOptions{})
	a := startAgent(t, d, d.exec())
	command := func(number int, words ...uint32) syscall.Errno {
		t.Helper()
		body := ""
		for _, w := range words {
			body += fmt.Sprintf("%02x%02x%02x%02x", byte(w), byte(w>>8), byte(w>>16), byte(w>>24))
		}
		var answer struct{ Code syscall.Errno }
		a.call(&answer, "command", args{"number": number, "body": body})
		return answer.Code
	}
	want := func(what string, got, want syscall.Errno) {
		t.Helper()
		if got != want {
			t.Errorf("%s: errno %d (%v), want %d (%v)", what, got, got, want, want)
		}
	}
	handle := func(id int) uint32 {
		t.Helper()
		var answer struct{ Handle uint32 }
		a.call(&answer, "handle", args{"obj": id})
		return answer.Handle
	}

	pd := a.create("alloc_pd", nil)
	gone := handle(pd)
	a.call(nil, "destroy", args{"ids": []int{pd}})
	want("a domain destroyed twice", command(cmdDeallocPD, gone), syscall.ENOENT)
	m := a.regMR(64, everyAccess)
	gone = handle(m.ID)
	want("a region as a domain", command(cmdDeallocPD, gone), syscall.EINVAL)
	w := a.window(1)
	want("a window as a region", command(cmdDeregMR, handle(w.ID)), syscall.EINVAL)
	windowGone := handle(w.ID)
	w.dealloc()
	want("a window destroyed twice", command(cmdDeallocMW, windowGone), syscall.ENOENT)
	a.call(nil, "destroy", args{"ids": []int{m.ID}})
	want("a region destroyed twice", command(cmdDeregMR, gone), syscall.ENOENT)
	for _, number := range []int{cmdDeallocPD, cmdDestroyAH, cmdDeregMR, cmdDeallocMW} {
		want(fmt.Sprint("command ", number, " of what never was"), command(number, 0x7FFFFFFF), syscall.ENOENT)
	}
	for _, number := range []int{cmdDestroyCQ, cmdDestroyQP} {
		want(fmt.Sprint("command ", number, " without an answer's place"), command(number, 0, 0, 0x7FFFFFFF, 0), syscall.ENOSPC)
	}

	cq := a.create("create_cq", args{"depth": 16})
	q := a.createQPOn("RC", cq, cq)
	var busy struct{ Codes map[string]int }
	a.call(&busy, "busy", args{"qp": q.ID})
	if want := map[string]int{"pd": 16, "send cq": 16, "receive cq": 16}; fmt.Sprint(busy.Codes) != fmt.Sprint(want) {
		t.Errorf("destroyed while a queue pair uses them: %v, want %v (EBUSY)", busy.Codes, want)
	}
	q.init() // it has taken no harm
	a.call(nil, "destroy", args{"ids": []int{q.ID, cq}})
	a.quit()
	d.free()
}
