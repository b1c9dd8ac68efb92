package cases

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/interop/peer"
	"github.com/softnic/softnic/link"
)

// portEvents takes the asynchronous events of a context, IBV_EVENT_ left out; each must be of the port, and of nothing else.
func portEvents(t *testing.T, c *device.Context) string {
	t.Helper()
	synctest.Wait()
	var got []string
	for {
		e, ok := c.TryAsyncEvent()
		if !ok {
			return strings.Join(got, " ")
		}
		if want := (device.AsyncEvent{Type: e.Type, Port: 1}); e != want || !e.Type.Unaffiliated() {
			t.Errorf("%s of %+v", e.Type, e)
		}
		got = append(got, strings.TrimPrefix(e.Type.String(), "IBV_EVENT_"))
	}
}

// Each change of the port is one event for each context, and what is asked then is what the event said.
func TestPortEvents(t *testing.T) {
	up := func(on bool) func(*link.Info) { return func(i *link.Info) { i.Up = on } }
	addrs := func(l ...string) func(*link.Info) {
		return func(i *link.Info) {
			i.Addrs = nil
			for _, a := range l {
				i.Addrs = append(i.Addrs, netip.MustParsePrefix(a))
			}
		}
	}
	type step = []func(*link.Info) // at once, with nobody looking in between
	for _, v := range []struct {
		name  string
		steps []step
		want  []string
		downs int
		state device.PortState
	}{
		{"down", []step{{up(false)}}, []string{"PORT_ERR"}, 1, device.PortDown},
		{"down, and told once more", []step{{up(false)}, {up(false)}}, []string{"PORT_ERR", ""}, 1, device.PortDown},
		{"up, and it was", []step{{up(true)}}, []string{""}, 0, device.PortActive},
		{"down and up", []step{{up(false)}, {up(true)}}, []string{"PORT_ERR", "PORT_ACTIVE"}, 1, device.PortActive},
		{"down and up, seen late", []step{{up(false), up(true)}}, []string{"PORT_ERR PORT_ACTIVE"}, 1, device.PortActive},
		{"three times, seen late", []step{{up(false), up(true), up(false), up(true), up(false)}}, []string{"PORT_ERR PORT_ACTIVE PORT_ERR PORT_ACTIVE PORT_ERR"}, 3, device.PortDown},
		{"up and down, seen late", []step{{up(false)}, {up(true), up(false)}}, []string{"PORT_ERR", "PORT_ACTIVE PORT_ERR"}, 2, device.PortDown},
		{"the MTU", []step{{func(i *link.Info) { i.MTU = 1500 }}}, []string{""}, 0, device.PortActive},
		{"an address more", []step{{addrs("192.0.2.2/24", "2001:db8::2/64", "192.0.2.9/24", "192.0.2.10/24")}}, []string{"GID_CHANGE"}, 0, device.PortActive},
		{"an address less, then back", []step{{addrs("192.0.2.2/24", "2001:db8::2/64")}, {addrs("192.0.2.2/24", "2001:db8::2/64", "192.0.2.9/24")}}, []string{"GID_CHANGE", "GID_CHANGE"}, 0, device.PortActive},
		{"none left", []step{{addrs()}}, []string{"GID_CHANGE"}, 0, device.PortActive},
		{"another order of the same", []step{{addrs("192.0.2.9/24", "192.0.2.2/24", "2001:db8::2/64")}}, []string{""}, 0, device.PortActive},
		{"another prefix length", []step{{addrs("192.0.2.2/16", "2001:db8::2/64", "192.0.2.9/24")}}, []string{""}, 0, device.PortActive},
		{"state and addresses at once", []step{{func(i *link.Info) { up(false)(i); addrs("192.0.2.7/24")(i) }}}, []string{"PORT_ERR GID_CHANGE"}, 1, device.PortDown},
	} {
		bubble(t, v.name, func(t *testing.T) {
			l := newLab(t, labConfig{})
			other := l.dev.NewContext()
			var sunk []string
			l.dev.NewContext().OnAsyncEvent(func(e device.AsyncEvent) { sunk = append(sunk, e.Type.String()) })
			gone := l.dev.NewContext()
			gone.Close()
			watched := 0
			defer l.dev.Watch(func() {
				if watched++; watched == 1 && len(sunk) > 0 {
					t.Error("who watches was told after the contexts")
				}
			})()
			var all []string
			for i, s := range v.steps {
				l.end.Change(func(i *link.Info) {
					for _, f := range s[:1] {
						f(i)
					}
				})
				for _, f := range s[1:] {
					l.end.Change(f)
				}
				want(t, "events", portEvents(t, l.ctx), v.want[i])
				want(t, "events of another context", portEvents(t, other), v.want[i])
				if v.want[i] != "" {
					all = append(all, v.want[i])
				}
			}
			want(t, "events that were handed over", strings.ReplaceAll(strings.Join(sunk, " "), "IBV_EVENT_", ""), strings.Join(all, " "))
			want(t, "events of a closed context", portEvents(t, gone), "")
			want(t, "events of a new context", portEvents(t, l.dev.NewContext()), "")
			want(t, "state", must(l.dev.QueryPort(1)).State, v.state)
			l.counts(fmt.Sprintf("link_downed=%d", v.downs))
			if watched == 0 {
				t.Error("who watches was not told")
			}
		})
	}
}

