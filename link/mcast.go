package link

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
)

// Multicaster is an Endpoint that can receive from multicast groups. One that is not is sent
// multicast packets like any other, and brings in what it pleases.
//
// The port calls Join and Leave one at a time, at any moment between Open and Close.
type Multicaster interface {
	// Join has packets to a group come in from now on: by Recv, or, where the endpoint
	// receives them otherwise, by in. What the endpoint itself sent never comes in.
	Join(group netip.Addr, in *Queue) error
	// Leave ends that.
	Leave(group netip.Addr) error
}

// Wrapper is an Endpoint around another. What that one can do beyond Endpoint, and the wrapper cannot, the port asks it
// for.
type Wrapper interface {
	// Unwrap returns that one.
	Unwrap() Endpoint
}

// ability returns an endpoint, or one that it wraps, as an interface beyond Endpoint.
func ability[T any](ep Endpoint) (t T, ok bool) {
	for ep != nil {
		if t, ok = ep.(T); ok {
			return t, true
		}
		w, wraps := ep.(Wrapper)
		if !wraps {
			break
		}
		ep = w.Unwrap()
	}
	return t, false
}

// groups are the multicast groups that the device listens to.
type groups struct {
	change sync.Mutex   // one Join or Leave at a time
	mu     sync.RWMutex // guards set
	set    map[netip.Addr]struct{}
}

func (g *groups) has(a netip.Addr) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	_, ok := g.set[a]
	return ok
}

// Join makes the device a listener of a multicast group: packets to it are received from the
// link, and what the device itself sends to the group goes to the loop as well as to the wire. It
// does nothing if the group has been joined. It fails for what is no group, with errors.ErrUnsupported where
// the link cannot receive groups on this system (link/udp), and with what the host says against it.
func (p *Port) Join(group netip.Addr) error {
	if !group.IsMulticast() || group.Is4In6() || group.Zone() != "" {
		return fmt.Errorf("%v is no multicast group", group)
	}
	g := &p.groups
	g.change.Lock()
	defer g.change.Unlock()
	if g.has(group) {
		return nil
	}
	if m, ok := ability[Multicaster](p.ep); ok {
		if err := m.Join(group, p.loop); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.set == nil {
		g.set = map[netip.Addr]struct{}{}
	}
	g.set[group] = struct{}{}
	return nil
}

// Leave is the reverse of Join. It fails where the group was not joined.
func (p *Port) Leave(group netip.Addr) error {
	g := &p.groups
	g.change.Lock()
	defer g.change.Unlock()
	if !g.has(group) {
		return errors.New("the group was not joined")
	}
	g.mu.Lock()
	delete(g.set, group)
	g.mu.Unlock()
	if m, ok := ability[Multicaster](p.ep); ok {
		return m.Leave(group)
	}
	return nil
}

// GroupMAC returns the Ethernet address of a multicast group: 01:00:5e and 23 bits of an IPv4
// one (RFC 1112 section 6.4), 33:33 and 32 bits of an IPv6 one (RFC 2464 section 7).
func GroupMAC(group netip.Addr) [6]byte {
	if group.Is4() {
		b := group.As4()
		return [6]byte{0x01, 0x00, 0x5E, b[1] & 0x7F, b[2], b[3]}
	}
	b := group.As16()
	return [6]byte{0x33, 0x33, b[12], b[13], b[14], b[15]}
}
