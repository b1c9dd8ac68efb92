package device

import (
	"math"

	"github.com/softnic/softnic/link"
	"github.com/softnic/softnic/stats"
	"github.com/softnic/softnic/wire"
)

// follow takes over what changed at the link: addresses, MTU, carrier. Who watches hears of it before the contexts do: what
// a program looks at when it gets an event must be new by then.
func (d *Device) follow() {
	d.following.Lock()
	defer d.following.Unlock()
	info := d.port.Info()
	d.mu.Lock()
	old := d.gids.Load()
	t := old.next(info)
	d.gids.Store(t)
	events := d.portEvents(&info)
	if t.entries != old.entries && !d.failed {
		events = append(events, EventGIDChange)
	}
	told := keysOf(d.contexts) // a later one finds what is now
	d.mu.Unlock()
	d.port.SetLocal(t.addrs())
	d.mtu.Store(int32(ActiveMTU(info.MTU)))
	for _, q := range d.allQPs() {
		if m := d.longest(q.typ); m != 0 {
			q.mu.Lock()
			q.attr.PathMTU = m
			q.mu.Unlock()
		}
	}
	d.tellWatchers()
	for _, e := range events {
		d.log.Debug("event", "port", 1, "event", e.String())
		for _, c := range told {
			c.async.add(AsyncEvent{Type: e, Port: 1})
		}
	}
}

// portEvents makes the state of the link that of the port, and returns what contexts are to be told: each time that it
// went down, and came up, also where nobody looked in between. Device.mu is held.
func (d *Device) portEvents(info *link.Info) (l []EventType) {
	was, up := d.up.Load(), info.Up
	downs := info.Downs - d.downs
	d.downs = info.Downs
	if d.failed {
		return nil
	}
	if was && !up {
		downs = max(downs, 1) // an endpoint that does not count
	}
	d.up.Store(up)
	d.counters.Add(stats.LinkDowned, downs)
	for range downs {
		if !was {
			l = append(l, EventPortActive)
		}
		l = append(l, EventPortErr)
		was = false
	}
	if up && !was {
		l = append(l, EventPortActive)
	}
	return l
}

// deaf tells every context that the link has failed, unless the device is being closed. The port is down from then on.
func (d *Device) deaf(err error) {
	d.mu.Lock()
	if d.closed || d.failed {
		d.mu.Unlock()
		return
	}
	d.failed = true
	d.up.Store(false)
	told := keysOf(d.contexts)
	d.mu.Unlock()
	d.log.Debug("the link failed", "device", d.name, "err", err)
	d.tellWatchers()
	for _, c := range told {
		c.async.add(AsyncEvent{Type: EventDeviceFatal})
	}
}

// Watch has f called, on a goroutine of the link, after the addresses, the MTU or the state of the port have changed, until
// stop is called. f must not call Watch or stop. Programs have events for that: Context.AsyncEvent.
func (d *Device) Watch(f func()) (stop func()) {
	d.watchMu.Lock()
	defer d.watchMu.Unlock()
	if d.watchers == nil {
		d.watchers = map[*func()]struct{}{}
	}
	d.watchers[&f] = struct{}{}
	return func() {
		d.watchMu.Lock()
		defer d.watchMu.Unlock()
		delete(d.watchers, &f)
	}
}

func (d *Device) tellWatchers() {
	d.watchMu.Lock()
	defer d.watchMu.Unlock()
	for f := range d.watchers {
		(*f)()
	}
}

// QueryPort describes the port (ibv_query_port), which is 1: another is EINVAL. The state is PortActive from EventPortActive to
// EventPortErr or EventDeviceFatal.
func (d *Device) QueryPort(port int) (PortAttr, error) {
	if port != 1 {
		return PortAttr{}, &OpError{"query_port", d.name, because(EINVAL, "port %d: the device has port 1", port)}
	}
	info := d.port.Info()
	count := func(f wire.Fault) int { return int(min(d.counters.Drops(int(f)), math.MaxUint16)) }
	a := PortAttr{
		State: PortDown, MaxMTU: 4096, ActiveMTU: int(d.mtu.Load()), LinkMTU: info.MTU, GIDs: GIDTableLen, PKeys: len(d.pkeys),
		BadPKeys: count(wire.PKey), BadQKeys: count(wire.QKey), Netdev: info.Netdev, Link: info.Name, IDRule: info.IDRule,
	}
	if d.up.Load() {
		a.State = PortActive
	}
	return a, nil
}

// QueryGID returns an entry of the port's GID table (ibv_query_gid); an unused
// one is zero. EINVAL: another port than 1, an index that is not 0 ... GIDTableLen-1. EventGIDChange tells that the table is another.
func (d *Device) QueryGID(port, index int) (GID, error) {
	if port != 1 || index < 0 || index >= GIDTableLen {
		return GID{}, &OpError{"query_gid", d.name, because(EINVAL, "port %d index %d: port 1 has %d entries", port, index, GIDTableLen)}
	}
	return d.gids.Load().entries[index], nil
}
