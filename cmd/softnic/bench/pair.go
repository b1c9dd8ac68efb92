package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"sync"

	"github.com/softnic/softnic/cmd/softnic/nic"
	"github.com/softnic/softnic/device"
	"github.com/softnic/softnic/link/pipe"
)

// The links of a pair.
const (
	LinkUDP  = "udp"  // two sockets on the loopback network
	LinkPipe = "pipe" // memory, within one process
	LinkTAP  = "tap"  // two TAP interfaces on a bridge
)

// The NICs of a pair: the addresses belong to nobody else here, so that a NIC of the user's own is not in the way.
var pairFlags = map[string][2]nic.Flags{
	LinkUDP: {{UDP: "127.0.17.1"}, {UDP: "127.0.17.2"}},
	LinkTAP: {
		{TAP: "snbench0", Addrs: []string{"10.117.17.1/24"}, MTU: 4200},
		{TAP: "snbench1", Addrs: []string{"10.117.17.2/24"}, MTU: 4200},
	},
}

const bridgeName = "snbench"

// Pair is two NICs with a link between them, on this machine.
type Pair struct {
	Device *device.Device // that of the measuring side
	Other  io.ReadWriter  // where the other side is served
	ends   []func() error // in reverse order
}

// PairOptions say what pair.
type PairOptions struct {
	Link    string    // LinkUDP, LinkPipe, LinkTAP
	Program string    // the softnic that serves the other side in a process of its own, as `Program bench serve --stdio`; "": a goroutine here
	Stderr  io.Writer // of that process, and for the log
	Profile string    // file for that process's CPU profile; "": none
}

// OpenPair opens a pair. The other side is served until Close.
func OpenPair(o PairOptions) (p *Pair, err error) {
	p = &Pair{}
	defer func() {
		if err != nil {
			_ = p.Close()
			p = nil
		}
	}()
	flags, real := pairFlags[o.Link]
	switch {
	case o.Link == LinkPipe && o.Program == "":
		return p, p.openPipe()
	case o.Link == LinkPipe:
		return p, errors.New("--two --link pipe: memory is within one process")
	case !real:
		return p, fmt.Errorf("--link %s: want udp, pipe or tap", o.Link)
	}
	here, err := flags[0].Open(o.Stderr)
	if err != nil {
		return p, err
	}
	p.Device = here.Device
	p.ends = append(p.ends, closeNIC(here))
	if o.Program != "" {
		err = p.start(o, flags[1])
	} else {
		var there *nic.NIC
		if there, err = flags[1].Open(o.Stderr); err == nil {
			p.ends = append(p.ends, closeNIC(there))
			p.serve(there.Device)
		}
	}
	if err == nil && o.Link == LinkTAP {
		err = p.bridge(flags[0].TAP, flags[1].TAP)
	}
	return p, err
}

// Close ends the other side, and closes both NICs.
func (p *Pair) Close() error {
	var errs []error
	for i := len(p.ends) - 1; i >= 0; i-- {
		errs = append(errs, p.ends[i]())
	}
	p.ends = nil
	return errors.Join(errs...)
}

func closeNIC(n *nic.NIC) func() error {
	return func() error {
		warning, err := n.Close()
		if warning != "" {
			err = errors.Join(err, errors.New(warning))
		}
		return err
	}
}

func (p *Pair) openPipe() error {
	prefix := func(s string) []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix(s)} }
	x, y := pipe.New(pipe.Config{Addrs: prefix("10.117.17.1/24")}, pipe.Config{Addrs: prefix("10.117.17.2/24")})
	a, err := device.Open(x, device.Options{})
	if err != nil {
		return err
	}
	p.Device = a
	p.ends = append(p.ends, a.Close)
	b, err := device.Open(y, device.Options{})
	if err != nil {
		return err
	}
	p.ends = append(p.ends, b.Close)
	p.serve(b)
	return nil
}

// serve serves the other side in this process.
func (p *Pair) serve(d *device.Device) {
	near, far := net.Pipe()
	p.Other = near
	var done sync.WaitGroup
	done.Go(func() {
		_ = Serve(context.Background(), d, far) // the measuring side is told what fails there
		far.Close()
	})
	p.ends = append(p.ends, func() error {
		near.Close()
		done.Wait()
		return nil
	})
}

// start serves the other side in a process of its own.
func (p *Pair) start(o PairOptions, f nic.Flags) error {
	args := []string{"bench", "serve", "--stdio"}
	if f.UDP != "" {
		args = append(args, "--udp", f.UDP)
	}
	if f.TAP != "" {
		args = append(args, "--tap", f.TAP, "--addr", f.Addrs[0], "--mtu", strconv.Itoa(f.MTU))
	}
	if o.Profile != "" {
		args = append(args, "--cpu-profile", o.Profile)
	}
	cmd := exec.Command(o.Program, args...)
	cmd.Stderr = o.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("the second process: %w", err)
	}
	p.ends = append(p.ends, func() error {
		in.Close()
		if err := cmd.Wait(); err != nil {
			return fmt.Errorf("the second process: %w", err)
		}
		return nil
	})
	p.Other = struct {
		io.Reader
		io.Writer
	}{out, in}
	// Steps and answers alternate, so that nothing of what follows is read here.
	_, err = newStream(p.Other).ask(message{Step: "ready"})
	return err
}