// The events of before are handed over first, in their order.
func TestPortEventsHandedOver(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		l.end.Change(func(i *link.Info) { i.Up = false })
		l.settle()
		got := ""
		l.ctx.OnAsyncEvent(func(e device.AsyncEvent) { got += " " + e.Type.String() })
		l.end.Change(func(i *link.Info) { i.Up = true })
		l.settle()
		want(t, "events", got, " IBV_EVENT_PORT_ERR IBV_EVENT_PORT_ACTIVE")
		want(t, "events on the list", portEvents(t, l.ctx), "")
	})
}

// While the link is down a connection asks in vain; it goes on when the link is back within its retries.
func TestPortDownTraffic(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		c := l.rc(nil)
		mr := l.mr(64, all)
		l.end.Change(func(i *link.Info) { i.Up = false })
		l.settle()
		c.send(mr, 64)
		l.emits()
		l.end.Change(func(i *link.Info) { i.Up = true })
		time.Sleep(80 * time.Millisecond)
		l.emits("SEND_ONLY 000100 ar [64]")
		c.gets(ack(0x100, 1))
		c.sent("1 SUCCESS SEND 64")
		want(t, "events", portEvents(t, l.ctx), "PORT_ERR PORT_ACTIVE")
	})
}

// When GID_CHANGE is told the new address is in the table and receives, and one that has gone does not.
func TestGIDChange(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		fresh := netip.MustParseAddr("192.0.2.10")
		l := newLab(t, labConfig{})
		u := l.ud(device.StateRTS)
		mr := l.mr(400, all)
		for i := range uint64(3) {
			u.recv(i, mr.SGE(0, 100))
		}
		say := func(to netip.Addr) {
			peer.New(l.conn, peer4, to).Send(t, peer.UDSend(udQP, 0, qkey, peerUD, []byte("hi!!")))
			l.settle()
		}
		say(fresh)
		want(t, "drops", l.drops(), "no-address=1")
		l.end.Change(func(i *link.Info) { i.Addrs[2] = netip.PrefixFrom(fresh, 24) })
		want(t, "events", portEvents(t, l.ctx), "GID_CHANGE")
		var table []string
		for i := range device.GIDTableLen {
			if g := must(l.dev.QueryGID(1, i)); !g.IsZero() {
				table = append(table, fmt.Sprint(i, " ", g.Addr()))
			}
		}
		want(t, "table", strings.Join(table[1:], ", "), "1 192.0.2.2, 2 2001:db8::2, 3 192.0.2.10")
		say(fresh)
		u.received("0 SUCCESS RECV 44")
		say(nic4b)
		u.received()
		want(t, "drops", l.drops(), "no-address=2")
	})
}

// A link that has failed is one event, and the last: the port is down, whatever else is said of the link.
func TestPortFatal(t *testing.T) {
	bubble(t, "", func(t *testing.T) {
		l := newLab(t, labConfig{})
		l.end.Close()
		synctest.Wait()
		want(t, "state", must(l.dev.QueryPort(1)).State, device.PortDown)
		l.end.Change(func(i *link.Info) { i.Up = false })
		synctest.Wait()
		l.end.Change(func(i *link.Info) { i.Up, i.Addrs = true, nil })
		synctest.Wait()
		want(t, "state", must(l.dev.QueryPort(1)).State, device.PortDown)
		e, ok := l.ctx.TryAsyncEvent()
		if want := (device.AsyncEvent{Type: device.EventDeviceFatal}); !ok || e != want {
			t.Fatalf("%+v %v", e, ok)
		}
		want(t, "more events", portEvents(t, l.ctx), "")
	})
}
